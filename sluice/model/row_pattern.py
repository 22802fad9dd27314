"""A row pattern such as `A B+ (C | D)`, read from its text into an automaton.

Each position of the automaton takes one row. What may follow a position is in order of preference, as in SQL and in
regular expressions: earlier alternatives first, and more rows first, or fewer where a quantifier is reluctant.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from sluice.errors import DeclarationError

# The position at which a match ends.
end = 0
# The matcher computes each position for each row.
positions_max = 200
depth_max = 50
token_pattern = re.compile(r"\s+|(?P<word>[A-Za-z_]\w*)|(?P<number>\d+)|(?P<sign>[()|*+?{},])")
quantifiers: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True)
class Variable:
    """One row that fits the variable."""

    name: str
    at: int


@dataclass(frozen=True)
class Absence:
    """Rows none of which fits the variable: as few as possible, or at the end of a pattern all for a while."""

    name: str
    at: int


@dataclass(frozen=True)
class Concatenation:
    """One after the other."""

    parts: "tuple[Element, ...]"


@dataclass(frozen=True)
class Alternation:
    """One of several, the first that leads to a match."""

    options: "tuple[Element, ...]"


@dataclass(frozen=True)
class Repetition:
    """Something from `least` to `most` times (None: without a limit)."""

    of: "Element"
    least: int
    most: int | None
    is_reluctant: bool
    at: int


Element = Variable | Absence | Concatenation | Alternation | Repetition


@dataclass(frozen=True)
class Position:
    """What a row must fit, or must not fit, to be taken here."""

    variable: str
    is_absence: bool = False


@dataclass(frozen=True)
class Automaton:
    """Positions, numbered from 1: those that a match may begin with, and for each those that may follow it.

    `ends_without` is the variable that no row may fit for a while after a match.
    """

    positions: tuple[Position, ...]
    first: tuple[int, ...]
    follow: tuple[tuple[int, ...], ...]
    ends_without: str | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that rows are found for, in the order of the pattern."""
        return tuple(dict.fromkeys(each.variable for each in self.positions if not each.is_absence))

    def of(self, variable: str) -> frozenset[int]:
        """The positions whose rows are those of a variable."""
        named = enumerate(self.positions, start=1)
        return frozenset(number for number, each in named if not each.is_absence and each.variable == variable)

    def ends_avoiding(self, starts: Collection[int], avoided: Collection[int]) -> bool:
        """Whether a match that takes these positions can end without another of those that are avoided."""
        waiting, seen = list(starts), set(starts)
        while waiting:
            for following in self.follow[waiting.pop() - 1]:
                if following == end:
                    return True
                if following not in avoided and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return False


def automaton_of(dataset: str, pattern: str) -> Automaton:
    """The automaton of a pattern; a DeclarationError says what is wrong with its text, and where."""
    reader = Reader(dataset, pattern, list(tokens(dataset, pattern)))
    found, ends_without = without_last_absence(reader.whole())
    builder = Builder(reader)
    entry = builder.node(found, builder.accept)
    builder.sort()
    first = builder.reached_from(entry)
    if end in first:
        raise DeclarationError(
            f"{dataset}: pattern '{pattern}' can be no row at all, and a match has at least one; let a variable be "
            "there at least once, as in 'A+' instead of 'A*'"
        )
    follow = tuple(builder.reached_from(node) for node in builder.after)
    made = Automaton(tuple(builder.positions), first, follow, ends_without)
    require_inner_absences(reader, builder, made)
    # Nothing is preferred less than the end of a match that may always end.
    return made if ends_without else Automaton(made.positions, first, tuple(map(until_end, follow)))


def until_end(positions: tuple[int, ...]) -> tuple[int, ...]:
    return positions[: positions.index(end) + 1] if end in positions else positions


def without_last_absence(whole: Element) -> tuple[Element, str | None]:
    """A pattern without an absence at its end, and the variable of that."""
    if isinstance(whole, Concatenation) and isinstance(whole.parts[-1], Absence):
        rest = whole.parts[:-1]
        return (rest[0] if len(rest) == 1 else Concatenation(rest)), whole.parts[-1].name
    return whole, None


def require_inner_absences(reader: "Reader", builder: "Builder", made: Automaton) -> None:
    """A DeclarationError where a match could begin with an absence, or end with one that says nothing."""
    for number, position in enumerate(made.positions, start=1):
        if position.is_absence and (number in made.first or end in made.follow[number - 1]):
            where = "begin" if number in made.first else "end"
            raise reader.fault(
                builder.places[number - 1],
                f"NOT {position.variable} could {where} a match; it stands between what is there, as in 'A NOT B C', "
                "or last in the whole pattern, as in 'A NOT B'",
            )


def tokens(dataset: str, pattern: str) -> Iterator[tuple[str, int]]:
    """The words and signs of a pattern, each with its place."""
    if not isinstance(pattern, str):
        raise DeclarationError(f"{dataset}: pattern is {pattern!r}; write for example pattern='A B+ C'")
    place = 0
    while place < len(pattern):
        found = token_pattern.match(pattern, place)
        if found is None:
            raise fault(dataset, pattern, place, f"'{pattern[place]}' {meaning_of(pattern[place])}")
        if found.lastgroup:
            yield found[0], place
        place = found.end()


def meaning_of(sign: str) -> str:
    if sign == "-":
        return "is no sign of a pattern; rows cannot be excluded from a match by {- … -}"
    if sign in "^$":
        return "is no sign of a pattern; a match may begin and end at any row"
    return "is no sign of a pattern; write variables, ( ), |, *, +, ?, {n,m} and NOT"


def fault(dataset: str, pattern: str, place: int, says: str) -> DeclarationError:
    return DeclarationError(f"{dataset}: pattern '{pattern}', at sign {place + 1}: {says}")


@dataclass
class Reader:
    """Reads a pattern from its first token to its last."""

    dataset: str
    pattern: str
    tokens: list[tuple[str, int]]
    number: int = 0
    depth: int = 0

    @property
    def next(self) -> str:
        return self.tokens[self.number][0] if self.number < len(self.tokens) else ""

    @property
    def place(self) -> int:
        return self.tokens[self.number][1] if self.number < len(self.tokens) else len(self.pattern)

    def fault(self, place: int, says: str) -> DeclarationError:
        return fault(self.dataset, self.pattern, place, says)

    def unexpected(self, wanted: str) -> NoReturn:
        seen = f"there is '{self.next}'" if self.next else "it ends"
        raise self.fault(self.place, f"{wanted} should come here, but {seen}")

    def take(self, *wanted: str) -> bool:
        """Takes the next token if it is one of these."""
        is_next = self.next in wanted and bool(self.next)
        self.number += is_next
        return is_next

    def whole(self) -> Element:
        found = self.alternation()
        if self.next:
            self.unexpected("a variable, '|' or the end")
        return found

    def alternation(self) -> Element:
        options = [self.concatenation()]
        while self.take("|"):
            options.append(self.concatenation())
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def concatenation(self) -> Element:
        parts = [self.repetition()]
        while self.next == "(" or self.is_word:
            parts.append(self.repetition())
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def repetition(self) -> Element:
        found, at = self.atom(), self.place
        times = self.quantifier()
        if times is None:
            return found
        if isinstance(found, Absence):
            raise self.fault(at, f"NOT {found.name} is any number of rows, so it takes no quantifier")
        least, most = times
        repeated = Repetition(found, least, most, self.take("?"), at)
        if self.next in ("*", "+", "?", "{"):
            raise self.fault(self.place, "there is a quantifier of a quantifier; put brackets around what it is of")
        return repeated

    def atom(self) -> Element:
        at = self.place
        if self.take("("):
            self.depth += 1
            if self.depth > depth_max:
                raise self.fault(at, f"there are more than {depth_max} brackets in one another")
            found = self.alternation()
            if not self.take(")"):
                self.unexpected("')'")
            self.depth -= 1
            return found
        if not self.is_word:
            self.unexpected("a variable or '('")
        word = self.word()
        if word.upper() == "PERMUTE":
            raise self.fault(at, "PERMUTE is not known; write the orders as alternatives: (A B | B A)")
        if word.upper() != "NOT":
            return Variable(word, at)
        if not self.is_word or self.next.upper() == "NOT":
            self.unexpected("a variable, which NOT says is absent,")
        return Absence(self.word(), at)

    @property
    def is_word(self) -> bool:
        return self.next[:1].isalpha() or self.next[:1] == "_"

    def word(self) -> str:
        self.number += 1
        return self.tokens[self.number - 1][0]

    def quantifier(self) -> tuple[int, int | None] | None:
        """How often something is there, from and to; None where nothing is said."""
        if self.next in quantifiers:
            return quantifiers[self.word()]
        at = self.place
        if not self.take("{"):
            return None
        least = self.count()
        most = least
        if self.take(","):
            most = self.count()
        elif least is None:
            self.unexpected("a number, as in {2}, {2,} or {2,5},")
        if not self.take("}"):
            self.unexpected("'}'")
        if most == 0 or (most is not None and (least or 0) > most):
            said = f"{{{least or 0},{most}}} can never match"
            raise self.fault(at, f"{said}; write the smaller number first, and a largest number above 0")
        return least or 0, most

    def count(self) -> int | None:
        # Of a number that is too large anyway the first digits are enough, and Python reads no more than 4300.
        return int(self.word().lstrip("0")[:9] or "0") if self.next.isdecimal() else None


@dataclass
class Builder:
    """Lays a pattern out as nodes: of positions, and of choices between other nodes, the preferred one first."""

    reader: Reader
    nodes: "list[list[int] | int]" = field(default_factory=lambda: [end])
    positions: list[Position] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)

    # The node of the end is the first.
    accept = 0

    def node(self, element: Element, then: int) -> int:
        """The node where the element begins, after which comes the node `then`."""
        match element:
            case Variable(name, at):
                return self.position(Position(name), at, then)
            case Absence(name, at):
                return self.loop(Variable(name, at), then, is_reluctant=True, is_absence=True)
            case Concatenation(parts):
                for each in reversed(parts):
                    then = self.node(each, then)
                return then
            case Alternation(options):
                return self.choice([self.node(each, then) for each in options])
            case Repetition():
                return self.repeated(element, then)

    def position(self, position: Position, at: int, then: int) -> int:
        if len(self.positions) == positions_max:
            raise self.reader.fault(
                at,
                f"there are more than {positions_max} variables, each counted as often as its quantifier repeats it; "
                "write '+' instead of a large number, and take the matches with a measure of enough rows",
            )
        self.positions.append(position)
        self.places.append(at)
        self.after.append(then)
        self.nodes.append(len(self.positions))
        return len(self.nodes) - 1

    def choice(self, options: list[int]) -> int:
        self.nodes.append(options)
        return len(self.nodes) - 1

    def loop(self, of: Element, then: int, *, is_reluctant: bool, is_absence: bool = False) -> int:
        """Any number of times, also never."""
        options: list[int] = []
        entry = self.choice(options)
        if is_absence and isinstance(of, Variable):
            begin = self.position(Position(of.name, is_absence=True), of.at, entry)
        else:
            begin = self.node(of, entry)
        options += [then, begin] if is_reluctant else [begin, then]
        return entry

    def repeated(self, element: Repetition, then: int) -> int:
        of, is_reluctant = element.of, element.is_reluctant
        if element.most is None:
            if is_nullable(of):
                raise self.reader.fault(
                    element.at,
                    "what is repeated without a limit can be no row at all; let it have at least one, as in '(A B?)*' "
                    "instead of '(A? B?)*'",
                )
            then = self.loop(of, then, is_reluctant=is_reluctant)
        else:
            rest = then
            for _ in range(element.most - element.least):
                begin = self.node(of, then)
                then = self.choice([rest, begin] if is_reluctant else [begin, rest])
        for _ in range(element.least):
            then = self.node(of, then)
        return then

    def sort(self) -> None:
        """Numbers the positions as they stand in the pattern; they were laid out from its end."""
        order = sorted(range(len(self.positions)), key=lambda index: (self.places[index], -index))
        number_of = {before + 1: now for now, before in enumerate(order, start=1)}
        self.positions = [self.positions[index] for index in order]
        self.places = [self.places[index] for index in order]
        self.after = [self.after[index] for index in order]
        self.nodes = [number_of.get(each, end) if isinstance(each, int) else each for each in self.nodes]

    def reached_from(self, node: int) -> tuple[int, ...]:
        """The positions that come next from a node, the preferred ones first."""
        found: list[int] = []
        waiting, seen = [node], set[int]()
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            content = self.nodes[each]
            if isinstance(content, int):
                found.append(content)
            else:
                waiting += reversed(content)
        return tuple(found)


def is_nullable(element: Element) -> bool:
    """Whether an element can be no row at all."""
    match element:
        case Variable():
            return False
        case Absence():
            return True
        case Concatenation(parts):
            return all(map(is_nullable, parts))
        case Alternation(options):
            return any(map(is_nullable, options))
        case Repetition(of, least):
            return least == 0 or is_nullable(of)
