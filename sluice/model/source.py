"""Where code comes from: the project's own or not, its syntax tree, and the names that it takes from around it."""

import ast
import dis
import functools
import importlib
import importlib.util
import re
import sys
import sysconfig
import tokenize
import types
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

Tree = Any

# The packages of a project, which may be installed as others are.
project_packages = ("pipelines", "expectations")
installed = ("site-packages", "dist-packages")
library_paths = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
loads = re.compile(r"LOAD_(GLOBAL|NAME|FROM_DICT_OR_GLOBALS)")


class NoSource(Exception):
    """Code of the project whose source cannot be read."""


def is_engine(module: str) -> bool:
    return module == "sluice" or module.startswith("sluice.")


def is_project(module: str) -> bool:
    """Whether a module is the project's own: neither installed, nor Python's, nor the engine's."""
    found = sys.modules.get(module)
    if module.split(".", maxsplit=1)[0] in project_packages:
        return True
    if found is None or is_engine(module) or module in sys.builtin_module_names:
        return False
    place = getattr(found, "__file__", None) or next(iter(getattr(found, "__path__", [])), None)
    return place is None or is_own(place)


@functools.cache
def is_own(file: str) -> bool:
    """Whether a file is outside of all that is installed."""
    path = Path(file).resolve()
    if file.startswith("<frozen") or any(part in installed for part in path.parts):
        return False
    return not any(path.is_relative_to(library) for library in library_paths)


def is_own_function(function: types.FunctionType) -> bool:
    """By its code: what wraps a function has its name and module, and not its file."""
    home = str(function.__globals__.get("__name__"))
    is_declared = home.split(".", maxsplit=1)[0] in project_packages
    return is_declared or (not is_engine(home) and is_own(function.__code__.co_filename))


def tree(node: object) -> Tree:
    """A syntax tree as JSON: without places, docstrings and what is empty, which differs between versions of Python."""
    if isinstance(node, list):
        return [tree(each) for each in node if not is_remark(each)]
    if isinstance(node, ast.Constant):
        return [type(node.value).__name__, repr(node.value)]
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if name not in ("ctx", "kind", "type_comment")]
        return [type(node).__name__, *[[name, tree(value)] for name, value in fields if value not in (None, [])]]
    return node


def is_remark(node: object) -> bool:
    """A docstring, or another constant as a statement."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def definition_of(function: types.FunctionType) -> ast.AST:
    """The definition of a function in its source."""
    code = function.__code__
    found = [each for each in ast.walk(module_tree(code.co_filename)) if first_line(each, code) == code.co_firstlineno]
    if not found:
        raise NoSource(f"{function.__module__}.{function.__qualname__}")
    if len(found) == 1:
        return found[0]
    # Of lambdas in one line, the one that all the code is in; of those within each other, the smallest.
    shares = {each: within(each.body, code) for each in found if isinstance(each, ast.Lambda)}
    best = max(shares.values(), default=0)
    if best == 0:
        return ast.Module(found, [])  # type: ignore[arg-type] # Python kept no columns: any of them counts
    return min((each for each in shares if shares[each] == best), key=lambda each: len(ast.dump(each)))


def first_line(node: ast.AST, code: types.CodeType) -> int | None:
    """The line at which a definition begins, decorators included; None where it cannot be that of the code."""
    if isinstance(node, ast.Lambda):
        return node.lineno if code.co_name == "<lambda>" else None
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
        return min(each.lineno for each in (node, *node.decorator_list))
    return None


def within(body: ast.expr, code: types.CodeType) -> int:
    """How many instructions come from this part of the source."""
    start, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    return sum(
        start <= (line, column) and (last_line, last_column) <= end
        for line, last_line, column, last_column in code.co_positions()
        if None not in (line, last_line, column, last_column) and last_column
    )


def class_definition(kind: type) -> tuple[ast.ClassDef, Mapping[str, Any]]:
    """The definition of a class in its source, and the names that are known around it."""
    methods = [each for each in vars(kind).values() if isinstance(each, types.FunctionType) and is_own_function(each)]
    module = sys.modules.get(kind.__module__)
    file = methods[0].__code__.co_filename if methods else getattr(module, "__file__", None)
    nodes: list[ast.AST] = [module_tree(file or "")]
    for step in kind.__qualname__.split("."):
        if step != "<locals>":
            nodes = [each for node in nodes for each in ast.walk(node) if getattr(each, "name", None) == step]
    found = [each for each in nodes if isinstance(each, ast.ClassDef)]
    if not found:
        raise NoSource(f"{kind.__module__}.{kind.__qualname__}")
    around = methods[0].__globals__ if methods else vars(module)
    return found[-1], {**around, **{name: value for each in methods for name, value in closure_of(each).items()}}


def closure_of(function: types.FunctionType) -> dict[str, Any]:
    """What a function has from the functions around it."""
    pairs = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in pairs if name != "__class__" and is_filled(cell)}


def is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # not filled yet
        return False


def module_tree(file: str) -> ast.Module:
    path = Path(file)
    if not file or not path.is_file():
        raise NoSource(file or "code that was made without a file")
    status = path.stat()
    return parsed(str(path), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=64)
def parsed(path: str, _changed: int, _size: int) -> ast.Module:
    with tokenize.open(path) as source:
        return ast.parse(source.read(), path)


def global_names(code: types.CodeType) -> set[str]:
    """The names that code takes from its module, that of the functions inside it too."""
    found = {each.argval for each in dis.get_instructions(code) if loads.fullmatch(each.opname)}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= global_names(constant)
    return found


def names_of(function: types.FunctionType, node: ast.AST) -> set[str]:
    """The names that a function takes from its module, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    names = {each.id for root in decorators for each in ast.walk(root) if isinstance(each, ast.Name)}
    return names | global_names(function.__code__)


def chains(node: ast.AST, name: str) -> list[tuple[str, ...]]:
    """The ways in which code uses a name: `name.a.b` as ("name", "a", "b")."""
    outer = {id(each.value): each for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id == name:
            steps, inner = [name], outer.get(id(each))
            while inner is not None:
                steps.append(inner.attr)
                inner = outer.get(id(inner))
            found.add(tuple(steps))
    return sorted(found)


def imported(node: ast.AST, package: str) -> Iterator[tuple[str, object]]:
    """The names of the project that code imports when it runs, each with what it is."""
    for each in ast.walk(node):
        if isinstance(each, ast.ImportFrom):
            home = project_module("." * each.level + (each.module or ""), package)
            if home is not None:
                yield from ((alias.asname or alias.name, member(home, alias.name)) for alias in each.names)
        elif isinstance(each, ast.Import):
            for alias in each.names:
                if home := project_module(alias.name, package):
                    root = sys.modules[alias.name.split(".")[0]]
                    yield (alias.asname, home) if alias.asname else (root.__name__, root)


def member(home: types.ModuleType, name: str) -> object:
    """What `from home import name` gives."""
    if name == "*":
        return home
    return getattr(home, name, None) or project_module(f"{home.__name__}.{name}", "")


def project_module(name: str, package: str) -> types.ModuleType | None:
    """A module of the project, imported; None for others, which are not imported for this."""
    full_name = importlib.util.resolve_name(name, package)
    if full_name not in sys.modules:
        try:
            found = importlib.util.find_spec(full_name)
        except ImportError:
            return None
        if found is None or found.origin is None or not is_own(found.origin):
            return None
        importlib.import_module(full_name)
    return sys.modules[full_name] if is_project(full_name) else None


def used(names: Collection[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """What is known under the names, builtins and what Python adds to every module aside."""
    hidden = re.compile(r"__\w+__|@.*")
    return {name: known[name] for name in sorted(names) if name in known and not hidden.fullmatch(name)}
