"""Records on their way to the log: appended together, because each append costs a segment and its fsync."""

import time
from collections import defaultdict
from dataclasses import dataclass, field

from sluice.log import AnyLog, Record


@dataclass
class Batch:
    """Collects records by topic; `append` makes them durable."""

    log: AnyLog
    records_max: int
    bytes_max: int = 16 * 1024 * 1024
    records: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0
    bytes: int = 0
    since: float = 0.0

    def add(self, topic: str, record: Record) -> None:
        if not self.count:
            self.since = time.monotonic()
        self.records[topic].append(record)
        self.count += 1
        self.bytes += len(record.value or b"")

    @property
    def is_full(self) -> bool:
        return self.count >= self.records_max or self.bytes >= self.bytes_max

    @property
    def age_seconds(self) -> float:
        """How long the oldest record has waited."""
        return time.monotonic() - self.since if self.count else 0.0

    def append(self) -> int:
        """Appends all, topic by topic, and returns how many there were; they are durable then."""
        for topic, records in self.records.items():
            self.log.append(topic, records)
        count = self.count
        self.records.clear()
        self.count = self.bytes = 0
        return count
