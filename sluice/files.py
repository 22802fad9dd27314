"""Small files that are there as a whole or not at all."""

from pathlib import Path


def write_at_once(path: Path, text: str) -> None:
    """Writes a file aside and gives it its name when it is whole; makes its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.new")
    aside.write_text(text)
    aside.replace(path)
