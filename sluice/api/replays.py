"""The replays of a project: tables computed beside the live ones, compared, and put in their place."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sluice.api.driver import asked
from sluice.api.opened import Message, Opened
from sluice.api.times import backfill_range
from sluice.engine.runner import Event
from sluice.operate import replay, requests
from sluice.operate.replay import Replay


@dataclass(frozen=True)
class Replays:
    """Starts, lists, shows, promotes and drops replays."""

    _here: Opened

    def plan(
        self,
        *datasets: str,
        because: str,
        since: datetime | None = None,
        until: datetime | None = None,
        records: Sequence[str] = (),
    ) -> Replay:
        """What `start` would compute: its `tables`; nothing is kept of it."""
        part = backfill_range(since, until, records)
        return replay.plan(self._here.lake, self._here.catalogue(), datasets, part, because)

    def start(
        self,
        *datasets: str,
        because: str,
        since: datetime | None = None,
        until: datetime | None = None,
        records: Sequence[str] = (),
    ) -> Replay:
        """Recomputes datasets and all that is made from them in a shadow, and returns what would change.

        No `datasets`: those whose declaration changed. A range of event times, from `since` until before `until`, or
        `records` (`topic/partition/first-last`) limits what is recomputed. Needs Spark; the live tables stay as they
        are. A UsageError when no declaration changed and nothing is named; a SluiceError names the row and the records
        that cannot be computed, and the replay is kept as failed.
        """
        here = self._here
        catalogue = here.catalogue()
        planned = replay.plan(here.lake, catalogue, datasets, backfill_range(since, until, records), because)
        with here.sessions.reading() as spark:
            begun = replay.begun(here.lake, planned)
            for step in replay.build(spark, here.lake, catalogue, begun):
                here.listener(Event("step", step))
        return self.show(begun.name)

    def list(self) -> tuple[Replay, ...]:
        """The replays that are kept, the oldest first; a message warns of each that cannot be read."""
        for name in replay.unreadable(self._here.lake):
            text = f"The replay {name} cannot be read ({replay.file_name(name)}). Forget it: sluice replay drop {name}"
            self._here.notify(Message("warning", text))
        return tuple(replay.replays(self._here.lake))

    def show(self, name: str) -> Replay:
        """What a replay would change; a UsageError lists the replays that there are."""
        return replay.find(self._here.lake, name)

    def promote(self, name: str) -> dict[str, int]:
        """Puts a replay in place of the live tables; returns how many rows changed in each.

        A SluiceError when the declarations changed since it was built, or when a table would break what is critical.
        """
        self.show(name)
        return asked(self._here, requests.Request(do="promote", replay=name))

    def drop(self, name: str) -> None:
        """Forgets a replay and removes its tables; what was promoted stays."""
        replay.drop(self._here.lake, name)

    def tables_of(self, *names: str) -> tuple[str, ...]:
        """The names, or the tables that one replay of that name was the last to replace."""
        return replay.tables_of(self._here.lake, names)
