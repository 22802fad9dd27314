"""What Great Expectations itself says of rows and tables: the oracle of expectations."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sluice.expect import Expectation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def failing_rows(df: "DataFrame", expectation: Expectation) -> set[int]:
    """The values of `id` of the rows that fail the expectation."""
    wanted = {"result_format": "COMPLETE", "unexpected_index_column_names": ["id"]}
    result = batch_of(df).validate(made(expectation), result_format=wanted)
    assert not result.exception_info or not result.exception_info.get("raised_exception"), result.exception_info
    return {row["id"] for row in result.result.get("unexpected_index_list") or []}


def batch_of(df: "DataFrame") -> Any:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
    asset = context.data_sources.add_spark(name="rows", persist=False).add_dataframe_asset(name="rows")
    return asset.add_batch_definition_whole_dataframe("all").get_batch(batch_parameters={"dataframe": df})


def made(expectation: Expectation) -> Any:
    """The expectation as one of Great Expectations' own."""
    from great_expectations.expectations import registry

    own_name = expectation.type == "unexpected_rows_expectation"
    kind = expectation.type if own_name else f"expect_{expectation.type}"
    # Great Expectations cannot compare a time that has a zone.
    arguments: dict[str, Any] = {
        name: value.removesuffix("+00:00") if isinstance(value, str) else value
        for name, value in expectation.arguments.items()
    }
    return registry.get_expectation_impl(kind)(**arguments, meta={"name": expectation.name})


def table_verdicts(df: "DataFrame", expectations: Sequence[Expectation]) -> dict[str, tuple[bool, object]]:
    """Whether the table keeps each expectation, by name, and the value that was observed."""
    import great_expectations as gx

    batch = batch_of(df)
    results = batch.validate(gx.ExpectationSuite("all", expectations=[made(each) for each in expectations])).results
    for each in results:
        assert not any(info.get("raised_exception") for info in raised(each.exception_info)), each.exception_info
    return {
        each.expectation_config.meta["name"]: (bool(each.success), each.result.get("observed_value"))
        for each in results
    }


def raised(info: Any) -> list[Any]:
    """What was raised: one description, or one for each metric."""
    return [info] if "raised_exception" in info else list(info.values())
