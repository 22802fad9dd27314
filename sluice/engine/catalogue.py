"""The catalogue: every dataset that a project declares, in an order in which each comes after its inputs."""

import importlib
import importlib.util
import re
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import TopologicalSorter
from inspect import isfunction, ismodule, signature
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from sluice.errors import DeclarationError, UsageError, call_of, suggestion
from sluice.model.commands import Commands
from sluice.model.datasets import Dataset, Topic
from sluice.model.declared import Declaration, declarations, made_in
from sluice.model.expectations import Expectation, Suite
from sluice.model.publication import Publication
from sluice.quality.built_in import require_built_ins
from sluice.shapes.fates import schemas
from sluice.sql.files import declared_in, package

Node = Dataset | Topic
expectations_package = "expectations"
unknown_option = re.compile(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'")
# The modules of all projects have the same names, and a process may load several projects.
loading = threading.Lock()


@dataclass(frozen=True)
class Catalogue:
    """The topics and datasets of a project, upstream first, what is expected of them, what is published and decided."""

    nodes: tuple[Node, ...]
    suites: Mapping[str, Suite] = field(default_factory=dict)
    publications: tuple[Publication, ...] = ()
    commands: tuple[Commands, ...] = ()

    @property
    def topics(self) -> list[Topic]:
        return [node for node in self.nodes if isinstance(node, Topic)]

    @property
    def datasets(self) -> list[Dataset]:
        return [node for node in self.nodes if isinstance(node, Dataset)]

    def commands_of(self, name: str) -> Commands:
        """The commands that are declared by this name."""
        for found in self.commands:
            if found.name == name:
                return found
        there_are = ", ".join(each.name for each in self.commands) or "none"
        raise UsageError(f"No commands {name} are declared (there are: {there_are}). Declare them with gold.commands.")

    def topic(self, name: str) -> Topic:
        """The topic of this name in the log."""
        for found in self.topics:
            if found.topic == name:
                return found
        raise UsageError(f"No topic {name} lands; those that do: {', '.join(each.topic for each in self.topics)}.")

    def dataset(self, name: str) -> Dataset:
        """The dataset of this name."""
        known = {each.name: each for each in self.datasets}
        require_known([name], known)
        return known[name]

    def gate_of(self, dataset: Dataset) -> tuple[Expectation, ...]:
        """The expectations that a dataset's rows must meet before they are written."""
        suite = self.suites.get(dataset.name)
        return suite.gate if suite else ()

    def upstream_of(self, names: Sequence[str]) -> "Catalogue":
        """The named datasets with all that they are made from; everything when no name is given."""
        require_known(names, self.by_name)
        return replace(ordered(self.by_name[name] for name in names), suites=self.suites) if names else self

    def downstream_of(self, names: Sequence[str]) -> list[Dataset]:
        """The named datasets with all that is made from them, upstream first."""
        self.upstream_of(names)
        found: dict[str, Dataset] = {}
        for dataset in self.datasets:
            if dataset.name in names or any(source.name in found for source in sources_of(dataset)):
                found[dataset.name] = dataset
        return list(found.values())

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    def dependencies(self) -> TopologicalSorter[str]:
        """What each node is made from, by name, prepared to say which nodes are ready."""
        made_of = {node.name: [source.name for source in sources_of(node)] for node in self.nodes}
        # Which schemas to ask for is known once the records have landed that name them.
        if schemas.name in made_of:
            made_of[schemas.name] = [each.name for each in self.topics if each is not schemas]
        found = TopologicalSorter(made_of)
        found.prepare()
        return found


def load(project: Path) -> Catalogue:
    """Imports the project's `pipelines` and collects the datasets that its modules and `.sql` files declare."""
    require_project(project)
    folder = project / package
    with loading, declarations() as made:
        modules = list(modules_of(project, package))
        found_in = [value for module in modules for value in values_of(module, made)]
        declared = [each for each in found_in if isinstance(each, Dataset | Topic | Publication | Commands)]
        declared += declared_in(modules[0])
        if not declared:
            raise DeclarationError(f"{folder} declares no dataset.")
        published = unique(each for each in declared if isinstance(each, Publication))
        commands = decided(each for each in declared if isinstance(each, Commands))
        nodes = [node_of(each) for each in declared]
        require_distinct(nodes, made, project)
        found = with_fingerprints(expecting(ordered(nodes), suites_of(project)))
        require_decisions_count(commands, found)
        return replace(found, publications=published, commands=commands)


def files_of(project: Path) -> frozenset[tuple[Path, int, int]]:
    """The files that declare, with the time and size of each: another answer means that somebody changed them."""
    found = set()
    for each in (path for name in (package, expectations_package) for path in (project / name).rglob("*")):
        if each.suffix not in (".py", ".sql"):
            continue
        with suppress(FileNotFoundError):
            stat = each.stat()
            found.add((each, stat.st_mtime_ns, stat.st_size))
    return frozenset(found)


def unique(publications: Iterable[Publication]) -> tuple[Publication, ...]:
    """Each publication once; two with one target are an error."""
    found: dict[tuple[str, str], Publication] = {}
    for each in publications:
        for target in each.targets.items():
            if found.setdefault(target, each) is not each:
                raise DeclarationError(f"{' '.join(target)} is published to twice; a target belongs to one table.")
    return tuple(dict.fromkeys(found.values()))


def decided(commands: Iterable[Commands]) -> tuple[Commands, ...]:
    """Each declaration of commands once; two with one name or one topic are an error."""
    found: dict[str, Commands] = {}
    for each in dict.fromkeys(commands):
        if found.setdefault(each.name, each) is not each:
            raise DeclarationError(f"The commands {each.name} are declared twice; give one of them another name.")
        others = [other.name for other in found.values() if other is not each and other.topic is each.topic]
        if others:
            raise DeclarationError(
                f"{others[0]} and {each.name} decide in one topic, {each.topic.topic}; give each its own."
            )
    return tuple(found.values())


def require_decisions_count(commands: Iterable[Commands], catalogue: Catalogue) -> None:
    """A DeclarationError for a row rule that would take decisions out of the state that commands are decided by."""
    for each in commands:
        decisions = each.state.inputs["events"].source.name
        rules = catalogue.suites[decisions].row_rules if decisions in catalogue.suites else ()
        if rules:
            raise DeclarationError(
                f"{decisions}: {rules[0].name} would quarantine what was decided; make it a rule of the commands "
                f"{each.name}, or critical or warn"
            )


def node_of(declared: Node | Publication | Commands) -> Node:
    """The dataset or topic that something declared is, or is of."""
    if isinstance(declared, Publication):
        return declared.source
    return declared.state if isinstance(declared, Commands) else declared


def is_project(project: Path) -> bool:
    """Whether a folder declares anything."""
    return (project / package).is_dir()


def require_known(names: Iterable[str], known: Collection[str]) -> None:
    """Raises a UsageError for names of none of these datasets."""
    unknown = [name for name in names if name not in known]
    if unknown:
        what_else = suggestion(unknown[0], known, f"there are {', '.join(known)}.")
        raise UsageError(f"There is no dataset {', '.join(unknown)}; {what_else}")


def require_project(project: Path) -> None:
    """A UsageError for a folder that declares nothing."""
    if not is_project(project):
        raise UsageError(
            f"{project} has no folder '{package}', so it is not a Sluice project. Change to a project's folder, name "
            "one with --project, or write one with: sluice init"
        )


def with_fingerprints(catalogue: Catalogue) -> Catalogue:
    """The catalogue, its fingerprints computed now: from the code that was imported, not from files edited later."""
    for dataset in catalogue.datasets:
        _ = dataset.fingerprint
    return catalogue


def suites_of(project: Path) -> dict[str, Suite]:
    """The suites in the project's `expectations` by dataset; that of silver.orders is in `silver/orders.py` there."""
    if not (project / expectations_package).is_dir():
        return {}
    found: dict[str, Suite] = {}
    with declarations() as made:
        modules = list(modules_of(project, expectations_package))
    for module in modules:
        dataset = module.__name__.removeprefix(expectations_package).lstrip(".")
        for value in values_of(module, made):
            if isinstance(value, Suite):
                if value.dataset != dataset:
                    expected = f"{expectations_package}/{value.dataset.replace('.', '/')}.py"
                    raise DeclarationError(
                        f"the suite of {value.dataset} belongs in {expected}, not in {module.__file__}"
                    )
                found[dataset] = value
    return found


def expecting(catalogue: Catalogue, suites: Mapping[str, Suite]) -> Catalogue:
    """The catalogue with the suites; their row rules belong to the datasets that parse records."""
    names = [dataset.name for dataset in catalogue.datasets]
    for name in suites:
        if name not in names:
            hint = suggestion(name, names, f"there are {', '.join(names)}.")
            file = f"{expectations_package}/{name.replace('.', '/')}.py"
            raise DeclarationError(f"there is a suite of {name} ({file}), but no such dataset; {hint}")
    found: dict[str, Node] = {}
    for node in catalogue.nodes:
        made = node
        if isinstance(node, Dataset):
            suite = suites.get(node.name)
            made = with_rules(with_sources(node, found), suite)
            require_built_ins(made, suite.bounds if suite else {})
            require_expected(made, suite.of_table if suite else ())
        found[node.name] = made
    return Catalogue(tuple(found.values()), dict(suites))


def require_expected(dataset: Dataset, expectations: Iterable[Expectation]) -> None:
    """A DeclarationError where an expectation names a column that the table will not have; `_` is bookkeeping."""
    known = dataset.columns
    if known is None:
        return
    for each in expectations:
        for column in each.columns:
            if column not in known and not column.startswith("_"):
                hint = suggestion(column, [*known], f"it has {', '.join(known)}")
                raise DeclarationError(f"{dataset.name}: {each.name}: there is no column {column}; {hint}")


def with_sources(dataset: Dataset, found: Mapping[str, Node]) -> Dataset:
    """The dataset with the nodes of these names as its sources."""
    inputs = {alias: replace(each, source=found[each.source.name]) for alias, each in dataset.inputs.items()}
    return replace(dataset, inputs=inputs)


def with_rules(dataset: Dataset, suite: Suite | None) -> Dataset:
    """The dataset with the row rules of its suite; a DeclarationError if the dataset parses no records."""
    rules = suite.row_rules if suite else ()
    if not rules:
        return dataset
    if dataset.with_expectations is None:
        raise DeclarationError(
            f"{dataset.name}: {rules[0].name} would quarantine records, and only datasets that parse records can; "
            "expect it of the dataset that they come from, or make it critical or warn"
        )
    return replace(dataset.with_expectations(rules), owner=dataset.owner, comments=dataset.comments)


def modules_of(project: Path, package: str) -> Iterator[ModuleType]:
    """All modules of a package of the project; those of a project that was loaded before are forgotten first."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    sys.path.insert(0, str(project))
    importlib.invalidate_caches()
    try:
        root = importlib.import_module(package)
        require_own(root, project / package)
        # Without `__init__.py` it would have the modules and files of each folder of this name that Python knows.
        root.__path__ = [str(project / package)]
        yield root
        for name in names_of_modules(package, project / package):
            yield importlib.import_module(name)
    except DeclarationError as error:
        place = place_of(error, project)
        # What is in a file in SQL says where.
        if place is None or str(error).startswith(f"{package}/"):
            raise
        raise DeclarationError(f"{place}: {error}") from error
    except Exception as error:
        place = place_of(error, project)
        what = f"{place}," if place else str(project / package)
        raise DeclarationError(f"{what} cannot be imported: {type(error).__name__}: {error}{meant(error)}") from error
    finally:
        sys.path.remove(str(project))


def meant(error: Exception) -> str:
    """Which option is meant where Python says that a function has none of that name."""
    found = unknown_option.match(str(error))
    if found is None:
        return ""
    there = [each for frame, _ in walk_tb(error.__traceback__) for each in frame.f_globals.items()]
    named = [each for name, each in there if name == found[1]]
    named += [getattr(each, found[1], None) for _, each in there if ismodule(each)]
    options = [name for each in named if isfunction(each) for name in signature(each).parameters]
    what = suggestion(found[2], options, "")
    return f"; {what}" if what else ""


def names_of_modules(package: str, folder: Path) -> Iterator[str]:
    """The modules below a package, a package before what is in it; those of folders without `__init__.py` too."""
    for path in sorted(folder.iterdir()):
        name = f"{package}.{path.stem}"
        # A folder that no name can reach, as `.ipynb_checkpoints`, has no modules.
        if path.is_dir() and path.name.isidentifier():
            if (path / "__init__.py").exists():
                yield name
            yield from names_of_modules(name, path)
        elif path.suffix == ".py" and path.stem != "__init__" and "." not in path.stem:
            yield name


def place_of(error: Exception, project: Path) -> str | None:
    """The line of the project's files that an error comes from; None where it comes from none of them."""
    folder = project.resolve()
    own = [folder / each for each in (package, expectations_package)]
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    elif call := call_of(error, lambda file: any(Path(file).resolve().is_relative_to(each) for each in own)):
        file, line = call.filename, call.lineno
    else:
        return None
    return line_in(project, file, line)


def line_in(project: Path, file: str, line: int | None) -> str:
    """A line of a file, which is named from the project's folder."""
    folder, path = project.resolve(), Path(file).resolve()
    return f"{path.relative_to(folder) if path.is_relative_to(folder) else path}, line {line}"


def require_own(package: ModuleType, folder: Path) -> None:
    """A DeclarationError where Python found another package of this name, as a folder without `__init__.py` comes last.

    Of a folder that declares nothing nothing is missed.
    """
    found = [Path(each).resolve() for each in package.__path__]
    if folder.resolve() not in found and any(each.suffix in (".py", ".sql") for each in folder.rglob("*")):
        raise DeclarationError(
            f"Python takes {found[0]} for {package.__name__}, and not {folder}. Add {folder / '__init__.py'}, a file "
            "that may be empty."
        )


def values_of(module: ModuleType, made: Iterable[Declaration]) -> list[object]:
    """What a module has a name for, and what its lines declare without one, each once."""
    declared = (each.made for each in made_in(module, made))
    return list({id(each): each for each in (*vars(module).values(), *declared)}.values())


def require_distinct(nodes: Iterable[Node], made: Iterable[Declaration], project: Path) -> None:
    """A DeclarationError that says where two nodes of one name are declared."""
    places = {id(each.made): line_in(project, each.file, each.line) for each in made}
    found: dict[str, Node] = {}
    for node in nodes:
        first = found.setdefault(node.name, node)
        if first is not node:
            # What no line declares is the table of a file in SQL.
            where = ", ".join(places.get(id(each), "its .sql file") for each in (first, node))
            raise DeclarationError(f"{node.name} is declared twice ({where}); a name belongs to one dataset.")


def ordered(nodes: Iterable[Node]) -> Catalogue:
    """The nodes and all their sources, each once, sources first; two nodes of one name are an error."""
    found: dict[str, Node] = {}

    def visit(node: Node) -> None:
        if found.get(node.name) is node:
            return
        for source in sources_of(node):
            visit(source)
        if node.name in found:
            raise DeclarationError(f"{node.name} is declared twice; a name belongs to one dataset.")
        found[node.name] = node

    for node in nodes:
        visit(node)
    return Catalogue(tuple(found.values()))


def sources_of(node: Node) -> list[Node]:
    """What a node is made from; nothing for a topic."""
    return [each.source for each in node.inputs.values()] if isinstance(node, Dataset) else []
