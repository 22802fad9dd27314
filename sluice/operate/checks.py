"""Checks: what is expected of a table, asked of exactly one version of it, after it was committed."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb

from sluice.engine.catalogue import Catalogue
from sluice.engine.observer import Observer
from sluice.model.datasets import Dataset
from sluice.model.expectations import Expectation, Suite
from sluice.model.ledger import Commit
from sluice.operate.query import connection
from sluice.quality.built_in import BuiltIn, Scene, expected
from sluice.quality.conservation import without_fates
from sluice.quality.measure import Outcome, examples_max, measure
from sluice.quality.results import as_rows, record
from sluice.shapes.fates import fates_table
from sluice.storage.delta import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check(
    spark: "SparkSession",
    lake: Lake,
    catalogue: Catalogue,
    datasets: Sequence[Dataset],
    observer: Observer | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Checks the newest version of each dataset that there is, and keeps what was found: rows as in `gold._checks`."""
    found = {}
    for dataset in datasets:
        commit = lake.last_commit(dataset.name)
        if commit is not None:
            with (observer or Observer()).watching("check", [dataset.name], catalogue) as watch:
                watch.began("check", {dataset.name: commit.as_input})
                rows = check_version(spark, lake, dataset, commit, catalogue.suites.get(dataset.name))
                record(lake, rows)
                watch.done(tests=rows)
            found[dataset.name] = rows
    return found


def check_version(
    spark: "SparkSession", lake: Lake, dataset: Dataset, commit: Commit, suite: Suite | None = None
) -> list[dict[str, Any]]:
    """What is found of the dataset as one commit left it; one without a suite has only its built-in checks."""
    of_table = []
    if suite:
        rows = lake.read(spark, dataset.name, commit.version)
        of_table = measure(rows, suite.of_table, dataset.outputs[-1].grain)
    known = expected(dataset, suite.bounds if suite else {})
    versions = versions_seen(lake, dataset, commit)
    with connection(lake, versions=versions) as tables:
        if dataset.topics and fates_table not in versions:
            without_fates(tables)
        scene = Scene(tables, dataset, commit, datetime.now(UTC))
        of_rules = [set_aside(scene, each) for each in (suite.row_rules if suite else ())]
        of_engine = [looked(scene, expectation, each) for expectation, each in known]
    meanings = {expectation.name: each.meaning for expectation, each in known}
    return as_rows(dataset.name, commit.version, [*of_table, *of_rules, *of_engine], meanings)


def versions_seen(lake: Lake, dataset: Dataset, commit: Commit) -> dict[str, int]:
    """The tables that a check looks at, at the versions that the commit was computed from."""
    found = {name: seen.version for name, seen in commit.entry.inputs.items()}
    shared = [output.table for output in dataset.outputs[:-1]]
    for table in shared:
        version = lake.version_beside(table, commit)
        # An erasure changes nothing of what other datasets have in a table that they share.
        found[table] = lake.oldest_version(table) if version is None else version
    return {name: version for name, version in found.items() if lake.last_commit(name)} | {dataset.name: commit.version}


def set_aside(scene: Scene, rule: Expectation) -> Outcome:
    """How many records a row rule quarantined."""
    unexpected, rows = scene.row(
        f"SELECT count(*) FILTER (list_contains(string_split(reason, ','), '{rule.name}') AND fate = 'quarantined'), "
        f"count(*) + (SELECT count(*) FROM {scene.dataset.name}) "
        f"FROM {fates_table} WHERE dataset = '{scene.dataset.name}'"
    )
    examples = scene.tables.execute(
        f'SELECT concat_ws(\'/\', topic, "partition", "offset") FROM {fates_table} '
        f"WHERE dataset = '{scene.dataset.name}' AND list_contains(string_split(reason, ','), '{rule.name}') "
        f"AND fate = 'quarantined' ORDER BY ALL LIMIT {examples_max}"
    ).fetchall()
    return Outcome(
        rule,
        "failed" if unexpected else "passed",
        unexpected=unexpected,
        rows=rows,
        examples=tuple({"record": position} for (position,) in examples),
    )


def looked(scene: Scene, expectation: Expectation, check: BuiltIn) -> Outcome:
    """What a built-in check finds, judged by its bound."""
    try:
        found = check.look(replace(scene, within=expectation.arguments.get("within")))
    except duckdb.Error as error:
        return Outcome(expectation, "error", message=str(error).splitlines()[0])
    share_kept = 1 - found.unexpected / max(found.rows, found.unexpected, 1)
    is_kept = found.unexpected == 0 or (expectation.mostly < 1 and share_kept >= expectation.mostly)
    return Outcome(expectation, "passed" if is_kept else "failed", found.observed, found.unexpected, found.rows)
