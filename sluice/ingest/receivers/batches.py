"""Requests with one thing in each line, as they are posted to topics and to commands."""

from starlette.exceptions import HTTPException
from starlette.requests import Request


def is_batch(request: Request) -> bool:
    """Whether the lines of the body are to be taken one by one."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/x-ndjson"


def lines_of(body: bytes, what: str) -> list[bytes]:
    """The lines that are not blank; 400 where there are none."""
    lines = [line for line in body.split(b"\n") if line.strip()]
    if not lines:
        raise HTTPException(400, f"The batch has no {what}: send one a line.")
    return lines
