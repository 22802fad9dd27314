"""Finds the tables that a project declares in `.sql` files, and what they read: other files, and Python."""

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from sluice.errors import DeclarationError, suggestion
from sluice.model.datasets import Dataset, Topic, valid_name
from sluice.model.declared import made_in
from sluice.sql.translate import translated

package = "pipelines"
layers = ("silver", "gold")


def table(name: str) -> Dataset:
    """A table that a `.sql` file of the project declares, by its name: `sql.table("silver.priced_orders")`."""
    if package not in sys.modules:
        raise DeclarationError("sql.table is for the declarations of a project: call it in a module of pipelines")
    return Files.of(sys.modules[package]).table(name)


def declared_in(root: ModuleType) -> list[Dataset]:
    """The tables of all `.sql` files of the project whose `pipelines` package this is."""
    files = Files.of(root)
    return [files.table(name) for name in files.paths]


class Files:
    """The `.sql` files of a project. What was translated is kept with its package, and forgotten with it."""

    def __init__(self, root: ModuleType) -> None:
        self.root = root
        self.made: dict[str, Dataset] = {}
        self.begun: list[str] = []
        self.folder = Path(next(iter(root.__path__)))
        self.paths = paths_of(self.folder)

    @classmethod
    def of(cls, root: ModuleType) -> "Files":
        """Those of a project, looked for once each time that its package is imported."""
        kept = vars(root)
        if "__sql__" not in kept:
            kept["__sql__"] = cls(root)
        found: Files = kept["__sql__"]
        return found

    def table(self, name: str) -> Dataset:
        """The table of a file, translated once."""
        if name in self.made:
            return self.made[name]
        if name not in self.paths:
            raise DeclarationError(f"there is no file of {name}; {hint(name, list(self.paths))}")
        if name in self.begun:
            chain = [*self.begun[self.begun.index(name) :], name]
            raise DeclarationError(f"{' reads '.join(chain)}: no table can be made from itself")
        self.begun.append(name)
        try:
            path = self.paths[name]
            place = str(path.relative_to(self.folder.parent))
            made = translated(name, text_of(path, place), place, self.source)
        finally:
            self.begun.remove(name)
        self.made[name] = made
        return made

    def source(self, name: str) -> Dataset:
        """A table that a file reads: of another file, or declared in Python."""
        if name in self.paths:
            return self.table(name)
        found = self.in_python(name)
        if found is None:
            self.import_others()
            found = self.in_python(name)
        if isinstance(found, Topic):
            raise DeclarationError(f"{name} has raw bytes; declare silver.events of it in Python, and read that")
        if found is None:
            known = [*self.paths, *(each.name for each in self.python_nodes())]
            raise DeclarationError(f"there is no table {name}; {hint(name, known)}")
        return found

    def in_python(self, name: str) -> Dataset | Topic | None:
        return next((each for each in self.python_nodes() if each.name == name), None)

    def python_nodes(self) -> Iterator[Dataset | Topic]:
        """What modules of the project have declared so far, also one that is being imported."""
        for module_name, module in list(sys.modules.items()):
            if module_name == package or module_name.startswith(f"{package}."):
                values = [*vars(module).values(), *(each.made for each in made_in(module))]
                yield from (each for each in values if isinstance(each, Dataset | Topic))

    def import_others(self) -> None:
        """Imports the modules of the project that are not, so that what they declare is known."""
        for found in pkgutil.walk_packages(self.root.__path__, f"{package}."):
            if found.name not in sys.modules:
                importlib.import_module(found.name)


def hint(name: str, known: list[str]) -> str:
    return suggestion(name, known, f"there are {', '.join(sorted(set(known))) or 'none'}")


def paths_of(folder: Path) -> Mapping[str, Path]:
    """The `.sql` files by the tables that they declare: `gold/revenue_daily.sql` is gold.revenue_daily."""
    found: dict[str, Path] = {}
    for path in sorted(each for each in folder.rglob("*") if each.suffix.lower() == ".sql"):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts):
            continue
        layer, stem = inside.parts[0], path.stem
        if layer not in layers or len(inside.parts) == 1:
            raise DeclarationError(
                f"{package}/{inside}: the folder says the layer; move the file to {package}/silver or {package}/gold"
            )
        if not valid_name.fullmatch(stem):
            raise DeclarationError(
                f"{package}/{inside}: '{stem}' cannot name a table; use lower-case letters, digits and _, beginning "
                "with a letter, at most 63 characters"
            )
        name = f"{layer}.{stem}"
        if name in found:
            raise DeclarationError(f"{package}/{inside}: {name} is declared in {found[name].relative_to(folder)}, too")
        found[name] = path
    return found


def text_of(path: Path, place: str) -> str:
    """The text of a file; a DeclarationError where it cannot be read."""
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{place}:1:1: this cannot be read as UTF-8: {error}") from error
