"""The audit of rows: what contradicts between tables is counted."""

import json
import shutil
import time
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice import Project, bronze, silver
from sluice.cli.printing import exact, shown
from sluice.errors import UsageError
from sluice.operate.query import query
from sluice.storage.delta import Lake
from tests.commands import sluice
from tests.damage import damage
from tests.kit import Lakehouse, at, text
from tests.shop import priced


def test_the_audit_notices_facts_that_are_missing_doubled_or_invented_and_versions_that_overlap(
    lakehouse: Lakehouse,
) -> None:
    lakehouse.declare(priced)
    lakehouse.publish("sales", *[{"id": str(n), "product": "p", "sold_at": text(n)} for n in range(4)])
    lakehouse.publish("prices", *[{"product": "p", "changed_at": text(n), "price": n} for n in range(3)]).run()
    found = lakehouse.laws()
    assert {each.broken for each in found} == {0}
    assert {each.dataset for each in found} == {each.name for each in lakehouse.catalogue.datasets}

    damage(lakehouse.lake, "silver.priced", "DELETE WHERE id = '0'")
    facts = f"delta.`{lakehouse.lake.path('silver.priced')}`"
    lakehouse.spark.sql(f"INSERT INTO {facts} SELECT * FROM {facts} WHERE id = '1'").collect()
    damage(lakehouse.lake, "silver.priced", "UPDATE SET id = 'x' WHERE id = '2'")
    damage(lakehouse.lake, "silver.prices", "UPDATE SET valid_to = NULL WHERE price = 0")
    assert {each.law: each.broken for each in lakehouse.laws() if each.broken} == {
        "rows of silver.sales that are missing": 2,
        "rows not of silver.sales": 1,
        "rows that are there twice": 1,
        "versions that overlap": 1,
        "versions with a wrong is_current": 1,
    }

    for file in Path(lakehouse.lake.path("silver.prices")).glob("*.parquet"):
        file.write_bytes(b"no Parquet")
    found = lakehouse.laws()
    assert {each.dataset for each in found if each.unknown} == {"silver.prices"}
    assert not any(each.balanced for each in found if each.unknown)
    assert "rows that are there twice" in {each.law for each in found if not each.unknown}


def test_the_end_of_all_time_can_be_queried(lakehouse: Lakehouse) -> None:
    contracts = silver.history(
        "contracts",
        source=bronze.topic("contracts"),
        schema="id string, signed_at timestamp, ends_at timestamp",
        keys=["id"],
        sequence_by="signed_at",
        future_tolerance="1000 days",
    )
    lakehouse.declare(contracts)
    lakehouse.publish("contracts", {"id": "a", "signed_at": text(1), "ends_at": "9999-12-31T00:00:00Z"}).run()
    found = query(lakehouse.lake, "SELECT ends_at FROM silver.contracts")
    assert found.rows == [(datetime(9999, 12, 31, tzinfo=UTC),)]


@pytest.mark.parametrize("form", [["--json"], []])
def test_a_time_without_an_end_is_no_last_time_of_python(lake: Lake, tmp_path: Path, form: list[str]) -> None:
    (tmp_path / "pipelines").mkdir()
    sql = (
        "SELECT 'infinity'::TIMESTAMPTZ AS at, ['-infinity'::DATE] AS days, 1 AS n, 2 AS n FROM gold.sold; -- it's all"
    )
    said = sluice("query", sql, *form, here=tmp_path, environment={"SLUICE_LAKE": lake.root}).stdout
    assert "'-infinity'" in said or '"-infinity"' in said
    assert "infinity" in said.replace("-infinity", "")
    assert "9999" not in said


def test_what_json_does_not_know_is_text(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    sql = (
        "SELECT MAP {DATE '2026-01-01': 'NaN'::DOUBLE} AS by_day, -'Infinity'::FLOAT AS least, 'infinity'::DATE AS day"
    )
    done = sluice("query", sql, "--json", here=tmp_path, environment={"SLUICE_LAKE": lake.root})
    (row,) = json.loads(done.stdout, parse_constant=pytest.fail)
    assert row == {"by_day": {"2026-01-01": "NaN"}, "least": "-Infinity", "day": "infinity"}


def test_in_python_a_time_without_an_end_is_the_last_one_or_its_name(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    with Project(tmp_path, {"lake": lake.root}) as project:
        found = project.query("SELECT 'infinity'::TIMESTAMP AS at, NULL::DATE AS day, DATE '2026-01-01' AS other")
        other = project.query("DESCRIBE gold.sold")
    assert found.rows == [(datetime.max, None, date(2026, 1, 1))]  # noqa: DTZ901 - it has no zone
    assert found.rows_with_infinity == [("infinity", None, date(2026, 1, 1))]
    assert found.arrow()["at"].cast(pa.int64()).to_pylist() == [2**63 - 1]
    assert other.rows_with_infinity == other.rows


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with one table of one row, and a file beside it."""
    found = Lake(str(tmp_path / "lake"))
    found.add(pa.table({"name": ["a\x1b[31m"], "amount": [1]}), "gold.sold")
    (tmp_path / "secret.csv").write_text("password\nhunter2\n")
    return found


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{folder}/secret.csv')",
        "SELECT * FROM '{folder}/secret.csv'",
        "SELECT * FROM read_text('{folder}/secret.csv')",
        "SELECT * FROM glob('{folder}/*')",
        "COPY (SELECT 1) TO '{folder}/written.csv'",
        "EXPORT DATABASE '{folder}/written'",
        "ATTACH '{folder}/written.db'",
        "INSTALL httpfs",
        "LOAD '{folder}/written.duckdb_extension'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "CREATE SECRET (TYPE s3, KEY_ID 'a', SECRET 'b')",
        "SELECT * FROM lake",
    ],
)
def test_a_query_reaches_nothing_but_the_tables(lake: Lake, tmp_path: Path, sql: str) -> None:
    assert query(lake, "SELECT amount FROM gold.sold").rows == [(1,)]
    with pytest.raises(UsageError, match="cannot be answered"):
        query(lake, sql.format(folder=tmp_path))
    assert {each.name for each in tmp_path.iterdir()} == {"lake", "secret.csv"}


def test_the_folder_for_what_does_not_fit_into_memory_is_out_of_reach_too(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB would allow the folder `.tmp` where the command runs, if somebody had made it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp" / "secret").write_text("hunter2")
    for sql in (
        "SELECT * FROM read_text('.tmp/secret')",
        "COPY (SELECT 1) TO '.tmp/written.csv'",
        "ATTACH '.tmp/written.db' AS other",
        "SET temp_directory = '.tmp'",
    ):
        with pytest.raises(UsageError, match="cannot be answered"):
            query(lake, sql)
    assert [each.name for each in (tmp_path / ".tmp").iterdir()] == ["secret"]


def test_what_was_known_at_the_time_of_a_commit_includes_it_also_in_a_copy(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    for amount in range(3):
        write_deltalake(lake.path("gold.sold"), pa.table({"amount": [amount]}), mode="append")
        time.sleep(0.02)
    stops = [each["timestamp"] / 1000 for each in reversed(DeltaTable(lake.path("gold.sold")).history())]
    copied = Lake(str(tmp_path / "copy"))
    shutil.copytree(tmp_path / "lake", tmp_path / "copy", copy_function=shutil.copyfile)
    for each in (lake, copied):
        counts = [query(each, "SELECT count(*) FROM gold.sold", datetime.fromtimestamp(at, UTC)).rows for at in stops]
        assert counts == [[(1,)], [(2,)], [(3,)]]


def test_a_table_that_was_made_later_is_said_to_be_so_and_no_other_is_suggested(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    for name in ("gold.sold_before", "gold.sold"):
        write_deltalake(lake.path(name), pa.table({"amount": [1]}))
        time.sleep(0.02)
    (first,) = DeltaTable(lake.path("gold.sold")).history()
    since = datetime.fromtimestamp(first["timestamp"] / 1000, UTC)
    known_at = datetime.fromtimestamp(first["timestamp"] / 1000 - 0.01, UTC)
    said = rf"^gold.sold was not there yet at .*: its first version is of {since:%Y-%m-%d %H:%M:%S}\.\d{{3}} UTC\.$"
    with Project(tmp_path, {"lake": lake.root}, any_folder=True) as project:
        assert project.query("SELECT amount FROM gold.sold_before", known_at).rows == [(1,)]
        for sql in ("SELECT amount FROM gold.sold", 'WITH a AS (FROM Gold."SOLD") SELECT nope FROM a'):
            with pytest.raises(UsageError, match=said):
                project.query(sql, known_at)
        with pytest.raises(UsageError, match=said):
            project.table("gold.sold", known_at)
        with pytest.raises(UsageError, match="sold_befor does not exist"):
            project.query("SELECT amount FROM gold.sold_befor", known_at)
        write_deltalake(lake.path("gold.sold"), pa.table({"amount": [2]}), mode="append")
        DeltaTable(lake.path("gold.sold")).create_checkpoint()
        (tmp_path / "lake/gold/sold/_delta_log" / f"{0:020}.json").unlink()
        with pytest.raises(UsageError, match="is no longer known: its log begins with version 1"):
            project.query("SELECT amount FROM gold.sold", known_at)


def test_files_are_reached_where_that_is_allowed(lake: Lake, tmp_path: Path) -> None:
    found = query(lake, f"SELECT password FROM read_csv('{tmp_path}/secret.csv')", allow_files=True)
    assert found.rows == [("hunter2",)]


@pytest.mark.parametrize("sql", ["", ";", "  ", "-- nothing"])
def test_a_query_that_asks_nothing_is_refused(lake: Lake, sql: str) -> None:
    with pytest.raises(UsageError, match="asks for nothing"):
        query(lake, sql)


def test_a_query_of_which_only_the_last_answer_would_be_shown_is_refused(lake: Lake) -> None:
    with pytest.raises(UsageError, match="asks for several answers"):
        query(lake, "SELECT 1; SELECT 2")
    assert query(lake, "CREATE TEMP TABLE t AS SELECT 1 AS a; SELECT a FROM t;").rows == [(1,)]


def test_what_steers_a_terminal_is_shown_escaped() -> None:
    assert shown("a\x1b[31m\r\n\x00\u202eb") == "a\\x1b[31m\\r\\n\\x00\\u202eb"
    assert shown("naïve ✓ 👩‍👧 שלום") == "naïve ✓ 👩‍👧 שלום"


def test_times_and_numbers_are_shown_with_what_tells_them_apart() -> None:
    assert [shown(at(hours)) for hours in (0.5, 0.5 + 0.373 / 3600)] == [
        "2026-01-01 00:30:00",
        "2026-01-01 00:30:00.373",
    ]
    assert [shown(each) for each in (1234.567, 0.0, 0.00123)] == ["1,234.57", "0.00", "0.00123"]
    assert [exact(each) for each in (at(0.000001), 0.001, None)] == ["2026-01-01T00:00:00.003600Z", "0.001", "null"]
