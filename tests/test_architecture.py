"""What ARCHITECTURE.md says of the code as a whole, where an import contract cannot say it."""

import ast
from collections.abc import Iterator
from pathlib import Path

package = Path(__file__).parents[1] / "sluice"
writes = {"replace_rows", "append_rows", "merge_rows"}


def calls(path: Path) -> Iterator[str]:
    """The names of the methods that a module calls."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr


def test_rows_are_written_by_commit_alone() -> None:
    writers = {str(path.relative_to(package)) for path in package.rglob("*.py") if writes & set(calls(path))}
    assert writers == {"engine/commit.py"}


def test_nothing_is_committed_without_a_verdict() -> None:
    tree = ast.parse((package / "engine" / "commit.py").read_text())
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    public = {name for name in functions if not any(name in called_by(each) for each in functions.values())}
    assert {name: [ast.unparse(each.annotation or each) for each in functions[name].args.args] for name in public} == {
        "commit": ["TableFormat", "Verdict"]
    }


def called_by(function: ast.FunctionDef) -> set[str]:
    found = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {each.id for each in found if isinstance(each, ast.Name)}


def test_what_differs_between_a_folder_and_a_bucket_is_known_in_the_storage_room() -> None:
    names = {"is_s3", "is_bucket"}
    users = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if names & {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    }
    # A setting is told from a path before it is a place.
    assert users == {"storage/location.py", "runtime/settings.py"}


# Of 250 between modules, when all stood in one folder. A new one is a decision: it belongs into ARCHITECTURE.md too.
arrows_max = 45


def room(module: str) -> str:
    """The package of a module; the words of a declaration are one."""
    name = [*module.split("."), ""][1]
    return "words" if name in ("bronze", "silver", "gold", "expect", "windows") else name


def imported(path: Path) -> Iterator[str]:
    """The modules of ours that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "sluice":
            yield from (f"sluice.{each.name}" for each in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sluice."):
            yield str(node.module)


def test_rooms_depend_on_few_others() -> None:
    found = {
        (room(".".join(["sluice", *path.relative_to(package).with_suffix("").parts])), room(module))
        for path in package.rglob("*.py")
        if "project" not in path.parts
        for module in imported(path)
    }
    arrows = {(one, other) for one, other in found if one != other and other not in ("errors", "Project", "")}
    assert len(arrows) <= arrows_max, sorted(arrows)
