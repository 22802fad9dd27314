"""What a project publishes: one publisher for each target that is declared."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from functools import partial

from sluice.api.driver import observing
from sluice.api.opened import Message, Opened
from sluice.engine.catalogue import Catalogue, files_of
from sluice.engine.observer import Observer, Watch
from sluice.errors import DeclarationError, SluiceError
from sluice.operate.publish import Published, Publisher
from sluice.operate.publish.targets import publishers


def publish_once(here: Opened, tables: Sequence[str], *, again: bool) -> list[Published]:
    """Brings each target to the newest version of its table; an error of one is in its result."""
    catalogue = here.catalogue()
    with publishers(here.lake, here.settings, catalogue.publications, tables) as found, observing(here) as observer:
        watching = partial(watched, observer, catalogue)
        return [advanced(each, watching, again=again) for each in found]


def publish_until(here: Opened, tables: Sequence[str], stop: threading.Event) -> None:
    """The same again and again, until `stop` is set; says what changed, and an error once as long as it lasts.

    No target waits for another. When the declarations change, all go on by the new ones.
    """
    files: object = files_of(here.settings.project)
    catalogue: Catalogue | None = here.catalogue()
    while catalogue is not None:
        with publishers(here.lake, here.settings, catalogue.publications, tables) as found, observing(here) as observer:
            follow(here, found, partial(watched, observer, catalogue), files, stop)
        if stop.is_set():
            return
        here.notify(Message("notice", "The declarations were changed. What they publish now goes on."))
        files, catalogue = read_again(here, stop)


def follow(
    here: Opened, found: Sequence[Publisher], watching: "Watching", files: object, stop: threading.Event
) -> None:
    """Advances each target in its own thread, until `stop` is set or the declarations are other files."""
    ended, speaking = threading.Event(), threading.Lock()

    def goes_on() -> bool:
        return not (stop.is_set() or ended.is_set()) and files_of(here.settings.project) == files

    def follow_one(publisher: Publisher) -> None:
        before = None
        while goes_on():
            done = advanced(publisher, watching, goes_on)
            with speaking:
                if done.error is not None and done.error != before:
                    here.notify(Message("error", f"{done.table}: {done.error}"))
                if done.changes:
                    here.notify(Message("notice", f"{done.table} → {done.target}: version {done.version}"))
            before = done.error
            stop.wait(here.settings.poll_seconds)

    with ThreadPoolExecutor(len(found)) as pool:
        try:
            for each in as_completed([pool.submit(follow_one, publisher) for publisher in found]):
                each.result()
        finally:
            ended.set()


def read_again(here: Opened, stop: threading.Event) -> tuple[object, Catalogue | None]:
    """The declarations with their files, as soon as they can be read; None when `stop` is set before."""
    while not stop.is_set():
        files = files_of(here.settings.project)
        try:
            return files, here.catalogue()
        except DeclarationError as error:
            here.notify(Message("error", f"{error} Nothing is published until they can be read."))
        while files_of(here.settings.project) == files and not stop.wait(here.settings.poll_seconds):
            pass
    return None, None


Watching = Callable[[Publisher], AbstractContextManager[Watch]]


def watched(observer: Observer, catalogue: Catalogue, publisher: Publisher) -> AbstractContextManager[Watch]:
    """What hears of the publication of a table to one target."""
    return observer.watching("publish", [publisher.table], catalogue, target=publisher.target.name)


def advanced(
    publisher: Publisher, watching: Watching, goes_on: Callable[[], bool] = lambda: True, *, again: bool = False
) -> Published:
    """What became of one target in a pass, which ends early, after a commit, unless it `goes_on`."""
    done = Published(publisher.table, publisher.target.name, None, 0)
    try:
        with watching(publisher) as watch:
            for each in publisher.advance(again=again):
                if each.changes and not done.changes:
                    watch.began("changes")
                done = Published(each.table, each.target, each.version, done.changes + each.changes)
                if not goes_on():
                    break
            watch.done(done.changes)
    except SluiceError as error:
        return Published(done.table, done.target, done.version, done.changes, str(error))
    return done
