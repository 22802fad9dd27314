"""Find the rows of a few values of a column by which a large table is neither ordered nor filtered.

An index of a column is a copy of the rows, sorted by that column, beside the table in `_sluice_index/<column>`: Parquet
files (runs), each of which states the table's files that it was made of. Files of a table never change, so an index is
complete when its runs cover all files of a version, whatever happened to the table before; what is missing is added
when it is needed. Of each row the index has the file and number, so rows that are gone are known without reading the
table. An index decides what is read, never what is found: where it cannot be used, the table is searched.
"""

import io
import json
import logging
import os
import re
import shutil
import time
import uuid
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sluice.model.found import Among, Condition
from sluice.model.sql import double_quoted
from sluice.storage import small_reads
from sluice.storage.bounds import bounded
from sluice.storage.key_filters import filters_of
from sluice.storage.small_reads import (
    connected,
    duckdb_config,
    duckdb_value_of,
    file_name,
    is_placeable,
    placed_rows_sql,
    placed_schema,
    sorted_values,
    sql_of,
)
from sluice.storage.small_writes import files_by_name, has_deletion_vectors

indexes_folder = "_sluice_index"
# Less than this is read as fast from the table.
table_bytes_min = 16 * 1024 * 1024
values_max = 100
# A row that is found by its key costs a page of the table.
page_rows = 20_000
# Of keys there must be so many for each value, before a table that is filtered by them is searched by an index.
keys_per_value_min = 4
# A table is ordered by a column if a value can be in this share of its files.
ordered_share_max = 0.6
# The rows of one value cost one or two groups.
group_rows = 4_096
# To open a file costs about as much as to read so many rows.
rows_per_file = 1_000
sort_memory = "1GB"
# Sorting needs as much again as the runs that it makes.
free_disk_min = 4
# After a process died that sorted a table, or could not, the table is searched for so long.
abandoned_seconds = 3600
files_key, form_key, checksums_key = b"sluice.files", b"sluice.form", b"sluice.checksums"
is_folder_name = re.compile(r"\w+", re.ASCII)
errors = (OSError, pa.ArrowException, duckdb.Error, DeltaError)
log = logging.getLogger(__name__)

# A file of a table: its path in the log, and its bytes.
Source = tuple[str, int]


@dataclass(frozen=True)
class Run:
    """The rows of some files of a table, sorted by a column, in one file; `rows` says how many each of them had.

    There is a checksum for each of its groups of rows.
    """

    path: Path
    rows: Mapping[Source, int]
    checksums: Sequence[str]
    parquet: pq.FileMetaData

    @property
    def cost(self) -> int:
        return cost_of(self.rows)


def find_placed(
    table: DeltaTable, schema: pa.Schema, folder: str, conditions: Sequence[Condition], files: pa.Table
) -> pa.Table | None:
    """The rows that meet all conditions, with their places in the files below a folder; `files` are the candidates.

    None where an index is of no use, where the rows are many, or where an index cannot be made or read.
    """
    try:
        bytes_max = pc.sum(files["size_bytes"]).as_py() or 0
        for among in indexed(table, schema, folder, conditions, files):
            rows = find_among(table, schema, folder, among, conditions, bytes_max=bytes_max)
            if rows is not None:
                return rows
    except errors as error:
        log.info("The table at %s was searched without its index: %s", folder, error)
    return None


def find_among(
    table: DeltaTable,
    schema: pa.Schema,
    folder: str,
    among: Among,
    conditions: Sequence[Condition],
    *,
    bytes_max: int = small_reads.candidate_bytes_max,
) -> pa.Table | None:
    """The same by the index of one condition's column; None where more than `bytes_max` of it would be read."""
    runs = completed(table, schema, folder, among)
    if runs is None or sum(bytes_of(run, among) for run, files in runs if files) > bytes_max:
        return None
    rows = rows_of(runs, schema, folder, among, conditions)
    return small_reads.without_marked(table, rows) if rows is not None and has_deletion_vectors(table) else rows


def delete_unused(folder: str, days: int) -> None:
    """Deletes the indexes of a table that nobody has used for so many days."""
    for home in Path(folder, indexes_folder).glob("*"):
        with suppress(FileNotFoundError):
            if time.time() - home.stat().st_mtime > days * 24 * 3600:
                shutil.rmtree(home, ignore_errors=True)


def indexed(
    table: DeltaTable, schema: pa.Schema, folder: str, conditions: Sequence[Condition], files: pa.Table
) -> Sequence[Among]:
    """The conditions that an index may help with, those of few values first; none where others lead to few pages."""
    wanted = sorted((each for each in conditions if isinstance(each, Among)), key=count_of)
    size_bytes, rows = (pc.sum(files[name]).as_py() or 0 for name in ("size_bytes", "num_records"))
    if size_bytes < table_bytes_min or files.num_rows < 2 or not rows or not small_reads.are_few(files):
        return ()
    names = files_by_name(table, folder, files["path"].to_pylist())
    if names is None:
        return ()
    largest = max(zip(files["size_bytes"].to_pylist(), names, strict=True))[1]
    cheap = [each for each in wanted if is_ordered(files, each) or has_filter(largest, each.column)]
    costly = [each for each in wanted if each not in cheap and is_indexable(schema, each)]
    if not costly or (cheap and is_cheap(count_of(cheap[0]), count_of(costly[0]), size_bytes / rows)):
        return ()
    return costly


def is_cheap(keys: int, values: int, row_bytes: float) -> bool:
    """Whether rows are found by so many keys as well as by an index of so many values."""
    return keys < keys_per_value_min * values or keys * page_rows * row_bytes < table_bytes_min


def is_indexable(schema: pa.Schema, among: Among) -> bool:
    kind = schema.field(among.column).type
    is_named = is_folder_name.fullmatch(among.column) is not None and is_placeable(schema)
    return is_named and count_of(among) <= values_max and any(of(kind) for of in bounded)


def count_of(among: Among) -> int:
    return len(pc.unique(among.values))


def is_ordered(files: pa.Table, among: Among) -> bool:
    """Whether a value can be in few of the files, by what the log says of them."""
    if f"max.{among.column}" not in files.column_names:
        return False
    values = pa.chunked_array([sorted_values(among)])
    step = max(1, len(values) // 10)
    each = [small_reads.can_hold(files, Among(among.column, values.slice(at, 1))) for at in range(0, len(values), step)]
    share = sum(pc.sum(held).as_py() or 0 for held in each) / max(1, len(each) * files.num_rows)
    return share <= ordered_share_max


def has_filter(file: str, column: str) -> bool:
    """Whether a file of a table has a Bloom filter for a column."""
    return column in filters_of([file]).get(file, {})


def completed(
    table: DeltaTable, schema: pa.Schema, folder: str, among: Among
) -> list[tuple[Run, frozenset[Source]]] | None:
    """The runs that have all files of a table, each with the files that it is asked for; made complete if need be.

    None where that would be of no use, or where there is no room.
    """
    home = Path(folder, indexes_folder, among.column)
    sources = sources_of(table)
    runs = list(known_runs(home, placed_schema(schema)))
    shared = shared_out(runs, sources)
    missing = sources.keys() - {source for _, files in shared for source in files}
    if missing:
        merged = merged_with(missing, shared, sources)
        files = {each: sources[each] for each in (*missing, *(source for _, of in merged for source in of))}
        begun, is_large = is_begun(home), cost_of(files) >= cost_of(sources) / 2
        if not has_room(folder, files) or (is_large and (begun or not are_few(folder, files, sources, among))):
            return None
        build(home, schema, folder, among.column, files)
        for run, _ in merged:
            run.path.unlink(missing_ok=True)
        shared = shared_out(known_runs(home, placed_schema(schema)), sources)
    with suppress(OSError):
        # An index that is not used any more is deleted.
        os.utime(home)
    # Another process may have deleted what was there.
    return shared if sources.keys() == {source for _, files in shared for source in files} else None


def sources_of(table: DeltaTable) -> dict[Source, int]:
    """The files of a table, with the rows of each; an ArrowInvalid where nobody counted them."""
    files = table.get_add_actions(flatten=True)
    paths, sizes, rows = (files[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    if None in rows or any(path.startswith("/") or ":" in path for path in paths):
        raise pa.ArrowInvalid("files without a count of their rows, or of another table")
    return {(path, size): count for path, size, count in zip(paths, sizes, rows, strict=True)}


def known_runs(home: Path, schema: pa.Schema) -> Iterator[Run]:
    """The runs in a folder, the largest first; those that are damaged, or of other columns, are deleted."""
    runs = []
    for path in home.glob("*.parquet"):
        with suppress(FileNotFoundError):
            stamp = path.stat()
            run = opened(path, form_of(schema), (stamp.st_ino, stamp.st_mtime_ns, stamp.st_size))
            if run is None:
                path.unlink()
            else:
                runs.append(run)
    return iter(sorted(runs, key=lambda run: (-run.cost, run.path.name)))


@lru_cache(maxsize=32)
def opened(path: Path, form: bytes, stamp: tuple[int, ...]) -> Run | None:  # noqa: ARG001 - another file, read again
    """A run; None where its end is not as it was written, by which all else is checked, or its columns are others."""
    footer = footer_of(path)
    if footer is None or path.stem.rsplit("-", 1)[-1] != checksum(footer):
        return None
    parquet = pq.read_metadata(pa.BufferReader(b"PAR1" + footer))
    said = cast("dict[bytes, bytes]", parquet.metadata)
    if said[form_key] != form:
        return None
    files = json.loads(said[files_key])
    return Run(path, {(name, size): rows for name, size, rows in files}, json.loads(said[checksums_key]), parquet)


def form_of(schema: pa.Schema) -> bytes:
    """What the columns of a run are, and how it is written."""
    return f"2 {schema.to_string(show_schema_metadata=False, show_field_metadata=False)}".encode()


def footer_of(path: Path) -> bytes | None:
    """The end of a Parquet file, which says where everything in it is."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little") + 8
        if length > size:
            return None
        file.seek(size - length)
        return file.read(length)


def checksum(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"


def shared_out(runs: Iterable[Run], sources: Mapping[Source, int]) -> list[tuple[Run, frozenset[Source]]]:
    """Each run with those of a table's files that it has, and that none before it has."""
    left, shared = set(sources), []
    for run in runs:
        files = frozenset(left & run.rows.keys())
        left -= files
        shared.append((run, files))
    return shared


def merged_with(
    missing: Iterable[Source], shared: Sequence[tuple[Run, frozenset[Source]]], sources: Mapping[Source, int]
) -> list[tuple[Run, frozenset[Source]]]:
    """The runs whose files are indexed again with those that are missing.

    They are those that are no larger than what is to be done already, so that a row is sorted again only as often as
    the index doubles, and those that are mostly rows of files that are gone.
    """
    cost, merged = cost_of({each: sources[each] for each in missing}), []
    for run, files in reversed(shared):
        live = cost_of({each: run.rows[each] for each in files})
        if run.cost <= cost or live < run.cost / 2:
            merged.append((run, files))
            cost += live
    return merged


def cost_of(files: Mapping[Source, int]) -> int:
    return sum(files.values()) + rows_per_file * len(files)


def has_room(folder: str, files: Iterable[Source]) -> bool:
    size_bytes = sum(size for _, size in files)
    has_disk = shutil.disk_usage(folder).free >= free_disk_min * size_bytes
    return size_bytes <= small_reads.candidate_bytes_max and has_disk


def is_begun(home: Path) -> bool:
    """Whether a run is being made here, or lately could not be, as where its sorting ends the process each time."""
    now, found = time.time(), False
    for path in home.glob(".*"):
        with suppress(FileNotFoundError):
            if now - path.stat().st_mtime > abandoned_seconds:
                shutil.rmtree(path, ignore_errors=True)
            else:
                found = True
    return found


def are_few(folder: str, files: Mapping[Source, int], sources: Mapping[Source, int], among: Among) -> bool:
    """Whether the rows wanted are not too many, by a sample of the files."""
    (sample, _), rows = max(files.items(), key=lambda each: each[1])
    with connected() as connection:
        counted = f"SELECT count(*) FROM read_parquet($1) WHERE {sql_of(among, duckdb_value_of)}"  # noqa: S608 - literals alone
        found = connection.execute(counted, [f"{folder}/{sample}"]).fetchall()[0][0]
    return bool(found * sum(sources.values()) <= small_reads.rows_max * max(rows, 1))


def build(home: Path, schema: pa.Schema, folder: str, column: str, files: Mapping[Source, int]) -> Path:
    """Makes a run of files, which is there as a whole or not at all."""
    wanted = placed_schema(schema)
    listed = json.dumps([[*each, files[each]] for each in files]).encode()
    wanted = wanted.with_metadata({files_key: listed, form_key: form_of(wanted)})
    counts: Counter[str] = Counter()
    with scratch(home) as folder_of_sort:
        written = folder_of_sort / "run.parquet"
        with (
            sorted_rows(schema, folder, column, files, folder_of_sort) as batches,
            Summed(io.FileIO(written, "w")) as sink,
            writer(sink, wanted, column) as to,
        ):
            # What every Parquet file begins with is of no group.
            sink.taken()
            checksums = []
            for batch in batches:
                rows = pa.Table.from_batches([batch.select(wanted.names)])
                at = wanted.names.index(file_name)
                rows = rows.set_column(at, file_name, pc.utf8_slice_codeunits(rows[file_name], len(folder) + 1))
                counts.update(
                    {each["values"].as_py(): each["counts"].as_py() for each in pc.value_counts(rows[file_name])}
                )
                for start in range(0, rows.num_rows, group_rows):
                    to.write_table(rows.slice(start, group_rows).cast(wanted))
                    checksums.append(sink.taken())
            to.add_key_value_metadata({checksums_key.decode(): json.dumps(checksums)})
        if counts != Counter({path: rows for (path, _), rows in files.items()}):
            raise pa.ArrowInvalid("files have other rows than the log says")
        footer = footer_of(written)
        if footer is None:
            raise pa.ArrowInvalid("a run was not written as a whole")
        with written.open("rb") as file:
            os.fsync(file.fileno())
        path = home / f"{uuid.uuid4().hex}-{checksum(footer)}.parquet"
        written.rename(path)
    return path


class Summed(io.BufferedWriter):
    """A file that keeps a checksum of what is written to it."""

    sum = 0

    def write(self, content: Any) -> int:
        self.sum = zlib.crc32(content, self.sum)
        return super().write(content)

    def taken(self) -> str:
        """The checksum of what was written since it was taken last."""
        found, self.sum = f"{self.sum:08x}", 0
        return found


@contextmanager
def scratch(home: Path) -> Iterator[Path]:
    """A folder for a run that is being made; it stays, empty, where that cannot be made."""
    path = home / f".{uuid.uuid4().hex}"
    path.mkdir(parents=True)
    try:
        yield path
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.mkdir()
        raise
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def sorted_rows(
    schema: pa.Schema, folder: str, column: str, files: Iterable[Source], spill: Path
) -> Iterator[pa.RecordBatchReader]:
    """The rows of files with their places, sorted by a column in bounded memory."""
    names = [f"{folder}/{path}" for path, _ in files]
    columns = ", ".join(map(double_quoted, placed_schema(schema).names))
    config = {
        **duckdb_config,
        "memory_limit": sort_memory,
        "temp_directory": str(spill),
        # Others write to the same disk.
        "max_temp_directory_size": f"{shutil.disk_usage(spill).free // 2}B",
    }
    with duckdb.connect(config=config) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = false")
        query = f"SELECT {columns} FROM {placed_rows_sql} ORDER BY {double_quoted(column)}"  # noqa: S608 - names of columns, quoted
        yield cast(pa.RecordBatchReader, connection.sql(query, params=[names]).to_arrow_reader(group_rows))


def writer(to: io.BufferedWriter, schema: pa.Schema, column: str) -> pq.ParquetWriter:
    return pq.ParquetWriter(to, schema, compression="zstd", write_statistics=[column])


def rows_of(
    runs: Iterable[tuple[Run, frozenset[Source]]],
    schema: pa.Schema,
    folder: str,
    among: Among,
    conditions: Sequence[Condition],
) -> pa.Table | None:
    """The rows of a table that meet all conditions; None where they are many."""
    found = []
    for run, files in runs:
        if not files:
            continue
        names = pa.array([path for path, _ in files], pa.string())
        for group in groups_with(run, among):
            rows = group.filter(pc.is_in(group[file_name], value_set=names))
            for each in conditions:
                rows = rows.filter(meets(rows, each))
            found.append(rows)
            if are_many(found):
                return None
    wanted = placed_schema(schema)
    rows = pa.concat_tables(each.cast(wanted) for each in found) if found else wanted.empty_table()
    paths: Any = pc.binary_join_element_wise(pa.scalar(folder), cast(Any, rows[file_name]), pa.scalar("/"))
    return rows.set_column(wanted.names.index(file_name), wanted.field(file_name), paths)


def are_many(found: Sequence[pa.Table]) -> bool:
    """Whether they are more than the driver takes."""
    rows, size_bytes = sum(each.num_rows for each in found), sum(each.nbytes for each in found)
    return rows > small_reads.rows_max or size_bytes > small_reads.bytes_max


def bytes_of(run: Run, among: Among) -> int:
    """How much of a run is read to find the rows of some values."""
    extents = (extent(run.parquet.row_group(number)) for number in numbers_of_groups(run.parquet, among))
    return sum(end - start for start, end in extents)


def groups_with(run: Run, among: Among) -> Iterator[pa.Table]:
    """The groups of a run that can have one of the values; a run that is damaged is deleted, and an error."""
    try:
        with run.path.open("rb") as content, pq.ParquetFile(run.path, metadata=run.parquet) as file:
            for number in numbers_of_groups(run.parquet, among):
                start, end = extent(run.parquet.row_group(number))
                content.seek(start)
                # Parquet's own checksums leave out what says how a page is to be read.
                if checksum(content.read(end - start)) != run.checksums[number]:
                    raise pa.ArrowInvalid("a run is not as it was written")
                yield file.read_row_group(number)
    except FileNotFoundError:
        raise
    except errors:
        run.path.unlink(missing_ok=True)
        raise


def extent(group: pq.RowGroupMetaData) -> tuple[int, int]:
    """Where a group of rows begins in its file, and where it ends."""
    first, last = group.column(0), group.column(group.num_columns - 1)
    begins = [each.dictionary_page_offset or each.data_page_offset for each in (first, last)]
    return begins[0], begins[1] + last.total_compressed_size


def numbers_of_groups(parquet: pq.FileMetaData, among: Among) -> Iterator[int]:
    """The groups that can have one of the values, by the least and the greatest of each."""
    wanted, has_null = raw(sorted_values(among)), among.values.null_count > 0
    names = [parquet.row_group(0).column(at).path_in_schema for at in range(parquet.num_columns)]
    column = names.index(among.column)
    for number in range(parquet.num_row_groups):
        group = parquet.row_group(number)
        said = group.column(column).statistics
        if said is None or said.null_count is None or (has_null and said.null_count):
            yield number
        elif said.has_min_max:
            at = bisect_left(wanted, said.min_raw)
            if at < len(wanted) and wanted[at] <= said.max_raw:
                yield number
        elif said.null_count < group.num_rows:
            yield number


def raw(values: "pa.Array[Any]") -> list[Any]:
    """Values as Parquet orders them: times and days as numbers, text as bytes."""
    if pa.types.is_string(values.type):
        return [str(each).encode() for each in values.to_pylist()]
    bits = pa.int32() if pa.types.is_date(values.type) else pa.int64()
    return cast("list[Any]", values.cast(bits).to_pylist())


def meets(rows: pa.Table, condition: Condition) -> Any:
    """For each row whether it meets a condition."""
    column = rows[condition.column]
    if isinstance(condition, Among):
        return pc.is_in(column, value_set=pc.unique(condition.values).cast(column.type))
    begun = pc.greater_equal(column, condition.start)
    return begun if condition.end is None else pc.and_kleene(begun, pc.less(column, condition.end))
