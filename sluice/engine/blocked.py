"""Blocked datasets: a failure stops only the dataset that cannot be computed, until there is a reason to retry it.

A block is a small file in the lake, so that `status`, `audit` and Airflow see it. It is no cursor: only its inputs
decide whether a dataset is computed, and a new run tries each of them.
"""

import contextlib
import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import py4j
import pyspark
from obstore.exceptions import BaseError
from py4j.protocol import Py4JError, Py4JJavaError
from pydantic import BaseModel, ConfigDict, ValidationError
from pyspark.errors import PySparkException

from sluice.errors import LakeLocked, LogUnreachable, SluiceError, SparkEnded, Superseded, line_of
from sluice.model.ledger import InputVersion, same_states
from sluice.runtime.session import root_cause, spark_message
from sluice.storage.bucket import is_of_store
from sluice.storage.files import Files

folder_name = "_blocked"
# Classes of SQLSTATE: of values (22), of how many there are (21) and may be (23), of an expression that raises (P0), in
# a function of a user (38, 39).
state_of_data = re.compile(r"SQLSTATE: (21|22|23|38|39|P0)")
# What Spark cannot compute of rows stays so until they change; a full disk may have room again in a moment.
pauses_of_data = timedelta(minutes=1), timedelta(minutes=30)
pauses_of_others = timedelta(seconds=5), timedelta(minutes=1)
# What some functions of Spark raise without a state.
classes_of_data = ("java.lang.ArithmeticException", "java.time.DateTimeException")
# Classes of the JVM for what is between it and the servers that it needs.
of_servers = ("java.net.", "org.apache.hadoop.fs.s3a.", "software.amazon.awssdk.", "org.apache.kafka.")
disk_is_full = os.strerror(errno.ENOSPC)
reason_characters_max = 2_000
value_characters_max = 300
# What is called between Sluice and a shape, and by a shape.
libraries = (
    str(Path(__file__).parents[1]),
    *(str(Path(each.__file__ or "").parent) for each in (pyspark, py4j, contextlib)),
)


class Block(BaseModel):
    """Why a topic or a dataset stopped, since when, and what it was to be computed from."""

    model_config = ConfigDict(frozen=True)

    name: str
    reason: str
    since: datetime
    tried_at: datetime
    attempts: int = 1
    fingerprint: str = ""
    inputs: dict[str, InputVersion] = {}
    # The row of the scope that cannot be computed, where it was found, and records that it is made of.
    culprit: dict[str, Any] | None = None
    records: tuple[str, ...] = ()
    # Histories whose versions, instead of the records, may be wrong.
    or_of: tuple[str, ...] = ()
    is_of_data: bool = False
    ends_spark: bool = False

    def still_applies(self, fingerprint: str, inputs: Mapping[str, InputVersion], now: datetime) -> bool:
        """True while nothing has changed and it is too early for a retry."""
        first, longest = pauses_of_data if self.is_of_data or self.ends_spark else pauses_of_others
        pause = min(first * 2 ** min(self.attempts - 1, 20), longest)
        # If the clock went back, the elapsed time is unknown.
        return self.is_of(fingerprint, inputs) and self.tried_at <= now < self.tried_at + pause

    def is_of(self, fingerprint: str, inputs: Mapping[str, InputVersion]) -> bool:
        """True when it was this declaration and these inputs that were tried."""
        return self.fingerprint == fingerprint and same_states(self.inputs, inputs)

    def __str__(self) -> str:
        at = (
            ""
            if self.culprit is None
            else f" At {', '.join(f'{name}={shown(value)}' for name, value in self.culprit.items())}."
        )
        instead = f", or what they were joined to of {', '.join(self.or_of)}" if self.or_of else ""
        records = f" Records: {', '.join(self.records)}{instead}." if self.records else ""
        # Spark underlines a part of the SQL in lines of its own.
        reason = " ".join(each for each in self.reason.split() if set(each) != {"^"})
        return f"{reason}{at}{records}"


def shown(value: object) -> str:
    """A value as `sluice explain` reads it, if it is not too long for a line."""
    text = "null" if value is None else str(value)
    return text if len(text) <= value_characters_max else f"{text[:100]}… ({len(text)} characters)"


@dataclass
class Blocks:
    """The blocks that a run knows: those it found itself, with their errors, and those that earlier runs left."""

    tried: dict[str, Block] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    left: dict[str, Block] | None = None

    def known(self, files: Files, name: str) -> Block | None:
        """The newest block of a name."""
        if self.left is None:
            self.left = blocks(files)
        return self.tried.get(name) or self.left.get(name)

    def in_force(self, files: Files, name: str) -> Block | None:
        """The block that may prevent a retry: one of this run, or one that has ended Spark more than once."""
        known = self.known(files, name)
        return known if name in self.tried or (known and known.ends_spark and known.attempts > 1) else None

    def add(self, files: Files, block: Block, error: Exception) -> None:
        """Keeps a block for this run and in the lake; if the lake cannot be written, only for this run."""
        self.tried[block.name] = block
        self.errors[block.name] = error
        with contextlib.suppress(OSError, BaseError):
            files.write(file_name(block.name), block.model_dump_json(indent=2))

    def remove(self, files: Files, name: str) -> None:
        """Forgets the block of a name, if there is one."""
        if self.known(files, name):
            unblock(files, name)
        for found in (self.tried, self.errors, self.left or {}):
            found.pop(name, None)


def blocked_by(
    error: Exception, name: str, fingerprint: str, inputs: Mapping[str, InputVersion], before: Block | None
) -> Block:
    """The block that an error makes, which goes on from the one before it."""
    now = datetime.now(UTC)
    return Block(
        name=name,
        reason=reason_of(error),
        since=before.since if before else now,
        tried_at=now,
        attempts=before.attempts + 1 if before else 1,
        fingerprint=fingerprint,
        inputs=dict(inputs),
        is_of_data=is_of_data(error),
        ends_spark=isinstance(error, SparkEnded),
    )


def is_of_data(error: Exception) -> bool:
    """True for errors of the data itself, on any machine: not for a lost executor or a full disk."""
    if not isinstance(error, PySparkException | Py4JJavaError):
        return False
    return state_of_data.search(spark_message(error)) is not None or class_of(error) in classes_of_data


def reason_of(error: Exception) -> str:
    """What went wrong, in a line or a few; for an unexpected error, and one in the project's code, also where."""
    if isinstance(error, SluiceError):
        said = str(error)
    elif isinstance(error, PySparkException | Py4JError):
        where = line_of(error, lambda file: not file.startswith(libraries))
        said = f"{spark_message(error)} ({where})" if where else spark_message(error)
    elif disk_is_full in str(error) and not isinstance(error, OSError):
        # delta-rs, which does not say in which file, puts before it what it was doing, in four layers.
        said = f"{disk_is_full}: free some on the disk of the lake."
    else:
        where = line_of(error)
        said = f"{type(error).__name__}: {error} ({where})" if where else f"{type(error).__name__}: {error}"
    return said[:reason_characters_max]


def stops_all(error: Exception) -> bool:
    """True for errors that concern all datasets: another writer, or a log or store that does not answer."""
    if isinstance(error, LakeLocked | Superseded | LogUnreachable) or is_of_store(error):
        return True
    return isinstance(error, PySparkException | Py4JJavaError) and class_of(error).startswith(of_servers)


def class_of(error: PySparkException | Py4JError) -> str:
    """The class of the exception in the JVM that caused the others."""
    cause = root_cause(error)
    return "" if cause is None else str(cause.getClass().getName())


def blocks(files: Files) -> dict[str, Block]:
    """The blocks by name; a file that cannot be read is ignored."""
    found = {}
    for path in files.below(folder_name):
        with contextlib.suppress(ValidationError, UnicodeDecodeError, FileNotFoundError):
            block = Block.model_validate_json(files.read(path))
            found[block.name] = block
    return found


def forget_blocks(files: Files, before: datetime) -> None:
    """Removes the blocks of what was not tried since a time: they quote rows as they were.

    Of those from the future nobody knows when they were tried.
    """
    now = datetime.now(UTC)
    for name, block in blocks(files).items():
        if block.tried_at < before or block.tried_at > now:
            unblock(files, name)


def unblock(files: Files, name: str) -> None:
    """Removes the block of a name, when the cause was fixed before the next run has retried it."""
    files.delete(file_name(name))


def file_name(name: str) -> str:
    return f"{folder_name}/{name}.json"
