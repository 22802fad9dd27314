"""Erasing: what a subject's records said is nowhere in the log and the lake, and all else stays true."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import zstandard

from sluice import gold
from sluice.log import erasures
from sluice.model.erasure import Erasure
from tests.kit import Lakehouse, text
from tests.shop import priced, prices, sales

sold = gold.aggregate(
    "sold", source=priced, group_by=["product"], measures={"pieces": "sum(pieces)", "sales": "count(*)"}
)
subject = "subject-4711"


def sale(id: str, product: str = "tea", hours: float = 1, pieces: int = 1) -> dict[str, Any]:
    return {"id": id, "product": product, "sold_at": text(hours), "pieces": pieces}


def contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file as bytes, with what is compressed or encoded in it."""
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == ".zst":
                content += zstandard.ZstdDecompressor().decompressobj().decompress(content)
            if path.suffix == ".parquet":
                content += repr(pq.read_table(path, partitioning=None).to_pylist()).encode()
            yield path, content


def files_with(folder: Path, value: str) -> list[str]:
    return [str(path.relative_to(folder)) for path, content in contents(folder) if value.encode() in content]


def erase(lakehouse: Lakehouse, offsets: dict[int, list[int]], *fields: str) -> None:
    erasures.add(lakehouse.log, Erasure.of("sales", offsets, fields, "asked"))


def test_the_records_of_a_subject_are_nowhere_and_another_takes_the_place_of_one(lakehouse: Lakehouse) -> None:
    lakehouse.declare(sales, prices, priced, sold)
    lakehouse.publish("prices", {"product": "tea", "changed_at": text(0), "price": 3})
    said = [sale(subject, pieces=5), sale("b"), sale(subject, pieces=7), sale("c", hours=2)]
    lakehouse.publish("sales", *said, key="k").run()
    (partition,) = {record.partition for record in lakehouse.log.tail("sales")}
    assert len(files_with(lakehouse.folder, subject)) > 5
    before = {each.offset: each.timestamp for each in lakehouse.log.tail("sales")}

    erase(lakehouse, {partition: [0]})
    lakehouse.run()
    assert lakehouse.rows("gold.sold") == [("tea", 9, 3)]
    assert lakehouse.fates() == [("erased", "erased", None)]

    erase(lakehouse, {partition: [2]})
    done = lakehouse.run()
    # Older versions are gone, and what followed them goes on from what is left.
    assert {event.cause for name, event in done.items() if not name.startswith("bronze")} == {"changes"}
    assert lakehouse.rows("silver.sales", "id") == [("b",), ("c",)]
    assert lakehouse.rows("gold.sold") == [("tea", 2, 2)]
    assert files_with(lakehouse.folder, subject) == []
    assert {each.offset: each.timestamp for each in lakehouse.log.tail("sales")} == before
    assert [each.faults for each in lakehouse.log.verify("sales")] == [(), ()]
    audit = lakehouse.audit()["silver.sales"]
    assert (audit.landed, audit.accepted, audit.erased, audit.balanced) == (4, 2, 2, True)
    assert lakehouse.run() == {}
    rebuilt = lakehouse.run(rebuild=True)
    assert {name: event.rows.total for name, event in rebuilt.items() if event.rows.total} == {}
    lakehouse.publish("sales", sale("d"), key="k").run()
    assert lakehouse.rows("gold.sold") == [("tea", 3, 3)]
