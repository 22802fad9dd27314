"""pandas is imported by whoever asks for it; PyArrow and PySpark only look for it, at a fifth of the work of a command.

PyArrow does with its first array, PySpark with its first literal: it asks its tools for tests whether numpy is there.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast


def postpone_for_pyarrow() -> None:
    """PyArrow looks for pandas now, in vain, and finds it once somebody else has imported it."""
    import pyarrow as pa

    if "pandas" in sys.modules or is_postponed() or PathFinder.find_spec("pandas") is None:
        return
    with hidden():
        pa.array([None])
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, Watched())


def postpone_for_pyspark() -> None:
    """PySpark looks for pandas now, in vain, where PyArrow did."""
    if is_postponed():
        with hidden():
            import_module("pyspark.testing.utils")


def is_postponed() -> bool:
    return any(isinstance(each, Watched) for each in sys.meta_path)


@contextmanager
def hidden() -> Iterator[None]:
    """No pandas is found."""
    finder = Hidden()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class Hidden(MetaPathFinder):
    def find_spec(self, name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


class Watched(MetaPathFinder):
    """PyArrow is shown pandas as soon as it is imported: else it would take a missing value of pandas for NaN."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name != "pandas":
            return None
        sys.meta_path.remove(self)
        found = PathFinder.find_spec(name)
        if found is not None and found.loader is not None:
            cast(Any, found.loader).exec_module = partial(executed_and_shown, found.loader.exec_module)
        return found


def executed_and_shown(execute: Callable[[ModuleType], None], pandas: ModuleType) -> None:
    import pyarrow as pa

    execute(pandas)
    # PyArrow imports pandas where it is asked for something that needs it.
    pa.lib._pandas_api.compat  # noqa: B018
