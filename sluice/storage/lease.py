"""The right to write a lake on an object store: a lease that is renewed while its owner lives.

No clocks are compared. A driver takes over a lease only after it has seen it unchanged for its whole length; an owner
that cannot renew its lease ends before that. One that was suspended through both may still send a commit: that is
fenced by Delta (`Lake`), not by time.
"""

import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store
from pydantic import BaseModel, ConfigDict

from sluice.errors import LakeLocked, SluiceError

name = "_lease.json"
# As shares of its length: how often it is renewed, and how long its owner continues without a renewal.
renewed_after = 1 / 6
given_up_after = 2 / 3


class Killable(Protocol):
    """A process that must not outlive the lease: the JVM."""

    def kill(self) -> None: ...


class LeaseState(BaseModel):
    """The content of the lease's object. `epoch` counts the owners and `beat` the renewals, so no two are the same."""

    model_config = ConfigDict(frozen=True)

    epoch: int
    holder: str
    beat: int = 0
    released: bool = False


@dataclass(frozen=True)
class Seen:
    """The state that was read, and its ETag."""

    state: LeaseState
    tag: str


def read(store: S3Store) -> Seen | None:
    """The lease as it is now; None when there never was one."""
    try:
        found = obstore.get(store, name)
        return Seen(LeaseState.model_validate_json(bytes(found.bytes())), str(found.meta["e_tag"]))
    except FileNotFoundError:
        return None


def put(store: S3Store, state: LeaseState, over: Seen | None) -> Seen | None:
    """Writes the lease over the state that was seen, or creates it; None when another was faster."""
    try:
        mode = obstore_mode(over)
        done = obstore.put(store, name, state.model_dump_json().encode(), mode=mode)
        return Seen(state, str(done["e_tag"]))
    except (AlreadyExistsError, PreconditionError):
        # The response may have been lost, and the request sent twice.
        now = read(store)
        return now if now is not None and now.state == state else None


def obstore_mode(over: Seen | None) -> "obstore.PutMode":
    return "create" if over is None else {"e_tag": over.tag}


@dataclass
class Lease:
    """The lease of this process; losing it ends the process and the JVM."""

    store: S3Store
    seen: Seen
    seconds: float
    renewed_at: float
    jvm: Killable | None = None
    over: threading.Event = field(default_factory=threading.Event)
    writing: threading.Lock = field(default_factory=threading.Lock)

    def keep(self) -> None:
        """Renews it from now on, and watches that this succeeds."""
        for each in (self.renew, self.watch):
            threading.Thread(target=each, name=f"lease-{each.__name__}", daemon=True).start()

    def renew(self) -> None:
        while not self.over.wait(self.seconds * renewed_after):
            with self.writing:
                if not self.over.is_set() and not self.is_renewed():
                    self.lose("Another sluice has taken the lake over")

    def is_renewed(self) -> bool:
        """Renews it, or leaves that to the next time; False if another process has it."""
        asked_at, state = time.monotonic(), self.seen.state
        try:
            seen = put(self.store, state.model_copy(update={"beat": state.beat + 1}), self.seen)
        except (BaseError, OSError):
            # The store may be back before the time is over.
            return True
        if seen is not None:
            self.seen, self.renewed_at = seen, asked_at
        return seen is not None

    def watch(self) -> None:
        while not self.over.wait(0.1):
            since = time.monotonic() - self.renewed_at
            if since > self.seconds * given_up_after:
                self.lose(f"The lake's lease could not be renewed for {since:.0f} seconds")

    def lose(self, why: str) -> None:
        """Ends the JVM and this process at once: another process owns the lake."""
        if self.jvm is not None:
            self.jvm.kill()
        message = f"\nError: {why}. This run ended at once, and wrote nothing since that could count. Run again.\n"
        os.write(sys.stderr.fileno(), message.encode())
        os._exit(SluiceError.exit_code)

    def release(self) -> None:
        """Releases it, so that the next process need not wait."""
        self.over.set()
        with self.writing:
            try:
                put(self.store, self.seen.state.model_copy(update={"released": True}), self.seen)
            except (BaseError, OSError):
                # Then the next process waits for the lease to expire.
                return


def free(store: S3Store, seconds: float, notify: Callable[[str], None]) -> Seen | None:
    """The lease once it is free; None when there never was one. A LakeLocked names the process that renews it."""
    first = read(store)
    if first is None or first.state.released:
        return first
    since, has_notified = time.monotonic(), False
    while (waited := time.monotonic() - since) < seconds:
        time.sleep(min(1.0, seconds * renewed_after / 2))
        now = read(store)
        if now is None or now.state.released:
            return now
        if now.tag != first.tag:
            raise locked(now)
        if waited > 2 * renewed_after * seconds and not has_notified:
            notify(
                f"{first.state.holder} owns the lake but does not renew its lease; "
                f"taking over after {seconds:.0f} seconds …"
            )
            has_notified = True
    return first


def take(store: S3Store, seconds: float, over: Seen | None) -> Lease:
    """Takes the lease over the free state that was seen; a LakeLocked when another process was faster."""
    me = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    asked_at = time.monotonic()
    mine = put(store, LeaseState(epoch=over.state.epoch + 1 if over else 1, holder=me), over)
    if mine is None:
        raise locked(read(store))
    lease = Lease(store, mine, seconds, asked_at)
    lease.keep()
    return lease


def locked(by: Seen | None) -> LakeLocked:
    who = by.state.holder if by else "unknown"
    return LakeLocked(f"Another sluice ({who}) is writing the lake. Wait for it, or stop it.")


def is_taken(store: S3Store) -> bool:
    """True while some process owns it, also one that died without releasing it."""
    seen = read(store)
    return seen is not None and not seen.state.released
