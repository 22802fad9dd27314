"""The declared commands of a project, opened for a receiver, which knows no project itself."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.api import Decider


@contextmanager
def deciders(project: Path, names: Sequence[str]) -> Iterator[list["Decider"]]:
    """What decides the commands of these names, until the end; none without names."""
    if not names:
        yield []
        return
    # A receiver without commands needs no project.
    from sluice.cli.options import opened

    with opened(project) as here, ExitStack() as stack:
        yield [stack.enter_context(here.decider(name)) for name in dict.fromkeys(names)]
