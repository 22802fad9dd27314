"""Small files that are there as a whole or not at all."""

import uuid
from pathlib import Path


def write_at_once(path: Path, text: str) -> None:
    """Writes a file aside and gives it its name when it is whole; makes its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of a name of its own: two that write it at once must not write into one another's.
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
