"""What a project declares while it is imported: each call of a function such as `gold.aggregate`, and where it stands.

So a table is declared by the call. It needs no name in its module: it may be one of a list, or a statement by itself.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import ParamSpec, TypeVar

from sluice.model.arguments import as_stated

Given = ParamSpec("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Declaration:
    """What a call made, and the file and line of the call."""

    made: object
    file: str
    line: int


kept: ContextVar[list[Declaration] | None] = ContextVar("kept", default=None)


@contextmanager
def declarations() -> Iterator[list[Declaration]]:
    """The declarations that are made meanwhile, in their order."""
    found: list[Declaration] = []
    token = kept.set(found)
    try:
        yield found
    finally:
        kept.reset(token)


def made_in(module: ModuleType, made: Iterable[Declaration] | None = None) -> Iterator[Declaration]:
    """The declarations that stand in a module: of those given, or of those that are kept now."""
    known = made if made is not None else (kept.get() or ())
    return (each for each in known if each.file == module.__file__)


def declares(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Makes a function one that declares what it returns; calls by Sluice's own functions do not.

    Arguments of other types than it states are refused.
    """

    @wraps(function)
    def declaring(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        found, caller = kept.get(), sys._getframe(1)
        with as_stated(function, args, kwargs):
            made = function(*args, **kwargs)
        if found is not None and caller.f_globals.get("__name__", "").partition(".")[0] != "sluice":
            found.append(Declaration(made, caller.f_code.co_filename, caller.f_lineno))
        return made

    return declaring
