"""Readers that know nothing of Sluice: the code of the guide gives the rows of the table."""

from pathlib import Path
from typing import Any

import pytest

from sluice.storage.delta import Lake
from tests.documents import Block, blocks, root
from tests.test_subscribe import actual, apply_commit, bag, made

page = root / "docs/how-to/read-tables-without-sluice.md"
snippets = [block for block in blocks(page) if block.kind == "python"]


@pytest.mark.parametrize("block", snippets, ids=lambda block: block.place)
def test_a_reader_of_the_guide_has_the_rows_of_the_table(tmp_path: Path, block: Block) -> None:
    lake = Lake(str(tmp_path))
    path = made(lake, [(1, 1.0, "a"), (2, 2.0, "b")])
    apply_commit(path, "merge", [(1, 3.0, "c"), (4, 4.0, "d")])
    apply_commit(path, "delete", 2)
    names: dict[str, Any] = {"lake": str(tmp_path)}
    exec(block.text, names)
    frame = names["frame"]
    rows = frame.to_dicts() if hasattr(frame, "to_dicts") else frame.to_dict("records")
    assert bag(rows) == actual(lake)
    assert len(rows) == 2
