"""Erasing: what a subject's records said is nowhere in the log and the lake, and all else stays true."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sluice import Project, bronze, gold, silver
from sluice.engine import erase as engine
from sluice.engine.backfill import BackfillRange
from sluice.engine.catalogue import ordered
from sluice.errors import LogError, SluiceError, UsageError
from sluice.log import Log, Record, Segment, StoredRecord, erasures, rewriting, segments
from sluice.model.datasets import Dataset
from sluice.model.erasure import Removal, erasures_topic, remainder, without
from sluice.operate import erase, quarantine, search
from sluice.operate import replay as replaying
from sluice.operate.audit import erased_by_none, erasures_left
from sluice.operate.checks import check
from sluice.operate.erase import Subject
from sluice.quality import results
from sluice.runtime.settings import Settings
from sluice.shapes.fates import Reading, touched_by_erasure
from sluice.silver import events
from sluice.storage.delta import Lake
from sluice.storage.delta.reader import delta_log
from sluice.storage.files import Files
from tests.commands import sluice
from tests.damage import damage
from tests.kit import Lakehouse, at, lines_without_checksums, text
from tests.shop import priced, prices, sales

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

sold = gold.aggregate(
    "sold", source=priced, group_by=["product"], measures={"pieces": "sum(pieces)", "last_sale": "max(id)"}
)
counted = gold.aggregate(
    "counted", source=sales, group_by=["product"], measures={"pieces": "sum(pieces)", "last_sale": "max(id)"}
)
subject = "subject-4711"


def sale(name: str, product: str = "tea", hours: float = 1, pieces: int = 1) -> dict[str, Any]:
    return {"id": name, "product": product, "sold_at": text(hours), "pieces": pieces}


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file as bytes, with what is compressed or encoded in it: by other means than those of the search."""
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == ".zst":
                content += zstandard.ZstdDecompressor().decompressobj().decompress(content)
            if path.suffix == ".parquet":
                content += repr(pq.read_table(path, partitioning=None).to_pylist()).encode()
            yield str(path.relative_to(folder)), content


def files_with(folder: Path, value: str) -> list[str]:
    return [name for name, content in contents(folder) if value.encode() in content]


def found_and_stated(lakehouse: Lakehouse, subject: Subject) -> dict[int, list[int]]:
    """What `sluice erase` does before it runs."""
    offsets = erase.found(lakehouse.lake, lakehouse.log, lakehouse.catalogue, subject).offsets
    if offsets:
        erase.state(lakehouse.log, subject, offsets, "asked for it")
    return offsets


# Without Spark: the log, and what is left of a record.


@pytest.fixture
def log(tmp_path: Path) -> Log:
    found = Log(tmp_path / "log", partitions=1)
    for number in range(4):
        records = [Record(json.dumps(sale(f"id-{number}-{each}")).encode(), f"key-{each}", at(1)) for each in range(3)]
        found.append_to("sales", 0, records)
    return found


def removals(offsets: list[int], *fields: str) -> dict[int, dict[int, list[Removal]]]:
    return {0: {offset: [Removal(7, fields)] for offset in offsets}}


@pytest.mark.parametrize("compress", [False, True])
def test_a_record_leaves_its_offset_and_time_and_all_others_stay_as_they_are(tmp_path: Path, compress: bool) -> None:
    log = Log(tmp_path, partitions=1, compress=compress)
    log.append_to("sales", 0, [Record(b"\xff" + str(each).encode(), "k", at(each), {"a": "b"}) for each in range(5)])
    before = list(log.read("sales", 0))
    assert log.erase("sales", removals([1, 4, 99])) == 1
    after = list(log.read("sales", 0))
    gone = [replace(each, key=None, value=None, headers={"sluice_erased": "7"}) for each in before]
    assert after == [gone[each.offset] if each.offset in (1, 4) else each for each in before]
    assert [each.faults for each in log.verify("sales")] == [()]
    content = log.segments("sales")[0].path.read_bytes()
    assert log.erase("sales", removals([1, 4, 99])) == 0
    assert log.segments("sales")[0].path.read_bytes() == content
    assert log.append_to("sales", 0, [Record(b"next")]) == 6


def test_lines_of_other_programs_stay_byte_for_byte(log: Log) -> None:
    path = log.segments("sales")[1].path
    lines = lines_without_checksums(path)
    path.write_bytes(b"".join(lines))
    log.erase("sales", removals([4]))
    after = path.read_bytes().splitlines(keepends=True)
    assert [after[0], after[2]] == [lines[0], lines[2]]
    assert b"id-1-1" not in after[1]
    assert [each.faults for each in log.verify("sales")] == [()]


def test_a_damaged_segment_is_not_written_again_as_if_it_were_sound(log: Log) -> None:
    path = log.segments("sales")[0].path
    damaged = path.read_bytes().replace(b"id-0-2", b"id-0-3")
    path.write_bytes(damaged)
    with pytest.raises(LogError, match="another checksum"):
        log.erase("sales", removals([0]))
    assert path.read_bytes() == damaged


def test_leftovers_of_a_writer_that_was_killed_go_too(log: Log) -> None:
    left = log.folder("sales", 0) / ".00000000000000000000.jsonl.123"
    left.write_bytes(b"id-0-0")
    log.erase("sales", removals([0]))
    assert files_with(log.root, "id-0-0") == []


@pytest.mark.parametrize(
    ("value", "left"),
    [
        (b'{"name":"Ann","n":1.10}', b'{"name":null,"n":1.10}'),
        (b' { "n" : [1, {"name": "kept"}] , "n\\u0061me" : {"x": "}"} } ', None),
        (b'{"payload":{"before":null,"after":{"name":"Ann"}}}', b'{"payload":{"before":null,"after":{"name":null}}}'),
        (b'{"name":"Ann","name":"Bea"}', b'{"name":null,"name":null}'),
        (b'{"other":1}', b'{"other":1}'),
        (b"{}", b"{}"),
    ],
)
def test_a_field_becomes_null_and_the_rest_stays_byte_for_byte(value: bytes, left: bytes | None) -> None:
    expected = left or b' { "n" : [1, {"name": "kept"}] , "n\\u0061me" : null } '
    assert without(value, ["name"]) == expected


@pytest.mark.parametrize(
    "value", [b"", b"[1]", b'"name"', b'{"name":', b"{name:1}", b'{"name":1}x', b"\xff", b"[" * 9999]
)
def test_of_what_is_no_object_all_goes(value: bytes) -> None:
    assert without(value, ["name"]) is None
    assert remainder(value, [Removal(3, ("name",))]).erased_by == 3


def test_a_value_is_found_as_a_word_however_it_is_written() -> None:
    wanted = search.Wanted("Zoë/1")
    there: list[Any] = [
        "x Zoë/1 y",
        b'{"a":"Zo\\u00eb\\/1"}',
        '{"s":"{\\"min\\":\\"Zo\\u00eb/1\\"}"}',
        {"n": ["Zoë/1"]},
    ]
    assert [each for each in there if not wanted.is_in(each)] == []
    not_there: list[Any] = ["Zoë/12", "aZoë/1", b"", {"a": 1}]
    assert [each for each in not_there if wanted.is_in(each)] == []
    assert search.Wanted("12345").is_in({"id": 12345})
    assert not search.Wanted("12345").is_in({"id": 123456})
    assert search.Wanted("abcd").is_in({"value_base64": "/2FiY2Q="})


@pytest.mark.parametrize(
    ("value", "column"),
    [
        ("1999-12-31", pa.array([date(1999, 12, 31)])),
        ("12345", pa.array([12345.0])),
        ("12345.5", pa.array([Decimal("12345.50")])),
        ("12345", pa.array([12345], pa.int32())),
        ("Zo\u00eb", pa.array(["Zoe\u0308"])),
        ("Zoe\u0308", pa.array(["x Zo\u00eb".encode()])),
    ],
)
def test_a_value_is_found_in_a_column_of_any_kind(value: str, column: Any) -> None:
    assert search.Wanted(value).is_in_array(column)
    assert not search.Wanted("54321").is_in_array(column)


def test_a_header_that_a_producer_has_set_hides_no_record(log: Log) -> None:
    headers = {"sluice_erased": "7", "name": subject}, {"sluice_erased": subject}, {"sluice_erased": "8"}
    log.append_to("sales", 0, [Record(None, headers=each) for each in headers])
    log.erase("sales", removals([12, 13, 14]))
    assert [dict(each.headers) for each in log.read("sales", 0, 12)] == [{"sluice_erased": "7"}] * 3
    assert files_with(log.root, subject) == []


def test_results_of_checks_quote_no_table_that_is_gone(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    unset = dict.fromkeys(results.schema.names)
    names = ["silver.kept", "silver.affected", "silver.dropped"]
    results.record(lake, [{**unset, "dataset": name, "message": name} for name in names])
    results.forget_examples(lake, ["silver.kept"])
    left = lake.open(results.checks_table).to_pyarrow_table()["message"].to_pylist()
    assert set(left) == {"silver.kept", None}


def test_a_record_that_two_erasures_name_is_written_once(log: Log) -> None:
    log.append_to("sales", 0, [Record(b"no object")])
    both = {0: {12: [Removal(3, ("name",)), Removal(4)]}}
    assert [log.erase("sales", both) for _ in range(2)] == [1, 0]


def test_a_reason_may_not_quote_a_condition(log: Log) -> None:
    where = Subject("sales", where="record ->> 'customer' = 'ann@example.org' OR value LIKE '%O''Hara%'")
    for reason in ("ann@example.org asked", "for O'Hara"):
        with pytest.raises(UsageError, match="must not name"):
            erase.state(log, where, {0: [0]}, reason)
    erase.state(log, where, {0: [0]}, "a customer asked")
    assert len(erasures.erasures_in(log)) == 1


def test_what_others_append_to_the_topic_of_erasures_replaces_none(tmp_path: Path) -> None:
    log = Log(tmp_path, partitions=4)
    erase.state(log, Subject("sales", "k"), {0: [0]}, "mine")
    for each in "abcdefg":
        log.append(erasures_topic, [Record(b'{"topic":"sales","ranges":{"0":[[9,9]]},"reason":"theirs"}', key=each)])
    assert [each.reason for each in erasures.erasures_in(log).values()] == ["mine"]


def test_only_segments_that_can_have_the_records_are_read(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def records_in(segment: Segment) -> Iterator[StoredRecord]:
        read.append(segment.base_offset)
        return iter(())

    monkeypatch.setattr(rewriting, "records_in", records_in)
    log.erase("sales", removals([4, 11, 99]))
    assert read == [3, 9]


# With tables.


def test_fields_that_no_record_has_are_named(lakehouse: Lakehouse) -> None:
    lakehouse.declare(sales)
    lakehouse.publish("sales", {"id": "a", "Größe": None}, b'{"id": "b", "after": {"note": 1}}', b"[1", None, key="k")

    def unknown(*fields: str, key: str = "k") -> tuple[str, ...]:
        subject = Subject("sales", key, fields=fields)
        return erase.found(lakehouse.lake, lakehouse.log, lakehouse.catalogue, subject).unknown_fields

    assert unknown("Größe", "note", "grösse", "1") == ("grösse", "1")
    # Where no record is meant, none has anything.
    assert unknown("grösse", key="other") == ()


def test_an_erasure_names_no_subject_and_is_asked_for_with_sense(lakehouse: Lakehouse) -> None:
    lakehouse.declare(sales)
    lakehouse.publish("sales", sale(subject), sale(f"{subject}0"), b"{", None, key="the-key")
    for wrong in (Subject("sales"), Subject("sales", "a", "b"), Subject("sluice_releases", "a"), Subject("other", "a")):
        with pytest.raises(UsageError):
            erase.found(lakehouse.lake, lakehouse.log, lakehouse.catalogue, wrong)
    for condition, said in [
        ("record ->> 'x", "cannot be evaluated"),
        ("1; SELECT 1", "cannot be evaluated"),
        ("no_such", "record"),
        (" ", "where is empty"),
        ("false) UNION ALL SELECT 0, 999, NULL FROM (SELECT 1", "cannot be evaluated"),
    ]:
        with pytest.raises(UsageError, match=said):
            erase.found(lakehouse.lake, lakehouse.log, lakehouse.catalogue, Subject("sales", where=condition))
    with pytest.raises(UsageError, match=r"silver\.sales needs id"):
        erase.found(lakehouse.lake, lakehouse.log, lakehouse.catalogue, Subject("sales", "the-key", fields=["id"]))
    on_kafka = Settings(log="kafka://127.0.0.1:1").open_log()
    with pytest.raises(UsageError, match="on Kafka can be changed"):
        erase.found(lakehouse.lake, on_kafka, lakehouse.catalogue, Subject("sales", "the-key", fields=["pieces"]))
    with pytest.raises(UsageError, match="must not name the key"):
        erase.state(lakehouse.log, Subject("sales", "the-key"), {0: [0]}, "the-key asked")
    assert len(found_and_stated(lakehouse, Subject("sales", where=f"record ->> 'id' = '{subject}'"))) == 1
    (path,) = [each.path for each in lakehouse.log.segments(erasures_topic)]
    assert subject not in path.read_text()
    assert "the-key" not in path.read_text()
    found = erase.found(lakehouse.lake, lakehouse.log, lakehouse.catalogue, Subject("sales", "the-key"))
    assert sum(map(len, found.offsets.values())) == 4
    assert [each.reason for each in erasures.erasures_in(lakehouse.log).values()] == ["asked for it"]


def test_a_dataset_that_an_erasure_does_not_touch_is_checked_as_before(lakehouse: Lakehouse) -> None:
    """The fates of all datasets are in one table, which starts again where those of one are erased."""
    lakehouse.declare(sales, prices)
    lakehouse.publish("prices", {"product": "tea", "changed_at": text(0), "price": 3}, b"{").run()
    lakehouse.publish("sales", sale(subject), sale("b"), sale(subject), key="k").run()
    found_and_stated(lakehouse, Subject("sales", where=f"record ->> 'id' = '{subject}'"))
    lakehouse.run()
    assert lakehouse.lake.oldest_version("silver._fates") > 0
    for name, rows in check(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, lakehouse.catalogue.datasets).items():
        assert {each["expectation"]: each["message"] for each in rows if results.is_critical(each)} == {}, name


def test_what_an_erasure_removed_is_not_mixed_with_what_is_rolled_back(lakehouse: Lakehouse) -> None:
    """The former rows of a dataset that it did not touch are there still, and the former fates are not."""
    lakehouse.declare(sales, prices)
    lakehouse.publish("prices", {"product": subject, "changed_at": text(0), "price": 3}, b"{")
    lakehouse.publish("sales", sale("a"), sale("a", "coffee"), sale("b"), key="k").run()
    by_product = events(
        "sales", source=bronze.topic("sales"), schema="id string, product string, pieces int", keys=["id", "product"]
    )
    lakehouse.declare(by_product, prices)
    planned = replaying.plan(lakehouse.lake, lakehouse.catalogue, ["silver.sales"], None, "other keys")
    list(replaying.build(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, planned))
    replaying.promote(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, planned.name)
    replaying.drop(lakehouse.lake, planned.name)
    found_and_stated(lakehouse, Subject("prices", where=f"record ->> 'product' = '{subject}'"))
    lakehouse.run()
    before = lakehouse.rows("silver.sales", "id", "product")
    lakehouse.declare(sales, prices)
    with pytest.raises(SluiceError, match=r"an erasure removed what silver\._fates had at that time"):
        replaying.rollback(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, [sales], "a test")
    assert lakehouse.rows("silver.sales", "id", "product") == before == [("a", "coffee"), ("a", "tea"), ("b", "tea")]
    assert all(each.balanced for each in lakehouse.audits())


def of_one_subject(lakehouse: Lakehouse, *datasets: Dataset) -> Lakehouse:
    """A lakehouse with two records of a subject, of which the second is a duplicate, and two of others."""
    said = [sale(subject, pieces=5), sale("b"), sale(subject, pieces=7), sale("c", hours=2)]
    lakehouse.declare(*datasets).publish("sales", *said, key="k").run()
    return lakehouse


@pytest.fixture(scope="module")
def all_counted(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    return of_one_subject(Lakehouse(spark, tmp_path_factory.mktemp("counted")), sales, counted)


@pytest.fixture
def shop(all_counted: Lakehouse, tmp_path: Path) -> Lakehouse:
    """The sales of one subject and of others, counted."""
    return all_counted.copied_to(tmp_path)


def test_the_next_record_of_a_key_takes_the_place_of_an_erased_one(shop: Lakehouse) -> None:
    assert {Path(name).parts[1] for name in files_with(shop.folder, subject)} == {
        "sales",
        "bronze",
        "silver",
        "gold",
    }

    found_and_stated(shop, Subject("sales", where="record ->> 'pieces' = '5'"))
    shop.run()
    assert shop.rows("gold.counted") == [("tea", 9, subject)]
    assert shop.fates() == [("erased", "erased", None)]

    # What had read up to the version that is gone goes on, but not if it was another one of the same number.
    read = shop.lake.last_commit("bronze.sales").as_input  # type: ignore[union-attr]
    another = read.model_copy(update={"commit_ms": 1})
    assert read.version < shop.lake.oldest_version("bronze.sales")
    assert [shop.lake.holds_changes("bronze.sales", each, read) for each in (read, another)] == [True, False]

    found_and_stated(shop, Subject("sales", where=f"record ->> 'id' = '{subject}'"))
    done = shop.run()
    # Older versions are gone, and what followed them goes on from what is left.
    assert {name: event.cause for name, event in done.items()} == {
        "bronze.sales": "erasure",
        "silver.sales": "changes",
        "gold.counted": "changes",
    }
    assert shop.rows("gold.counted") == [("tea", 2, "c")]
    assert files_with(shop.folder, subject) == []
    shop.publish("sales", sale("d"), key="k")
    assert shop.run()["gold.counted"].cause == "changes"
    landed = shop.lake.last_commit("bronze.sales")
    # What is only added later is not taken back.
    counts = shop.lake.row_counts("bronze.sales", 0, landed.version)  # type: ignore[union-attr]
    assert counts.updated + counts.deleted == 0
    assert shop.rows("gold.counted") == [("tea", 3, "d")]


def test_a_topic_that_was_made_again_keeps_its_records(shop: Lakehouse) -> None:
    assert found_and_stated(shop, Subject("sales", where=f"record ->> 'id' = '{subject}'")) == {1: [0, 2]}
    # Also while it has not been done.
    shutil.rmtree(shop.folder / "log" / "sales")
    shop.publish("sales", sale("a"), sale("b"), sale("c"), key="k")
    with pytest.raises(LogError, match="have landed"):
        shop.run()
    # What has landed of the old topic is erased nonetheless.
    assert shop.audit()["silver.sales"].erased == 2

    shutil.rmtree(shop.folder / "lake")
    shop.run()
    shop.run()
    assert shop.rows("silver.sales", "id") == [("a",), ("b",), ("c",)]
    assert [record.key for record in shop.log.tail("sales")] == ["k", "k", "k"]


def test_what_landed_without_an_id_is_erased(shop: Lakehouse) -> None:
    """Topics, and ledgers, of older releases have none."""
    known = shop.lake.last_commit("bronze.sales")
    assert known is not None
    landed = {partition: each.model_copy(update={"topic_id": None}) for partition, each in known.entry.landed.items()}
    entry = known.entry.model_copy(update={"landed": landed})
    shop.lake.move_cursor("bronze.sales", known.unchanged(entry), known.fence)
    found_and_stated(shop, Subject("sales", where=f"record ->> 'id' = '{subject}'"))
    shop.run()
    assert files_with(shop.folder, subject) == []


def test_fields_become_null_and_what_does_not_use_them_stays(shop: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    # By Spark's MERGE, as for many records.
    monkeypatch.setattr(engine, "small_rows", lambda df: None)
    before = shop.rows("gold.counted", "pieces", "last_sale")
    assert found_and_stated(shop, Subject("sales", "k", fields=["product"])) == {1: [0, 1, 2, 3]}
    done = shop.run()
    assert done["bronze.sales"].rows.updated == 4
    assert shop.rows("gold.counted", "pieces", "last_sale") == before
    assert shop.rows("silver.sales", "id", "product") == [("b", None), ("c", None), (subject, None)]
    assert search.search(shop.lake, shop.log, subject)
    assert files_with(shop.folder / "log" / "sales", "tea") == []
    assert found_and_stated(shop, Subject("sales", "k", fields=["product"])) == {}
    assert shop.run() == {}


def test_after_an_erasure_no_dataset_is_taken_for_half_done(lakehouse: Lakehouse) -> None:
    """The table of all fates starts again; that says nothing of the rows of its last writer."""
    lakehouse.declare(sales, prices)
    lakehouse.publish("sales", sale("a"), sale("b"), key="k").publish(
        "prices", {"product": "tea", "changed_at": text(0), "price": 3}, b"{"
    ).run()
    ((partition, offset),) = lakehouse.rows("silver.sales", "_partition", "_offset")[1:]
    held = [("sales", partition, offset, None)]
    quarantine.say(lakehouse.log, sales, held, because="no", do="hold")
    lakehouse.run()
    # The last fates are those of prices. What is said of sales then moves all cursors, and no row.
    lakehouse.publish("prices", b"{").run()
    quarantine.say(lakehouse.log, sales, held, because="again", do="hold")
    lakehouse.run()
    found_and_stated(lakehouse, Subject("sales", where="record ->> 'id' = 'a'", fields=["product"]))
    lakehouse.run()
    lakehouse.runner().recompute_range(lakehouse.catalogue.datasets, BackfillRange(since=at(0), until=at(1)))
    assert lakehouse.run() == {}
    assert lakehouse.changed_by_rebuild() == {}


def test_what_another_program_did_before_an_erasure_is_not_forgotten_by_what_is_made_from_it(
    lakehouse: Lakehouse,
) -> None:
    """No feed has it any more, so those tables are compared as a whole."""
    lakehouse.declare(sold)
    lakehouse.publish("prices", {"product": "tea", "changed_at": text(0), "price": 3})
    lakehouse.publish("sales", sale("a"), sale("b"), sale("c"), b"not JSON", key="k").run()
    right = {name: lakehouse.rows(name) for name in ("silver.sales", "silver.priced", "gold.sold")}
    damage(lakehouse.lake, "silver.sales", "DELETE WHERE id = 'b'")
    found_and_stated(lakehouse, Subject("sales", where="value = 'not JSON'"))
    lakehouse.run()
    alone = replace(lakehouse.runner(), catalogue=ordered([sales]))
    list(alone.until_caught_up(rebuild=True))
    lakehouse.run()
    assert {name: lakehouse.rows(name) for name in right} == right


def test_an_empty_list_of_fields_is_not_all_of_a_record(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project")
    for fields, says in (([], "names none"), ("product", "give a list")):
        with pytest.raises(UsageError, match=says):
            project.erase("sales", key="k", fields=fields, reason="a request")


def test_a_record_that_is_no_json_is_erased_whole_when_fields_are_to_be(lakehouse: Lakehouse) -> None:
    lakehouse.declare(sales)
    lakehouse.publish("sales", b"tea for the subject", sale("b"), sale("c"), key="k").run()
    found_and_stated(lakehouse, Subject("sales", "k", fields=["product"]))
    lakehouse.run()
    assert [row[0] for row in lakehouse.fates()] == ["erased"]
    assert lakehouse.rows("silver.sales", "id", "product") == [("b", None), ("c", None)]
    assert all(each.balanced for each in erased_by_none(lakehouse.lake, lakehouse.log, lakehouse.audits()))


def with_retraction(dataset: Dataset, **changed: Any) -> Dataset:
    """The dataset, taking back input rows that are gone in another way."""
    inputs = {
        name: replace(each, retraction=each.retraction and replace(each.retraction, **changed))
        for name, each in dataset.inputs.items()
    }
    return replace(dataset, inputs=inputs)


def without_siblings(gone: Any, inputs: Any) -> Any:
    parsing, distinct = sales.specification.parsing, sales.specification.distinct  # type: ignore[attr-defined]
    return touched_by_erasure(gone, [gone.limit(0)], Reading(parsing, distinct))


mutants: dict[str, Dataset] = {
    "rows of erased records stay": with_retraction(sales, own=lambda own, gone: own),
    "other records of the key are not judged again": with_retraction(sales, scope=without_siblings),
}


@pytest.mark.parametrize("mutant", mutants)
def test_the_law_notices_when(mutant: str, shop: Lakehouse) -> None:
    lakehouse = shop.declare(mutants[mutant])
    assert lakehouse.run() == {}
    found_and_stated(lakehouse, Subject("sales", where="record ->> 'pieces' = '5'"))
    # One makes wrong rows; the other would, and is blocked by what it has lost.
    for event in lakehouse.runner().until_caught_up():
        assert event.blocked is None or "has lost the row of which" in event.blocked
    assert lakehouse.rows("silver.sales", "id", "pieces") != [("b", 1), ("c", 1), (subject, 7)]


def test_the_search_finds_what_older_versions_have(shop: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lake, "forget_history", lambda *_: None)
    found_and_stated(shop, Subject("sales", where=f"record ->> 'id' = '{subject}'"))
    shop.run()
    found = {hit.file.removeprefix(f"{shop.folder}/") for hit in search.search(shop.lake, shop.log, subject)}
    assert found == set(files_with(shop.folder, subject))
    kinds = {"_delta_log/": 0, "_change_data/": 0, "/part-": 0}
    assert all(any(kind in name for name in found) for kind in kinds)
    assert not any(name.startswith("log/") for name in found)


@pytest.fixture(scope="module")
def ahead(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Bronze is ahead: a run was killed, or silver is blocked."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("ahead")).declare(sales, counted)
    lakehouse.publish("sales", sale("a"), key="k").run()
    lakehouse.declare(bronze.topic("sales"))
    lakehouse.publish("sales", sale(subject, pieces=987654), sale(subject, pieces=5), key="k")
    lakehouse.publish("sales", sale(subject, pieces=6), key="k", hours=-1).run()
    return lakehouse.declare(sales, counted)


@pytest.mark.parametrize("fields", [(), ("pieces",)])
def test_a_record_that_was_erased_before_silver_had_it_stays_out(
    ahead: Lakehouse, tmp_path: Path, fields: tuple[str, ...]
) -> None:
    lakehouse = ahead.copied_to(tmp_path)
    found_and_stated(lakehouse, Subject("sales", where="record ->> 'pieces' = '987654'", fields=list(fields)))
    lakehouse.run()
    assert all(each.balanced for each in lakehouse.audits())
    assert files_with(lakehouse.folder, "987654") == []
    assert lakehouse.changed_by_rebuild() == {}


def with_amounts(kind: str) -> Dataset:
    """A table of the sales with amounts of a type."""
    measures = {"amount": f"CAST(sum(pieces) AS {kind})", "last_sale": "max(id)"}
    return gold.aggregate("amounts", source=sales, group_by=["product"], measures=measures)


@pytest.fixture(scope="module")
def all_summed(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    return of_one_subject(Lakehouse(spark, tmp_path_factory.mktemp("summed")), with_amounts("decimal(12,4)"))


@pytest.fixture
def summed(all_summed: Lakehouse, tmp_path: Path) -> Lakehouse:
    """The sales of one subject and of others, with amounts."""
    return all_summed.copied_to(tmp_path)


def with_another_type(lakehouse: Lakehouse, *, has_typed_statistics: bool) -> str:
    """The path of a table with a column that is another decimal than in its checkpoint."""
    path = lakehouse.lake.path("gold.amounts")
    name = "delta.checkpoint.writeStatsAsStruct"
    if has_typed_statistics:
        # As the tables of earlier versions of Sluice have them.
        lakehouse.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{name}' = 'true')")
    delta_log(lakehouse.spark).forTable(cast(Any, lakehouse.spark)._jsparkSession, path).checkpoint()
    lakehouse.declare(with_amounts("decimal(12,5)")).run()
    return path


def test_an_erasure_ends_where_a_column_has_another_type_than_in_a_checkpoint(summed: Lakehouse) -> None:
    path = with_another_type(summed, has_typed_statistics=True)
    with pytest.raises(DeltaError, match="Incorrect datatype"):
        DeltaTable(path).create_checkpoint()
    found_and_stated(summed, Subject("sales", where=f"record ->> 'id' = '{subject}'"))
    summed.run()
    assert files_with(summed.folder, subject) == []
    assert summed.changed_by_rebuild() == {}
    assert all(each.balanced for each in summed.audits())


def test_a_column_of_another_type_keeps_no_new_table_from_its_checkpoints(summed: Lakehouse) -> None:
    DeltaTable(with_another_type(summed, has_typed_statistics=False)).create_checkpoint()


class Crash(BaseException):
    """The end of a run in the middle, as a SIGKILL is: nothing of the engine catches it."""


# Each is done once: the next run goes on after it.
of_the_erasure: list[tuple[Any, str]] = [
    (segments, "sync"),
    (Lake, "merge_rows"),
    (Lake, "replace_rows"),
    (Lake, "append_rows"),
]
of_forgetting: list[tuple[Any, str]] = [
    (Lake, "blank"),
    (Files, "delete"),
    (Files, "delete_folder"),
    (DeltaTable, "vacuum"),
    (DeltaTable, "create_checkpoint"),
    (Lake, "move_cursor"),
]
# Of the many steps of forgetting, how many are passed from one kill to the next.
stride = int(os.environ.get("SLUICE_KILL_STRIDE", "3"))


def run_killed(lakehouse: Lakehouse, count: int) -> bool | None:
    """Runs until a step of the erasure is done, or the `count`th of forgetting; whether it was one of forgetting.

    None when the run came to its end before.
    """
    left, struck = [count], []

    def struck_after(original: Callable[..., Any], is_forgetting: bool) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            done = original(*arguments, **options)
            left[0] -= 1 if is_forgetting else count
            if left[0] <= 0:
                struck.append(is_forgetting)
                raise Crash
            return done

        return called

    with pytest.MonkeyPatch.context() as patch:
        for place, name in [*of_the_erasure, *of_forgetting]:
            is_forgetting = (place, name) in of_forgetting
            patch.setattr(place, name, struck_after(getattr(place, name), is_forgetting))
        try:
            lakehouse.run()
        except Crash:
            return struck[0]
    return None


def test_killed_at_every_step_it_goes_on_where_it_was(
    spark: "SparkSession", all_counted: Lakehouse, tmp_path: Path
) -> None:
    all_counted.copied_to(tmp_path)
    steps = {True: 0, False: 0}
    (segment,) = Lakehouse(spark, tmp_path).log.segments("sales")

    def restarted() -> Lakehouse:
        return Lakehouse(spark, tmp_path).declare(sales, counted)

    found_and_stated(restarted(), Subject("sales", where=f"record ->> 'id' = '{subject}'"))
    # Before the new segment has the name of the old one.
    left = segment.path.with_name(f".{segment.path.name}.1")
    left.write_bytes(segment.path.read_bytes()[:99])
    while (struck := run_killed(restarted(), 1 + stride * steps[True])) is not None:
        steps[struck] += 1
        assert sum(steps.values()) < 200
    lakehouse = restarted()
    assert steps[False] >= 5
    assert steps[True] * stride >= 20
    assert lakehouse.run() == {}
    assert files_with(tmp_path, subject) == []
    assert lakehouse.rows("gold.counted") == [("tea", 2, "c")]
    assert all(each.balanced for each in lakehouse.audits())
    assert lakehouse.run(rebuild=True)["gold.counted"].rows.total == 0


def lived(lakehouse: Lakehouse, chance: Random, batches: int = 2) -> list[str]:
    """Sales and prices in batches, and between them erasures; returns the names that were erased."""
    erased: list[str] = []
    names = [f"person-{chance.randrange(10**9):09}-{each}" for each in range(5)]
    for _ in range(batches):
        prices_now = [{"product": each, "changed_at": text(chance.uniform(0, 30)), "price": 3} for each in "ab"]
        lakehouse.publish("prices", *prices_now, key="p", hours=50)
        some = [
            sale(chance.choice(names), chance.choice("ab"), chance.uniform(0, 48), chance.randint(1, 9))
            for _ in range(9)
        ]
        lakehouse.publish("sales", *some, b'{"id":"%s",' % chance.choice(names).encode(), hours=50)
        if chance.random() < 0.5:
            lakehouse.run()
        erased.append(names.pop(chance.randrange(len(names))))
        found_and_stated(lakehouse, Subject("sales", where=f"contains(value, '{erased[-1]}')"))
        lakehouse.run()
    return erased


def tables(lakehouse: Lakehouse) -> dict[str, list[Any]]:
    names = ["silver.sales", "silver.prices", "silver.priced", "gold.sold"]
    return {name: lakehouse.rows(name) for name in names} | {"fates": lakehouse.fates()}


def rebuilt_from_the_log(lakehouse: Lakehouse) -> Lakehouse:
    found = Lakehouse(lakehouse.spark, lakehouse.folder / "again").declare(*lakehouse.catalogue.nodes)
    found.log = lakehouse.log
    found.run()
    return found


replayed_tables = ("silver.sales", "silver.prices_changes", "silver.prices", "silver.priced", "gold.sold")


def replayed(lakehouse: Lakehouse) -> dict[str, int]:
    """How many rows of each table a replay of everything would change."""
    given = (lakehouse.lake, lakehouse.catalogue)
    planned = replaying.plan(*given, ["silver.sales", "silver.prices_changes"], None, "a test")
    for _ in replaying.build(lakehouse.spark, *given, planned):
        pass
    compared = replaying.find(lakehouse.lake, planned.name).compared
    return {each.dataset: each.inserted + each.updated + each.deleted for each in compared}


def test_after_erasures_between_batches_tables_are_those_of_what_is_left(lakehouse: Lakehouse) -> None:
    lakehouse.declare(sales, prices, priced, sold)
    erased = lived(lakehouse, Random(5))
    assert [each for each in erased if files_with(lakehouse.folder, each)] == []
    assert [search.search(lakehouse.lake, lakehouse.log, each) for each in erased] == [[], []]
    assert search.search(lakehouse.lake, lakehouse.log, "asked for it")
    audit = lakehouse.audit()["silver.sales"]
    assert audit.balanced
    assert (
        audit.erased
        == sum(
            1
            for partition in lakehouse.log.partitions("sales")
            for each in lakehouse.log.read("sales", partition)
            if each.headers
        )
        >= 3
    )
    assert [each for each in lakehouse.laws() if not each.balanced] == []
    assert lakehouse.run() == {}
    whole = lakehouse.run(rebuild=True)
    assert {name: event.rows.total for name, event in whole.items() if event.rows.total} == {}
    assert replayed(lakehouse) == dict.fromkeys(replayed_tables, 0)
    assert [each for each in erased if files_with(lakehouse.folder, each)] == []
    assert tables(rebuilt_from_the_log(lakehouse)) == tables(lakehouse)


declarations = """
from sluice import bronze, gold, silver

sales = silver.events("sales", source=bronze.topic("sales"), schema="id string, name string", keys=["id"])
"""

expectations = """
from sluice.expect import expect, suite

only_bea = expect("column_values_to_be_in_set", column="name", value_set=["Bea"], severity="warn")
expectations = suite("silver.sales", only_bea)
"""


@pytest.mark.usefixtures("spark_for_commands")
def test_the_command_says_what_it_does_and_what_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").write_text(declarations)
    (tmp_path / "expectations" / "silver").mkdir(parents=True)
    for name in ("__init__", "silver/__init__"):
        (tmp_path / "expectations" / f"{name}.py").touch()
    (tmp_path / "expectations" / "silver" / "sales.py").write_text(expectations)
    records = [{"id": "a", "name": "Ann Subject"}, {"id": "b", "name": "Bea"}]
    (tmp_path / "sales.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    sluice("log", "append", "sales", "sales.jsonl", here=tmp_path)
    sluice("run", here=tmp_path)
    # Its examples quote what is not expected, and so do the pages.
    for command in ("check", "report"):
        assert sluice(command, here=tmp_path).returncode == 0

    def erased(*options: str) -> tuple[int, str, str]:
        done = sluice("erase", *options, here=tmp_path)
        return done.returncode, done.stdout, done.stderr

    condition = ("sales", "--where", "record ->> 'id' = 'a'")
    assert erased()[0] == 2
    for nothing in ("", ",", "name,"):
        code, _, said = erased(*condition, "--fields", nothing, "--reason", "a request")
        assert (code, "gives an empty name" in said) == (2, True)
    assert erased(*condition)[0] == 2
    assert erased(*condition, "--dry-run")[:2] == (0, "1 record of sales would be erased.\n")
    code, out, _ = erased("--verify", "Ann Subject", "--json")
    assert code == 1
    assert {Path(each["file"]).relative_to(tmp_path).parts[2] for each in json.loads(out)} >= {
        "_reports",
        "gold",
        "bronze",
    }

    # A replay has copies, and so has what only its own files know.
    replay = Files(str(tmp_path / ".sluice" / "lake"))
    replay.write("_replays/a-replay/silver/sales/part.json", '{"name":"Ann Subject"}')
    code, out, err = erased(*condition, "--reason", "request 7", "--dry-run")
    assert (code, out) == (0, "1 record of sales would be erased.\n")
    assert "This will be in the way: the replay a-replay has copies" in err
    code, out, err = erased(*condition, "--reason", "request 7")
    assert (code, out) == (1, "1 record of sales erased.\n")
    assert "the replay a-replay has copies" in err
    audit = sluice("audit", here=tmp_path)
    assert audit.returncode == 1
    assert "is incomplete: the replay a-replay has copies" in " ".join(audit.stdout.split())

    unfinished = "Waiting: an erasure is incomplete: the replay a-replay has copies"
    assert unfinished in " ".join(sluice("run", here=tmp_path).stderr.split())
    replay.delete_folder("_replays")
    again = "No record of sales matches, or those that do are erased already."
    again += " No erasure was stated, and earlier ones are complete.\n"
    assert erased(*condition, "--reason", "request 7")[:2] == (0, again)
    assert erased("--verify", "Ann Subject")[:2] == (0, "No file of the log or the tables has it.\n")
    assert sluice("audit", here=tmp_path).returncode == 0

    # Whoever writes the log otherwise can make a record look erased, and is noticed.
    log = Log(tmp_path / ".sluice" / "log")
    log.append("sales", [Record(None, headers={"sluice_erased": "0"})])
    sluice("run", here=tmp_path)
    audit = sluice("audit", "--json", here=tmp_path)
    assert [each["broken"] for each in json.loads(audit.stdout) if each.get("law", "").startswith("erased")] == [1]


@pytest.mark.usefixtures("spark_for_commands")
def test_an_erasure_waits_for_a_table_that_is_no_longer_declared_and_says_what_to_do(tmp_path: Path) -> None:
    pipelines = tmp_path / "pipelines" / "__init__.py"
    pipelines.parent.mkdir()
    of_name = 'gold.aggregate("of_name", source=sales, group_by=["name"], measures={"sales": "count(*)"})'
    pipelines.write_text(f"{declarations}of_name = {of_name}\n")
    (tmp_path / "sales.jsonl").write_text('{"id": "a", "name": "Ann Subject"}\n')
    sluice("log", "append", "sales", "sales.jsonl", here=tmp_path)
    sluice("run", here=tmp_path)
    pipelines.write_text(declarations)

    advice = (
        "gold.of_name is not up to date: sluice run; if nothing declares it any more, delete its folder in the lake"
    )
    erased = sluice("erase", "sales", "--where", "record ->> 'id' = 'a'", "--reason", "request 8", here=tmp_path)
    for done in (erased, sluice("run", here=tmp_path)):
        assert f"{advice}, gold/of_name" in " ".join(done.stderr.split())
    assert erased.returncode == 1
    assert sluice("erase", "--verify", "Ann Subject", here=tmp_path).returncode == 1

    Files(str(tmp_path / ".sluice" / "lake")).delete_folder("gold/of_name")
    assert "Waiting" not in sluice("run", here=tmp_path).stderr
    assert sluice("erase", "--verify", "Ann Subject", here=tmp_path).returncode == 0


of_views: dict[str, Any] = {
    "source": bronze.topic("views"),
    "schema": "id string, at timestamp, pieces int",
    "keys": ["id"],
}


def as_events(name: str) -> Dataset:
    return events(name, **of_views, event_time="at")


def as_history(name: str) -> Dataset:
    return silver.history(name, **of_views, sequence_by="at")


def as_join(name: str) -> Dataset:
    views = as_events("views")
    return silver.join(name, inputs={"views": views}, shape="SELECT id, pieces FROM views")


@pytest.fixture
def another_kind(lakehouse: Lakehouse) -> Lakehouse:
    """Records of which one is there twice, and one is none."""
    row = {"id": subject, "at": text(1), "pieces": 1}
    lakehouse.declare(as_events("seen")).publish("views", row, row, {"id": "b", "at": text(2), "pieces": 1}, b"{")
    lakehouse.run()
    return lakehouse


@pytest.mark.parametrize("other", [as_history, as_join])
def test_a_dataset_of_another_kind_has_no_fates_of_its_name(
    another_kind: Lakehouse, other: Callable[[str], Dataset]
) -> None:
    assert len(another_kind.rows("silver._fates", "dataset")) == 2
    another_kind.declare(other("seen")).run()
    assert "silver.seen" not in {name for (name,) in another_kind.rows("silver._fates", "dataset")}
    assert "silver.seen" not in {
        each.dataset for each in quarantine.quarantined_by_rule(another_kind.lake, another_kind.catalogue)
    }
    assert another_kind.run() == {}
    assert another_kind.changed_by_rebuild() == {}
    another_kind.declare(as_events("seen")).run()
    assert {name for (name,) in another_kind.rows("silver._fates", "dataset")} >= {"silver.seen"}
    assert another_kind.changed_by_rebuild() == {}


@pytest.mark.parametrize("is_old", [False, True], ids=["now", "by an older release"])
def test_an_erasure_leaves_no_fates_of_a_dataset_that_became_another_kind(
    another_kind: Lakehouse, monkeypatch: pytest.MonkeyPatch, *, is_old: bool
) -> None:
    with monkeypatch.context() as older:
        if is_old:
            older.setattr("sluice.engine.plan.without_former", lambda *_: iter(()))
        another_kind.declare(as_history("seen")).run()
    assert found_and_stated(another_kind, Subject("views", where=f"record ->> 'id' = '{subject}'"))
    another_kind.run()
    assert files_with(another_kind.folder, subject) == []
    assert all(each.balanced for each in another_kind.audits())


def test_what_nothing_declares_any_more_is_in_the_way_or_forgotten(lakehouse: Lakehouse) -> None:
    """Topic, table and what is made from it were renamed; a view that the subject's row blocked was dropped."""

    def declared(topic: str, name: str) -> Dataset:
        views = events(
            name,
            source=bronze.topic(topic, topic="views"),
            schema="id string, at timestamp, pieces int",
            keys=["id"],
            event_time="at",
        )
        return gold.aggregate(f"of_{name}", source=views, group_by=["id"], measures={"pieces": "sum(pieces)"})

    def left() -> set[str]:
        reasons = " ".join(each.reason for each in erasures_left(lakehouse.lake, lakehouse.log, lakehouse.catalogue))
        return {each.split()[0] for each in re.findall(r"\S+ is not up to date", reasons)}

    def quoted() -> set[str]:
        tables = {
            name
            for name in lakehouse.lake.tables()
            if subject in str(lakehouse.lake.open(name).to_pyarrow_table().to_pylist())
        }
        return tables | set(lakehouse.lake.files.below("_blocked"))

    views = declared("views", "views")
    of_views = views.inputs["rows"].source
    assert isinstance(of_views, Dataset)
    share = gold.view("share", inputs={"views": of_views}, shape="SELECT id, 100 / pieces AS share FROM views")
    row = {"id": subject, "at": text(1), "pieces": 0}
    lakehouse.declare(views, share).publish("views", row, row, {"id": "b", "at": text(2), "pieces": 1})
    lakehouse.runner().until_caught_up()
    lakehouse.declare(declared("visits", "visits")).run()
    asked = Subject("views", where=f"value LIKE '%{subject}%'")
    found = erase.found(lakehouse.lake, lakehouse.log, lakehouse.catalogue, asked)
    erase.state(lakehouse.log, asked, found.offsets, "request 9")
    for folder in ("bronze/views", "silver/views", "gold/of_views"):
        lakehouse.run()
        assert folder.replace("/", ".") in left()
        lakehouse.lake.files.delete_folder(folder)
    lakehouse.run()
    assert left() == set()
    assert quoted() == set()
