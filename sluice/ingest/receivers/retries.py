"""What receivers try again, until they are stopped: appends while the log cannot be written, and connections."""

import threading
from collections.abc import Callable

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_when_event_set,
    wait_exponential_jitter,
)

from sluice.errors import LogError, LogRefused

Notify = Callable[[str], None]
back_off = wait_exponential_jitter(multiplier=0.25, max=5.0, jitter=0.25)


def appending(
    stop: threading.Event, notify: Notify, meanwhile: str, sleep: Callable[[float], None] | None = None
) -> Retrying:
    """Calls an append again while the log cannot be written; the last error is raised when stopped.

    A LogRefused is raised at once.
    """
    return Retrying(
        # Others of the records may be in the log by now: again and again they would come twice.
        retry=retry_if_exception(lambda error: isinstance(error, LogError) and not isinstance(error, LogRefused)),
        wait=back_off,
        stop=stop_when_event_set(stop),
        sleep=sleep or sleep_using_event(stop),
        before_sleep=reporting(notify, lambda error: f"{error} {meanwhile}"),
        reraise=True,
    )


def reporting(notify: Notify, said: Callable[[BaseException | None], str]) -> Callable[[RetryCallState], None]:
    """Tells the operator of an error, and when it is tried again."""

    def report(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        notify(f"{said(error)}; again in {state.upcoming_sleep:.1f} s.")

    return report


def unreachable(error: BaseException | None) -> str:
    return f"The broker cannot be reached ({described(error)})"


def described(error: BaseException | None) -> str:
    return str(error) or type(error).__name__
