"""The changes of a table as a stream, in an order that is always the same, so that a reader can go on where it was."""

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import duckdb

from sluice.errors import SluiceError, UsageError
from sluice.model.sql import double_quoted
from sluice.operate.infinity import with_infinity
from sluice.operate.query import ended_after, lock_down, serve_within
from sluice.operate.row_condition import require_of_row
from sluice.storage.delta import ChangesLost, CommitFile, Lake, RowImages, of_state

Operation = Literal["insert", "update", "delete", "schema", "reset"]
Pair = tuple[dict[str, Any] | None, dict[str, Any] | None]
rows_at_once = 10_000


@dataclass(frozen=True)
class Cursor:
    """How far a reader is: it has everything up to this `position` of this `version`; None: all of the version.

    `commit_ms` is the time of that version's commit, by which another commit of the same number is noticed. With
    `is_snapshot`, the position is in a snapshot of that version.
    """

    version: int = -1
    position: int | None = None
    commit_ms: int | None = None
    is_snapshot: bool = False

    @classmethod
    def of(cls, text: str | int) -> "Cursor":
        """`VERSION`, `VERSION:POSITION`, or the `cursor` of a change; a UsageError for anything else."""
        found = re.fullmatch(r"-1|([0-9]{1,18})(?::([0-9]{1,18}|all)(?::([0-9]{1,18})(:snapshot)?)?)?", str(text))
        if found is None:
            raise UsageError(
                f"{text!r} is not a place in a table's changes; give VERSION, VERSION:POSITION or a cursor."
            )
        version, position, commit_ms, snapshot = found.groups()
        return cls(
            -1 if version is None else int(version),
            None if position in (None, "all") else int(position),
            None if commit_ms is None else int(commit_ms),
            bool(snapshot),
        )

    def __str__(self) -> str:
        if self.version < 0:
            return str(self.version)
        place = "all" if self.position is None else self.position
        return f"{self.version}:{place}:{self.commit_ms or 0}{':snapshot' if self.is_snapshot else ''}"


@dataclass(frozen=True)
class Change:
    """One change of a row; or new columns (`schema`), or that a snapshot follows and what was before is void (`reset`).

    `old` and `new` are the row's values by column, None where there is no row. `position` counts the changes of a
    version from 0, whether a filter lets them through or not; `is_last` marks the last one that comes of a version.
    `cause` and `inputs` are the ledger's: why the commit was made, and from which versions of other tables.
    """

    table: str
    operation: Operation
    version: int
    position: int
    is_last: bool
    cursor: str
    committed_at: datetime
    cause: str
    inputs: Mapping[str, int]
    old: Mapping[str, Any] | None = None
    new: Mapping[str, Any] | None = None
    columns: Mapping[str, str] | None = None
    because: str | None = None

    @property
    def line(self) -> dict[str, Any]:
        """The change for JSON."""
        found = {name: value for name, value in vars(self).items() if name not in ("columns", "because", "old", "new")}
        if self.operation not in ("schema", "reset"):
            return found | {"old": self.old, "new": self.new}
        return found | {"columns": self.columns} | ({"because": self.because} if self.because else {})


# Changes, and in the end the place after them.
Places = Generator[Change, None, Cursor]


@dataclass(frozen=True)
class Subscription:
    """Reads the changes of one table.

    `key` names the columns that identify a row: by them the old and new values of a row are one update. Without them an
    update is a delete and an insert. `where` is a SQL condition; a row that comes to meet it is an insert, and one that
    no longer does a delete. To compare the rows of one version takes at most `seconds_max` and `memory` (`1GB`).
    `otherwise` is what to do where the changes are lost.
    """

    lake: Lake
    table: str
    key: Sequence[str] = ()
    where: str | None = None
    snapshot: bool = False
    seconds_max: float | None = None
    memory: str | None = None
    otherwise: str = "Subscribe with --snapshot to start from its rows as they are."

    def changes(
        self,
        since: Cursor | None,
        wait: Callable[[], bool] | None = None,
        on_read: Callable[[Cursor], None] = lambda at: None,
    ) -> Iterator[Change]:
        """The changes after `since`, None: all there ever were; up to the newest version, or until `wait` is False.

        `wait` is called each time that everything was read, and returns whether to look again; `on_read`, when all of a
        version was read, with the place after it, also where no change of it came.
        """
        self.require()
        at = self.kept(since or Cursor())
        if self.snapshot and (since is None or not self.is_continuous(at)):
            lost = None if since is None else self.lost(at)
            at = yield from self.from_snapshot(self.lake.newest_version(self.table), None, lost)
        elif at.is_snapshot:
            at = yield from self.from_snapshot(at.version, at, None)
        while True:
            lost = self.lost(at)
            if lost and not self.snapshot:
                raise SluiceError(f"{self.table}: {lost} {self.otherwise}")
            if lost:
                at = yield from self.from_snapshot(self.lake.newest_version(self.table), None, lost)
            newest = self.lake.newest_version(self.table)
            try:
                while (version := at.version + (at.position is None)) <= newest:
                    at = yield from self.of_version(version, at)
                    on_read(at)
            except ChangesLost as error:
                if not self.snapshot:
                    raise SluiceError(f"{self.table}: {error}. {self.otherwise}") from error
                at = yield from self.from_snapshot(self.lake.newest_version(self.table), None, f"{error}.")
            if wait is None or not wait():
                return

    def require(self) -> None:
        """A UsageError for a table that does not exist, or a condition that cannot be evaluated."""
        if self.table not in (known := self.lake.tables()):
            others = ", ".join(known) or "none: run the project first"
            raise UsageError(f"There is no table {self.table}; there are {others}.")
        require_condition(self.where)
        if self.where is not None:
            require_of_row(self.where, [*self.lake.columns(self.table, self.lake.newest_version(self.table))])

    def kept(self, at: Cursor) -> Cursor:
        """The same place where its version was removed, and the oldest one that is left has the same rows."""
        kept = None if at.position is not None else self.lake.kept_instead(self.table, at.version, at.commit_ms)
        return at if kept is None else Cursor(kept, None, self.lake.commit_ms(self.table, kept))

    def is_continuous(self, at: Cursor) -> bool:
        if self.lost(at):
            return False
        if not at.is_snapshot:
            return True
        try:
            self.lake.state(self.table, at.version)
        except ChangesLost:
            return False
        return True

    def lost(self, at: Cursor) -> str | None:
        """Why the changes after a place cannot be read; None when they can."""
        newest, oldest = self.lake.newest_version(self.table), self.lake.oldest_version(self.table)
        if at.version > newest:
            return (
                f"there is no version {at.version}; its newest version is {newest}. Perhaps the table was made again."
            )
        if at.version + (at.position is None) < oldest:
            return (
                f"its log begins at version {oldest}, and the changes after version {at.version} are gone, with age or "
                "by an erasure."
            )
        known = self.lake.commit_ms(self.table, at.version) if at.commit_ms and at.version >= oldest else at.commit_ms
        if known != at.commit_ms:
            return f"version {at.version} is another commit than the one that was read: the table was made again."
        return None

    def from_snapshot(self, version: int, after: Cursor | None, because: str | None) -> Places:
        """All rows of a version, after a place in them; a `reset` comes first. Returns where the changes go on."""
        commit = self.lake.commit_file(self.table, version)
        try:
            columns, rows = self.lake.columns(self.table, version), self.lake.state(self.table, version)
        except ChangesLost as error:
            raise SluiceError(f"{self.table}: {error}.") from error
        head = self.change(commit, "reset", columns=columns, because=because)
        pairs = self.pairs([*columns], [of_state(rows, "insert", [*columns])])
        whole = Cursor(version, None, commit.timestamp_ms)
        found = placed([head], pairs, self, commit, after)
        yield from marked(found, after, whole, is_snapshot=True)
        return whole

    def of_version(self, version: int, at: Cursor) -> Places:
        """The changes of one commit after a place. Returns the place after them."""
        commit = self.lake.commit_file(self.table, version)
        whole = Cursor(version, None, commit.timestamp_ms)
        heads = []
        columns = before = {} if version == 0 else self.columns_before(commit)
        if commit.changes_metadata:
            columns = self.lake.columns(self.table, version)
            if version and columns != before:
                heads = [self.change(commit, "schema", columns=columns)]
        after = at if at.version == version else None
        pairs: Iterator[Pair] = iter(())
        if commit.changes_data or heads:
            columns = columns or self.lake.columns(self.table, version)
            pairs = self.pairs([*columns], self.lake.images(self.table, commit, before or columns))
        yield from marked(placed(heads, pairs, self, commit, after), after, whole)
        return whole

    def columns_before(self, commit: CommitFile) -> dict[str, str]:
        """The columns that the table had before a commit; those it has now, where the commit does not change them."""
        return self.lake.columns(self.table, commit.version - commit.changes_metadata)

    def change(self, commit: CommitFile, operation: Operation, **more: Any) -> Change:
        """A change without its place."""
        entry = commit.entry
        return Change(
            table=self.table,
            operation=operation,
            version=commit.version,
            position=0,
            is_last=False,
            cursor="",
            committed_at=commit.committed_at,
            cause=entry.cause if entry else f"another program ({commit.operation})",
            inputs={name: each.version for name, each in entry.inputs.items()} if entry else {},
            **more,
        )

    def pairs(self, names: Sequence[str], images: Sequence[RowImages]) -> Iterator[Pair]:
        """The old and new rows that differ, paired by the key, in order; None where the filter does not know a row.

        Equal rows cancel each other out, as often as they are there. The filter sees old rows as they were.
        """
        if not any(each.rows.num_rows for each in images):
            return
        with confined(images, self.memory) as connection:
            try:
                with ended_after(connection, self.seconds_max):
                    known = [self.where_of(connection, names, each, number) for number, each in enumerate(images)]
                    sql = paired(names, images, self.key, known)
                    relation = connection.sql(sql)
                    answer = connection.execute(with_infinity(sql, relation.columns, relation.types))
                while some := answer.fetchmany(rows_at_once):
                    yield from some
            except duckdb.Error as error:
                what = "its changes" if self.where is None else f"the condition {self.where!r}"
                raise UsageError(f"{self.table}: {what} cannot be evaluated: {said(error)}") from error

    def where_of(
        self, connection: "duckdb.DuckDBPyConnection", names: Sequence[str], images: RowImages, number: int
    ) -> str:
        """The SQL that says which of these rows the filter knows.

        None of the old ones where the condition makes no sense of their columns: nobody can have followed it then.
        """
        if self.where is None:
            return "true"
        inside = f"coalesce(CAST(({self.where}\n) AS BOOLEAN), false)"
        if {*names} <= {*images.columns}:
            return inside
        try:
            connection.sql(f"SELECT {inside} FROM ({with_all_columns(names, images, number)}) LIMIT 0")
        except duckdb.BinderException:
            return "false"
        return inside


def require_condition(where: str | None) -> None:
    """A UsageError for a condition that is no SQL expression."""
    if where is None:
        return
    try:
        found = duckdb.extract_statements(f"SELECT ({where}\n)")
        # By itself it has no bracket that ends the one before it.
        duckdb.extract_statements(f"SELECT {where}")
    except duckdb.Error as error:
        raise UsageError(f"The condition {where!r} is not an SQL expression: {said(error)}") from error
    if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
        raise UsageError(f"The condition {where!r} is not an SQL expression.")


def said(error: duckdb.Error) -> str:
    """DuckDB's message without the SQL that is ours."""
    return str(error).partition("\n\nLINE ")[0]


def confined(images: Sequence[RowImages], memory: str | None) -> "duckdb.DuckDBPyConnection":
    """A connection with the images, from which nothing else can be reached."""
    connection = duckdb.connect()
    if memory is not None:
        serve_within(connection, memory)
    connection.execute("SET TimeZone = 'UTC'")
    for number, each in enumerate(images):
        connection.register(f"_images_{number}", each.rows)
    lock_down(connection)
    return connection


def paired(names: Sequence[str], images: Sequence[RowImages], key: Sequence[str], known: Sequence[str]) -> str:
    """The SQL of `pairs`, in the order of the keys, then of all values; `known` says which rows of each images are."""
    keys = key if set(key) <= set(names) else []
    # The newest images come first: what is null in all the others takes their types.
    each = [
        selected(names, rows, number, inside) for number, (rows, inside) in enumerate(zip(images, known, strict=True))
    ]
    both = " UNION ALL ".join(reversed(each))
    row = f"struct_pack({', '.join(f'{double_quoted(name)} := {double_quoted(name)}' for name in names)})"
    by = (
        f"struct_pack({', '.join(f'{double_quoted(name)} := _row.{double_quoted(name)}' for name in keys)})"
        if keys
        else "_row"
    )
    return f"""
        WITH _rows AS (SELECT {row} AS _row, _inside, _sign FROM ({both})),
        _counts AS (
            SELECT _row, _inside, sum(_sign) AS _count FROM _rows GROUP BY _row, _inside HAVING sum(_sign) <> 0
        ),
        _each AS (SELECT _row, _inside, _count > 0 AS _is_new, unnest(range(abs(_count)::BIGINT)) FROM _counts),
        _numbered AS (
            SELECT *, {by} AS _key, row_number() OVER (PARTITION BY {by}, _is_new ORDER BY _row) AS _number FROM _each
        )
        SELECT any_value(_row) FILTER (NOT _is_new AND _inside) AS _old,
            any_value(_row) FILTER (_is_new AND _inside) AS _new
        FROM _numbered GROUP BY _key, _number ORDER BY _key, _number
    """


def selected(names: Sequence[str], images: RowImages, number: int, inside: str) -> str:
    """The rows of one table of images, with `_inside`, and 1 for a new row and -1 for an old one."""
    columns = ", ".join(
        double_quoted(name) if name in images.columns else f"NULL AS {double_quoted(name)}" for name in names
    )
    sign = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END"
    known = f"SELECT *, {inside} AS _inside FROM ({with_all_columns(names, images, number)})"
    return f"SELECT {columns}, _inside, {sign} AS _sign FROM ({known})"


def with_all_columns(names: Sequence[str], images: RowImages, number: int) -> str:
    """The rows of one table of images, with null for the columns that they lack."""
    there = images.rows.column_names
    lacking = [name for name in names if name not in there]
    # Two names that differ in their case alone are one to DuckDB.
    hidden = {name.lower() for name in lacking}
    own = [double_quoted(name) for name in there if name.lower() not in hidden]
    return f"SELECT {', '.join([*own, *[f'NULL AS {double_quoted(name)}' for name in lacking]])} FROM _images_{number}"


def placed(
    heads: Sequence[Change],
    pairs: Iterator[Pair],
    of: Subscription,
    commit: CommitFile,
    after: Cursor | None,
) -> Iterator[Change]:
    """The changes with their positions; those that the filter does not know are counted and left out.

    A UsageError where there is no change at the place `after`, once all are counted: none of them comes after it.
    """
    for position, head in enumerate(heads):
        yield replace(head, position=position)
    position = len(heads) - 1
    for position, (old, new) in enumerate(pairs, len(heads)):
        if old is not None or new is not None:
            operation: Operation = "insert" if old is None else "delete" if new is None else "update"
            yield replace(of.change(commit, operation, old=old, new=new), position=position)
    if after is not None and after.position is not None and after.position > position:
        has = f"positions 0 to {position}" if position >= 0 else "no changes"
        raise UsageError(f"{of.table}: version {commit.version} has {has}; there is no position {after.position}.")


def marked(
    changes: Iterator[Change], after: Cursor | None, whole: Cursor, *, is_snapshot: bool = False
) -> Iterator[Change]:
    """The changes after a place, each with its cursor; that of the last one is of the whole version."""
    passed = -1 if after is None or after.position is None else after.position
    before: Change | None = None
    for each in changes:
        if each.position <= passed:
            continue
        if before is not None:
            yield before
        place = Cursor(whole.version, each.position, whole.commit_ms, is_snapshot)
        before = replace(each, cursor=str(place))
    if before is not None:
        yield replace(before, is_last=True, cursor=str(whole))
