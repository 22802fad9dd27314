"""A part of the tables: the rows of a range of event time, or of some records of the log."""

import re
from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict
from pyspark.sql import functions as F

from sluice.errors import UsageError
from sluice.model.times import instant
from sluice.shapes.parse import position

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

records_pattern = re.compile(r"([^/]+)/(\d+)/(\d+)(?:-(\d+))?")


# As bronze has them.
offset_max, partition_max = 2**63 - 1, 2**31 - 1


class Records(BaseModel):
    """The records of one partition from one offset to another, both included."""

    model_config = ConfigDict(frozen=True)

    topic: str
    partition: int
    first: int
    last: int

    @classmethod
    def of(cls, text: str) -> Self:
        """From `topic/partition/offset`, or `topic/partition/first-last`."""
        found = records_pattern.fullmatch(text)
        if (
            found is None
            or not int(found[3]) <= int(found[4] or found[3]) <= offset_max
            or int(found[2]) > partition_max
        ):
            raise UsageError(
                f"'{text}' names no records; write topic/partition/first-last, for example orders/0/100-199"
            )
        return cls(topic=found[1], partition=int(found[2]), first=int(found[3]), last=int(found[4] or found[3]))

    @property
    def condition(self) -> "Column":
        topic, partition, offset = position
        return (
            (F.col(topic) == self.topic)
            & (F.col(partition) == self.partition)
            & F.col(offset).between(self.first, self.last)
        )


class BackfillRange(BaseModel):
    """Event times from `since` until before `until`, or else `records`."""

    model_config = ConfigDict(frozen=True)

    since: datetime | None = None
    until: datetime | None = None
    records: tuple[Records, ...] = ()

    @classmethod
    def of(cls, since: datetime | None, until: datetime | None, records: Sequence[str]) -> Self | None:
        """The range that is named, or None if nothing is; a UsageError if it is empty."""
        if not (since or until or records):
            return None
        if (since or until) and records:
            raise UsageError("Name a range of event time or records, not both.")
        if since and until and since >= until:
            raise UsageError(f"--until {until:%Y-%m-%dT%H:%M:%S} must be later than --since {since:%Y-%m-%dT%H:%M:%S}.")
        return cls(since=since, until=until, records=tuple(Records.of(text) for text in records))

    def rows(self, df: "DataFrame", event_time: str | None) -> "DataFrame | None":
        """The rows of `df` in this part; None if `df` lacks the columns to decide."""
        if self.records:
            if not set(position) <= set(df.columns):
                return None
            return df.where(reduce(lambda left, right: left | right, [each.condition for each in self.records]))
        if event_time is None or event_time not in df.columns:
            return None
        if self.since is not None:
            df = df.where(F.col(event_time) >= F.lit(self.since))
        return df if self.until is None else df.where(F.col(event_time) < F.lit(self.until))

    def split(self, rows: "DataFrame", event_time: str, rows_max: int) -> "list[Self]":
        """Ranges that follow each other and are together this one, each with about `rows_max` of the rows or fewer."""
        micros = F.unix_micros(F.col(event_time).cast("timestamp"))
        count = rows.select(F.count(micros)).head()[0]  # type: ignore[index]
        shares = [rows_max * number / count for number in range(1, ceil(count / rows_max))]
        if not shares:
            return [self]
        found = rows.select(F.percentile_approx(micros, shares)).head()[0]  # type: ignore[index]
        between = [instant(each) for each in sorted(set(found)) if self.since is None or instant(each) > self.since]
        ends = pairwise([self.since, *between, self.until])
        return [self.model_copy(update={"since": since, "until": until}) for since, until in ends]

    def __str__(self) -> str:
        if self.records:
            return ", ".join(f"{each.topic}/{each.partition}/{each.first}-{each.last}" for each in self.records)
        return " ".join(f"{word} {time:%Y-%m-%dT%H:%M:%S}" for word, time in self.bounds if time)

    @property
    def bounds(self) -> tuple[tuple[str, datetime | None], ...]:
        return (("since", self.since), ("until", self.until))
