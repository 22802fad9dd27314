"""What a project publishes: one publisher for each target that is declared."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from sluice.api.driver import observing
from sluice.api.opened import Message, Opened
from sluice.engine.catalogue import Catalogue
from sluice.engine.observer import Observer, Watch
from sluice.errors import SluiceError
from sluice.operate.publish import Published, Publisher
from sluice.operate.publish.targets import publishers


def publish_once(here: Opened, tables: Sequence[str], *, again: bool) -> list[Published]:
    """Brings each target to the newest version of its table; an error of one is in its result."""
    catalogue = here.catalogue()
    with publishers(here.lake, here.settings, catalogue.publications, tables) as found, observing(here) as observer:
        watching = partial(watched, observer, catalogue)
        return [advanced(each, watching, again=again) for each in found]


def publish_until(here: Opened, tables: Sequence[str], stop: threading.Event) -> None:
    """The same again and again, until `stop` is set; says what changed, and an error once as long as it lasts."""
    errors: dict[str, str | None] = {}
    catalogue = here.catalogue()
    with publishers(here.lake, here.settings, catalogue.publications, tables) as found, observing(here) as observer:
        watching = partial(watched, observer, catalogue)
        while not stop.is_set():
            for each in found:
                done = advanced(each, watching, stop)
                if done.error is not None and errors.get(done.target) != done.error:
                    here.notify(Message("error", f"{done.table}: {done.error}"))
                if done.changes:
                    here.notify(Message("notice", f"{done.table} → {done.target}: version {done.version}"))
                errors[done.target] = done.error
            stop.wait(here.settings.poll_seconds)


Watching = Callable[[Publisher], AbstractContextManager[Watch]]


def watched(observer: Observer, catalogue: Catalogue, publisher: Publisher) -> AbstractContextManager[Watch]:
    """What hears of the publication of a table to one target."""
    return observer.watching("publish", [publisher.table], catalogue, target=publisher.target.name)


def advanced(
    publisher: Publisher, watching: Watching, stop: threading.Event | None = None, *, again: bool = False
) -> Published:
    """What became of one target in a pass, which ends early, after a commit, when `stop` is set."""
    done = Published(publisher.table, publisher.target.name, None, 0)
    try:
        with watching(publisher) as watch:
            for each in publisher.advance(again=again):
                if each.changes and not done.changes:
                    watch.began("changes")
                done = Published(each.table, each.target, each.version, done.changes + each.changes)
                if stop is not None and stop.is_set():
                    break
            watch.done(done.changes)
    except SluiceError as error:
        return Published(done.table, done.target, done.version, done.changes, str(error))
    return done
