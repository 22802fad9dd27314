"""Requests to whoever writes the lake: only one process does, and a continuous run does not end.

A request is a file in the lake. The driver does it between two passes and writes the answer beside it. One that was
killed in the middle is asked again by the file that is still there, so what is asked for must bear being done twice.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from sluice.errors import SluiceError
from sluice.files import write_at_once
from sluice.part import Part

folder_name = "_requests"
look_again_seconds = 0.2


class Request(BaseModel):
    """What is to be done: promote a replay, roll datasets back, compute a part of them anew, check or maintain them.

    Or `skip` what a topic has lost.
    """

    model_config = ConfigDict(frozen=True)

    do: Literal["promote", "rollback", "refresh", "check", "maintain", "skip"]
    replay: str | None = None
    datasets: tuple[str, ...] = ()
    topic: str = ""
    part: Part | None = None
    because: str = ""


class Answer(BaseModel):
    """What came of it, by dataset, or the error."""

    model_config = ConfigDict(frozen=True)

    error: str | None = None
    found: dict[str, Any] = {}


Perform = Callable[[Request], dict[str, Any]]


def ask(lake_root: str, request: Request) -> Path:
    """Leaves a request for the driver."""
    path = Path(lake_root, folder_name, f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}.json")
    write_at_once(path, request.model_dump_json())
    return path


def waiting(lake_root: str) -> list[Path]:
    """The requests that nobody has answered, the oldest first."""
    return sorted(path for path in Path(lake_root, folder_name).glob("*.json") if not answer_path(path).exists())


def attend(lake_root: str, perform: Perform) -> int:
    """Does all that is asked for and answers it; returns how much that was."""
    found = waiting(lake_root)
    for path in found:
        try:
            answer = Answer(found=perform(Request.model_validate_json(path.read_text())))
        except SluiceError as error:
            answer = Answer(error=str(error))
        write_at_once(answer_path(path), answer.model_dump_json())
    return len(found)


def answered(path: Path) -> Iterator[Answer | None]:
    """None as long as there is no answer, then the answer; the request and its answer are gone with it."""
    while not answer_path(path).exists():
        yield None
        time.sleep(look_again_seconds)
    answer = Answer.model_validate_json(answer_path(path).read_text())
    path.unlink()
    answer_path(path).unlink()
    yield answer


def answer_path(path: Path) -> Path:
    return path.with_suffix(".answer")
