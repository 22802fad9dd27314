"""What Great Expectations itself says of rows: the oracle of row rules."""

import os
from typing import TYPE_CHECKING

from sluice.expect import Expectation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def failing_rows(df: "DataFrame", expectation: Expectation) -> set[int]:
    """The values of `id` of the rows that fail the expectation."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    from great_expectations.expectations import registry

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
    asset = context.data_sources.add_spark(name="rows", persist=False).add_dataframe_asset(name="rows")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch(batch_parameters={"dataframe": df})
    made = registry.get_expectation_impl(f"expect_{expectation.type}")(**expectation.arguments)
    result = batch.validate(made, result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["id"]})
    assert not result.exception_info or not result.exception_info.get("raised_exception"), result.exception_info
    return {row["id"] for row in result.result.get("unexpected_index_list") or []}
