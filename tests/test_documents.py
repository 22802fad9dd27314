"""The pages of `sluice docs`: every table and column, every value escaped, every link to a page that is there."""

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from sluice import bronze, gold, silver
from sluice.engine.catalogue import Catalogue, expecting, ordered
from sluice.model.expectations import expect, suite
from sluice.operate import documents
from sluice.operate.describe import Described, describe, with_verdicts
from tests.test_describe import hostile

# A column may be called so.
signs = "<img/src/onerror>&lt%2F#?"


def declared() -> Catalogue:
    topic = bronze.topic("orders", meaning=hostile, owner=hostile, comments={"value": hostile})
    orders = silver.events(
        "orders",
        source=topic,
        schema=f"id string, at timestamp, `{signs}` double",
        keys=["id"],
        event_time="at",
        meaning=hostile,
        owner=hostile,
        comments={signs: f"{hostile} [{hostile.replace('[', '').replace(']', '')}]"},
    )
    prices = silver.history("prices", source=orders, keys=["id"], sequence_by="at", column_list=[signs])
    priced = silver.as_of("priced", facts=orders, event_time="at", dimensions={"price": prices})
    totals = gold.aggregate("totals", source=priced, group_by=["id"], measures={"most": f"max(price.`{signs}`)"})
    rule = expect("column_values_to_be_in_set", column=signs, value_set=[hostile], severity="warn", name="hostile")
    return expecting(ordered([totals]), {"silver.orders": suite("silver.orders", rule)})


class Page(HTMLParser):
    """The tags of a page, its text, its anchors and its links."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.text = ""
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        assert not [name for name in named if name.startswith("on") or name == "style"]
        self.tags.add(tag)
        self.anchors |= {named["id"]} if "id" in named else set()
        self.links += [named["href"]] if tag == "a" else []
        self.loaded += [named[name] for name in ("src", "href") if name in named and tag != "a"]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def tables() -> list[Described]:
    checks = {"silver.orders": [{"expectation": "hostile", "verdict": "failed"}]}
    return with_verdicts(describe(declared()), checks)


@pytest.fixture
def pages(tables: list[Described], tmp_path: Path) -> dict[str, Page]:
    index = documents.write(tmp_path / "new" / "docs", hostile, tables)
    return {file.name: Page(file) for file in index.parent.glob("*.html")}


def test_there_is_a_page_for_each_table_and_it_says_what_is_known(
    tables: list[Described], pages: dict[str, Page]
) -> None:
    assert set(pages) == {"index.html", "columns.html", *(f"{each.name}.html" for each in tables)}
    for table in tables:
        page = pages[f"{table.name}.html"]
        for column in table.columns:
            assert f"column-{column.name}" in page.anchors
            assert column.name in page.text
            assert column.meaning in page.text
        assert all(each.name in page.text and each.meaning in page.text for each in table.tests)
    orders = pages["silver.orders.html"].text
    assert "not checked" in orders
    assert "failed" in orders
    # A column of three tables, a field of `price`, and a field in the type of `price`.
    assert pages["columns.html"].text.count(signs) == 5
    # Nobody said what `at` means, and its name is no meaning.
    assert not any("At" in page.text.split() for page in pages.values())


def test_what_a_project_says_is_text_and_never_markup(pages: dict[str, Page]) -> None:
    assert {tag for page in pages.values() for tag in page.tags} & {"script", "img", "iframe", "style"} == set()
    assert hostile in pages["silver.orders.html"].text
    assert hostile in pages["index.html"].text


def test_every_link_leads_to_a_page_or_a_column_that_is_there(pages: dict[str, Page]) -> None:
    links = [urlsplit(link) for page in pages.values() for link in page.links]
    assert len(links) > 50
    assert [each for each in links if each.scheme or each.netloc or each.query] == []
    broken = [
        each.geturl()
        for each in links
        if each.path not in pages or (each.fragment and unquote(each.fragment) not in pages[each.path].anchors)
    ]
    assert broken == []


def test_pages_load_nothing_but_their_style(pages: dict[str, Page], tmp_path: Path) -> None:
    assert {each for page in pages.values() for each in page.loaded} == {"docs.css"}
    style = (tmp_path / "new" / "docs" / "docs.css").read_text()
    assert "url(" not in style
    assert "@import" not in style


def test_pages_of_tables_that_are_gone_are_removed_and_nothing_else(tables: list[Described], tmp_path: Path) -> None:
    documents.write(tmp_path, "p", tables)
    (tmp_path / "mine.html").write_text("mine")
    documents.write(tmp_path, "p", tables[:2])
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {
        "index.html",
        "columns.html",
        "docs.css",
        "mine.html",
        *(f"{each.name}.html" for each in tables[:2]),
    }
