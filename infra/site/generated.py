"""What the site adds to its Markdown files while it reads them: navigation, diagrams, and references made from code."""

import ast
import hashlib
import inspect
import re
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from annotated_types import Ge, Gt, Le
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx
from sphinx.util import logging

from infra.site.commands import commands, is_group
from sluice.engine.catalogue import load
from sluice.operate.describe import Described, describe
from sluice.runtime.settings import Settings, prefix

logger = logging.getLogger(__name__)
diagrams = Path(__file__).with_name("diagrams")
mermaid = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# How the formats of a time stand in a command's help.
times = re.compile(r"[\[<]%Y.*?[\]>]")
sections = """
```{toctree}
:hidden:

docs/tutorial
docs/how-to/index
docs/reference/index
docs/explanation
CHANGELOG
CONTRIBUTING
```
"""


def complete(_: Sphinx, page: str, source: list[str]) -> None:
    """Rewrites a page as Sphinx reads it; the file stays as it is."""
    text = re.sub(r"\]\(([\w./-]+)/\)", r"](\1/index.md)", source[0])
    text = mermaid.sub(lambda found: drawn(found[1], page), text)
    source[0] = text + appended.get(page, lambda: "")()


def drawn(diagram: str, page: str) -> str:
    """A Mermaid diagram as the SVG that `infra.site.draw` made of it, so that no page runs a script from elsewhere."""
    file = drawing(diagram)
    if not file.exists():
        logger.warning("a diagram changed; run: python -m infra.site.draw (see there)", location=page)
        return f"```text\n{diagram}```"
    return f"```{{raw}} html\n<div class='diagram'>{file.read_text().strip()}</div>\n```"


def drawing(diagram: str) -> Path:
    """The file for the SVG of a diagram, named by what the diagram says."""
    return diagrams / f"{hashlib.sha256(diagram.encode()).hexdigest()[:12]}.svg"


def command_reference() -> str:
    """A section for each command: its use, what it does, its arguments and options."""
    return "\n".join(command_section(name, command) for name, command in commands().items() if name)


def command_section(name: str, command: Any) -> str:
    heading = f"{'##' if ' ' not in name else '###'} sluice {name}\n"
    help_text = escaped(command.help or "")
    if is_group(command):
        return f"{heading}\n{help_text}\n"
    context = command.make_context(f"sluice {name}", [], resilient_parsing=True)
    usage = command.get_usage(context).removeprefix("Usage: ")
    records = filter(None, (each.get_help_record(context) for each in command.params if each.name != "help"))
    rows = [f"| `{times.sub('TIME', names)}` | {escaped(meaning)} |" for names, meaning in records]
    table = ["| argument or option | meaning |", "|---|---|", *rows] if rows else []
    return "\n".join([heading, f"```text\n{usage}\n```\n", help_text, "", *table, ""])


def escaped(text: str) -> str:
    """Help as Markdown that stands in a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def settings_reference() -> str:
    """A row for each setting: its variable, what it is for and accepts, and its default."""
    meanings = meanings_of(Settings)
    rows = [
        f"| `{prefix}{name.upper()}` | {meanings[name]}{accepted(field)} | {default_of(field)} |"
        for name, field in Settings.model_fields.items()
        if name != "project"
    ]
    return "\n".join(["", "| variable | meaning | default |", "|---|---|---|", *rows, ""])


def meanings_of(model: type) -> dict[str, str]:
    """The text below each field of a class. Read here alone: no command waits for it."""
    (found,) = ast.parse(inspect.getsource(model)).body
    return {
        field.target.id: inspect.cleandoc(text)
        for field, below in pairwise(getattr(found, "body", ()))
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(text := below.value.value, str)
    }


def accepted(field: FieldInfo) -> str:
    """The values that a setting accepts, where they are few or bounded."""
    choices = [f"`{each}`" for each in get_args(field.annotation) if each and isinstance(each, str)]
    signs = {Ge: "≥", Gt: ">", Le: "≤"}
    known = [each for each in field.metadata if type(each) in signs]
    bounds = [f"{signs[type(each)]} {next(iter(asdict(each).values()))}" for each in known]
    return f" One of {', '.join(choices)}." if choices else f" {', '.join(bounds)}." if bounds else ""


def default_of(field: FieldInfo) -> str:
    if field.default in (None, "", SecretStr("")):
        return ""
    text = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    return f"`{text.replace(str(Path.home()), '~')}`"


def table_reference() -> str:
    """A section for each table of the demo, from its declarations."""
    tables = describe(load(Path(__file__).parents[2]))
    return "\n".join(table_section(each) for each in tables if each.topic is None)


def table_section(table: Described) -> str:
    rows = [
        f"| `{each.name}` | {cell(each.type or '')} | {cell(each.unit)} | {cell(each.meaning)} | "
        f"{', '.join(f'`{source}`' for source in each.made.sources if source.is_of_values)} |"
        for each in table.columns
        if not table.has_fields(each.name)
    ]
    tests = ", ".join(f"`{each.name}`" for each in table.tests)
    head = ["| column | type | unit | meaning | made from |", "|---|---|---|---|---|"]
    return "\n".join([f"## {table.name}\n", cell(table.meaning), "", *head, *rows, "", f"Tests: {tests}.", ""])


def cell(text: str) -> str:
    """Text in a table as it is, whatever Markdown would take it for."""
    return re.sub(r"([\\`*_\[\]<>|&])", r"\\\1", " ".join(text.split()))


appended = {
    "README": lambda: sections,
    "docs/reference/commands": command_reference,
    "docs/reference/settings": settings_reference,
    "docs/reference/tables": table_reference,
}
