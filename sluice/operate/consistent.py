"""The newest versions of all tables that belong together: each table is as computed from the others."""

import threading
import time
from collections.abc import Callable, Mapping

from sluice.model.ledger import Commit
from sluice.storage.delta import Lake

# A table that has not followed another one for longer than this is blocked or held: nobody waits for it.
behind_ms_max = 300_000


class Newest:
    """The newest versions that belong together, looked up for all readers together: at most every `seconds`."""

    def __init__(self, lake: Lake, seconds: float) -> None:
        self.lake, self.seconds = lake, seconds
        self.lock = threading.Lock()
        self.known: Mapping[str, int | None] = {}
        self.looked_at = float("-inf")
        # When commits that are not followed were first seen, by the clock of this process.
        self.seen: dict[tuple[str, int, int], float] = {}

    def versions(self) -> Mapping[str, int | None]:
        with self.lock:
            if time.monotonic() - self.looked_at > self.seconds:
                self.known, self.looked_at = self.look(), time.monotonic()
            return self.known

    def look(self) -> dict[str, int | None]:
        """The versions now. How old a commit is says the clock of who wrote it only if it was there at the start."""
        is_first, now = self.looked_at == float("-inf"), time.monotonic()
        before, self.seen = self.seen, {}

        def age_ms(source: str, missed: Commit) -> float:
            key = source, missed.version, missed.timestamp_ms
            since = now - age_by_clock_ms(source, missed) / 1000 if is_first else before.get(key, now)
            return (now - self.seen.setdefault(key, since)) * 1000

        return versions(self.lake, age_ms)


def age_by_clock_ms(_source: str, missed: Commit) -> float:
    """How old a commit is by the clock of who wrote it; one from the future is as far from now."""
    return abs(time.time() * 1000 - missed.timestamp_ms)


Age = Callable[[str, Commit], float]


def versions(lake: Lake, age_ms: Age = age_by_clock_ms) -> dict[str, int | None]:
    """The newest version of each table such that those made from one another agree.

    While a run is between two tables, the tables that it has written already are taken as they were before. A table
    that stays behind, because it is blocked or held, holds back no other. Tables that several datasets share, and those
    of other programs, are as they are. One that cannot be read has no version (None).
    """
    tables = lake.tables()
    found = {table: readable_commit(lake, table) for table in tables}
    chosen = {table: commit for table, commit in found.items() if commit is not None and commit.entry.dataset == table}
    # Each round moves one table back, so there is an end.
    while (moved := moved_back(lake, chosen, age_ms)) is not None:
        table, commit = moved
        chosen[table] = commit
    return {table: chosen[table].version if table in chosen else newest_version(lake, table) for table in tables}


def readable_commit(lake: Lake, table: str) -> Commit | None:
    """The newest commit of a table; None too where the table cannot be read, which its own state says."""
    try:
        return lake.last_commit(table)
    except Exception:  # noqa: BLE001 - one broken table hides no other
        return None


def newest_version(lake: Lake, table: str) -> int | None:
    try:
        return lake.newest_version(table)
    except Exception:  # noqa: BLE001 - the same
        return None


def moved_back(lake: Lake, chosen: Mapping[str, Commit], age_ms: Age) -> tuple[str, Commit] | None:
    """A table that contradicts another one, with the older commit that does not; None when all agree."""
    for table, commit in chosen.items():
        for source, seen in commit.entry.inputs.items():
            if source not in chosen or (there := chosen[source].as_input).epoch != seen.epoch:
                continue
            if there.version > seen.version:
                known = lake.commits(source)
                missed = next(each for each in known if each.as_input.version > seen.version)
                older = [each for each in known if each.as_input.version <= seen.version]
                if older and age_ms(source, missed) <= behind_ms_max:
                    return source, older[-1]
            elif there.version < seen.version:
                known = [each for each in lake.commits(table) if each.version < commit.version]
                older = [each for each in known if seen_version(each, source) <= there.version]
                if older:
                    return table, older[-1]
    return None


def seen_version(commit: Commit, source: str) -> int:
    seen = commit.entry.inputs.get(source)
    return -1 if seen is None else seen.version
