"""Reports: what was checked, as Data Docs of Great Expectations that look right without a network.

The one module that knows Great Expectations: its sentences say what is expected and what was observed. The index shows
every dataset by layer, with how often its expectations were broken.
"""

import html
import importlib.util
import json
import os
import re
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.engine.catalogue import Catalogue
from sluice.errors import UsageError
from sluice.model.expectations import built_in_type, is_critical_sql
from sluice.model.rules import row_rules
from sluice.operate.json_text import counted
from sluice.operate.query import query
from sluice.quality.results import checks_table, state_of, state_of_counts
from sluice.storage.delta import Lake

if TYPE_CHECKING:
    from great_expectations.core.expectation_validation_result import ExpectationValidationResult
    from great_expectations.expectations.expectation import Expectation

assets = Path(__file__).with_name("assets")
folder_name = "_reports"
trend_checks = 20
# The columns that stand beside the status, the sentence and the value; Great Expectations sorts them.
shown_beside = {"Name": "name", "Rows broken": "rows", "Severity": "severity"}
link_to_suite = re.compile(r'<a href="[./]*expectations/[^"]*"\s*>([^<]*)</a>')
severity_words = {"warn": "warning", "quarantine": "info", "critical": "critical"}
shares = (*row_rules, "column_pair_values_a_to_be_greater_than_b", "column_pair_values_to_be_equal")
uniqueness = ("column_values_to_be_unique", "compound_columns_to_be_unique")


Row = Mapping[str, Any]


def write(lake: Lake, catalogue: Catalogue, checked: Mapping[str, Sequence[Row]]) -> str:
    """Writes a page for each dataset that was checked, from rows as in `gold._checks`, and the index of all.

    Returns where the index is. A UsageError names what is not installed and has to be.
    """
    if lacking := missing():
        raise UsageError(lacking)
    for name in ("bootstrap.min.css", "bootstrap.LICENSE", "sluice.css"):
        lake.files.write(f"{folder_name}/{name}", (assets / name).read_bytes())
    for dataset, rows in checked.items():
        if rows:
            lake.files.write(f"{folder_name}/{page_name(dataset)}", page(rows))
    pages = {name.removeprefix(f"{folder_name}/") for name in lake.files.below(folder_name)}
    lake.files.write(f"{folder_name}/index.html", index_page(pages, overview(lake, catalogue)))
    return f"{lake.root}/{folder_name}/index.html"


def missing() -> str | None:
    """What to install before a report can be written; None where all is there."""
    # grpc too: pyspark ends the process where Great Expectations imports its Connect client without it.
    lacking = [name for name in ("great_expectations", "grpc") if importlib.util.find_spec(name) is None]
    return f"A report needs {lacking[0]}: pip install 'sluice-lakehouse[quality]'" if lacking else None


def file(lake: Lake, name: str) -> str:
    """A page of the report, or what it is shown with; a UsageError when there is none of that name."""
    # By what there is, so that no name can lead out of the folder.
    if f"{folder_name}/{name}" not in lake.files.below(folder_name):
        raise UsageError(f"The report has no file {name}; write it with: sluice check")
    return lake.files.read(f"{folder_name}/{name}")


def page_name(dataset: str) -> str:
    return f"{dataset}.html"


def page(rows: Sequence[Row]) -> str:
    """The Data Docs of one check, in a page that needs nothing from elsewhere."""
    # Read when it is imported.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view.view import DefaultJinjaPageView
    from jinja2 import ChoiceLoader, FileSystemLoader

    dataset, version, checked_at = rows[0]["dataset"], rows[0]["version"], rows[0]["checked_at"]
    passed, count = sum(row["verdict"] == "passed" for row in rows), len(rows)
    result = ExpectationSuiteValidationResult(
        success=passed == count,
        results=[validation(escaped(row)) for row in rows],
        suite_name=dataset,
        statistics={
            "evaluated_expectations": count,
            "successful_expectations": passed,
            "unsuccessful_expectations": count - passed,
            "success_percent": 100 * passed / count,
        },
        meta={
            "run_id": {"run_name": f"version {version}", "run_time": str(checked_at)},
            "batch_kwargs": {"data_asset_name": dataset, "version": version},
        },
    )
    view = DefaultJinjaPageView()
    theirs = view.env.loader
    view.env.loader = ChoiceLoader([FileSystemLoader(assets), *([theirs] if theirs else [])])
    rendered = ValidationResultsPageRenderer().render(result)
    shown = str(view.render(rendered, state=state_of(rows)))  # type: ignore[no-untyped-call]
    # The suite stands in the project, not in the report.
    return link_to_suite.sub(r"\1", shown)


def escaped(row: Row) -> Row:
    """A result whose texts are text in HTML too: Great Expectations puts most of them in as they are.

    It escapes arguments itself, and the message where it stands in a sentence.
    """
    texts = {name: as_html(row[name]) for name in ("expectation", "meaning", "observed")}
    return {**row, **texts, "examples": json.dumps(as_html(json.loads(row["examples"] or "[]")))}


def as_html(value: Any) -> Any:
    """A value of JSON with all its texts, names included, escaped."""
    if isinstance(value, str):
        return html.escape(value)
    if isinstance(value, list):
        return [as_html(each) for each in value]
    if isinstance(value, dict):
        return {as_html(name): as_html(each) for name, each in value.items()}
    return value


def validation(row: Row) -> "ExpectationValidationResult":
    """A result as Great Expectations would have found it."""
    from great_expectations.core.expectation_validation_result import ExpectationValidationResult
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
    from great_expectations.expectations.metadata_types import FailureSeverity

    class Shown(ExpectationConfiguration):
        def to_domain_obj(self) -> "Expectation":
            """Without the columns beside it, which the page takes from here and the expectation itself forbids."""
            own = {name: value for name, value in self.kwargs.items() if name != "meta_properties_to_render"}
            described = ExpectationConfiguration(type=self.type, kwargs=own, description=self.description)
            return described.to_domain_obj()

    kind, arguments, meaning = row["type"], json.loads(row["arguments"]), row["meaning"]
    if kind == built_in_type:
        kind, mostly = "unexpected_rows_expectation", arguments.get("mostly", 1)
        arguments = {"unexpected_rows_query": "SELECT * FROM {batch}"}
        meaning = f"{meaning} At least {mostly:.2%} of them." if mostly < 1 else meaning
    return ExpectationValidationResult(
        success=row["verdict"] == "passed",
        expectation_config=Shown(
            type=kind if kind == "unexpected_rows_expectation" else f"expect_{kind}",
            kwargs=arguments | {"meta_properties_to_render": shown_beside},
            severity=FailureSeverity(severity_words[row["severity"]]),
            description=meaning,
            meta={"attributes": {"name": row["expectation"], "severity": row["severity"], "rows": rows_said(row)}},
        ),
        result=observed(row),
        exception_info={
            "raised_exception": row["verdict"] == "error",
            "exception_message": row["message"],
            "exception_traceback": as_html(row["message"]),
        },
    )


def observed(row: Row) -> dict[str, Any]:
    """What was seen, under the names that Great Expectations gives it."""
    if row["verdict"] == "error":
        return {}
    if row["type"] in (*shares, *uniqueness):
        rows, unexpected = row["rows"] or 0, row["unexpected_rows"] or 0
        return {
            "element_count": rows,
            "unexpected_count": unexpected,
            "unexpected_percent": 100 * unexpected / rows if rows else 0.0,
            "partial_unexpected_list": [as_text(each) for each in json.loads(row["examples"] or "[]")],
        }
    if row["unexpected_rows"] is None:
        return {"observed_value": row["observed"]}
    return {"observed_value": row["observed"] or counted(row["unexpected_rows"], "row")}


def rows_said(row: Row) -> str:
    """How many rows are wrong, of how many."""
    if row["unexpected_rows"] is None or row["rows"] is None:
        return "–"
    return f"{row['unexpected_rows']:,} of {row['rows']:,}"


def as_text(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in row.items())


def overview(lake: Lake, catalogue: Catalogue) -> list[dict[str, Any]]:
    """Each dataset with its newest check, and how many expectations were broken in the last ones."""
    known: dict[str, list[Any]] = {}
    if checks_table in lake.tables():
        rows = query(
            lake,
            "SELECT dataset, checked_at, version, count(*) FILTER (verdict = 'passed') AS passed, "
            "count(*) FILTER (verdict <> 'passed') AS failed, "
            "coalesce(sum(unexpected_rows) FILTER (severity = 'quarantine'), 0)::BIGINT AS set_aside, "
            f"count(*) FILTER {is_critical_sql} AS critical, "
            "coalesce(string_agg(expectation, ', ' ORDER BY expectation) FILTER (verdict <> 'passed'), '') AS broken "
            f"FROM {checks_table} GROUP BY dataset, checked_at, version, run ORDER BY checked_at",
        ).rows
        for row in rows:
            known.setdefault(row[0], []).append(row)
    return [
        overview_of(node.name, known.get(node.name, []), node.name in catalogue.suites) for node in catalogue.datasets
    ]


def overview_of(dataset: str, checks: Sequence[Sequence[Any]], has_suite: bool) -> dict[str, Any]:
    """One line of the index."""
    found: dict[str, Any] = {
        "dataset": dataset,
        "has_suite": has_suite,
        "state": state_of([]),
        "version": None,
        "checked_at": None,
        "passed": 0,
        "failed": 0,
        "set_aside": 0,
        "broken": "",
        "trend": [],
        "trend_max": 1,
    }
    if not checks:
        return found
    _, checked_at, version, passed, failed, set_aside, critical, broken = checks[-1]
    state = state_of_counts(passed + failed, failed, critical)
    trend = [row[4] for row in checks[-trend_checks:]]
    return found | {
        "state": "refused" if version is None else state,
        "version": version,
        "checked_at": f"{checked_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
        "passed": passed,
        "failed": failed,
        "set_aside": set_aside,
        "broken": broken,
        "trend": trend,
        "trend_max": max(*trend, 1),
    }


def index_page(pages: Set[str], found: Sequence[dict[str, Any]]) -> str:
    """The index, by layer, with links to the pages that there are."""
    rows = [each | {"page": name if (name := page_name(each["dataset"])) in pages else None} for each in found]
    layers = [
        (layer, [each for each in rows if each["dataset"].startswith(f"{layer.lower()}.")])
        for layer in ("Gold", "Silver")
    ]
    from jinja2 import Environment, FileSystemLoader, select_autoescape

    environment = Environment(loader=FileSystemLoader(assets), autoescape=select_autoescape(["html", "j2"]))
    return environment.get_template("index.j2").render(
        layers=layers, now=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}", trend_checks=trend_checks
    )
