"""Commands by HTTP: `POST /commands/NAME`, answered with what was decided when the log has it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from sluice.ingest.receivers.batches import is_batch, lines_of
from sluice.ingest.receivers.group import Group

statuses = {"accepted": 201, "version_differs": 409, "rejected": 422, "reused": 422, "wrong": 400}


class Said(Protocol):
    """What became of a command: a key of `statuses`, and the body of the answer."""

    @property
    def kind(self) -> str: ...

    @property
    def body(self) -> bytes: ...


class Decides(Protocol):
    """What decides the commands of one declaration, and writes what it decides to a topic of the log."""

    @property
    def name(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def decisions(self) -> int:
        """How many commands were decided."""

    def decide(self, commands: Sequence[bytes]) -> Sequence[Said]:
        """Decides commands in order; all is durable when it returns. A LogError when the log cannot be written."""


@dataclass
class Waiting:
    """A command of a request, and its answer once there is one."""

    value: bytes
    said: Said | None = None


class CommandDoor:
    """Decides what requests ask: those that come meanwhile are decided together, and become durable together."""

    def __init__(self, decider: Decides) -> None:
        self.decider = decider
        self.group: Group[Waiting, None] = Group(self.decide)

    def decide(self, waiting: Sequence[Waiting]) -> None:
        for each, said in zip(waiting, self.decider.decide([each.value for each in waiting]), strict=True):
            each.said = said

    async def answer(self, request: Request, body: bytes) -> Response:
        """The answer to a request with one command, or with one in each line."""
        has_lines = is_batch(request)
        waiting = [Waiting(each) for each in (lines_of(body, "commands") if has_lines else [body])]
        await self.group.append(waiting)
        said = [each.said for each in waiting if each.said is not None]
        if not has_lines:
            return as_response(statuses[said[0].kind], said[0].body)
        lines = [b'{"status":%d,"answer":%b}' % (statuses[each.kind], each.body) for each in said]
        return as_response(200, b'{"answers":[%b]}' % b",".join(lines))


def as_response(status: int, body: bytes) -> Response:
    return Response(body, status, media_type="application/json")
