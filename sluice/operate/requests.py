"""Requests to the process that owns the lake: only one may write it, and a continuous run does not end.

A request is a file in the lake. The driver serves it between two passes and writes the answer beside it. After a kill
the file is still there and is served again, so requests must be idempotent.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sluice.engine.backfill import BackfillRange
from sluice.errors import SluiceError, SparkEnded
from sluice.storage.files import Files

folder_name = "_requests"
look_again_seconds = 0.2
named_max = 3
# Who asks looks for the answer several times a second.
unread_hours_max = 24


class Request(BaseModel):
    """A request: promote a replay, roll datasets back, recompute a range of them, check or maintain them.

    Or `erase` what the log says is to be erased, `skip` what a topic has lost, or `recompute` a `share` of the rows to
    compare them.
    """

    model_config = ConfigDict(frozen=True)

    do: Literal["promote", "rollback", "refresh", "check", "maintain", "skip", "recompute", "erase"]
    replay: str | None = None
    datasets: tuple[str, ...] = ()
    topic: str = ""
    part: BackfillRange | None = None
    share: float = 0
    seed: int = 0
    because: str = ""

    def __str__(self) -> str:
        names = ", ".join(self.datasets) if len(self.datasets) <= named_max else f"{len(self.datasets)} tables"
        said = (self.do, names or self.replay or self.topic, "" if self.part is None else str(self.part))
        return " ".join(each for each in said if each)


class Answer(BaseModel):
    """The result by dataset, or the error."""

    model_config = ConfigDict(frozen=True)

    error: str | None = None
    found: dict[str, Any] = {}


Perform = Callable[[Request], dict[str, Any]]


def ask(files: Files, request: Request) -> str:
    """Leaves a request for the driver; returns the name of its file."""
    name = f"{folder_name}/{time.time_ns():020}-{uuid.uuid4().hex[:8]}.json"
    files.write(name, request.model_dump_json())
    return name


def waiting(files: Files) -> list[str]:
    """The unanswered requests, the oldest first. Old answers go: who asked for them was killed."""
    written = files.times(folder_name)
    asked = sorted(name for name in written if name.endswith(".json"))
    unread_since = datetime.now(UTC) - timedelta(hours=unread_hours_max)
    for name in asked:
        if written.get(answer_name(name), unread_since) < unread_since:
            withdraw(files, name)
    return [name for name in asked if answer_name(name) not in written]


def attend(files: Files, perform: Perform, warn: Callable[[str], None] = lambda text: None) -> int:
    """Serves and answers all requests; returns their number. A request that cannot be read is set aside.

    One in which Spark ends is left to the next run, once.
    """
    found = waiting(files)
    for name in found:
        try:
            text = read_if_there(files, name)
            if text is None:
                # The requester has gone.
                continue
            request = Request.model_validate_json(text)
        except (ValidationError, UnicodeDecodeError) as error:
            said = f"{files.root}/{name} is no request, and is not looked at again: {first_line(error)}. Remove it."
            warn(said)
            files.write(answer_name(name), Answer(error=said).model_dump_json())
            continue
        try:
            answer = Answer(found=perform(request))
        except SparkEnded as error:
            if read_if_there(files, tried_name(name)) is None:
                files.write(tried_name(name), "")
            else:
                # Left to the next run again, it might end each of them.
                files.write(answer_name(name), Answer(error=str(error)).model_dump_json())
            raise
        except SluiceError as error:
            answer = Answer(error=str(error))
        files.write(answer_name(name), answer.model_dump_json())
    return len(found)


def first_line(error: Exception) -> str:
    """What is wrong with a text, in a line that repeats none of it."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip()
    return "it is no UTF-8"


def answered(files: Files, name: str) -> Iterator[Answer | None]:
    """None as long as there is no answer, then the answer; the request and its answer are gone with it."""
    while (text := read_if_there(files, answer_name(name))) is None:
        yield None
        time.sleep(look_again_seconds)
    withdraw(files, name)
    yield Answer.model_validate_json(text)


def withdraw(files: Files, name: str) -> None:
    """Takes a request back, with all that is beside it."""
    for each in (name, tried_name(name), answer_name(name)):
        files.delete(each)


def read_if_there(files: Files, name: str) -> str | None:
    try:
        return files.read(name)
    except FileNotFoundError:
        return None


def answer_name(name: str) -> str:
    return f"{name.removesuffix('.json')}.answer"


def tried_name(name: str) -> str:
    """The file that says that Spark ended in a request."""
    return f"{name.removesuffix('.json')}.tried"
