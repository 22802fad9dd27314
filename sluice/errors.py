"""The errors that Sluice raises on purpose: each says what is wrong and what to do next."""

import difflib
import traceback
from collections.abc import Callable, Iterable


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """What to do about a name that does not exist: take the one that is most like it, or else what is said then."""
    there = list(known)
    # A table is also meant by its name without the layer.
    named = [each for each in there if each.rpartition(".")[2] == name]
    near = named if len(named) == 1 else difflib.get_close_matches(name, there, n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def hint(name: str, known: Iterable[str]) -> str:
    """The same before a list of all that there are, with a space behind it; nothing where none is alike."""
    found = suggestion(name, known, "")
    return f"{found} " if found else ""


def line_of(error: Exception, is_own: Callable[[str], bool] = lambda file: True) -> str | None:
    """The line nearest to an error, in the files that count; None where it came from none of them."""
    found = call_of(error, is_own)
    return f"{found.filename}, line {found.lineno}" if found else None


def call_of(error: Exception, is_own: Callable[[str], bool]) -> traceback.FrameSummary | None:
    """The call nearest to an error, in the files that count."""
    own = [each for each in traceback.extract_tb(error.__traceback__) if is_own(each.filename)]
    return own[-1] if own else None


class SluiceError(Exception):
    """Something a person can put right; the CLI prints its message without a traceback."""

    exit_code = 1


class LakeLocked(SluiceError):
    """Another process is writing the lake."""


class Superseded(SluiceError):
    """Another process wrote a table meanwhile, and what was to be written follows from what was before."""


class SparkEnded(SluiceError):
    """Spark's JVM, or the server of Spark Connect, has ended."""


class UsageError(SluiceError):
    """The command, a setting or a declaration is wrong."""

    exit_code = 2


class DeclarationError(UsageError):
    """A dataset is declared in a way that cannot work."""


class LogError(SluiceError):
    """The log cannot be read or written as it is."""


class LogRefused(LogError):
    """The log takes no such record, now or later."""


class LogUnreachable(LogError):
    """The servers of the log do not answer; they may come back."""


class ReceiverError(SluiceError):
    """What a receiver listens to cannot be reached, or refuses it."""


class PublishError(SluiceError):
    """Another system does not take what is published to it."""


class LogGap(LogError):
    """Offsets that should be in the log are not there."""


class LogRecreated(LogError):
    """The log is not the one whose records have landed."""


class LogTruncated(LogRecreated):
    """The log ends before what has landed."""
