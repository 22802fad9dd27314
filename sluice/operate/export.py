"""A table, or its changes, as files for other programs: a folder that is there as a whole, or not at all."""

import ctypes
import errno
import json
import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import duckdb
import pyarrow as pa
from filelock import FileLock, Timeout
from pyarrow import compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet
from pyarrow.lib import ArrowException

from sluice.errors import UsageError
from sluice.log.durable import sync
from sluice.model.sql import double_quoted
from sluice.operate.infinity import as_text
from sluice.operate.json_text import json_line
from sluice.operate.query import answering, described, lock_down
from sluice.operate.subscribe import Change, Cursor, Subscription, require_condition
from sluice.storage.delta import Lake

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

Format = Literal["parquet", "csv", "jsonl"]
Rows = Iterator[pa.RecordBatch]
Writer = parquet.ParquetWriter | arrow_csv.CSVWriter
rows_at_once = 50_000
changes_at_once = 10_000
# Many systems let a process open 1,024.
open_files_max = 500
waiting_bytes_max = 64 << 20
microseconds_per_day = 86_400_000_000
# The name that stands for null in a path; a text that is equal to it could not be told from null.
null_partition = "__HIVE_DEFAULT_PARTITION__"
# Beyond ASCII every character stands for itself: Spark reads %C3%A9 as two characters.
not_in_names = re.compile(r"(?![A-Za-z0-9._~-])[\x00-\x7f]")
# What is known of an export: readers of Parquet ignore names that begin so.
about_file = "_export.json"
# renameat2, of Linux: both names must exist, and each gets what the other had.
at_working_folder, rename_exchange = -100, 2


@dataclass(frozen=True)
class Exported:
    """What an export wrote: the version of the table, how many rows or changes, and their columns with their types.

    An export of changes has the `cursor` where the next one begins.
    """

    table: str
    folder: str
    format: Format
    version: int
    rows: int
    columns: Mapping[str, str]
    partition_by: Sequence[str] = ()
    is_changelog: bool = False
    cursor: str | None = None


def export_rows(
    lake: Lake,
    table: str,
    folder: Path,
    form: Format = "parquet",
    *,
    version: int,
    partition_by: Sequence[str] = (),
    where: str | None = None,
    replace: bool = False,
) -> Exported:
    """Writes the rows of one version of a table; a UsageError says what is wrong with the options."""
    if form not in ("parquet", "csv"):
        raise UsageError(f"A table is exported as parquet or csv, not as {form}; its changes (--changelog) as jsonl.")
    require_condition(where)
    with written(folder, replace=replace) as target, opened(lake, table, version) as found:
        with answering():
            kinds = dict(described(found, "rows"))
            arrow = found.sql("SELECT * FROM rows LIMIT 0").to_arrow_reader(1).schema
            require_partitions(arrow, partition_by)
            types = found.sql("SELECT * FROM rows").types
            values = ", ".join(
                selected(name, kind, form, is_partition=name in partition_by)
                for name, kind in zip(arrow.names, types, strict=True)
            )
            sql = f"SELECT {values} FROM rows" + ("" if where is None else f" WHERE ({where}\n)")
            count = write(target, found.sql(sql).to_arrow_reader(rows_at_once), form, partition_by)
        made = Exported(table, str(folder), form, version, count, kinds, tuple(partition_by))
        describe(target, made)
    return made


def export_changes(
    subscription: Subscription,
    folder: Path,
    form: Format = "parquet",
    *,
    since: Cursor | None = None,
    replace: bool = False,
) -> Exported:
    """Writes the changes of a table after a place, up to its newest version."""
    if form not in get_args(Format):
        raise UsageError(f"Changes are exported as parquet, csv or jsonl, not as {form}.")
    subscription.require()
    lake, table = subscription.lake, subscription.table
    read = [since or Cursor()]
    with written(folder, replace=replace) as target:
        version = lake.newest_version(table)
        changes = subscription.changes(since, on_read=read.append)
        if form == "jsonl":
            count, columns = write_lines(target, changes), {"line": "JSON"}
        else:
            row = row_type(lake, table, version) if form == "parquet" else pa.string()
            own = heads if form == "parquet" else [(name, csv_types.get(name, kind)) for name, kind in heads]
            schema = pa.schema([*own, ("old", row), ("new", row)])
            with answering():
                rows = pa.RecordBatchReader.from_batches(schema, batches_of(changes, schema, table))
                count = write(target, rows, form)
            columns = {each.name: str(each.type) for each in schema}
        at = read[-1]
        made = Exported(table, str(folder), form, at.version, count, columns, is_changelog=True, cursor=str(at))
        describe(target, made)
    return made


@contextmanager
def opened(lake: Lake, table: str, version: int) -> Iterator["duckdb.DuckDBPyConnection"]:
    """A connection with the rows of a version, from which nothing else can be reached."""
    with duckdb.connect() as found:
        found.execute("SET TimeZone = 'UTC'")
        found.register("rows", lake.scan(table, version))
        lock_down(found)
        yield found


def require_partitions(schema: pa.Schema, names: Sequence[str]) -> None:
    """A UsageError for columns whose values cannot be the names of folders."""
    for name in names:
        if name not in schema.names:
            raise UsageError(f"There is no column {name!r} to partition by; there are {', '.join(schema.names)}.")
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise UsageError(f"{name} is {kind}, whose values cannot be the names of folders.")
        if any(each in name for each in "/=%\0"):
            raise UsageError(f"{name!r} cannot be in the names of folders.")
        if name.startswith(("_", ".")):
            raise UsageError(
                f"PyArrow and pandas skip folders whose names begin as {name} does, and read no row there."
            )
    if len({*names}) < len(names):
        raise UsageError(f"{', '.join(names)} names a column twice.")
    if len(names) == len(schema.names):
        raise UsageError("With a partition by each column, none would be left for the files.")


def selected(name: str, kind: "DuckDBPyType", form: Format, *, is_partition: bool) -> str:
    """A column as the files have it: text where CSV, or the name of a folder, has no such type."""
    column = double_quoted(name)
    if form == "parquet" and not is_partition:
        return column
    if kind.id == "blob":
        return f"lower(hex({column})) AS {column}"
    found = as_text(column, kind, of_time=time_text)
    return f"{f'CAST({found} AS VARCHAR)' if is_partition else found} AS {column}"


def time_text(value: str, kind: "DuckDBPyType") -> str:
    """The SQL of a time as text, by RFC 3339 and in UTC."""
    if kind.id == "date":
        return f"CAST({value} AS VARCHAR)"
    plain, zone = (f"{value} AT TIME ZONE 'UTC'", "Z") if kind.id == "timestamp with time zone" else (value, "")
    finite = f"strftime({plain}, '%Y-%m-%dT%H:%M:%S.%f{zone}')"
    return f"CASE WHEN isinf({value}) THEN CAST({value} AS VARCHAR) ELSE {finite} END"


def with_json(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with JSON for nested values."""
    return pa.RecordBatch.from_arrays(
        [json_texts(each) if pa.types.is_nested(each.type) else each for each in batch.columns], batch.schema.names
    )


def json_texts(values: "pa.Array[Any]") -> "pa.Array[Any]":
    found = values.to_pylist(maps_as_pydicts="strict")
    return pa.array([None if each is None else json_line(each) for each in found], pa.string())


def write(target: Path, batches: pa.RecordBatchReader, form: Format, partition_by: Sequence[str] = ()) -> int:
    """Writes batches as they come; returns how many rows there were."""
    schema = batches.schema
    if form == "csv":
        schema = with_json(pa.RecordBatch.from_pylist([], schema)).schema
    own = [name for name in schema.names if name not in partition_by]
    count = 0
    try:
        with ExitStack() as stack:
            files = Files(target, pa.schema([schema.field(name) for name in own]), form, stack)
            if not partition_by:
                files.writer("")
            for each in batches:
                count += each.num_rows
                batch = with_json(each) if form == "csv" else each
                require_writable(batch, form, partition_by)
                for folder, rows in split(batch, partition_by):
                    files.add(folder, rows.select(own))
            files.flush()
    except ArrowException as error:
        raise UsageError(f"The rows cannot be written as {form}: {error}") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise UsageError(f"A value of {', '.join(partition_by)} is too long to be the name of a folder.") from error
    return count


def split(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each folder, by its name."""
    if not names:
        yield "", batch
        return
    keys = pa.table({f"key_{at}": batch[name] for at, name in enumerate(names)})
    numbered = keys.append_column("row", pa.array(range(batch.num_rows), pa.int64()))
    groups = numbered.group_by(keys.column_names, use_threads=False).aggregate([("row", "list")])
    for *values, places in zip(*(groups[name].to_pylist() for name in [*keys.column_names, "row_list"]), strict=True):
        folders = (
            f"{name}={null_partition if value is None else not_in_names.sub(as_code, value)}"
            for name, value in zip(names, values, strict=True)
        )
        yield "/".join(folders), batch.take(pa.array(places, pa.int64()))


def as_code(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


class Files:
    """The files of an export, each in a folder; rows wait for others of the same folder, up to a size in memory.

    As many files as may be open stay so; folders beyond get a file each time that what waits is written.
    """

    def __init__(self, target: Path, schema: pa.Schema, form: Format, stack: ExitStack) -> None:
        self.target, self.schema, self.form, self.stack = target, schema, form, stack
        self.waiting: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        self.waiting_bytes = 0
        self.kept: dict[str, Writer] = {}
        self.parts: Counter[str] = Counter()

    def add(self, folder: str, rows: pa.RecordBatch) -> None:
        self.waiting[folder].append(rows)
        self.waiting_bytes += rows.nbytes
        if self.waiting_bytes > waiting_bytes_max:
            self.flush()

    def flush(self) -> None:
        for folder, batches in self.waiting.items():
            rows = pa.Table.from_batches(batches, self.schema)
            if folder in self.kept or len(self.kept) < open_files_max:
                self.writer(folder).write_table(rows)
            else:
                with self.opened(folder) as writer:
                    writer.write_table(rows)
        self.waiting.clear()
        self.waiting_bytes = 0

    def writer(self, folder: str) -> "Writer":
        """The file of a folder, which stays open."""
        if folder not in self.kept:
            self.kept[folder] = writer = self.opened(folder)
            self.stack.callback(writer.close)
        return self.kept[folder]

    def opened(self, folder: str) -> "Writer":
        """The next file of a folder."""
        path = self.target / folder / f"part-{self.parts[folder]}.{self.form}"
        self.parts[folder] += 1
        path.parent.mkdir(parents=True, exist_ok=True)
        # An error where two values have one folder, because the file system takes `a` for `A`.
        path.touch(exist_ok=False)
        if self.form == "parquet":
            return parquet.ParquetWriter(path, self.schema)
        return arrow_csv.CSVWriter(path, self.schema)


def require_writable(batch: pa.RecordBatch, form: Format, partition_by: Sequence[str]) -> None:
    """A UsageError for values that a reader would take for others."""
    for name in partition_by:
        if pc.any(pc.equal(batch[name], pa.scalar(null_partition))).as_py():
            raise UsageError(f"{name} has the text {null_partition}, which stands for null in the names of folders.")
    own = [name for name in batch.schema.names if name not in partition_by]
    if form == "csv" and len(own) == 1 and batch[own[0]].null_count:
        raise UsageError(f"{own[0]} is null in a row: a line with nothing in it is no row for most readers of CSV.")


heads: list[tuple[str, pa.DataType]] = [
    ("operation", pa.string()),
    ("version", pa.int64()),
    ("position", pa.int64()),
    ("committed_at", pa.timestamp("us", "UTC")),
    ("cause", pa.string()),
]


csv_types = {"committed_at": pa.string()}


def write_lines(target: Path, changes: Iterator[Change]) -> int:
    """The changes as `sluice subscribe` prints them."""
    count = 0
    with (target / "part-0.jsonl").open("w", encoding="utf-8") as file:
        for change in changes:
            file.write(json_line(change.line) + "\n")
            count += 1
    return count


def row_type(lake: Lake, table: str, version: int) -> pa.DataType:
    """A row of a table as one value."""
    with opened(lake, table, version) as found, answering():
        return pa.struct(list(found.sql("SELECT * FROM rows LIMIT 0").to_arrow_reader(1).schema))


def batches_of(changes: Iterator[Change], schema: pa.Schema, table: str) -> Rows:
    """Changes as rows; a UsageError where a row has other columns than the newest version."""
    row = schema.field("new").type
    while some := [*islice(changes, changes_at_once)]:
        lines = []
        for each in some:
            line = {name: getattr(each, name) for name, _ in heads}
            if not pa.types.is_struct(row):
                line["committed_at"] = f"{each.committed_at:%Y-%m-%dT%H:%M:%S.%fZ}"
            for side in ("old", "new"):
                value = getattr(each, side)
                if value is not None:
                    line[side] = stored_row(value, row, table, each.version)
            lines.append(line)
        try:
            yield pa.RecordBatch.from_pylist(lines, schema)
        except ArrowException as error:
            raise UsageError(other_columns(table, some[0].version)) from error


def stored_row(value: Mapping[str, Any], row: pa.DataType, table: str, version: int) -> Any:
    """A row as JSON, or as the type has it."""
    if not pa.types.is_struct(row):
        return json_line(value)
    if [*value] != [each.name for each in row]:
        raise UsageError(other_columns(table, version))
    return stored(value, row)


def other_columns(table: str, version: int) -> str:
    return (
        f"{table} had other columns, or other types, at version {version} than it has now, and a Parquet file has one "
        "schema. Export later changes (--from VERSION), or as csv or jsonl, where each row says its columns."
    )


def stored(value: Any, kind: pa.DataType) -> Any:
    """A value of a change for Arrow: times that Python does not know are numbers there, and maps are pairs."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {each.name: stored(value[each.name], each.type) for each in kind}
    if pa.types.is_map(kind):
        return [(stored(key, kind.key_type), stored(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_nested(kind):
        return [stored(each, kind.field(0).type) for each in value]
    if isinstance(value, str) and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return time_number(value, is_date=pa.types.is_date(kind))
    return value


def time_number(text: str, *, is_date: bool) -> int:
    """The number of days or microseconds that Arrow keeps for a time of which Python has no object."""
    if text in ("infinity", "-infinity"):
        last = 2**31 - 1 if is_date else 2**63 - 1
        return last if text == "infinity" else -last
    ((microseconds,),) = duckdb.execute("SELECT epoch_us(CAST(? AS TIMESTAMP))", [text]).fetchall()
    return int(microseconds // microseconds_per_day if is_date else microseconds)


def describe(target: Path, made: Exported) -> None:
    (target / about_file).write_text(json.dumps(asdict(made), indent=2) + "\n", encoding="utf-8")


@contextmanager
def written(folder: Path, *, replace: bool) -> Iterator[Path]:
    """A folder to write into, beside the target, which it becomes at the end; after an error nothing has changed."""
    target = Path(os.path.realpath(folder))
    partial = target.parent / f".{target.name}.partial"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / f".{target.name}.lock", timeout=0):
            require_free(target, replace=replace)
            # Of an export that was killed.
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                yield partial
                make_durable(partial)
                put_in_place(partial, target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except Timeout as error:
        raise UsageError(f"Another process exports to {target}.") from error
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise UsageError(f"{target} cannot be written: {error.strerror or error}{where}.") from error


def require_apart(folder: Path, own_folders: Iterable[Path | None]) -> None:
    """A UsageError for what is no folder, is in one that Sluice has for itself, or is the one where the user is."""
    if ":/" in str(folder):
        raise UsageError(
            f"{folder} is not a local folder. Only in one can an export appear as a whole: export to a local folder, "
            "and copy that."
        )
    target = Path(os.path.realpath(folder))
    for own in filter(None, own_folders):
        root = own.resolve()
        if target == root or root in target.parents or target in root.parents:
            raise UsageError(f"{target} is, contains or is inside Sluice's own folder {root}; choose another one.")
    if target == Path.cwd():
        raise UsageError(f"{target} is the working directory, which cannot be replaced. Export to a folder inside it.")


def require_free(target: Path, *, replace: bool) -> None:
    """A UsageError where something else is, or an export that may not be replaced."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / about_file).is_file():
        raise UsageError(f"{target} exists, and is no export: it has no {about_file}. Choose another folder.")
    if not replace:
        raise UsageError(f"{target} has an export already. Give --replace, or choose another folder.")
    # Programs leave hidden files and the like of _SUCCESS; what has another name is somebody's.
    if others := [
        each.name for each in target.iterdir() if not each.name.startswith(("part-", "_", ".")) and "=" not in each.name
    ]:
        raise UsageError(f"{target} has an export, and beside it {', '.join(sorted(others))}. Move what is to be kept.")


def make_durable(folder: Path) -> None:
    """Waits until all files are on the disk: a loss of power keeps what has its name."""
    for each in [folder, *folder.rglob("*")]:
        sync(each)


def put_in_place(partial: Path, target: Path) -> None:
    """Gives a folder its name, in one step; the other folder of that name, if any, is then the partial one."""
    if not target.exists() or not any(target.iterdir()):
        partial.rename(target)
    elif not exchange(partial, target):
        # Where no call exchanges two folders, there is none for a moment.
        aside = target.parent / f".{target.name}.old"
        shutil.rmtree(aside, ignore_errors=True)
        target.rename(aside)
        partial.rename(target)
        shutil.rmtree(aside, ignore_errors=True)
    sync(target.parent)


def exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders at once; False where the system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    failed = call(at_working_folder, os.fsencode(one), at_working_folder, os.fsencode(other), rename_exchange)
    if not failed:
        return True
    if (number := ctypes.get_errno()) in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(number, os.strerror(number))
