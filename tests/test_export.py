"""Exports: the rows of one version in other programs' hands, whole or not at all, whatever the values are."""

import json
import math
import shutil
import signal
import sys
import threading
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import csv as arrow_csv
from pyarrow import dataset, parquet

from sluice import Project
from sluice.errors import SluiceError, UsageError
from sluice.operate import export
from sluice.operate.export import export_changes
from sluice.operate.subscribe import Cursor, Subscription
from sluice.storage.delta import Lake
from tests.commands import sluice
from tests.forked import Forked
from tests.waiting import eventually

texts = ["a\nb", 'say "x"', None, "", ",é\r\n", "/=%", "007", "NULL", "a\0b"]
numbers = [1.5, math.nan, math.inf, None, -math.inf, 1e300, 0.1, -2.0, 3.0]
utc_microseconds = pa.timestamp("us", "UTC")
rows = pa.table(
    {
        "id": pa.array(range(9), pa.int64()),
        "text": texts,
        "number": numbers,
        "amount": pa.array(
            [Decimal("12345678901234567890123456789.10"), *[Decimal("-0.01")] * 8], pa.decimal128(38, 2)
        ),
        "at": pa.array([0, 2**63 - 1, -(2**63 - 1), 1_500_000, None, -1, 2, 3, 4], utc_microseconds),
        "day": pa.array([date(2026, 1, n) for n in range(1, 9)] + [None], pa.date32()),
        "raw": [b"\xff\x00", b"", None, *[b"a"] * 6],
        "ok": [True, False, None, *[True] * 6],
        "nested": [
            {"list": [1.0, math.nan, None], "at": datetime(2026, 1, 1, tzinfo=UTC), "text": 'é "'},
            None,
            *[{"list": [], "at": None, "text": ""}] * 7,
        ],
    }
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    write_deltalake(tmp_path / "lake/gold/sold", rows, configuration={"delta.enableChangeDataFeed": "true"})
    return Project(tmp_path, {"lake": str(tmp_path / "lake")}, any_folder=True)


def test_parquet_has_the_rows_and_the_types(project: Project, tmp_path: Path) -> None:
    made = project.export("gold.sold", tmp_path / "out")
    found = parquet.read_table(tmp_path / "out/part-0.parquet")
    assert (made.rows, made.version) == (9, 0)
    assert [each.type for each in found.schema][:-1] == [each.type for each in rows.schema][:-1]
    assert repr(found["nested"].to_pylist()) == repr(rows["nested"].to_pylist())
    for name in rows.column_names[:-1]:
        kept = (found[name].combine_chunks(), rows[name].combine_chunks())
        bits = [each.view(pa.int64()) if name in {"number", "at"} else each for each in kept]
        assert bits[0].equals(bits[1]), name
    assert duckdb.connect().execute(f"SELECT count(*), sum(id) FROM '{tmp_path}/out/*.parquet'").fetchall() == [(9, 36)]
    assert pd.read_parquet(tmp_path / "out", columns=["id", "text"])["text"].tolist() == texts
    assert json.loads((tmp_path / "out/_export.json").read_text())["table"] == "gold.sold"


def test_csv_tells_null_from_empty_text_and_nested_values_are_json(project: Project, tmp_path: Path) -> None:
    project.export("gold.sold", tmp_path / "out", "csv")
    options = arrow_csv.ConvertOptions(
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
        column_types={name: pa.string() for name in rows.column_names},
    )
    parse = arrow_csv.ParseOptions(newlines_in_values=True)
    found = arrow_csv.read_csv(tmp_path / "out/part-0.csv", convert_options=options, parse_options=parse)
    assert found.column_names == rows.column_names
    assert found["text"].to_pylist() == texts
    assert found["number"].to_pylist() == ["1.5", "nan", "inf", None, "-inf", "1e+300", "0.1", "-2", "3"]
    assert found["amount"].to_pylist()[:2] == ["12345678901234567890123456789.10", "-0.01"]
    assert found["at"].to_pylist()[:6] == [
        "1970-01-01T00:00:00.000000Z",
        "infinity",
        "-infinity",
        "1970-01-01T00:00:01.500000Z",
        None,
        "1969-12-31T23:59:59.999999Z",
    ]
    assert found["day"].to_pylist()[:2] == ["2026-01-01", "2026-01-02"]
    assert found["raw"].to_pylist()[:3] == ["ff00", "", None]
    assert found["ok"].to_pylist()[:3] == ["true", "false", None]
    nested = found["nested"].to_pylist()
    assert nested[1] is None
    assert json.loads(str(nested[0])) == {
        "list": [1.0, "NaN", None],
        "at": "2026-01-01T00:00:00.000000Z",
        "text": 'é "',
    }
    ducks = (
        duckdb.connect()
        .execute(
            f"SELECT text, \"at\" FROM read_csv('{tmp_path}/out/*.csv', all_varchar = true, allow_quoted_nulls = false)"
        )
        .fetchall()
    )
    assert [text for text, _ in ducks] == texts
    # pandas reads a text up to a zero byte.
    frame = pd.read_csv(tmp_path / "out/part-0.csv", usecols=["id", "text"], keep_default_na=False, lineterminator="\n")
    assert frame["text"].tolist() == [each or "" for each in [*texts[:8], "a"]]


def test_a_csv_of_one_column_with_null_is_refused_because_readers_skip_empty_lines(
    project: Project, tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "lake/gold/one", pa.table({"text": ["a", None]}))
    with pytest.raises(UsageError, match="text is null in a row"):
        project.export("gold.one", tmp_path / "out", "csv")
    assert project.export("gold.one", tmp_path / "out", "csv", where="text IS NOT NULL").rows == 1


@pytest.mark.parametrize("form", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("text", "VARCHAR"),
        ("number", "DOUBLE"),
        ("amount", "DECIMAL(38, 2)"),
        ("at", "TIMESTAMPTZ"),
        ("day", "DATE"),
        ("ok", "BOOLEAN"),
    ],
)
def test_every_value_comes_back_from_the_name_of_its_folder(
    project: Project, tmp_path: Path, form: Any, name: str, kind: str
) -> None:
    values: Any = {"id": rows["id"], name: rows[name]}
    if name == "text":
        # DuckDB reads the name of a folder up to a zero byte.
        values = {each: column.slice(0, 8) for each, column in values.items()}
    write_deltalake(tmp_path / "lake/gold/parts", pa.table(values))
    project.export("gold.parts", tmp_path / "out", form, partition_by=[name])
    read = f"read_{form}('{tmp_path}/out/**/*.{form}', hive_partitioning = true, hive_types = {{'{name}': VARCHAR}})"
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    wanted = pa.table(values)  # noqa: F841 - DuckDB reads it by its name
    differ = f'SELECT id, CAST("{name}" AS {kind}) FROM {read} EXCEPT SELECT id, "{name}" FROM wanted'
    assert connection.execute(differ).fetchall() == []
    assert connection.execute(f"SELECT count(*) FROM {read}").fetchall() == [(len(values["id"]),)]
    if form == "parquet" and name == "text":
        schema = dataset.partitioning(pa.schema([(name, pa.string())]), flavor="hive")
        again = dataset.dataset(tmp_path / "out", partitioning=schema).to_table(columns=["id", name]).sort_by("id")
        assert again[name].to_pylist() == texts[:8]
        # Spark would read %C3%A9 as two characters.
        assert (tmp_path / "out/text=%2Cé%0D%0A").is_dir()


def test_two_columns_make_folders_in_folders_and_an_empty_export_has_the_columns(
    project: Project, tmp_path: Path
) -> None:
    project.export("gold.sold", tmp_path / "two", partition_by=["day", "ok"], where="id < 2")
    found = sorted(str(each.relative_to(tmp_path / "two")) for each in (tmp_path / "two").rglob("*.parquet"))
    assert found == ["day=2026-01-01/ok=true/part-0.parquet", "day=2026-01-02/ok=false/part-0.parquet"]
    for form in ("parquet", "csv"):
        assert project.export("gold.sold", tmp_path / form, form, where="false").rows == 0
    assert parquet.read_table(tmp_path / "parquet/part-0.parquet").column_names == rows.column_names
    assert arrow_csv.read_csv(tmp_path / "csv/part-0.csv").column_names == rows.column_names


def test_what_was_known_at_a_time_is_exported(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "lake/gold/sold"
    (first,) = DeltaTable(path).history()
    time.sleep(0.02)
    DeltaTable(path).delete("id > 3")
    known_at = datetime.fromtimestamp(first["timestamp"] / 1000 + 0.005, UTC)
    assert project.export("gold.sold", tmp_path / "then", known_at=known_at).rows == 9
    assert project.export("gold.sold", tmp_path / "now").rows == 4
    with pytest.raises(UsageError, match=r"gold\.sold was not there yet"):
        project.export("gold.sold", tmp_path / "before", known_at=datetime(2020, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "gold.nope"}, "There is no table gold.nope"),
        ({"format": "jsonl"}, "as parquet or csv, not as jsonl"),
        ({"format": "xml"}, "as parquet or csv, not as xml"),
        ({"partition_by": ["nope"]}, "no column 'nope' to partition by"),
        ({"partition_by": ["raw"]}, "raw is binary"),
        ({"partition_by": ["nested"]}, "nested is struct"),
        ({"partition_by": ["day", "day"]}, "names a column twice"),
        ({"partition_by": rows.column_names[:6]}, None),
        ({"where": "id >"}, "is not an SQL expression"),
        ({"where": "1) UNION SELECT (1"}, "is not an SQL expression"),
        (
            {"where": f"1 = 1) UNION ALL (SELECT {', '.join(['NULL'] * len(rows.column_names))}"},
            "is not an SQL expression",
        ),
        ({"where": "nope = 1"}, "cannot be answered"),
        ({"where": "id IN (SELECT 1 FROM read_text('/etc/hostname'))"}, "cannot be answered"),
        ({"since": 0}, "Only a changelog begins after a version"),
        ({"changelog": True, "partition_by": ["id"]}, "give no partition_by"),
        ({"changelog": True, "since": "x"}, "not a place in a table's changes"),
        ({"changelog": True, "since": 7}, "there is no version 7"),
        ({"changelog": True, "table": "gold.nope"}, "There is no table gold.nope"),
        ({"folder": "s3://bucket/out"}, "is not a local folder"),
        ({"folder": "lake/gold"}, "Sluice's own folder"),
        ({"folder": ".sluice/log/topic"}, "Sluice's own folder"),
        ({"folder": "."}, "Sluice's own folder"),
        ({"partition_by": ["_hidden"], "table": "gold.hidden"}, "PyArrow and pandas skip folders"),
        ({"folder": "occupied"}, "is no export"),
        ({"folder": "occupied", "replace": True}, "is no export"),
        ({"folder": "occupied/file"}, "is no export|cannot be written"),
        ({"folder": "occupied/file/out"}, "cannot be written"),
    ],
)
def test_a_wrong_option_is_refused_and_writes_nothing(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], said: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    write_deltalake(tmp_path / "lake/gold/hidden", pa.table({"_hidden": ["a"], "id": [1]}))
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied/file").write_text("mine")
    given = {"table": "gold.sold", "folder": "out"} | options
    if said is None:
        project.export(**given)
        return
    with pytest.raises(SluiceError, match=said):
        project.export(**given)
    assert {each.name for each in tmp_path.iterdir() if not each.name.endswith(".lock")} == {"lake", "occupied"}
    assert (tmp_path / "occupied/file").read_text() == "mine"


def test_a_text_that_stands_for_null_and_one_too_long_cannot_be_names_of_folders(
    project: Project, tmp_path: Path
) -> None:
    for text, said in ((export.null_partition, "stands for null"), ("é" * 200, "too long")):
        write_deltalake(tmp_path / "lake/gold/parts", pa.table({"id": [1], "text": [text]}), mode="overwrite")
        with pytest.raises(UsageError, match=said):
            project.export("gold.parts", tmp_path / "out", partition_by=["text"])
        assert not (tmp_path / "out").exists()


def test_an_export_is_replaced_only_when_asked(project: Project, tmp_path: Path) -> None:
    project.export("gold.sold", tmp_path / "out", partition_by=["day"])
    with pytest.raises(UsageError, match="Give --replace"):
        project.export("gold.sold", tmp_path / "out")
    project.export("gold.sold", tmp_path / "out", where="id = 1", replace=True)
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["_export.json", "part-0.parquet"]
    (tmp_path / "out/_SUCCESS").touch()
    project.export("gold.sold", tmp_path / "out", partition_by=["day"], replace=True)
    project.export("gold.sold", tmp_path / "out", replace=True)
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"beside it notes\.txt"):
        project.export("gold.sold", tmp_path / "out", replace=True)


def test_the_working_folder_is_no_target(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in (".", "", "../here"):
        with pytest.raises(UsageError, match="is the working directory"):
            project.export("gold.sold", name)
    assert project.export("gold.sold", "out").rows == 9


def gone_while_replaced(project: Project, out: Path) -> int:
    """How often a reader finds no folder while it is replaced again and again."""
    project.export("gold.sold", out, replace=True)
    stop, gone = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            if not out.exists():
                gone.append(time.monotonic())

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(15):
        project.export("gold.sold", out, where=f"id <> {number % 9}", replace=True)
    stop.set()
    reader.join()
    return len(gone)


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is Linux's")
def test_a_reader_always_finds_the_export_that_is_replaced(project: Project, tmp_path: Path) -> None:
    assert gone_while_replaced(project, tmp_path / "out") == 0


def test_without_an_exchange_of_folders_the_newer_one_is_there_too(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other systems there is a moment without the folder, which is also how the test above is shown to notice."""
    rename = Path.rename

    def slow(self: Path, target: Path) -> Path:
        time.sleep(0.01)
        return rename(self, target)

    monkeypatch.setattr(export, "exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", slow)
    assert gone_while_replaced(project, tmp_path / "out") > 0
    assert parquet.read_table(tmp_path / "out/part-0.parquet")["id"].to_pylist() == [0, 1, 2, 3, 4, 6, 7, 8]


ids = pa.array(range(2_000_000))


@pytest.fixture(scope="module")
def lake_of_many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A lake with a table that takes a while to be exported."""
    lake = tmp_path_factory.mktemp("many") / "lake"
    write_deltalake(lake / "gold/large", pa.table({"id": ids, "text": pa.repeat("x" * 20, len(ids))}))
    return str(lake)


@pytest.mark.process
@pytest.mark.parametrize("had", [False, True])
def test_a_kill_in_the_middle_leaves_the_old_export_or_nothing(lake_of_many: str, tmp_path: Path, had: bool) -> None:
    project = Project(tmp_path, {"lake": lake_of_many}, any_folder=True)
    if had:
        project.export("gold.large", tmp_path / "out", "csv", where="id < 5")
    command = ("export", "gold.large", "out", "--format", "csv", "--replace")
    partial = tmp_path / ".out.partial/part-0.csv"
    with Forked(*command, here=tmp_path, environment={"SLUICE_LAKE": lake_of_many}) as running:
        eventually(lambda: partial.exists() and partial.stat().st_size > 100_000)
        running.send_signal(signal.SIGKILL)
    assert partial.exists(), "it ended before the kill"
    if had:
        assert arrow_csv.read_csv(tmp_path / "out/part-0.csv").num_rows == 5
    else:
        assert not (tmp_path / "out").exists()
    assert project.export("gold.large", tmp_path / "out", "csv", replace=True).rows == len(ids)
    found = arrow_csv.read_csv(tmp_path / "out/part-0.csv")
    assert found["id"].combine_chunks().sort().equals(ids)
    assert not partial.parent.exists()


def test_two_exports_to_one_folder_do_not_meet(project: Project, tmp_path: Path) -> None:
    with (
        export.written(tmp_path / "out", replace=False),
        pytest.raises(UsageError, match="Another process exports"),
    ):
        project.export("gold.sold", tmp_path / "out")


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_a_changelog_applied_gives_the_table(project: Project, tmp_path: Path, form: Any) -> None:
    path = tmp_path / "lake/gold/sold"
    DeltaTable(path).update(updates={"text": "'new'"}, predicate="id = 3")
    DeltaTable(path).delete("id > 6")
    made = project.export("gold.sold", tmp_path / "out", form, changelog=True)
    found = changes_in(tmp_path / "out", form)
    assert (made.rows, made.version) == (len(found), 2)
    copy: list[str] = []
    for each in found:
        if each["old"] is not None:
            copy.remove(repr(each["old"]))
        if each["new"] is not None:
            copy.append(repr(each["new"]))
    now = project.export("gold.sold", tmp_path / "now", form, changelog=True, since=-1, where="id <= 6 AND id <> 3")
    kept = [repr(each["new"]) for each in changes_in(tmp_path / "now", form) if each["new"] is not None]
    assert sorted(each for each in copy if "'id': 3" not in each) == sorted(kept)
    assert len(copy) == 7
    assert now.version == 2
    later = project.export("gold.sold", tmp_path / "later", form, changelog=True, since=1)
    assert {(each["operation"], each["version"]) for each in changes_in(tmp_path / "later", form)} == {("delete", 2)}
    assert later.rows == 2
    assert later.cursor is not None
    none = project.export("gold.sold", tmp_path / "none", form, changelog=True, since=later.cursor)
    assert (none.rows, none.cursor) == (0, later.cursor)
    again = project.export("gold.sold", tmp_path / "again", form, changelog=True, since=2)
    assert again.cursor is not None
    assert project.export("gold.sold", tmp_path / "more", form, changelog=True, since=again.cursor).rows == 0


def test_a_changelog_that_goes_on_notices_that_the_table_was_made_again(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    feed = {"delta.enableChangeDataFeed": "true"}
    for number in (1, 2):
        write_deltalake(lake.path("gold.a"), pa.table({"id": [number]}), mode="append", configuration=feed)
    made = export_changes(Subscription(lake, "gold.a", ("id",)), tmp_path / "one")
    assert json.loads((tmp_path / "one" / "_export.json").read_text())["cursor"] == made.cursor
    shutil.rmtree(lake.path("gold.a"))
    for number in (7, 8, 9):
        write_deltalake(lake.path("gold.a"), pa.table({"id": [number]}), mode="append", configuration=feed)
    with pytest.raises(SluiceError, match="the table was made again"):
        export_changes(Subscription(lake, "gold.a", ("id",)), tmp_path / "two", since=Cursor.of(made.cursor or ""))


def changes_in(folder: Path, form: str) -> list[dict[str, Any]]:
    """The changes of an export, each side as a mapping."""
    match form:
        case "parquet":
            sql = "SELECT operation, version, CAST(old AS VARCHAR) AS old, CAST(new AS VARCHAR) AS new"
            read = duckdb.connect().execute(f"{sql} FROM '{folder}/*.parquet'")
            return [
                dict(zip([each[0] for each in read.description or []], row, strict=True)) for row in read.fetchall()
            ]
        case "csv":
            read = duckdb.connect().execute(
                f"SELECT * FROM read_csv('{folder}/*.csv', types = {{'old': 'VARCHAR', 'new': 'VARCHAR'}})"
            )
            lines: list[dict[str, Any]] = [
                dict(zip([each[0] for each in read.description or []], row, strict=True)) for row in read.fetchall()
            ]
            return [each | {side: each[side] and json.loads(each[side]) for side in ("old", "new")} for each in lines]
        case _:
            return [json.loads(line) for line in (folder / "part-0.jsonl").read_text().split("\n") if line]


def test_a_changelog_has_times_without_an_end_and_says_when_columns_differ(project: Project, tmp_path: Path) -> None:
    project.export("gold.sold", tmp_path / "out", changelog=True)
    found = parquet.read_table(tmp_path / "out/part-0.parquet")["new"].combine_chunks()
    assert isinstance(found, pa.StructArray)
    assert found.field("at").view(pa.int64()).to_pylist()[:4] == [0, 2**63 - 1, -(2**63 - 1), 1_500_000]
    path = tmp_path / "lake/gold/sold"
    wider = pa.table({"id": [1], "more": [2]})
    write_deltalake(path, wider, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(UsageError, match="had other columns, or other types, at version 0"):
        project.export("gold.sold", tmp_path / "all", changelog=True)
    assert project.export("gold.sold", tmp_path / "later", changelog=True, since=0).version == 1
    assert project.export("gold.sold", tmp_path / "lines", "jsonl", changelog=True).version == 1


def test_a_changelog_has_times_that_python_does_not_know(project: Project, tmp_path: Path) -> None:
    far = pa.array([-62167219200 * 10**6 - 1, 253402300800 * 10**6, -5 * 10**16], pa.int64())
    days = pa.array([-719163, 2932897, 0], pa.int32())
    table = pa.table(
        {"at": far.view(utc_microseconds), "local": far.view(pa.timestamp("us")), "day": days.view(pa.date32())}
    )
    write_deltalake(tmp_path / "lake/gold/far", table, configuration={"delta.enableChangeDataFeed": "true"})
    subscription = Subscription(project._here.lake, "gold.far", ("day",))
    export.export_changes(subscription, tmp_path / "out")
    found = parquet.read_table(tmp_path / "out/part-0.parquet")["new"].combine_chunks()
    assert isinstance(found, pa.StructArray)
    kept = [found.field(name).view(pa.int32() if name == "day" else pa.int64()) for name in table.column_names]
    wanted = zip(far.to_pylist(), far.to_pylist(), days.to_pylist(), strict=True)
    assert {*zip(*(each.to_pylist() for each in kept), strict=True)} == {*wanted}


def test_the_command_says_what_it_wrote(project: Project, tmp_path: Path) -> None:
    options = ["--format", "csv", "--json", "--where", "id < 3", "--partition-by", "ok, day"]
    lake = {"SLUICE_LAKE": project.lake.root}
    found = sluice("export", "gold.sold", "out", *options, here=tmp_path, environment=lake)
    assert json.loads(found.stdout)["rows"] == 3
    again = sluice("export", "gold.sold", "out", here=tmp_path, environment=lake)
    assert (again.returncode, "Give --replace" in again.stderr) == (2, True)
