"""The changes of a project's table, with the keys that its declaration names."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sluice.api.opened import Message, Opened
from sluice.engine.catalogue import files_of, is_project
from sluice.errors import DeclarationError, SluiceError
from sluice.operate.subscribe import Change, Cursor, Subscription
from sluice.operate.webhook import PositionFile, Webhook, deliver, require_address, require_installed
from sluice.runtime.signatures import secret_key


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
    memory: str | None = None,
    on_read: Callable[[str], None] = lambda cursor: None,
) -> Iterator[Change]:
    """The changes after a place; with `follow` until `stop` is set, or another declaration tells rows apart otherwise.

    `on_read` gets the cursor of each version that was read, also where no change of it came.
    """
    files = files_of(here.settings.project)
    key = key_of(here, table)

    def wait() -> bool:
        nonlocal files
        if stop.wait(here.settings.poll_seconds):
            return False
        if (now := files_of(here.settings.project)) != files:
            files = now
            try:
                found = key_of(here, table)
            except DeclarationError as error:
                # Of a file that is being edited; another change of it is looked at again.
                here.notify(Message("warning", f"{error} The changes go on as before."))
            else:
                require_key(table, key, found)
        return True

    cursor = None if since is None else Cursor.of(since)
    subscription = Subscription(here.lake, table, key, where, snapshot, seconds_max, memory)
    subscription.require()
    found = subscription.changes(cursor, wait if follow else None, lambda at: on_read(str(at)))
    return until(stop, found)


def require_key(table: str, before: Sequence[str], now: Sequence[str]) -> None:
    """A SluiceError where other columns identify a row than when the reading began: updates would be others."""
    if now != before:
        says, said = (
            f"{', '.join(each)} identify its rows" if each else "nothing declares it" for each in (now, before)
        )
        raise SluiceError(
            f"The declaration of {table} was changed: {says} now, and {said} when this began. Start again, at the end "
            "of a version."
        )


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
    kept = PositionFile(position, table, where)
    with kept.held():
        known = kept.read()
        at = since if known is None else known
        changes = changes_of(
            here, table, at, where=where, snapshot=snapshot, follow=follow, stop=stop, on_read=kept.advance
        )
        return deliver(changes, None if at is None else str(at), webhook, kept, stop)


def key_of(here: Opened, table: str) -> tuple[str, ...]:
    """The columns that identify a row of a table; none where nothing declares it."""
    if not is_project(here.settings.project):
        return ()
    outputs = (each for dataset in here.catalogue().datasets for each in dataset.outputs)
    return next((each.grain for each in outputs if each.table == table), ())


def until(stop: threading.Event, changes: Iterator[Change]) -> Iterator[Change]:
    """The changes, until the event is set."""
    for change in changes:
        if stop.is_set():
            return
        yield change
