"""Waits for what another thread, process or server does, with patience enough for a machine that is busy."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Nothing is meant to take so long. Whoever waits in vain fails by it, and on a slow machine nobody else does.
patience_seconds = 900.0


def eventually(condition: Callable[[], T | None], what: object = "", pause_seconds: float = 0.02) -> T:
    """What a condition gives, once it gives something; `what` is the text of the failure, or makes it."""
    deadline = time.monotonic() + patience_seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what() if callable(what) else what}"
        time.sleep(pause_seconds)
    return found
