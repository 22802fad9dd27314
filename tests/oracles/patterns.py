"""What a row pattern finds, by the definition: every way in which rows can fit it, in the order of preference."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True)
class Var:
    """One row that fits."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Not:
    """Rows that do not fit, as few as possible."""

    name: str

    def __str__(self) -> str:
        return f"NOT {self.name}"


@dataclass(frozen=True)
class Seq:
    parts: tuple["Tree", ...]

    def __str__(self) -> str:
        return " ".join(f"({each})" if isinstance(each, Alt) else str(each) for each in self.parts)


@dataclass(frozen=True)
class Alt:
    options: tuple["Tree", ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.options))


@dataclass(frozen=True)
class Rep:
    of: "Tree"
    least: int
    most: int | None
    is_reluctant: bool = False

    def __str__(self) -> str:
        named = {(0, None): "*", (1, None): "+", (0, 1): "?"}
        most = "" if self.most is None else self.most
        times = named.get((self.least, self.most), f"{{{self.least},{most}}}")
        of = str(self.of) if isinstance(self.of, Var) else f"({self.of})"
        return f"{of}{times}{'?' if self.is_reluctant else ''}"


Tree = Var | Not | Seq | Alt | Rep
# The rows that a match takes, by number, each with its variable (None: it is there because another is absent).
Taken = tuple[tuple[int, str | None], ...]
Fits = Callable[[int, str], bool]


def ways(tree: Tree, start: int, count: int, fits: Fits) -> Iterator[Taken]:
    """Every way to take rows from one on, the preferred ones first."""
    match tree:
        case Var(name):
            if start < count and fits(start, name):
                yield ((start, name),)
        case Not(name):
            stop = start
            yield ()
            while stop < count and not fits(stop, name):
                stop += 1
                yield tuple((number, None) for number in range(start, stop))
        case Seq(parts):
            if not parts:
                yield ()
                return
            for first in ways(parts[0], start, count, fits):
                for rest in ways(Seq(parts[1:]), start + len(first), count, fits):
                    yield first + rest
        case Alt(options):
            yield from chain.from_iterable(ways(each, start, count, fits) for each in options)
        case Rep():
            yield from repeated(tree, 0, start, count, fits)


def repeated(tree: Rep, times: int, start: int, count: int, fits: Fits) -> Iterator[Taken]:
    is_enough = times >= tree.least
    if is_enough and tree.is_reluctant:
        yield ()
    if tree.most is None or times < tree.most:
        for first in ways(tree.of, start, count, fits):
            for rest in repeated(tree, times + 1, start + len(first), count, fits):
                yield first + rest
    if is_enough and not tree.is_reluctant:
        yield ()


@dataclass(frozen=True)
class Asked:
    """A pattern, how long a match may take, the variable that is absent after it, and where the next one begins."""

    tree: Tree
    within: float
    absent: str | None = None
    skip: str = "skip past last row"

    @property
    def text(self) -> str:
        whole = f"({self.tree})" if self.absent and isinstance(self.tree, Alt) else str(self.tree)
        return f"{whole} NOT {self.absent}" if self.absent else whole


def match_at(asked: Asked, start: int, times: Sequence[float], fits: Fits) -> Taken | None:
    """The preferred match that begins at a row."""
    return next(
        (
            way
            for way in ways(asked.tree, start, len(times), fits)
            if way and times[way[-1][0]] - times[start] < asked.within and is_absent(asked, way[-1][0], times, fits)
        ),
        None,
    )


def is_absent(asked: Asked, last: int, times: Sequence[float], fits: Fits) -> bool:
    later = range(last + 1, len(times))
    return asked.absent is None or not any(
        times[each] - times[last] < asked.within and fits(each, asked.absent) for each in later
    )


def matches(asked: Asked, times: Sequence[float], fits: Fits) -> list[Taken]:
    """The matches among the rows of a key, which are in order."""
    found, start = [], 0
    while start < len(times):
        taken = match_at(asked, start, times, fits)
        if taken is None:
            start += 1
            continue
        found.append(taken)
        start = following(asked, taken)
    return found


def following(asked: Asked, taken: Taken) -> int:
    """The row at which the next match is looked for."""
    if asked.skip == "skip past last row":
        return taken[-1][0] + 1
    if asked.skip == "skip to next row":
        return taken[0][0] + 1
    _, _, end, variable = asked.skip.split()
    rows = [number for number, name in taken if name == variable]
    return rows[0] if end == "first" else rows[-1]
