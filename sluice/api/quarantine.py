"""The quarantined records of a project."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sluice.api.driver import observing
from sluice.api.opened import Opened
from sluice.engine.catalogue import Catalogue
from sluice.engine.observer import Watch, Work
from sluice.errors import UsageError
from sluice.operate import quarantine
from sluice.operate.quarantine import Consumer, QuarantinedByRule, QuarantinedRecord


@dataclass(frozen=True)
class Released:
    """How many records of a dataset the next run lets through."""

    dataset: str
    records: int


@dataclass(frozen=True)
class Quarantine:
    """Lists the quarantined records, late ones included, and releases them."""

    _here: Opened

    def list(self) -> tuple[QuarantinedByRule, ...]:
        """How many records each rule quarantined, by dataset."""
        return tuple(quarantine.quarantined_by_rule(self._here.lake, self._here.catalogue()))

    def records(
        self, dataset: str, *, reason: str | None = None, positions: Sequence[str] = (), limit: int | None = None
    ) -> tuple[QuarantinedRecord, ...]:
        """Quarantined records of a dataset, the oldest first: of one rule, or at positions `topic/partition/offset`.

        A UsageError when the dataset consumes no records, or has no such rule.
        """
        consumer = quarantine.consumer(self._here.catalogue(), dataset)
        found = quarantine.quarantined_records(
            self._here.lake, consumer, reason=reason, positions=positions, records_max=limit
        )
        # Records of a rule that was declared before are still shown.
        if reason is not None and not found:
            quarantine.require_reason(consumer, reason)
        return tuple(found)

    def add(self, dataset: str, positions: Sequence[str], because: str) -> int:
        """Sets records aside that broke no rule; the next run does it. Returns their number.

        A UsageError for a position at which nothing has landed.
        """
        catalogue = self._here.catalogue()
        consumer = quarantine.consumer(catalogue, dataset)
        with self.watched("quarantine", catalogue, consumer, because) as watch:
            count = quarantine.add(self._here.lake, self._here.log, consumer, positions, because)
            watch.done(count)
            return count

    def release(
        self, dataset: str, *, because: str, reason: str | None = None, positions: Sequence[str] = ()
    ) -> Released:
        """Releases quarantined records: all of one rule, or those at some positions; the next run takes them in.

        A UsageError when there are none, or when one cannot be used as it is.
        """
        if (reason is None) == (not positions):
            raise UsageError("Say what to release: reason='late', or positions=['topic/partition/offset'].")
        catalogue = self._here.catalogue()
        consumer = quarantine.consumer(catalogue, dataset)
        with self.watched("release", catalogue, consumer, because) as watch:
            found = quarantine.quarantined_records(self._here.lake, consumer, reason=reason, positions=positions)
            if reason is not None and not found:
                quarantine.require_reason(consumer, reason)
            unknown = set(positions) - {each.position for each in found}
            if unknown or not found:
                raise UsageError(
                    f"{consumer.name} has no quarantined record {', '.join(sorted(unknown)) or f'for {reason}'}."
                )
            count = quarantine.release(self._here.log, consumer, found, because)
            watch.done(count)
            return Released(consumer.name, count)

    @contextmanager
    def watched(self, work: Work, catalogue: Catalogue, consumer: Consumer, because: str) -> Iterator[Watch]:
        """What hears of work on the records of a dataset, which are read from the tables where they landed."""
        commits = {table: self._here.lake.last_commit(table) for table in consumer.landed_in.values()}
        with (
            observing(self._here) as observer,
            observer.watching(work, [consumer.name], catalogue, target=quarantine.commands_topic) as watch,
        ):
            watch.began(because, {table: commit.as_input for table, commit in commits.items() if commit})
            yield watch
