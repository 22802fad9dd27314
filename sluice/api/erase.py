"""Erase the records of a subject, and search for what may be left of it."""

from dataclasses import replace

from sluice.api.driver import asked
from sluice.api.opened import Opened
from sluice.engine.erase import copies_of_replays
from sluice.log import is_reserved
from sluice.operate import erase, requests
from sluice.operate.erase import Erased, Subject


def erased(here: Opened, subject: Subject, reason: str, *, dry_run: bool) -> Erased:
    """States in the log that the records are to be erased, and does it; also what is left of earlier erasures."""
    meant = erase.found(here.lake, here.log, here.catalogue(), subject)
    counts = {partition: len(each) for partition, each in meant.offsets.items()}
    found = Erased(subject.topic, counts, unknown_fields=meant.unknown_fields)
    if dry_run:
        return replace(found, in_the_way=tuple(copies_of_replays(here.lake)))
    if meant.offsets:
        erase.state(here.log, subject, meant.offsets, reason)
    done = asked(here, requests.Request(do="erase"))
    return replace(found, in_the_way=tuple(done["in_the_way"]))


def searched_topics(here: Opened) -> list[str]:
    """The topics that a search reads of a log that is not in files: those of the project, and Sluice's own."""
    if here.log.folder_of_files is not None:
        return []
    declared = {each.topic for each in here.catalogue().topics}
    return [name for name in here.log.topics() if name in declared or is_reserved(name)]
