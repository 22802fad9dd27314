"""The changes of a project's table, with the keys that its declaration names."""

import threading
from collections.abc import Iterator
from pathlib import Path

from sluice.api.opened import Message, Opened
from sluice.engine.catalogue import package
from sluice.operate.subscribe import Change, Cursor, Subscription
from sluice.operate.webhook import PositionFile, Webhook, deliver, require_address, require_installed, secret_key


def changes_of(
    here: Opened,
    table: str,
    since: str | int | None,
    *,
    where: str | None,
    snapshot: bool,
    follow: bool,
    stop: threading.Event,
    seconds_max: float | None = None,
) -> Iterator[Change]:
    """The changes after a place; with `follow` until `stop` is set."""

    def wait() -> bool:
        return not stop.wait(here.settings.poll_seconds)

    cursor = None if since is None else Cursor.of(since)
    subscription = Subscription(here.lake, table, key_of(here, table), where, snapshot, seconds_max)
    subscription.require()
    return until(stop, subscription.changes(cursor, wait if follow else None))


def deliver_changes(
    here: Opened,
    table: str,
    url: str,
    *,
    secret: str,
    position: Path,
    since: str | int | None,
    give_up_seconds: float,
    where: str | None,
    snapshot: bool,
    follow: bool,
    stop: threading.Event,
) -> int:
    """Delivers the changes after the position, or after `since` where there is none; how many there were."""
    require_installed()
    require_address(url)
    webhook = Webhook(url, secret_key(secret), give_up_seconds, warn=lambda text: here.notify(Message("warning", text)))
    kept = PositionFile(position, table)
    with kept.held():
        known = kept.read()
        at = since if known is None else known
        changes = changes_of(here, table, at, where=where, snapshot=snapshot, follow=follow, stop=stop)
        return deliver(changes, None if at is None else str(at), webhook, kept, stop)


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
