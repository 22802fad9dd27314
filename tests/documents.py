"""The documentation as tests read it: pages, their blocks of code, and the commands that they name."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from markdown_it import MarkdownIt

root = Path(__file__).parents[1]
markdown = MarkdownIt("commonmark").enable("table")
pages = sorted([*root.glob("*.md"), *root.glob("docs/**/*.md"), root / "benchmarks/README.md"])


@dataclass(frozen=True)
class Block:
    """Code of a page: fenced with its language, indented, or inline."""

    place: str
    kind: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    for token in markdown.parse(page.read_text()):
        place = f"{page.relative_to(root)}:{token.map[0] + 1 if token.map else '?'}"
        if token.type in ("fence", "code_block"):
            yield Block(place, token.info or "indented", token.content)
        for child in token.children or ():
            if child.type == "code_inline":
                yield Block(place, "inline", child.content)


def sluice_commands(block: Block) -> Iterator[list[str]]:
    """The words after `sluice` of each command in a block: of its lines, or of inline code that begins with it."""
    if block.kind not in ("inline", "indented", "sh"):
        return
    for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
        found = re.match(r"(?:\$ )?(?:\w+=\S+ )*(?:\.venv/bin/)?sluice (.*)", line)
        if found:
            yield words(found[1])


def words(command: str) -> list[str]:
    """A command's words up to a comment, a remark or the next command; lists (`list, show`) have `|` between."""
    typed = re.split(r" {3,}", command.replace("\\|", "|"))[0]
    listed = re.sub(r"(\w), ", r"\1 | ", typed)
    lexer = shlex.shlex(listed, posix=True, punctuation_chars=";&<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    lexer.escape = ""
    return list(takewhile(lambda word: not set(word) <= set(";&<>"), lexer))
