"""The catalogue as a folder of pages that need no server and no network: `sluice docs`."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.errors import UsageError
from sluice.operate.describe import Described

if TYPE_CHECKING:
    from jinja2 import Environment

templates = Path(__file__).with_name("templates")
page_name = re.compile(r"(bronze|silver|gold)\.\w+\.html", re.ASCII)


def write(folder: Path, project: str, tables: Sequence[Described]) -> Path:
    """Writes a page for each table, one of all columns, and the index, which it returns.

    Pages of tables that are not declared any more are removed. A UsageError when Jinja is not installed.
    """
    environment = loaded()
    common = {"project": project, "tables": tables, "now": datetime.now(UTC)}
    pages: dict[str, dict[str, Any]] = {"index.html": {}, "columns.html": {}}
    pages |= {f"{each.name}.html": {"table": each} for each in tables}
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.iterdir():
        if page_name.fullmatch(stale.name) and stale.name not in pages:
            stale.unlink()
    for name, values in pages.items():
        template = environment.get_template("table.html" if "table" in values else name)
        (folder / name).write_text(template.render(common | values, page=name), encoding="utf-8")
    (folder / "docs.css").write_text((templates / "docs.css").read_text(encoding="utf-8"), encoding="utf-8")
    return folder / "index.html"


def loaded() -> "Environment":
    """The templates, which escape every value."""
    try:
        import jinja2
    except ImportError as error:
        raise UsageError("jinja2 is not installed: pip install 'sluice-lakehouse[ui]'") from error
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates), autoescape=True, undefined=jinja2.StrictUndefined
    )
