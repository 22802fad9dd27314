"""The documentation: it builds, its links lead somewhere, its examples declare what they say, its commands exist."""

import ast
import builtins
import importlib
import re
import shutil
import subprocess
import symtable
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from inspect import isclass, isroutine
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from infra.site import commands as cli
from infra.site.generated import meanings_of
from pipelines.silver import dimensions, flights
from sluice import bronze, expect, gold, silver, windows
from sluice.engine.catalogue import load
from sluice.model.datasets import Topic
from sluice.runtime.settings import Settings
from tests.documents import Block, blocks, pages, root, sluice_commands

chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
declarations = ("bronze", "silver", "gold", "expect", "windows", "sql")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    recipe = re.search(r"^docs:.*\n\t@\$\(BIN\)/python (.*) build/docs$", (root / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    command = [sys.executable, *recipe[1].split(), "--doctree-dir", str(folder / "doctrees"), str(folder / "html")]
    built = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder / "html"


class Page(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        address = named.get("href") or named.get("src")
        if address:
            (self.links if tag == "a" else self.loaded).append(address)


@pytest.fixture(scope="module")
def read(site: Path) -> dict[Path, Page]:
    """Every page of the site."""
    return {file: Page(file.read_text()) for file in site.rglob("*.html") if "_static" not in file.parts}


def test_each_markdown_file_is_a_page_of_the_site(site: Path) -> None:
    assert [str(page) for page in pages if not (site / page.relative_to(root)).with_suffix(".html").exists()] == []
    assert (site / "index.html").exists()


def test_each_link_and_anchor_leads_somewhere(read: dict[Path, Page]) -> None:
    inside = [(file, link) for file, page in read.items() for link in page.links if not urlsplit(link).scheme]
    assert len(inside) > 1000
    assert [(file.name, link) for file, link in inside if not leads_somewhere(file, link, read)] == []


def leads_somewhere(file: Path, link: str, read: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    target = Path(file.parent, unquote(parts.path)).resolve() if parts.path else file
    if target not in read:
        return target.is_file()
    return not parts.fragment or unquote(parts.fragment) in read[target].anchors


def test_no_page_loads_anything_from_elsewhere(site: Path, read: dict[Path, Page]) -> None:
    assert [(file.name, each) for file, page in read.items() for each in page.loaded if "//" in each] == []
    styles = [file.read_text() for file in site.rglob("*.css")]
    assert styles
    assert [
        found for text in styles for found in re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)]*", text)
    ] == []


@pytest.mark.browser
def test_a_browser_finds_pages_from_a_folder_on_disk_and_asks_for_nothing_else(site: Path) -> None:
    from playwright.sync_api import expect as on_page
    from playwright.sync_api import sync_playwright

    assert chromium, "There is no Chromium. Run: python -m infra.servers install --for-tests"
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("Control+k")
        page.keyboard.type("watermark")
        page.keyboard.press("Enter")
        on_page(page.locator("#search-results")).to_contain_text("Choose a lateness policy")
        browser.close()
    assert [url for url in asked if not url.startswith(site.as_uri())] == []


def test_the_reference_has_every_declaration_command_setting_and_error(read: dict[Path, Page], site: Path) -> None:
    reference = site / "docs" / "reference"
    for name in declarations:
        module = importlib.import_module(f"sluice.{name}")
        anchors = read[reference / f"{name}.html"].anchors
        public = [each for each in module.__all__ if isroutine(getattr(module, each)) or isclass(getattr(module, each))]
        assert {f"sluice.{name}.{each}" for each in public} <= anchors
    sections = read[reference / "commands.html"].anchors
    assert {f"sluice {name}".replace(" ", "-") for name in cli.commands() if name} <= sections
    settings = (reference / "settings.html").read_text()
    assert [
        name for name in Settings.model_fields if name != "project" and f"SLUICE_{name.upper()}" not in settings
    ] == []
    assert [name for name in Settings.model_fields if name not in meanings_of(Settings)] == []
    assert "sluice.errors.LogTruncated" in read[reference / "errors.html"].anchors
    tables = (reference / "tables.html").read_text()
    assert "silver-conditions" in read[reference / "tables.html"].anchors
    assert "silver.conditions_changes.wind_speed_mph" in tables
    assert "From the scheduled to the actual departure; negative: it left early." in tables


@pytest.mark.process
def test_the_markdown_is_clean() -> None:
    linter = [sys.executable, "-m", "pymarkdown", "--strict-config", "scan", *map(str, pages)]
    done = subprocess.run(linter, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Topics(SimpleNamespace):
    """A project's `bronze` that has a topic of each name, beside the word `bronze.topic`."""

    topic = staticmethod(bronze.topic)

    def __getattr__(self, name: str) -> Topic:
        return bronze.topic(name)


def known_names() -> dict[str, Any]:
    """What an example may use: the words of a declaration, and the tables of the demo's silver."""
    named = {name: getattr(module, name) for module in (expect, windows) for name in module.__all__}
    tables = {"aircraft": dimensions.aircraft, "conditions": dimensions.conditions, "flights": flights.flights}
    return {**tables, **named, "bronze": Topics(), "silver": silver, "gold": gold}


def examples(page: Path) -> Iterator[Block]:
    """Python of a page: fenced as such, or indented and looking like it."""
    for block in blocks(page):
        looks_so = re.match(r"(def |from \w+|import |@|\w+ = \w+\.\w+\()", block.text) and block.kind == "indented"
        # What runs a project is no declaration: the notebook of examples/ is run as a whole.
        runs_a_project = re.search(r"\b[Pp]roject\b", block.text)
        if (block.kind == "python" or looks_so) and not runs_a_project:
            yield block


def declared(page: Path) -> list[Block]:
    """Parses each example of a page and runs those that are complete, one after the other."""
    names, ran = known_names(), []
    for block in examples(page):
        tree = ast.parse(block.text, block.place)
        if free_names(block) <= names.keys():
            exec(compile(tree, block.place, "exec"), names)
            ran.append(block)
    return ran


def free_names(block: Block) -> set[str]:
    """The names that an example uses and neither makes nor imports."""
    tables = [symtable.symtable(block.text, block.place, "exec")]
    for table in tables:
        tables += table.get_children()
    used = {symbol.get_name() for table in tables for symbol in table.get_symbols() if symbol.is_global()}
    made = {symbol.get_name() for symbol in tables[0].get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return used - made - set(dir(builtins))


@pytest.mark.parametrize("page", [page for page in pages if any(examples(page))], ids=lambda page: page.stem)
def test_an_example_that_is_complete_declares_what_it_says(page: Path) -> None:
    ran = declared(page)
    # Beginners read these two; elsewhere an example may leave out what it is made from.
    if page.stem in ("README", "tutorial"):
        assert ran == list(examples(page))


def test_most_examples_are_complete() -> None:
    assert sum(len(declared(page)) for page in pages) >= 0.7 * sum(1 for page in pages for _ in examples(page))


def test_each_command_and_option_that_a_page_names_exists() -> None:
    named = [(block, words) for page in pages for block in blocks(page) for words in sluice_commands(block)]
    assert len(named) > 100
    assert [(block.place, " ".join(words)) for block, words in named if not exists(words)] == []


def exists(words: list[str]) -> bool:
    """Whether the CLI has the command, its options, and all of `list | show | release`."""
    known = cli.commands()
    group, name = "", ""
    rest = list(words)
    while rest and cli.is_group(known[name]) and not rest[0].startswith("-"):
        if rest[0].isupper() or rest[0] == "…":
            return True
        group, name = name, f"{name} {rest.pop(0)}".strip()
        if name not in known:
            return False
    others = [after for before, after in pairwise(rest) if before == "|"]
    options = {word.split("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    return all(f"{group} {each}".strip() in known for each in others) and options <= cli.options_of(known[name])


@pytest.mark.parametrize(
    "command",
    [
        "runn",
        "log apend orders",
        "run --rebuilt",
        "quarantine list | shew | release",
        "query SQL --as-known=2026-01-01",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(command: str) -> None:
    assert not exists(command.split())


def test_the_tutorial_shows_the_declarations_of_the_scaffold() -> None:
    files = (root / "sluice/scaffold/project/pipelines").glob("*.py")
    scaffold = {each for file in files for each in without_meaning(file.read_text())}
    shown = [each for block in examples(root / "docs/tutorial.md") for each in without_meaning(block.text)]
    assert len(shown) == 4
    assert [each for each in shown if each not in scaffold] == []


def test_the_sql_that_a_page_shows_is_a_project_with_that_of_the_scaffold(tmp_path: Path) -> None:
    shutil.copytree(root / "sluice/scaffold/project", tmp_path, dirs_exist_ok=True)
    page = root / "docs/how-to/write-a-table-in-sql.md"
    shown = [block for block in blocks(page) if block.kind == "sql"]
    files = {match[1]: block for block in shown if (match := re.match(r"-- (pipelines/.*\.sql)\n", block.text))}
    assert len(files) == len(shown) >= 7
    for name, block in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(block.text)
    found = {node.name: node for node in load(tmp_path).nodes}
    assert {f"{Path(name).parent.name}.{Path(name).stem}" for name in files} <= found.keys()
    assert found["gold.orders_daily"].meaning == "Orders and pieces by day (UTC)."


def test_each_message_that_the_troubleshooting_page_quotes_is_one_of_sluice() -> None:
    texts = {text for file in (root / "sluice").rglob("*.py") for text in texts_of(file)}
    quoted = messages_of((root / "docs/how-to/troubleshoot.md").read_text())
    assert len(quoted) > 50
    assert [said for said in quoted if not any(said in text for text in texts)] == []


def texts_of(file: Path) -> Iterator[str]:
    """The texts of a module, those in pieces joined, each up to what an f-string puts into it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def messages_of(page: str) -> list[str]:
    """What stands in the first column of the tables of messages, without what is left out of it."""
    tables = re.findall(r"^\| message \|.*\n\|---.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    firsts = [row.split("|")[1] for table in tables for row in table.splitlines()]
    codes = [code for first in firsts for code in re.findall(r"`([^`]+)`", first)]
    return [part for code in codes for each in code.split("…") if len(part := each.strip()) > 1]


def without_meaning(source: str) -> list[str]:
    """The declarations of a module without the texts for people."""
    declarations = [each for each in ast.parse(source).body if isinstance(each, ast.Assign)]
    for each in declarations:
        assert isinstance(each.value, ast.Call)
        each.value.keywords = [option for option in each.value.keywords if option.arg != "meaning"]
    return [ast.unparse(each) for each in declarations]
