"""Keeps tables of gold equal in other systems: one commit at a time, each once, together with the place of the next."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Protocol

from sluice.errors import PublishError
from sluice.operate.subscribe import Change, Cursor, Subscription
from sluice.storage.delta import Lake

__all__ = ["Commit", "Position", "Published", "Publisher", "Target"]


@dataclass(frozen=True)
class Position:
    """How far a target is, as it keeps it itself: it has the rows of the table `source` as of the place `cursor`.

    `key` and `columns`, with their types, are those that its rows were written with.
    """

    source: str
    cursor: str
    key: tuple[str, ...]
    columns: Mapping[str, str]

    @property
    def version(self) -> int:
        return Cursor.of(self.cursor).version


@dataclass(frozen=True)
class Commit:
    """One commit of the table: its changes, and the position of whoever has them.

    Where it `replaces`, the changes are inserts of all rows, and whatever was there before goes; with `again`, somebody
    asked for it, also where others wrote since.
    """

    changes: Iterator[Change]
    then: Position
    committed_at: datetime
    replaces: bool
    again: bool = False


class Target(Protocol):
    """A table or a topic elsewhere. Every method raises a PublishError when the other system refuses something."""

    @property
    def name(self) -> str: ...

    def position(self) -> Position | None:
        """How far it is; None where all rows must be written."""

    def apply(self, commit: Commit) -> int:
        """Writes all changes and moves the position, or does nothing. Returns how many changes there were."""

    def close(self) -> None:
        """Gives up what is open; nothing of it is written. The next call starts again."""


@dataclass(frozen=True)
class Published:
    """What became of one target: it is at this version of the table, by so many changes; or what went wrong."""

    table: str
    target: str
    version: int | None
    changes: int
    error: str | None = None


@dataclass(frozen=True)
class Publisher:
    """Keeps one target equal to one table, whose rows the columns `key` identify."""

    lake: Lake
    table: str
    key: tuple[str, ...]
    target: Target

    def advance(self, *, again: bool = False) -> Iterator[Published]:
        """Brings the target to the newest version, commit by commit; first the state that it is in.

        With `again`, all rows are written, whatever the target says that it has. A PublishError when the target refuses
        something, a SluiceError when the table cannot be read. What was yielded stays, and the next call goes on there.
        """
        known = self.target.position()
        if again or known is None or (known.source, known.key) != (self.table, self.key):
            known = None
        yield Published(self.table, self.target.name, None if known is None else known.version, 0)
        subscription = Subscription(self.lake, self.table, self.key, snapshot=True)
        at = None if known is None else Cursor.of(known.cursor)
        for changes in by_commit(with_whole_columns(subscription, at)):
            commit = replace(self.commit(changes, known), again=again)
            count = self.target.apply(commit)
            known = commit.then
            yield Published(self.table, self.target.name, known.version, count)

    def commit(self, changes: Iterator[Change], known: Position | None) -> Commit:
        """The changes as a target takes them, after what it has."""
        first = next(changes)
        cursor = str(replace(Cursor.of(first.cursor), position=None, is_snapshot=False))
        if first.operation == "reset":
            columns = self.with_key(first.columns or {})
            return Commit(changes, Position(self.table, cursor, self.key, columns), first.committed_at, True)
        if known is None:
            raise PublishError(f"{self.table}: there are changes of rows that {self.target.name} does not have.")
        return Commit(chain([first], changes), replace(known, cursor=cursor), first.committed_at, False)

    def with_key(self, columns: Mapping[str, str]) -> Mapping[str, str]:
        """The columns; a PublishError where the table is older than the declaration that names its key."""
        missing = [name for name in self.key if name not in columns]
        if missing:
            raise PublishError(
                f"{self.table} has no column {', '.join(missing)}, which its declaration names as its key. "
                "Refresh it first: sluice run"
            )
        return columns


def with_whole_columns(subscription: Subscription, at: Cursor | None) -> Iterator[Change]:
    """The changes after a place; instead of a commit with other columns, all rows as they are, after a `reset`."""
    while True:
        for change in subscription.changes(at):
            if change.operation == "schema":
                break
            yield change
        else:
            return
        newest = subscription.lake.newest_version(subscription.table)
        at = yield from subscription.from_snapshot(newest, None, "its columns changed.")


def by_commit(changes: Iterator[Change]) -> Iterator[Iterator[Change]]:
    """The changes of one commit after the other; each must be read to its end before the next."""
    for first in changes:
        yield chain([first], () if first.is_last else until_last(changes))


def until_last(changes: Iterator[Change]) -> Iterator[Change]:
    for change in changes:
        yield change
        if change.is_last:
            return
