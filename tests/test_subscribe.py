"""The changes of a table as a stream: applied to a copy they give the table, wherever reading was interrupted."""

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, WriterProperties, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice import Project
from sluice.errors import SluiceError, UsageError
from sluice.model.ledger import Entry, InputVersion
from sluice.operate import subscribe
from sluice.operate.subscribe import Change, Cursor, Subscription
from sluice.storage.delta import Lake, of_state
from sluice.storage.delta.opened import spark_types
from tests.commands import sluice

table = "gold.sold"
first_columns = {"id": "bigint", "amount": "double", "name": "string"}
Row = Mapping[str, Any]
Rows = Counter[str]
entry = Entry(dataset=table, cause="changes", inputs={"silver.sales": InputVersion(epoch="e", version=7)})
said = CommitProperties(custom_metadata={"userMetadata": entry.to_json()})
columns = pa.table(
    {"id": pa.array([], pa.int64()), "amount": pa.array([], pa.float64()), "name": pa.array([], pa.string())}
).schema
names = st.sampled_from(["a", "b", '"', "é\x1b"]) | st.none()
amounts = st.sampled_from([1.0, 2.5, float("nan"), float("inf")]) | st.none()
row_lists = st.lists(st.tuples(st.integers(0, 5), amounts, names), max_size=4)
unique_lists = st.lists(st.tuples(st.integers(0, 5), amounts, names), max_size=4, unique_by=lambda row: row[0])
commits = st.one_of(
    st.tuples(st.just("append"), row_lists),
    st.tuples(st.just("merge"), unique_lists),
    st.tuples(st.just("delete"), st.integers(0, 5)),
    st.tuples(st.just("replace"), row_lists),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("columns"), st.sampled_from(["more", "text", "plain"])),
)


def rows_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema = columns) -> pa.Table:
    return pa.table({name: [row[at] for row in rows] for at, name in enumerate(schema.names)}, schema=schema)


def made(lake: Lake, rows: Sequence[tuple[Any, ...]] = ()) -> str:
    """The table in its first version, and where it is."""
    path = lake.path(table)
    configuration = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(path, rows_of(rows), configuration=configuration, commit_properties=said)
    return path


def apply_commit(path: str, kind: str, given_: Any) -> None:
    """One commit of a random history."""
    found = DeltaTable(path)
    has_columns = spark_types(found) == first_columns
    match kind:
        case "append" if has_columns:
            write_deltalake(path, rows_of(given_), mode="append", commit_properties=said)
        case "merge" if has_columns:
            merger = found.merge(
                rows_of(given_), "s.id = t.id", source_alias="s", target_alias="t", commit_properties=said
            )
            merger.when_matched_update_all().when_not_matched_insert_all().execute()
        case "delete":
            found.delete(f"id = {given_}")
        case "replace" if has_columns:
            write_deltalake(path, rows_of(given_), mode="overwrite", commit_properties=said)
        case "compact":
            found.optimize.compact()
        case "columns":
            changed: dict[str, tuple[pa.Schema, list[tuple[Any, ...]]]] = {
                "more": (columns.append(pa.field("more", pa.int64())), [(1, 1.0, "a", 4), (2, None, None, None)]),
                "text": (columns.set(1, pa.field("amount", pa.string())), [(1, "x", "a"), (2, None, "b")]),
                "plain": (columns, [(1, 1.0, "a"), (3, None, "b")]),
            }
            schema, rows = changed[given_]
            data = rows_of(rows, schema)
            write_deltalake(path, data, mode="overwrite", schema_mode="overwrite")


class Copy:
    """A consumer: a bag of rows, and the cursor of the last line that it got."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.columns: Mapping[str, str] = {}
        self.cursor: str | None = None

    def take(self, change: Change) -> None:
        match change.operation:
            case "reset":
                self.rows, self.columns = [], change.columns or {}
            case "schema":
                before = self.columns or first_columns
                kept = {name for name, kind in (change.columns or {}).items() if before.get(name) == kind}
                self.columns = change.columns or {}
                self.rows = [
                    {name: row.get(name) if name in kept else None for name in self.columns} for row in self.rows
                ]
            case _:
                if change.old is not None:
                    held = [key_of(row) for row in self.rows]
                    # A row that is not there is a ValueError: the stream lied.
                    self.rows.pop(held.index(key_of(change.old)))
                if change.new is not None:
                    self.columns = self.columns or first_columns
                    self.rows.append(change.new)
        self.cursor = change.cursor


def key_of(row: Row) -> str:
    return repr(sorted(row.items()))


def bag(rows: Iterable[Row]) -> Rows:
    return Counter(map(key_of, rows))


def actual(lake: Lake, where: Callable[[Row], bool] = lambda row: True) -> Rows:
    return bag(row for row in lake.state(table, lake.newest_version(table)).to_pylist() if where(row))


def read(subscription: Subscription, copy: Copy, count: int | None = None) -> int:
    """Lets the copy read on from where it is, at most so many lines; how many there were."""
    since = None if copy.cursor is None else Cursor.of(copy.cursor)
    taken = 0
    for change in subscription.changes(since):
        if count is not None and taken == count:
            break
        copy.take(change)
        taken += 1
    return taken


history = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@history
@given(data=st.data(), key=st.sampled_from([(), ("id",), ("id", "name")]), snapshot=st.booleans())
def test_the_changes_applied_to_a_copy_give_the_table_wherever_reading_stopped(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, key: tuple[str, ...], snapshot: bool
) -> None:
    conserved(tmp_path_factory.mktemp("lake"), data, key, snapshot)


def conserved(folder: Path, data: st.DataObject, key: tuple[str, ...], snapshot: bool) -> None:
    lake = Lake(str(folder))
    path = made(lake, data.draw(row_lists))
    subscription, copy = Subscription(lake, table, key, snapshot=snapshot), Copy()
    for kind, given_ in data.draw(st.lists(commits, max_size=5)):
        apply_commit(path, kind, given_)
        if data.draw(st.booleans()):
            read(subscription, copy, data.draw(st.integers(0, 4)))
    while read(subscription, copy, data.draw(st.integers(1, 5))):
        pass
    assert bag(copy.rows) == actual(lake)


def test_a_position_that_does_not_exist_is_an_error_and_no_silence(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    path = made(lake, [(n, 1.0, "a") for n in range(3)])
    apply_commit(path, "append", [(7, 1.0, "a")])
    apply_commit(path, "compact", None)
    subscription = Subscription(lake, table, ("id",), "id = 0")
    assert list(subscription.changes(Cursor.of("0:2"))) == []
    with pytest.raises(UsageError, match="version 0 has positions 0 to 2; there is no position 3"):
        list(subscription.changes(Cursor.of("0:3")))
    with pytest.raises(UsageError, match="version 2 has no changes"):
        list(subscription.changes(Cursor.of("2:0")))
    with pytest.raises(UsageError, match="version 2 has positions 0 to 4"):
        list(Subscription(lake, table, snapshot=True).changes(Cursor.of("2:5:0:snapshot")))


@pytest.mark.parametrize("wrong", ["repeats", "skips"])
def test_a_stream_that_repeats_or_skips_a_line_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    real, off = subscribe.marked, -1 if wrong == "repeats" else 1

    def marked(changes: Any, after: Cursor | None, whole: Cursor, **more: Any) -> Any:
        moved = after and Cursor(after.version, None if after.position is None else max(0, after.position + off))
        return real(changes, moved, whole, **more)

    monkeypatch.setattr(subscribe, "marked", marked)
    lake, copy = Lake(str(tmp_path)), Copy()
    made(lake, [(n, 1.0, "a") for n in range(5)])
    for _ in range(20):
        read(Subscription(lake, table), copy, 2)
    assert bag(copy.rows) != actual(lake)


filters: list[tuple[str, Callable[[Row], bool]]] = [
    ("name = 'a' -- or so", lambda row: row["name"] == "a"),
    ("amount IS NULL", lambda row: row["amount"] is None),
    ("CAST(amount AS VARCHAR) = '1.0'", lambda row: str(row["amount"]) == "1.0"),
]


@history
@given(data=st.data())
def test_a_filter_gives_a_copy_of_the_rows_that_meet_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lake, copy = Lake(str(tmp_path_factory.mktemp("lake"))), Copy()
    path = made(lake)
    where, is_known = data.draw(st.sampled_from(filters))
    subscription = Subscription(lake, table, ("id",), where)
    for kind, given_ in data.draw(st.lists(commits, max_size=5)):
        apply_commit(path, kind, given_)
        read(subscription, copy, data.draw(st.integers(0, 3)))
    read(subscription, copy)
    assert bag(copy.rows) == actual(lake, is_known)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A table of three versions: two rows; one of them changed; the other gone, in a commit of another program."""
    found = Lake(str(tmp_path / "lake"))
    path = made(found, [(1, 1.0, "a"), (2, 2.0, "b")])
    apply_commit(path, "merge", [(1, float("nan"), "z")])
    apply_commit(path, "delete", 2)
    return found


def test_a_change_has_both_rows_and_says_why(lake: Lake) -> None:
    *_, update, delete = Subscription(lake, table, ("id",)).changes(None)
    assert (update.operation, update.version, update.cause, update.inputs) == (
        "update",
        1,
        "changes",
        {"silver.sales": 7},
    )
    assert update.old == {"id": 1, "amount": 1.0, "name": "a"}
    assert update.new is not None
    assert update.new["name"] == "z"
    assert (delete.operation, delete.old, delete.new) == ("delete", {"id": 2, "amount": 2.0, "name": "b"}, None)
    assert (delete.cause, delete.is_last) == ("another program (DELETE)", True)


def test_a_time_without_end_is_no_last_time_wherever_it_is(lake: Lake) -> None:
    days = pa.array([2**31 - 1, 1 - 2**31, 2_932_896], pa.int32()).cast(pa.date32())
    many = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), days)
    parts = pa.StructArray.from_arrays([days, many], ["day", "many"])
    named = pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), parts)  # type: ignore[call-overload]
    rows = pa.table({"id": [0, 1, 2, 3], "named": pa.concat_arrays([named, pa.nulls(1, named.type)])})
    found = [
        new
        for _, new in Subscription(lake, table, ("id",)).pairs(
            ["id", "named"], [of_state(rows, "insert", ["id", "named"])]
        )
    ]
    expected = zip("abc", ["infinity", "-infinity", date.max], strict=True)
    assert found == [
        *({"id": at, "named": {key: {"day": end, "many": [end]}}} for at, (key, end) in enumerate(expected)),
        {"id": 3, "named": None},
    ]


def test_a_row_that_leaves_the_filter_is_deleted(lake: Lake) -> None:
    found = Subscription(lake, table, ("id",), "name = 'a'").changes(Cursor.of("0"))
    assert [(each.operation, each.new) for each in found] == [("delete", None)]


@pytest.mark.parametrize("where", ["m > 1", "m IS NULL", "coalesce(m, 0) < 1", "length(m::VARCHAR) > 1"])
def test_a_filter_sees_old_rows_with_the_types_that_they_had(tmp_path: Path, where: str) -> None:
    lake, names = Lake(str(tmp_path)), ["a", "b", "c", "d", "e"]
    first = pa.table({"k": names, "m": pa.array([5, 5, 0, 5, None], pa.int32())})
    then = pa.table({"k": names, "m": pa.array([-5, 7, 9, None, 10], pa.int64()), "n": names})
    write_deltalake(lake.path("gold.t"), first)
    write_deltalake(lake.path("gold.t"), then, mode="overwrite", schema_mode="overwrite")
    copy: dict[str, Any] = {}
    for change in Subscription(lake, "gold.t", ("k",), where).changes(None):
        if change.old:
            assert copy.pop(change.old["k"]) is not None
        if change.new:
            copy[change.new["k"]] = change.new
    with duckdb.connect() as connection:
        connection.register("rows", then)
        expected = connection.execute(f"SELECT k, m, n FROM rows WHERE {where} ORDER BY k").fetchall()
    assert sorted((row["k"], row["m"], row["n"]) for row in copy.values()) == expected


def test_a_filter_that_made_no_sense_of_the_old_columns_knew_no_row(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    write_deltalake(lake.path("gold.t"), pa.table({"k": ["a"], "m": [{"x": 1}]}))
    write_deltalake(lake.path("gold.t"), pa.table({"k": ["a"], "m": [3]}), mode="overwrite", schema_mode="overwrite")
    at = Cursor(0, None, lake.commit_ms("gold.t", 0))
    changes = list(Subscription(lake, "gold.t", ("k",), "m + 1 > 1").changes(at))
    assert [(each.operation, each.new) for each in changes] == [("schema", None), ("insert", {"k": "a", "m": 3})]


def test_a_table_that_was_made_again_is_an_error_or_a_reset(lake: Lake) -> None:
    (*_, last) = Subscription(lake, table).changes(None)
    shutil.rmtree(lake.path(table))
    path = made(lake, [(9, 9.0, "new")])
    for _ in range(4):
        with pytest.raises(SluiceError, match=r"made again.*--snapshot"):
            list(Subscription(lake, table).changes(Cursor.of(last.cursor)))
        reset, *rows = Subscription(lake, table, snapshot=True).changes(Cursor.of(last.cursor))
        assert (reset.operation, reset.columns) == ("reset", first_columns)
        assert bag(each.new or {} for each in rows) == actual(lake)
        write_deltalake(path, rows_of([(9, 9.0, "new")]), mode="append")


def test_a_log_that_no_longer_reaches_back_is_an_error_or_a_reset(lake: Lake) -> None:
    lake.open_own(table).create_checkpoint()
    for version in (0, 1):
        (Path(lake.path(table)) / f"_delta_log/{version:020}.json").unlink()
    for since in (None, Cursor.of("0"), Cursor.of("0:0")):
        with pytest.raises(SluiceError, match=r"log begins at version 2.*--snapshot"):
            list(Subscription(lake, table).changes(since))
        assert next(Subscription(lake, table, snapshot=True).changes(since)).operation == "reset"
    assert [each.operation for each in Subscription(lake, table).changes(Cursor.of("1"))] == ["delete"]


def test_files_that_were_vacuumed_are_an_error_or_a_reset(lake: Lake) -> None:
    shutil.rmtree(Path(lake.path(table)) / "_change_data")
    lake.open_own(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(SluiceError, match=r"version 0 cannot be read.*--snapshot"):
        list(Subscription(lake, table).changes(None))
    found = [each.operation for each in Subscription(lake, table, snapshot=True).changes(Cursor.of("0"))]
    assert found == ["reset", "insert"]


def test_changes_are_taken_from_two_states_where_the_feed_cannot_be_read(lake: Lake) -> None:
    expected = [(each.old, each.version) for each in Subscription(lake, table, ("id",)).changes(Cursor.of("0"))]
    shutil.rmtree(Path(lake.path(table)) / "_change_data")
    found = [(each.old, each.version) for each in Subscription(lake, table, ("id",)).changes(Cursor.of("0"))]
    assert found == expected


def test_text_that_is_not_utf8_is_an_error_that_names_the_version(lake: Lake) -> None:
    path = lake.path(table)
    plain = WriterProperties(compression="UNCOMPRESSED")
    write_deltalake(path, rows_of([(5, 5.0, "Q" * 9)]), mode="append", writer_properties=plain)
    (newest,) = set(DeltaTable(path).file_uris()) - set(DeltaTable(path, 2).file_uris())
    Path(newest).write_bytes(Path(newest).read_bytes().replace(b"Q" * 9, b"\xff" * 9))
    with pytest.raises(SluiceError, match=r"version 3.*UTF-8"):
        list(Subscription(lake, table).changes(Cursor.of("2")))


@pytest.mark.parametrize("text", ["", "x", "-2", "1:", "1:2:3:4", "-1:3", "1:2:3:snapshot:", "\u0661", "1\n", "9" * 40])
def test_a_wrong_cursor_is_wrong_use(text: str) -> None:
    with pytest.raises(UsageError, match="not a place"):
        Cursor.of(text)


@pytest.mark.parametrize(
    "where",
    ["nope = 1", "1) FROM _rows; SELECT (1", "EXISTS (FROM read_csv('/etc/passwd'))", "(", "", "1; DROP TABLE x"],
)
def test_a_wrong_condition_is_wrong_use(lake: Lake, where: str) -> None:
    with pytest.raises(UsageError):
        list(Subscription(lake, table, (), where).changes(None))


@pytest.mark.parametrize(
    "where",
    [
        *("random() < 0.5", "now() > TIMESTAMP '2026-01-01'", "x > 0 AND CURRENT_DATE > DATE '2026-01-01'"),
        *("ago(INTERVAL 1 DAY) IS NULL", "row_number() OVER (ORDER BY id) = 1", "id IN (SELECT 1)", "id = ANY([1])"),
        *(
            "EXISTS (FROM _images_0)",
            "COLUMNS(*) > 0",
            "unnest([1, 2]) = 1",
            "list_filter([1], x -> random() > 0) = []",
        ),
    ],
)
def test_a_condition_that_is_none_of_the_row_is_wrong_use(lake: Lake, where: str) -> None:
    """A row that was sent could never be taken back: what it was then is not known at its delete."""
    with pytest.raises(UsageError, match="columns of the row alone"):
        Subscription(lake, table, ("id",), where).require()


@pytest.mark.parametrize("where", ["name = 'now()'", "upper(name) LIKE 'A%'", "list_filter([id], x -> x > 1) <> []"])
def test_a_condition_on_the_row_is_read(lake: Lake, where: str) -> None:
    Subscription(lake, table, ("id",), where).require()


def test_a_condition_that_is_too_deep_is_wrong_use(lake: Lake) -> None:
    with pytest.raises(UsageError, match="nested too deeply"):
        Subscription(lake, table, ("id",), f"id{'+1' * 900} > 0").require()


def test_a_column_may_be_called_as_a_time_is(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    write_deltalake(lake.path(table), pa.table({"id": [1], "today": [True], "unnest": [True]}))
    Subscription(lake, table, ("id",), "today AND unnest").require()
    with pytest.raises(UsageError, match=r"another value at another time \(today\)"):
        Subscription(lake, table, ("id",), "today() > DATE '2026-01-01'").require()


def test_to_compare_rows_takes_no_more_memory_than_it_may(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    write_deltalake(lake.path(table), pa.table({"id": range(200_000)}))
    assert next(Subscription(lake, table, ("id",), memory="1GB").changes(None)).new == {"id": 0}
    with pytest.raises(UsageError, match="cannot be evaluated: Out of Memory"):
        next(Subscription(lake, table, ("id",), memory="10MB").changes(None))


def test_a_subscriber_that_follows_gets_what_is_committed_and_ends(lake: Lake, tmp_path: Path) -> None:
    stop, got = threading.Event(), []
    with Project(tmp_path, {"lake": str(tmp_path / "lake"), "poll_seconds": 0.01}, any_folder=True) as project:
        changes = project.subscribe(table, 1, follow=True, stop=stop)
        got.append(next(changes))
        apply_commit(lake.path(table), "append", [(7, None, None)])
        got.append(next(changes))
        stop.set()
        assert next(changes, None) is None
    assert [each.operation for each in got] == ["delete", "insert"]


declared = """
from sluice import bronze, gold, silver

sales = silver.events(
    "sales", source=bronze.topic("sales"), schema="id bigint, name string, at timestamp", keys=["id"], event_time="at"
)
sold = gold.aggregate("sold", source=sales, group_by=["id"], measures={"amount": "count(*)"})
"""


@pytest.mark.parametrize(
    ("then", "says"),
    [
        (declared.replace('group_by=["id"]', 'group_by=["name", "id"]'), "name, id identify its rows now, and id"),
        (declared.split("sold = ", maxsplit=1)[0], "nothing declares it now, and id identify its rows when"),
        # A file that is being edited.
        ("(", None),
        (declared.replace("amount", "how_many"), None),
    ],
)
def test_a_subscriber_that_follows_ends_when_other_columns_identify_a_row(
    lake: Lake, tmp_path: Path, then: str, says: str | None
) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").write_text(declared)
    with Project(tmp_path, {"lake": str(tmp_path / "lake"), "poll_seconds": 0.01}) as project:
        changes = project.subscribe(table, 1, follow=True)
        next(changes)
        (tmp_path / "pipelines" / "__init__.py").write_text(then)
        apply_commit(lake.path(table), "append", [(7, None, None)])
        if says is None:
            assert next(changes).new is not None
        else:
            with pytest.raises(SluiceError, match=says):
                next(changes)


def test_who_goes_on_where_all_was_read_reads_no_version_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[Cursor] = []
    nothing = Subscription(lake, table, ("id",), "id = 99")
    assert list(nothing.changes(None, on_read=places.append)) == []
    assert [each.version for each in places] == [0, 1, 2]
    apply_commit(lake.path(table), "append", [(99, 1.0, "a")])
    monkeypatch.setattr(Lake, "images", count := Counted(Lake.images))
    assert [each.version for each in nothing.changes(places[-1])] == [3]
    assert count.calls == 1


class Counted:
    """A method that knows how often it was called."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method, self.calls = method, 0

    def __get__(self, lake: Lake, kind: type[Lake]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            self.calls += 1
            return self.method(lake, *arguments)

        return called


def test_the_command_prints_lines_of_json_as_a_query_does(lake: Lake, tmp_path: Path) -> None:
    environment = {"SLUICE_LAKE": str(tmp_path / "lake")}
    done = sluice("subscribe", table, "--from", "0", here=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line, parse_constant=pytest.fail) for line in done.stdout.splitlines()]
    assert [each["operation"] for each in found] == ["delete", "insert", "delete"]
    assert found[1]["new"] == {"id": 1, "amount": "NaN", "name": "z"}
    again = sluice("subscribe", table, "--from", found[0]["cursor"], here=tmp_path, environment=environment)
    assert again.stdout.splitlines() == done.stdout.splitlines()[1:]
    for wrong in (["--from", "99"], ["--where", "("], ["--from", "x"]):
        assert sluice("subscribe", table, *wrong, here=tmp_path, environment=environment).returncode != 0
