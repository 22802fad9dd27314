"""The description of a topic in the embedded log: `topic.json` beside its partitions.

Segments do not show that a partition's folder or its first segment is missing: this file says how many partitions there
are, and at which offset each begins. A topic without it has the partitions whose folders exist. It also says how long
the topic's records stay after they have landed.
"""

import uuid
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluice.errors import LogError
from sluice.log.durable import replace_file, sync

file_name = "topic.json"


class Retention(BaseModel):
    """How long records stay in the log that have landed in bronze; for ever, where nothing says otherwise.

    Whole segments go when all their records are older than `days`, or while a partition has more than
    `partition_bytes`. With `compact` a record goes when its key has a newer one, and a tombstone after
    `tombstone_days`: their offsets stay.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    days: float | None = Field(default=None, gt=0, le=36_500)
    partition_bytes: int | None = Field(default=None, gt=0)
    compact: bool = False
    tombstone_days: float = Field(default=1.0, ge=0, le=36_500)


class TopicFile(BaseModel):
    """The number of partitions, and the first offset of each whose oldest records were removed or given up.

    Before the offsets in `compacted`, a partition was compacted; a compaction that was begun and may have been killed
    goes as far as `compacting` says. A topic with an `owner` is written by that alone, and keeps all of its records
    (`owned.py`). The `id` tells the topic from another one that is made under its name; topics of older releases have
    none. Fields that a newer release adds are kept.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    partitions: int
    starts: dict[int, int] = {}
    retention: Retention | None = None
    compacted: dict[int, int] | None = None
    compacting: dict[int, int] | None = None
    owner: str | None = None
    id: str | None = None

    def start(self, partition: int) -> int:
        return self.starts.get(partition, 0)

    def starting_at(self, starts: Mapping[int, int]) -> "TopicFile":
        """The same with later starts of some partitions; a start never moves back."""
        later = {partition: max(offset, self.start(partition)) for partition, offset in starts.items()}
        return self.model_copy(update={"starts": dict(sorted({**self.starts, **later}.items()))})

    def compacted_before(self, partition: int) -> int:
        return (self.compacted or {}).get(partition, 0)

    @property
    def emptied_before(self) -> dict[int, int]:
        """The offsets before which compaction may have emptied records, also one that was killed."""
        found = dict(self.compacted or {})
        for partition, offset in (self.compacting or {}).items():
            found = further(found, partition, offset)
        return found

    def compacting_before(self, partition: int, offset: int) -> "TopicFile":
        """The same, with a compaction of a partition begun that goes up to an offset."""
        return self.model_copy(update={"compacting": further(self.compacting, partition, offset)})

    def having_compacted(self, partition: int, offset: int) -> "TopicFile":
        """The same, with a partition compacted up to an offset; one that is compacted further stays so."""
        return self.model_copy(update={"compacted": further(self.compacted, partition, offset)})


def further(offsets: Mapping[int, int] | None, partition: int, offset: int) -> dict[int, int]:
    """The offsets of partitions with that of one moved on; it never moves back."""
    found = dict(offsets or {})
    found[partition] = max(offset, found.get(partition, 0))
    return dict(sorted(found.items()))


def read_topic_file(folder: Path) -> TopicFile | None:
    """The description of the topic in a folder; None if there is none."""
    path = folder / file_name
    try:
        return TopicFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise LogError(f"{path} cannot be read: {error}. Restore it from a copy.") from error


def write_topic_file(folder: Path, content: TopicFile) -> None:
    """Replaces the file as a whole, durably."""
    path = folder / file_name
    try:
        replace_file(path, content.model_dump_json(indent=2, exclude_none=True) + "\n")
    except OSError as error:
        raise LogError(f"{path} cannot be written: {error.strerror or error}.") from error


def make_topic(folder: Path, partitions: int, owner: str | None = None) -> None:
    """Makes a topic's folder with its partitions, whole or not at all; one that another made meanwhile stays."""
    make_folder(folder.parent)
    aside = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    aside.mkdir()
    for partition in range(partitions):
        (aside / str(partition)).mkdir()
    write_topic_file(aside, TopicFile(partitions=partitions, owner=owner, id=uuid.uuid4().hex))
    try:
        aside.rename(folder)
    except OSError:
        (aside / file_name).unlink()
        for path in [*aside.iterdir(), aside]:
            path.rmdir()
        if not any(each.name.isdecimal() for each in folder.iterdir()):
            raise
    sync(folder.parent)


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it that are missing, and makes their names durable."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
