"""The changes of a project's table, with the keys that its declaration names."""

import threading
from collections.abc import Iterator

from sluice.api.opened import Opened
from sluice.engine.catalogue import package
from sluice.operate.subscribe import Change, Cursor, Subscription


def changes_of(
    here: Opened,
    table: str,
    since: str | int | None,
    *,
    where: str | None,
    snapshot: bool,
    follow: bool,
    stop: threading.Event,
) -> Iterator[Change]:
    """The changes after a place; with `follow` until `stop` is set."""

    def wait() -> bool:
        return not stop.wait(here.settings.poll_seconds)

    cursor = None if since is None else Cursor.of(since)
    subscription = Subscription(here.lake, table, key_of(here, table), where, snapshot)
    subscription.require()
    return until(stop, subscription.changes(cursor, wait if follow else None))


def key_of(here: Opened, table: str) -> tuple[str, ...]:
    """The columns that identify a row of a table; none where nothing declares it."""
    if not (here.settings.project / package).is_dir():
        return ()
    outputs = (each for dataset in here.catalogue().datasets for each in dataset.outputs)
    return next((each.grain for each in outputs if each.table == table), ())


def until(stop: threading.Event, changes: Iterator[Change]) -> Iterator[Change]:
    """The changes, until the event is set."""
    for change in changes:
        if stop.is_set():
            return
        yield change
