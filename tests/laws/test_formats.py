"""Formats: an event has the same row as JSON, as Avro and as Protobuf, whenever its schema becomes known."""

import base64
import errno
import io
import json
import math
import random
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

from sluice import Project, bronze, silver
from sluice.errors import DeclarationError, UsageError
from sluice.log import Record
from sluice.model.datasets import Dataset
from sluice.model.ddl import column_names
from sluice.shapes import avro, encoded, fates, protobuf
from tests.kit import Lakehouse, Row, at, disk_full_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Value = dict[str, Any]
Stored = tuple[str, Record]
columns = (
    "id string, n bigint, small int, ratio double, price decimal(38,9), at timestamp, local timestamp_ntz, due date, "
    "raw binary, kind string, is_new boolean, inner struct<id: string, at: timestamp>, "
    "list array<struct<sku: string, n: int>>, pairs array<struct<key: string, value: bigint>>"
)
few_columns = "id string, n bigint, at timestamp"
moments = [
    datetime.fromisoformat(f"{each}Z")
    for each in ("0001-01-01T00:00:00", "1969-12-31T23:59:59.999999", "9999-12-31T23:59:59.999999")
]
prices = [Decimal(each) for each in ("0", "-0.000000001", "99999999999999999999999999999.999999999", "1.50")]
common: dict[str, Any] = {"keys": ["id"], "event_time_min": None, "future_tolerance": "3000000 days"}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def optional(kind: Any) -> list[Any]:
    return ["null", kind]


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields.items()]}


inner = record("Inner", id="string", at=optional(logical("long", "timestamp-millis")))
fields: dict[str, Any] = {
    "id": "string",
    "n": optional("long"),
    "small": optional("int"),
    "ratio": optional("double"),
    "price": optional(logical("bytes", "decimal", precision=38, scale=9)),
    "at": optional(logical("long", "timestamp-micros")),
    "local": optional(logical("long", "local-timestamp-micros")),
    "due": optional(logical("int", "date")),
    "raw": optional("bytes"),
    "kind": optional({"type": "enum", "name": "Kind", "symbols": ["a", "b"]}),
    "is_new": optional("boolean"),
    "inner": optional(inner),
    "list": optional({"type": "array", "items": record("Item", sku=optional("string"), n="int")}),
    "pairs": optional({"type": "map", "values": "long"}),
}
first = record("Thing", **fields)
# The second writer knows less, has another order and narrower numbers, and a name that has changed since.
number, millis = optional("int"), optional(logical("long", "timestamp-millis"))
second = record("Thing", extra=optional("string"), id="string", number=number, at=millis)


def field(name: str, kind: Any) -> dict[str, Any]:
    """A field of the reader: all but one may be missing, and one was renamed."""
    default = {} if name == "id" else {"default": None}
    return {"name": name, "type": kind, **default, **({"aliases": ["number"]} if name == "n" else {})}


reader = {**first, "fields": [field(name, kind) for name, kind in fields.items()]}
proto = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Nothing {}
message Thing {
  string id = 1;
  optional int64 n = 2;
  optional sint32 small = 3;
  optional double ratio = 4;
  optional string price = 5;
  google.protobuf.Timestamp at = 6;
  optional string local = 7;
  optional string due = 8;
  optional bytes raw = 9;
  enum Kind { none = 0; a = 1; b = 2; }
  optional Kind kind = 10;
  optional bool is_new = 11;
  message Inner { string id = 1; google.protobuf.Timestamp at = 2; }
  Inner inner = 12;
  message Item { optional string sku = 1; int32 n = 2; }
  repeated Item list = 13;
  map<string, int64> pairs = 14;
}
"""
# A later writer dropped most fields, renamed one and added one: by their numbers, nothing is mistaken.
later = """
syntax = "proto3";
package shop;
message Thing { string key = 1; optional int32 n = 2; string extra = 99; }
"""
schemas = {1: first, 2: second, 3: record("Other", id="string"), 4: {"type": "nothing"}}


def schema_record(number: int, schema: Any, hour: float = 0.0) -> Stored:
    said = {"id": number, "type": "AVRO", "schema": json.dumps(schema)}
    return "sluice_schemas", Record(json.dumps(said).encode(), key=str(number), timestamp=at(hour))


def body(schema: Any, value: Value) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return written.getvalue()


def framed(number: int, value: bytes) -> bytes:
    return b"\x00" + number.to_bytes(4, "big") + value


def drawn(draw: random.Random, number: int) -> Value:
    """An event with any values of its types, or none."""
    moment = draw.choice(moments)
    text = draw.choice(["", "é😀", "a\x00b", "null", '"}{', "\u2028"])
    found: Value = {
        "id": f"{number}{text}",
        "n": draw.choice([0, -1, 2**63 - 1, -(2**63)]),
        "small": draw.choice([2**31 - 1, -(2**31)]),
        "ratio": draw.choice([0.0, -1.5, 1e300, 5e-324, 1e22, 0.1]),
        "price": draw.choice(prices),
        "at": moment,
        "local": moment.replace(tzinfo=None),
        "due": moment.date(),
        "raw": draw.choice([b"", b"\x00\xff", text.encode()]),
        "kind": draw.choice("ab"),
        "is_new": draw.random() < 0.5,
        "inner": {"id": text, "at": draw.choice([None, datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)])},
        "list": [{"sku": draw.choice([None, text]), "n": -7} for _ in range(draw.randrange(3))],
        "pairs": dict.fromkeys(draw.sample(["", "z", "a", text], draw.randrange(3)), number),
    }
    return {name: value if name == "id" or draw.random() < 0.8 else None for name, value in found.items()}


def as_json(value: Any) -> Any:
    """What a producer of JSON would send."""
    if isinstance(value, Plain):
        return dict(value)
    if isinstance(value, dict):
        found = {name: as_json(each) for name, each in value.items()}
        if value.get("pairs") is not None and not isinstance(value["pairs"], Plain):
            found["pairs"] = [{"key": key, "value": each} for key, each in sorted(value["pairs"].items())]
        return found
    if isinstance(value, list):
        return [as_json(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.isoformat() if isinstance(value, date) else value


def messages(number: int, value: Value) -> bytes:
    """A message as Protobuf's own library writes it, behind its id and its place in the file."""
    text, place = {10: (proto, b"\x02\x02"), 11: (later, b"\x00")}[number]
    made = GetMessageClass(protobuf.plain_schema(text).message("Thing"))()
    ParseDict({name: each for name, each in as_json(value).items() if each is not None}, made)
    return framed(number, place + made.SerializeToString())


def for_protobuf(value: Value) -> Value:
    """An event as Protobuf's own JSON has it: a map is an object."""
    return {**value, "pairs": Plain(value["pairs"])} if value.get("pairs") is not None else value


class Plain(dict[str, int]):
    """A map that stays an object."""


def declared() -> tuple[Dataset, ...]:
    """The same events as JSON and as Avro, read by their own schema or by the reader's; made for each world."""
    topic, by_reader = bronze.topic("avro"), silver.avro(schema=json.dumps(reader))
    return (
        silver.events("of_json", source=bronze.topic("json"), schema=columns, **common),
        silver.events("of_avro", source=topic, schema=few_columns, format=silver.avro(), **common),
        silver.events("of_reader", source=topic, schema=columns, format=by_reader, **common),
        silver.events("of_few", source=topic, schema=few_columns, format=by_reader, **common),
        silver.events(
            "of_protobuf",
            source=bronze.topic("protobuf"),
            schema=columns,
            format=silver.protobuf(schema=proto, message="Thing"),
            **common,
        ),
    )


good = framed(1, body(first, {**dict.fromkeys(fields), "id": "good"}))
hostile: dict[str, bytes] = {
    "no_schema_id": b"",
    "no_schema_id ": b"\x00\x00\x00\x01",
    "no_schema_id  ": b"\x01" + good[1:],
    "no_schema_id   ": b'{"id": "json"}',
    "unknown_schema": framed(77, good[5:]),
    "unknown_schema ": framed(2**32 - 1, good[5:]),
    "unusable_schema": framed(4, good[5:]),
    "malformed_avro": good[:-1],
    "malformed_avro ": good + b"\x00",
    "malformed_avro  ": framed(1, b""),
    "invalid_utf8": framed(1, b"\x02\xff" + good[10:]),
    "invalid_time_at": framed(2, b"\x00\x02i\x00\x02" + b"\xff" * 9 + b"\x01"),
}


no_messages: dict[str, bytes] = {
    "unknown_schema": framed(77, b"\x00"),
    "no_schema_id": b"\x08\x01",
    "unusable_schema": good,
    "incompatible_schema": framed(10, b"\x00"),
    "malformed_protobuf": framed(10, b""),
    "malformed_protobuf ": framed(10, b"\x02\x04"),
    "malformed_protobuf  ": framed(10, b"\x02\x02\x0a\x02\xff\xff"),
    "malformed_protobuf   ": framed(10, b"\x02\x02\x0a\x09a"),
    "malformed_protobuf    ": framed(10, b"\xff" * 20),
}


def events(seed: int) -> list[Stored]:
    """Events in both formats, and what is no event."""
    draw = random.Random(seed)
    found: list[Stored] = []
    for number in range(30):
        value = drawn(draw, number)
        found.append(("json", Record(json.dumps(as_json(value)).encode(), key=None, timestamp=at(number))))
        found.append(("avro", Record(framed(1, body(first, value)), timestamp=at(number))))
        found.append(("protobuf", Record(messages(10, for_protobuf(value)), timestamp=at(number))))
    for number in range(6):
        value = {"id": f"second {number}", "n": number, "at": datetime(1960, 1, 1, tzinfo=UTC)}
        sent = {"id": value["id"], "number": number, "extra": "x", "at": value["at"]}
        found.append(("avro", Record(framed(2, body(second, sent)), timestamp=at(40 + number))))
        found.append(("protobuf", Record(messages(11, {"key": value["id"], "n": number}), timestamp=at(40 + number))))
        # Without the reader's schema nothing says that n was called number.
        found.append(("json", Record(json.dumps(as_json(value)).encode(), timestamp=at(40 + number))))
    found += [("avro", Record(each, timestamp=at(60 + place))) for place, each in enumerate(hostile.values())]
    found += [("protobuf", Record(each, timestamp=at(60 + place))) for place, each in enumerate(no_messages.values())]
    found.append(("avro", Record(framed(3, body(schemas[3], {"id": "other"})), timestamp=at(90))))
    return found


def lived(
    spark: "SparkSession", folder: Path, batches: Sequence[Sequence[Stored]], datasets: Sequence[Dataset]
) -> Lakehouse:
    found = Lakehouse(spark, folder).declare(*datasets)
    for batch in batches:
        publish(found, batch)
        found.run()
    return found


def publish(lakehouse: Lakehouse, batch: Sequence[Stored]) -> None:
    """Appends records in their order to the first partition of each topic."""
    for topic in dict.fromkeys(topic for topic, _ in batch):
        lakehouse.log.append_to(topic, 0, [each for name, each in batch if name == topic])


def texts_of(found: Lakehouse, name: str, schema: str) -> list[str]:
    """The rows as text: Python has not all of Spark's times."""
    pattern = "'yyyy-MM-dd HH:mm:ss.SSSSSS'"
    formats = f"map('timestampFormat', {pattern}, 'timestampNTZFormat', {pattern})"
    made = f"to_json(struct({', '.join(column_names(schema))}), {formats}) AS row"
    return sorted(row["row"] for row in found.table(f"silver.{name}").selectExpr(made).collect())


def reasons(found: Lakehouse) -> list[Row]:
    return found.rows("silver._fates", "dataset", "fate", "reason", "detail", "_timestamp")


def schema_of_messages(number: int, text: str) -> Stored:
    said = {"id": number, "type": "PROTOBUF", "schema": text}
    return "sluice_schemas", Record(json.dumps(said).encode(), key=str(number), timestamp=at(0))


known = [
    *[schema_record(number, each) for number, each in schemas.items()],
    *[schema_of_messages(number, text) for number, text in ((10, proto), (11, later))],
]


@pytest.fixture(scope="module")
def at_once(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    return lived(spark, tmp_path_factory.mktemp("at_once"), [[*known, *events(1)]], declared())


def test_an_event_has_the_same_row_as_json_and_as_avro(at_once: Lakehouse) -> None:
    assert texts_of(at_once, "of_reader", columns) == texts_of(at_once, "of_json", columns)
    assert len(texts_of(at_once, "of_json", columns)) == 36
    # Without the reader's schema nothing says what `number` was renamed to.
    same = [each for each in texts_of(at_once, "of_json", few_columns) if '"second' not in each]
    others = texts_of(at_once, "of_avro", few_columns)
    assert same == [each for each in others if '"second' not in each and '"other"' not in each]


def by_id(texts: list[str]) -> dict[str, Any]:
    rows = [json.loads(each, parse_float=str) for each in texts]
    return {row["id"]: row for row in rows}


def test_an_event_has_the_same_row_as_protobuf(at_once: Lakehouse) -> None:
    found, wanted = (by_id(texts_of(at_once, name, columns)) for name in ("of_protobuf", "of_json"))
    for name, row in wanted.items():
        # A list that was not set is empty, and the later writer sends no times.
        row.setdefault("list", [])
        row.setdefault("pairs", [])
        if name.startswith("second"):
            del row["at"]
    assert found == wanted
    rules = [(rule.strip(), 60.0 + place) for place, rule in enumerate(no_messages)]
    assert sorted(row[2:5:2] for row in reasons(at_once) if row[0] == "silver.of_protobuf") == sorted(rules)


def test_what_is_no_event_is_quarantined_by_name(at_once: Lakehouse) -> None:
    wanted = [(rule.strip(), 60.0 + place) for place, rule in enumerate(hostile)]
    for dataset in ("silver.of_avro", "silver.of_reader", "silver.of_few"):
        others = [] if dataset == "silver.of_avro" else [("incompatible_schema", 90.0)]
        assert sorted(row[2:5:2] for row in reasons(at_once) if row[0] == dataset) == sorted([*wanted, *others])
    assert {row[3] for row in reasons(at_once) if row[2] == "unknown_schema"} == {"77", str(2**32 - 1)}
    assert all(each.balanced for each in at_once.audits())


def test_records_are_judged_again_once_their_schema_is_known(
    spark: "SparkSession", tmp_path: Path, at_once: Lakehouse
) -> None:
    records = [each for each in random.Random(3).sample(events(1), len(events(1))) if each[0] == "avro"]
    found = lived(spark, tmp_path, [records[:40], known[:1]], declared()[3:4])
    quarantined = [row for row in reasons(found) if row[2] == "unknown_schema"]
    assert {row[3] for row in quarantined} >= {"2", "4"}
    # One schema alone, and then the others with the records that are left.
    for batch in ([known[1]], [*known[2:], *records[40:]]):
        publish(found, batch)
        assert found.run() != {}
    assert texts_of(found, "of_few", few_columns) == texts_of(at_once, "of_few", few_columns)
    assert reasons(found) == [row for row in reasons(at_once) if row[0] == "silver.of_few"]
    assert all(each.balanced for each in found.audits())
    assert found.run() == {}
    assert not any(event.rows.total for event in found.run(rebuild=True).values())


def test_of_two_schemas_of_one_id_the_first_in_the_log_counts_whenever_it_came(lakehouse: Lakehouse) -> None:
    """No registry does this; it must not make tables differ from their rebuild either, also when one is half done."""
    names, topic = ("silver.one", "silver.half_done"), bronze.topic("avro")
    lakehouse.declare(
        *[
            silver.events(
                name.removeprefix("silver."),
                source=topic,
                format=silver.avro(),
                schema="id string, n bigint",
                **common,
            )
            for name in names
        ]
    )
    right = record("Thing", id="string", n="long")
    wrong = record("Thing", n="long", id="string")
    known = [framed(8, body(right, {"id": name, "n": 7})) for name in "\x00bcdefghijkl"]
    values = [framed(9, body(right, {"id": name, "n": n})) for name, n in (("a", 1), ("a", 2), ("\x02", 0))]
    lakehouse.log.append("avro", [Record(each, timestamp=at(place)) for place, each in enumerate([*values, *known])])
    lakehouse.log.append("sluice_schemas", [schema_record(8, right, 3.0)[1]])
    lakehouse.run()
    for schema, hour in ((wrong, 5.0), (right, 4.0)):
        lakehouse.log.append("sluice_schemas", [schema_record(9, schema, hour)[1]])
        with disk_full_at("silver.half_done") if schema is wrong else nullcontext():
            runner = lakehouse.runner()
            runner.until_caught_up()
        assert [*runner.blocks.errors] == (["silver.half_done"] if schema is wrong else [])
    others = [(name, 7) for name in "bcdefghijkl"]
    for name in names:
        assert lakehouse.rows(name, "id", "n") == [("\x00", 7), ("\x02", 0), ("a", 1), *others]
    assert lakehouse.rows("silver._fates", "dataset", "fate", "reason") == sorted(
        (name, "duplicate", "other_payload") for name in names
    )
    assert all(each.balanced for each in lakehouse.audits())
    assert lakehouse.changed_by_rebuild() == {}


def nothing(_known: Any, changed: "DataFrame", _topics: Any, reading: fates.Reading) -> "DataFrame":
    return fates.touched_keys(changed.limit(0).drop("_change_type"), reading)


def test_a_mutant_that_does_not_judge_again_is_found(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fates, "touched_by_schemas", nothing)
    found = Lakehouse(spark, tmp_path).declare(declared()[3])
    found.log.append("avro", [Record(good, timestamp=at(0))])
    found.run()
    found.log.append("sluice_schemas", [schema_record(1, first)[1]])
    found.run()
    assert reasons(found) != []


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "cannot be used: JSONDecodeError"),
        ('"string"', "is of type string, not a record"),
        (json.dumps(record("A", id="bytes", n="long")), "id is declared as string, and is bytes"),
        (json.dumps(record("A", n="long")), "id string is no field of it; it has n long"),
        (json.dumps(record("A", id="string", n=["null", "long", "double"])), "n is declared as bigint, and is double"),
        (
            json.dumps(record("A", id="string", n={"type": "long", "logicalType": "timestamp-millis"})),
            "timestamp-millis",
        ),
        (json.dumps(record("A", id="string", n={"type": "array", "items": "null"})), "any number of elements"),
        (json.dumps(record("A", id="string", n=["null", "A"])), "A is inside of itself"),
        (
            json.dumps({**record("A", id="string"), "fields": [{"name": "n", "type": "bytes", "default": "x"}]}),
            "the default of the field n cannot be used, because its type is bytes",
        ),
    ],
)
def test_columns_that_do_not_fit_the_schema_are_refused(schema: str, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        silver.events(
            "x", source=bronze.topic("x"), schema="id string, n bigint", keys=["id"], format=silver.avro(schema=schema)
        )


@pytest.mark.parametrize(
    ("schema", "message", "says"),
    [
        ("x", None, "protoc cannot compile it"),
        (proto, "Thin", "there is no message Thin; there are shop.Nothing, shop.Thing"),
        (proto, None, "id string is no field of it"),
        (proto.replace("int64 n", "float n"), "Thing", "n is declared as bigint, and is float"),
    ],
)
def test_columns_that_do_not_fit_a_message_are_refused(schema: str, message: str | None, says: str) -> None:
    format_of = silver.protobuf(schema=schema, message=message)
    with pytest.raises(DeclarationError, match=says):
        silver.events("x", source=bronze.topic("x"), schema="id string, n bigint", keys=["id"], format=format_of)


def test_any_bytes_are_messages_or_have_the_name_of_a_rule() -> None:
    draw = random.Random(6)
    schema = json.dumps({"type": "PROTOBUF", "schema": proto})
    whole = [messages(10, for_protobuf(drawn(draw, number)))[5:] for number in range(50)]
    for number in range(3000):
        changed = bytearray(draw.choice(whole))
        for _ in range(draw.randrange(4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        cut = bytes(changed[: draw.randrange(len(changed) + 1)] if number % 3 else changed)
        found, fault = protobuf.decoded(cut, schema, proto, 10_000, "Thing")
        rules = {*protobuf.faults, "record_too_large"}
        assert fault in rules if found is None else isinstance(json.loads(found), dict) and fault is None


def test_nested_columns_and_times_as_numbers_are_checked_too() -> None:
    schema = json.dumps(record("A", id="string", at="long", inner=record("B", n="string")))
    options: dict[str, Any] = {"source": bronze.topic("x"), "keys": ["id"], "format": silver.avro(schema=schema)}
    silver.events("x", schema="id string, at timestamp", time_formats={"at": "epoch_millis"}, **options)
    with pytest.raises(
        DeclarationError, match=r"at is declared as timestamp, and is long; inner\.n is declared as int"
    ):
        silver.events("x", schema="id string, at timestamp, inner struct<n: int>", **options)


def test_a_file_of_a_schema_is_read(tmp_path: Path) -> None:
    file = tmp_path / "thing.avsc"
    with pytest.raises(DeclarationError, match="cannot be read"):
        silver.avro(schema=file)
    file.write_text(json.dumps(first))
    assert silver.avro(schema=file, wire_format="plain") == silver.avro(schema=json.dumps(first), wire_format="plain")
    with pytest.raises(DeclarationError, match="without an id"):
        silver.avro(wire_format="plain")
    with pytest.raises(DeclarationError, match="give schema too"):
        silver.protobuf(message="Thing")
    for broken, says in (({"wire_format": "x"}, "there are"), ({"schema": file, "wire_format": "plan"}, "'plan'")):
        with pytest.raises(DeclarationError, match=says):
            silver.avro(**broken)


def test_any_bytes_are_json_or_have_the_name_of_a_rule() -> None:
    draw = random.Random(5)
    schema, text = json.dumps({"schema": json.dumps(first)}), json.dumps(reader)
    whole = [body(first, drawn(draw, number)) for number in range(50)]
    for number in range(3000):
        changed = bytearray(draw.choice(whole))
        for _ in range(draw.randrange(4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        cut = bytes(changed[: draw.randrange(len(changed) + 1)] if number % 3 else changed)
        for read_by in (None, text):
            found, fault = avro.decoded(cut, schema, read_by, 10_000)
            assert (fault is None and isinstance(json.loads(found or ""), dict)) or (
                found is None and fault in avro.faults
            )


def test_a_schema_is_stated_where_there_is_no_registry(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    for name, text in {"a.avsc": json.dumps(first), "b.proto": later, "c.avsc": "{", "d.proto": proto}.items():
        (tmp_path / name).write_text(text)
    log = Project(tmp_path).log
    log.add_schema(1, tmp_path / "a.avsc")
    log.add_schema(2, tmp_path / "d.proto", references={"b.proto": tmp_path / "b.proto"})
    said = [json.loads(each.value or b"") for each in log.tail("sluice_schemas")]
    assert sorted((each["id"], each["type"], len(each.get("references", ()))) for each in said) == [
        (1, "AVRO", 0),
        (2, "PROTOBUF", 1),
    ]
    # The same again is no second record, and another one would count for nothing.
    log.add_schema(1, tmp_path / "a.avsc")
    assert len(log.tail("sluice_schemas")) == 2
    for number, name, says in (
        (3, "c.avsc", "cannot be the schema of id 3"),
        (3, "no.avsc", "cannot be read"),
        (1, "d.proto", "Id 1 has another schema in the log already"),
        (-1, "a.avsc", "-1 is no id of a schema"),
    ):
        with pytest.raises(UsageError, match=says):
            log.add_schema(number, tmp_path / name)


def test_extreme_values_keep_their_digits() -> None:
    widest = {"precision": 38, "scale": 38}
    assert avro.of_decimal((-(10**38) + 1).to_bytes(16, "big", signed=True), widest) == "-0." + "9" * 38
    assert avro.of_decimal(b"\xff\xff", {"precision": 1}) == "-1"
    assert (avro.of_micros(-1, is_local=True), avro.of_days(-719163)) == ("1969-12-31T23:59:59.999999", "-719163 days")
    assert (avro.in_json(math.nan), avro.in_json(-math.inf)) == ("NaN", "-Infinity")


def test_values_without_an_id_are_read_by_the_declared_schema(lakehouse: Lakehouse) -> None:
    plain = silver.events(
        "plain",
        source=bronze.topic("plain"),
        schema="id string, n bigint",
        keys=["id"],
        format=silver.avro(schema=json.dumps(record("A", id="string", n="long")), wire_format="plain"),
        from_record={"n": "headers['n']"},
    )
    lakehouse.declare(plain)
    lakehouse.log.append("plain", [Record(b"\x02a\x02", timestamp=at(0), headers={"n": "7"})])
    lakehouse.log.append("plain", [Record(each, timestamp=at(1)) for each in (b"", b"\x02a", None)])
    lakehouse.run()
    assert lakehouse.rows("silver.plain", "id", "n") == [("a", 7)]
    assert sorted(row[1] for row in lakehouse.fates()) == ["malformed_avro", "malformed_avro", "null_value"]


def avro_schema(schema: Any) -> str:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return json.dumps({"id": 1, "type": "AVRO", "schema": text})


def protobuf_schema(text: str) -> str:
    return json.dumps({"id": 1, "type": "PROTOBUF", "schema": f"syntax = 'proto3'; {text}"})


bytes_max = 1 << 20


status = {"type": "enum", "name": "Status", "symbols": ["OK", "FAILED"]}


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (["null", "long", "string"], b"\x01\x02x"),
        (["null", "long"], b"\x04\x02"),
        (status, b"\x01"),
        (status, b"\x04"),
        ("long", b"\xff" * 12 + b"\x01"),
        ("long", b"\x80" * 9 + b"\x06"),
        ("int", b"\x80\x80\x80\x80\x80\x01"),
        ("boolean", b"\x02"),
        ({"type": "array", "items": "boolean"}, b"\x02\xff\x00"),
        ({"type": "array", "items": "string"}, b"\x02\x03\x00"),
        ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x04\x00"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x04\x7f\xff"),
    ],
)
def test_bytes_that_are_no_value_of_the_schema_are_malformed(kind: Any, content: bytes) -> None:
    schema = avro_schema({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
    assert avro.decoded(content, schema, None, bytes_max) == (None, "malformed_avro")


def test_without_a_walk_through_the_bytes_an_index_below_zero_is_a_symbol(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = avro_schema({"type": "record", "name": "R", "fields": [{"name": "a", "type": status}]})
    monkeypatch.setattr(avro, "require_value", lambda *_: None)
    assert avro.decoded(b"\x01", schema, None, bytes_max) == ('{"a":"FAILED"}', None)


@pytest.mark.parametrize(
    ("kind", "content", "found"),
    [
        ("long", b"\xff" * 9 + b"\x01", -(2**63)),
        ("int", b"\xfe\xff\xff\xff\x0f", 2**31 - 1),
        # Of two blocks, the second one with its size in bytes.
        ({"type": "array", "items": "int"}, b"\x02\x02\x01\x02\x04\x00", [1, 2]),
        (
            {"type": "map", "values": status},
            b"\x02\x02a\x02\x02\x02b\x00\x00",
            [{"key": "a", "value": "FAILED"}, {"key": "b", "value": "OK"}],
        ),
    ],
)
def test_values_at_the_limits_of_their_types_are_read(kind: Any, content: bytes, found: object) -> None:
    schema = avro_schema({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
    text, fault = avro.decoded(content, schema, None, bytes_max)
    assert (fault, json.loads(text or "{}")) == (None, {"a": found})


@pytest.mark.parametrize(
    ("writer", "content", "reader", "found"),
    [
        ("int32 a = 1;", b"\x08\x05", "int64 b = 1;", {"b": 5}),
        ("int32 a = 1;", b"\x08\x05", "repeated int32 a = 1;", {"a": [5]}),
        ("int32 a = 1;", b"\x08\x05", "int32 other = 2;", {"other": 0}),
        ("bool a = 1;", b"\x08\x01", "int32 a = 1;", {"a": 1}),
        ("string a = 1;", b"\x0a\x01x", "bytes a = 1;", {"a": "eA=="}),
        (
            "map<string, int32> a = 1;",
            b"\x0a\x05\x0a\x01k\x10\x05",
            "map<string, int64> a = 1;",
            {"a": [{"key": "k", "value": 5}]},
        ),
        ("int32 a = 1;", b"\x08\x05", "sint32 a = 1;", None),
        ("int32 a = 1;", b"\x08\x05", "double a = 1;", None),
        ("int32 a = 1;", b"\x08\x05", "string a = 1;", None),
        ("string a = 1;", b"\x0a\x015", "repeated int32 a = 1;", None),
        ("int64 a = 1;", b"\x08\x85\x80\x80\x80\x10", "int32 a = 1;", None),
        ("repeated int32 a = 1;", b"\x0a\x02\x01\x02", "int32 a = 1;", None),
        ("double a = 1;", b"\x09\0\0\0\0\0\0\xf0\x3f", "fixed64 a = 1;", None),
        ("map<string, int32> a = 1;", b"\x0a\x05\x0a\x01k\x10\x05", "map<string, sint32> a = 1;", None),
        ("message N { int32 x = 1; } N a = 1;", b"\x0a\x02\x08\x05", "message N { sint32 x = 1; } N a = 1;", None),
    ],
)
def test_a_readers_protobuf_takes_values_that_are_the_same_there(
    writer: str, content: bytes, reader: str, found: object
) -> None:
    text, fault = protobuf.decoded(
        b"\0" + content,
        protobuf_schema(f"message M {{ {writer} }}"),
        f'syntax = "proto3"; message M {{ {reader} }}',
        bytes_max,
    )
    assert (fault, text and json.loads(text)) == ((None, found) if found is not None else ("incompatible_schema", None))


def test_an_entry_of_a_map_is_no_message_of_a_record() -> None:
    writer = protobuf_schema("message A { map<string, int32> m = 1; }")
    assert protobuf.decoded(b"\x04\x00\x00", writer, None, bytes_max) == (None, "malformed_protobuf")


def test_a_name_that_is_no_unicode_stops_no_table() -> None:
    fields = '[{"name": "id", "type": "int"}, {"name": "\\ud800", "type": "int"}]'
    named = avro_schema(f'{{"type": "record", "name": "R", "fields": {fields}}}')
    assert avro.decoded(b"\x02\x02", named, None, bytes_max) == (None, "malformed_avro")


def test_fields_with_the_names_of_pythons_own_are_fields() -> None:
    writer = protobuf_schema("message M { optional string HasField = 1; optional int32 n = 2; string DESCRIPTOR = 3; }")
    text, fault = protobuf.decoded(b"\x00\x0a\x01x\x10\x05", writer, None, bytes_max)
    assert (json.loads(text or ""), fault) == ({"HasField": "x", "n": 5, "DESCRIPTOR": ""}, None)


def test_a_string_of_proto2_that_is_no_utf8_is_malformed() -> None:
    for field in ("optional", "repeated"):
        writer = (
            protobuf_schema("").replace("proto3", "proto2").replace("'; ", f"'; message M {{ {field} string s = 1; }}")
        )
        assert protobuf.decoded(b"\x00\x0a\x01\xff", writer, None, bytes_max) == (None, "malformed_protobuf")


def test_a_few_bytes_are_not_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    nulls = {f"n{each}": "null" for each in range(100)}
    for kind in ("array", "map"):
        inside = {"type": kind, ("items" if kind == "array" else "values"): record("I", x="boolean", **nulls)}
        assert avro.schema_of(avro_schema(record("R", list=inside))) is None
    nested = record("I", a=record("J", b=record("K", c=optional("int"))))
    assert avro.schema_of(avro_schema(record("R", list={"type": "array", "items": nested}))) is not None

    made: list[str] = []
    of_field = protobuf.of_field
    monkeypatch.setattr(protobuf, "of_field", lambda *said: made.append(said[1].name) or of_field(*said))  # type: ignore[func-returns-value]
    wide = " ".join(f"int32 f{each} = {each + 1};" for each in range(200))
    writer = protobuf_schema(f"message M {{ repeated I list = 1; message I {{ {wide} }} }}")
    assert protobuf.decoded(b"\x00" + b"\x0a\x00" * 1000, writer, None, 2001) == (None, "record_too_large")
    assert len(made) < 8 * 2001


def test_a_readers_plain_type_takes_what_is_encoded() -> None:
    price = record("R", b=logical("bytes", "decimal", precision=4, scale=0))
    when = record("R", b=optional(logical("long", "timestamp-millis")))
    cases = [
        (price, "bytes", b"\x04\x04\xd2", "BNI="),
        (price, "string", b"\x02A", "A"),
        (when, "long", b"\x02\x0a", 5),
    ]
    for writer, kind, value, says in cases:
        for read in (kind, optional(kind)):
            text, fault = avro.decoded(value, avro_schema(writer), json.dumps(record("R", b=read)), bytes_max)
            assert (json.loads(text or "{}"), fault) == ({"b": says}, None)


def test_a_record_that_is_no_utf8_states_no_schema(spark: "SparkSession") -> None:
    good = avro_schema("int")
    values = [b'{"id": 1, "schema": "\xff"}', good.encode()]
    records = spark.createDataFrame(
        [(value, at(hour), 0, hour) for hour, value in enumerate(values)],
        "value binary, timestamp timestamp, partition int, offset bigint",
    )
    assert [tuple(row) for row in encoded.known_schemas(records).collect()] == [(1, good)]


def test_the_path_of_a_schema_is_not_its_text() -> None:
    for give in (silver.avro, silver.protobuf):
        with pytest.raises(DeclarationError, match=r"write Path\('schemas/order.avsc'\)"):
            give(schema="schemas/order.avsc")


def test_a_full_disk_is_no_fault_of_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "../a.proto", "/a.proto", "a" * 5000):
        said = {"id": 2, "type": "PROTOBUF", "schema": "", "references": [{"name": name, "schema": ""}]}
        assert protobuf.schema_of(json.dumps(said)) is None

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        protobuf.schema_of(protobuf_schema("message Full { string s = 1; }"))
