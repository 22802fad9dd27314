"""What is drawn from a seed: records, and datasets, each with what it must hold where that is known."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sluice.model.datasets import Dataset, Topic
from tests.kit import day_one
from tests.laws.values import as_json

Row = dict[str, Any]
# Records arrive long after what they tell of, so that windows become complete.
first_moment = day_one + timedelta(days=400)


@dataclass(frozen=True)
class Said:
    """A record: the case that it is of (None: it bears on all), and the thing that it says (None: it is not usable).

    `moment` is its timestamp in the log, which no other record has: so the log's order does not hang on partitions.
    """

    topic: str
    value: bytes | None
    case: int | None
    moment: datetime
    thing: Any = None

    def __str__(self) -> str:
        return f"{self.topic} at {self.moment.isoformat()}: {(self.value or b'null').decode(errors='backslashreplace')}"


@dataclass
class Truth:
    """The records in the log's order, and the rows of the tables as far as they are worked out."""

    records: Sequence[Said]
    rows: dict[str, list[Row]] = field(default_factory=dict)

    def of(self, *topics: str) -> list[Any]:
        return [each.thing for each in self.records if each.topic in topics and each.thing is not None]


Oracle = Callable[[Truth], Iterable[Row]]


@dataclass(frozen=True)
class Drawn:
    """A dataset, its declaration as text, and an oracle that works out its rows where there is one.

    `of_case` gives the records of a case, and `finished` those of all cases as they are sent, with what bears on every
    case. `columns` are those that others can look at.
    """

    dataset: Dataset
    text: str
    oracle: Oracle | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    of_case: Callable[[random.Random, int], list[Said]] | None = None
    finished: Callable[[random.Random, Sequence[Said]], list[Said]] = lambda chance, said: list(said)

    @property
    def name(self) -> str:
        return self.dataset.name


def declared(word: Callable[..., Dataset], name: str, **options: Any) -> tuple[Dataset, str]:
    """The dataset of a declaration, and the declaration as one would write it."""
    layer = "gold" if word.__module__ == "sluice.gold" else "silver"
    said = "".join(f",\n    {option}={written(value)}" for option, value in options.items())
    return word(name, **options), f'{layer}.{word.__name__}("{name}"{said})'


def written(value: Any) -> str:
    if isinstance(value, Dataset | Topic):
        return value.name
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(written(each) for each in value) + "]"
    if hasattr(value, "history"):
        return f"silver.dimension({value.history.name}, on={value.on}, inferred={value.inferred})"
    return getattr(value, "__name__", None) or repr(value)


def moment_of(chance: random.Random) -> datetime:
    """Some moment of ten hours; among thousands no two are the same, and `unique` sees to it."""
    return first_moment + timedelta(microseconds=chance.randrange(36_000_000_000))


def say(chance: random.Random, topic: str, case: int | None, value: Mapping[str, Any], thing: Any) -> Said:
    return Said(topic, as_json(value, chance).encode(), case, moment_of(chance), thing)


def redelivered(chance: random.Random, records: Sequence[Said], share: float) -> list[Said]:
    """Some of the records once more, word for word, at another moment."""
    again = [each for each in records if chance.random() < share]
    return [Said(each.topic, each.value, each.case, moment_of(chance), each.thing) for each in again]


def in_order(records: Iterable[Said]) -> list[Said]:
    """The records in the log's order; of two of one moment the first is kept."""
    by_moment: dict[datetime, Said] = {}
    for each in records:
        by_moment.setdefault(each.moment, each)
    return [by_moment[moment] for moment in sorted(by_moment)]


def schema_of(columns: Mapping[str, str]) -> str:
    """DDL of columns by name; names that are no plain words in backticks."""
    return ", ".join(
        f"{name if name.isascii() and name.isidentifier() else f'`{name}`'} {kind}" for name, kind in columns.items()
    )
