"""The changes of a table as server-sent events, for any server that sends bytes as they come."""

from collections.abc import Iterable, Iterator

from sluice.operate.json_text import json_line
from sluice.operate.subscribe import Change, Cursor

media_type = "text/event-stream; charset=utf-8"
# A client shows nothing of it; it keeps proxies from ending a connection on which nothing happens.
heartbeat = b": \n\n"


def server_sent(changes: Iterable[Change]) -> Iterator[bytes]:
    """One event for each change: its operation, the line of `sluice subscribe`, and the cursor as its id.

    A browser that connects again sends the newest id as `Last-Event-ID`, and `since` makes it a cursor.
    """
    for change in changes:
        # JSON in one line has no line breaks, which would end a field.
        yield f"id: {change.cursor}\nevent: {change.operation}\ndata: {json_line(change.line)}\n\n".encode()


def read_to(cursor: str) -> bytes:
    """That all was read up to a place, without an event: a browser keeps the id, and shows nothing."""
    return f"id: {cursor}\n\n".encode()


def since(last_event_id: str | None) -> Cursor | None:
    """Where a client goes on; None where it begins. A UsageError for an id that none of the events has."""
    return Cursor.of(last_event_id) if last_event_id else None
