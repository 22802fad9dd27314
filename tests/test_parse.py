"""Parse: every record gives one row, and what cannot be used says which rule it breaks."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sluice.shapes.parse import Changes, Parsing, event_time_min_default, parse
from tests.kit import at, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

bronze_schema = (
    "topic string, partition int, offset bigint, value binary, timestamp timestamp, headers map<string,string>"
)
good = {"id": "a", "seen_at": text(1), "size": 3, "tags": ["x"]}


def parsed(spark: "SparkSession", *values: bytes | None, record_bytes_max: int = 1000) -> "list[Row]":
    records = [("t", 0, offset, value, at(2)) for offset, value in enumerate(values)]
    parsing = Parsing(
        schema="id string, seen_at timestamp, size int, tags array<string>",
        required=("id", "seen_at"),
        event_time="seen_at",
        record_bytes_max=record_bytes_max,
    )
    return judged(bronze(spark, records), parsing)


def bronze(spark: "SparkSession", records: Sequence[tuple[Any, ...]]) -> "DataFrame":
    """Records without headers."""
    return spark.createDataFrame([(*each, {}) for each in records], bronze_schema)


def judged(records: "DataFrame", parsing: Parsing) -> "list[Row]":
    """The rows of records, whose rules are all known."""
    rows = parse(records, parsing).orderBy("_offset").collect()
    assert {row["_rule"] for row in rows} <= {None, *parsing.rules}
    return rows


def encoded(**changes: Any) -> bytes:
    return json.dumps(good | changes).encode()


broken = {
    "null_value": None,
    "empty_value": b"  ",
    "invalid_utf8": b'{"id":"\xff"}',
    "malformed_json": b'{"id":"a"',
    "wrong_type": encoded(size="large"),
    "record_too_large": encoded(id="x" * 2000),
    "null_id": encoded(id=None),
    "null_seen_at": encoded(seen_at=None),
    "seen_at_in_the_future": encoded(seen_at="2999-01-01T00:00:00Z"),
    "seen_at_before_1970_01_03": encoded(seen_at="1970-01-01T00:00:00Z"),
}


def test_each_broken_record_names_its_rule_and_none_is_lost(spark: "SparkSession") -> None:
    rows = parsed(spark, *broken.values())
    assert [row["_rule"] for row in rows] == list(broken)


@pytest.mark.parametrize("value", [b"null", b"17", b"[1]", b'"text"', b"\x00"])
def test_what_is_no_object_is_no_row_of_nulls(spark: "SparkSession", value: bytes) -> None:
    assert parsed(spark, value)[0]["_rule"] is not None


def test_a_good_record_breaks_no_rule(spark: "SparkSession") -> None:
    (row,) = parsed(spark, encoded())
    assert (row["id"], row["size"], row["tags"], row["_rule"], row["_unknown_fields"]) == ("a", 3, ["x"], None, None)


def test_unknown_fields_are_named_and_the_record_kept(spark: "SparkSession") -> None:
    (row,) = parsed(spark, encoded(gate="7"))
    assert (row["id"], row["_rule"], row["_unknown_fields"]) == ("a", None, ["gate"])


def test_missing_fields_are_null(spark: "SparkSession") -> None:
    (row,) = parsed(spark, json.dumps({"id": "a", "seen_at": text(1)}).encode())
    assert (row["size"], row["_rule"]) == (None, None)


def test_a_20_megabyte_record_is_parsed_where_it_is_allowed(spark: "SparkSession") -> None:
    (row,) = parsed(spark, encoded(id="x" * 20_000_000), record_bytes_max=30_000_000)
    assert (len(row["id"]), row["_rule"]) == (20_000_000, None)


timed = Parsing(
    schema="id string, seen_at timestamp, sent_at timestamp, received_at timestamp",
    required=("id", "seen_at"),
    event_time="seen_at",
    sent_time="sent_at",
    received_time="received_at",
    hold_later_than="90 minutes",
)


@pytest.mark.parametrize(
    ("times", "event", "rule"),
    [
        ((1.0, None, 2.0), 1.0, None),  # nothing to correct by
        ((1.0, 1.5, 2.0), 1.5, None),  # the device is half an hour slow
        ((1.0, 2.5, 2.0), 0.5, None),  # or fast, and then it is just in time
        ((1.0, 2.6, 2.0), 0.4, "late"),
        ((1.0, None, None), 1.0, None),  # received when the log took it in, at 2:00
        ((0.4, None, None), 0.4, "late"),
    ],
)
def test_event_time_is_corrected_and_lateness_is_a_property_of_the_record(
    spark: "SparkSession", times: tuple[float | None, ...], event: float, rule: str | None
) -> None:
    seen, sent, received = [None if hours is None else text(hours) for hours in times]
    value = {"id": "a", "seen_at": seen, "sent_at": sent, "received_at": received}
    records = [("t", 0, 0, json.dumps(value).encode(), at(2))]
    (row,) = judged(bronze(spark, records), timed)
    assert (row["seen_at"].timestamp() - at(0).timestamp()) / 3600 == pytest.approx(event)
    assert row["_rule"] == rule
    assert row["_lateness_seconds"] == pytest.approx(((times[2] or 2.0) - event) * 3600)


captured = Parsing(
    schema="id int, name string",
    required=("id", "lsn", "transaction_order", "committed_at"),
    event_time="committed_at",
    format="debezium",
    changes=Changes(keys=("id",)),
)


def change(op: str, before: Any = None, after: Any = None, lsn: int | None = 7) -> bytes:
    source = {"ts_ms": int(at(1).timestamp() * 1000), "lsn": lsn, "db": "shop"}
    return json.dumps({"op": op, "before": before, "after": after, "source": source, "ts_ms": 1}).encode()


row_before, row_after = {"id": 1, "name": "old"}, {"id": 1, "name": "new"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (change("c", after=row_after), ("set", 1, "new", None, None)),
        (change("r", after=row_after), ("set", 1, "new", None, None)),
        (change("u", row_before, row_after), ("set", 1, "new", None, None)),
        (change("u", {"id": 2, "name": None}, row_after), ("set", 1, "new", 2, None)),
        (change("u", None, row_after), ("set", 1, "new", None, None)),
        (change("d", row_before), ("delete", 1, "old", None, None)),
        (change("t"), ("truncate", None, None, None, None)),
        (change("m"), ("none", None, None, None, None)),
        (None, ("none", None, None, None, None)),  # the tombstone after a delete
        (change("c", after={"name": "x"}), ("set", None, "x", None, "null_id")),
        (change("c", after=row_after, lsn=None), ("set", 1, "new", None, "null_lsn")),
        (change("x", after=row_after), ("set", 1, "new", None, "unknown_op")),
        (b'{"id": 1}', ("set", None, None, None, "unknown_op")),
        (b"{", ("set", None, None, None, "malformed_json")),
    ],
)
def test_an_envelope_of_debezium_is_a_change(
    spark: "SparkSession", value: bytes | None, expected: tuple[Any, ...]
) -> None:
    wrapped = None if value is None else b'{"schema": {"type": "struct"}, "payload": ' + value + b"}"
    for each in (value, wrapped):
        (row,) = judged(bronze(spark, [("t", 0, 0, each, at(2))]), captured)
        moved_from = row["_moved_from"] and row["_moved_from"]["id"]
        assert (row["_change"], row["id"], row["name"], moved_from, row["_rule"]) == expected


decimals = Parsing(
    schema="whole decimal(38,0), part decimal(38,10), parts array<decimal(38,0)>, id string, x bigint",
    required=(),
    event_time=None,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # As a double each of these is another number.
        ('{"whole":9007199254740993e0}', None),
        ('{"whole":9999999999999999E0}', None),
        ('{"whole":9007199254740993E2}', None),
        ('{"part": -9007199254740993e-2}', None),
        ('{"part":1e-400}', None),
        ('{"whole":-10.0e-0324}', None),
        ('{"whole":1e-999999999}', None),
        ('{"parts":[1,\t9007199254740993e0]}', None),
        ('{"whole":"9007199254740993e0"}', "9007199254740993"),
        ('{"whole":123456789012345e0}', "123456789012345"),
        ('{"part":0E-10}', "0E-10"),
        ('{"part":0.0e-400}', "0E-10"),
        ('{"part":1.5e-0000000002}', "0.0150000000"),
        # What is beside it is no part of it.
        ('{"part":0E-10,"x":1234567890123456789}', "0E-10"),
        ('{"part":1.5e2,"id":"12345678901234567e5"}', "150.0000000000"),
        ('{"part":1.5e2,"id":"1e-400"}', "150.0000000000"),
    ],
)
def test_a_decimal_has_the_digits_that_were_written_or_is_refused(
    spark: "SparkSession", text: str, found: str | None
) -> None:
    (row,) = verdicts(spark, decimals, [text])
    read = row["whole"] if row["whole"] is not None else row["part"]
    assert (row["_rule"], None if row["_rule"] else str(read)) == ("wrong_type" if found is None else None, found)


widely = Parsing(
    schema="id string, n int, big bigint, ratio double, price decimal(10,2), is_on boolean, at timestamp, "
    "local timestamp_ntz, day date, bytes binary, inner struct<at: timestamp, price: decimal(10,2)>, "
    "list array<timestamp>, ratios array<double>, names array<string>, tiny tinyint, tinies array<tinyint>",
    required=(),
    event_time=None,
)


def frame_of(spark: "SparkSession", texts: "Sequence[str | bytes]") -> "DataFrame":
    """Records with these values, in the order of their offsets."""
    values = [text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass") for text in texts]
    records = [("t", 0, offset, value, at(2)) for offset, value in enumerate(values)]
    return bronze(spark, records)


def verdicts(spark: "SparkSession", parsing: Parsing, texts: "Sequence[str | bytes]") -> "list[Row]":
    """The rows of all texts, in one frame."""
    return judged(frame_of(spark, texts), parsing)


deep = "[" * 10_000 + "]" * 10_000
texts_and_rules: list[tuple[str | bytes, str | None]] = [
    ('{"id":"a"}', None),
    (' \t\r\n{"id" : "a"} \n', None),
    (r'{"id":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"}', None),
    ('{"id":"{}}{][ // \' \\\\ud800","inner":{}}', None),
    (r'{"id":"\"Infinity\""}', None),
    (r'{"id": "\u0022-Infinity\u0022" ,"n":1}', None),
    ('{"id":1e400}', "wrong_type"),
    ('{"ID":"a","_corrupt":1,"a.b":1}', None),
    ('{"id":"a"}{"id":"b"}', "trailing_content"),
    ('{"id":"a"} xyz', "trailing_content"),
    ('{"id":"a"}}}', "trailing_content"),
    ('{"id":"a"}]', "trailing_content"),
    ('{"id":"a"},{"id":"b"}', "trailing_content"),
    ('{"id":"a"},null]', "trailing_content"),
    ('{"id":"a"}],"w":1}', "trailing_content"),
    ('{"id":"a"},"w":1}', "trailing_content"),
    ('{"id":"a"}//', "trailing_content"),
    ('{"id":"a"}\x00', "trailing_content"),
    ('{"id":"a"/**/}', "malformed_json"),
    ("{'id':'a'}", "malformed_json"),
    ("{id:1}", "malformed_json"),
    ('{"id":"a",}', "malformed_json"),
    ('{"n":01}', "malformed_json"),
    ('{"n":+1}', "malformed_json"),
    ('{"ratio":.5}', "malformed_json"),
    ('{"ratio":NaN}', "malformed_json"),
    ('{"u":-Infinity}', "malformed_json"),
    ('{"id":"a\tb"}', "malformed_json"),
    (r'{"id":"\x"}', "malformed_json"),
    ('\ufeff{"id":"a"}', "malformed_json"),
    ('\x0c{"id":"a"}', "malformed_json"),
    ('{"u":' + deep + "}", "malformed_json"),
    ('{"u":' + "9" * 2_000 + "}", "malformed_json"),
    ("\n\t ", "empty_value"),
    ("[]", "wrong_type"),
    ("17", "wrong_type"),
    ('{"id":"a","id":"a"}', "duplicate_name"),
    (r'{"id":"a","\u0069d":"b"}', "duplicate_name"),
    ('{"u":{"a":1,"a":2}}', "duplicate_name"),
    ('{"u":[[{"a":{"b":1,"b":1}}]]}', "duplicate_name"),
    ('{"id":"a","Id":"b","u":{"a":1,"A":2}}', None),
    (r'{"id":"\ud800"}', "lone_surrogate"),
    (r'{"id":"\uDFFF\uD83D"}', "lone_surrogate"),
    (r'{"\ud83d":1}', "lone_surrogate"),
    (r'{"id":"\\\ud83d\\\ude00"}', "lone_surrogate"),
    (b'{"id":"\xed\xa0\x80"}', "invalid_utf8"),
    ('{"n":"1"}', "wrong_type"),
    ('{"n":1.0}', "wrong_type"),
    ('{"n":2147483648}', "wrong_type"),
    ('{"big":9223372036854775808}', "wrong_type"),
    ('{"is_on":"true"}', "wrong_type"),
    ('{"is_on":1}', "wrong_type"),
    ('{"ratio":1e400}', "wrong_type"),
    ('{"ratio":"NaN"}', "wrong_type"),
    ('{"ratio":"1.5"}', "wrong_type"),
    ('{"ratios":[1,-1e400]}', "wrong_type"),
    ('{"price":12.345}', "wrong_type"),
    ('{"price":"1,5"}', "wrong_type"),
    ('{"price":"+1"}', "wrong_type"),
    ('{"price":" 1"}', "wrong_type"),
    ('{"price":123456789.12}', "wrong_type"),
    ('{"price":1.00000000000000000000000000000000000000000001}', "wrong_type"),
    ('{"inner":{"price":0.001}}', "wrong_type"),
    ('{"inner":[{"price":1}]}', "wrong_type"),
    ('{"id":1.10}', "wrong_type"),
    ('{"id":1.10,"ratio":1.1}', "wrong_type"),
    ('{"id":1.10,"more":1.1}', "wrong_type"),
    ('{"id" : 1.10,"names":["x,1.1,"]}', "wrong_type"),
    ('{"id" : "1.1","ratio":1.10}', None),
    (r'{"\u0069d":"1.1","ratio":1.10}', None),
    ('{"tiny":127}', None),
    ('{"tiny":-128,"tinies":[0,null]}', None),
    ('{"tiny":128}', "wrong_type"),
    ('{"tiny":255}', "wrong_type"),
    ('{"tiny":256}', "wrong_type"),
    ('{"tiny":1.0}', "wrong_type"),
    ('{"tinies":[1,200]}', "wrong_type"),
    ('{"price":1e2,"ratio":1e-300}', None),
    ('{"price":1e2,"more":1.23456789012345678e5}', None),
    ('{"price":1e2,"id":"see [1e-400]"}', None),
    (r'{"pr\u0069ce":1e2,"id":"see [1e-400]"}', "wrong_type"),
    ('{"id":1e400}', "wrong_type"),
    ('{"names":["x",0.10]}', "wrong_type"),
    ('{"bytes":"!"}', "wrong_type"),
    ('{"at":"12:30"}', "invalid_time_at"),
    ('{"at":"2026"}', "invalid_time_at"),
    ('{"at":2026}', "invalid_time_at"),
    ('{"at":1714557600000}', "invalid_time_at"),
    ('{"at":"1714557600000"}', "invalid_time_at"),
    ('{"at":""}', "invalid_time_at"),
    ('{"at":"2024-02-30T00:00:00Z"}', "invalid_time_at"),
    ('{"at":"2024-05-01T24:00:00Z"}', "invalid_time_at"),
    ('{"at":"2024-05-01 00:00:00Z"}', "invalid_time_at"),
    ('{"at":"2024-05-01T00:00:00+24:00"}', "invalid_time_at"),
    ('{"at":"2024-05-01T00:00:00+1:00"}', "invalid_time_at"),
    ('{"at":"2024-05-01T00:00:00 Europe/Paris"}', "invalid_time_at"),
    ('{"at":"2024-05-01T00:00:00Z\\n"}', "invalid_time_at"),
    ('{"at":"2024-05-01T00:00:60Z"}', "invalid_time_at"),
    ('{"at":"0000-05-01T00:00:00Z"}', "invalid_time_at"),
    ('{"at":"10000-05-01T00:00:00Z"}', "invalid_time_at"),
    ('{"at":"9999-12-31T23:30:00-01:00"}', "invalid_time_at"),
    ('{"at":"0001-01-01T00:00:00+00:01"}', "invalid_time_at"),
    ('{"at":"2024-05-01"}', "invalid_time_at"),
    ('{"at":"2024-05-01T00:00:00"}', "no_offset_at"),
    ('{"at":"2024-05-01t00:00:00.5"}', "no_offset_at"),
    ('{"inner":{"at":"soon"}}', "invalid_time_inner"),
    ('{"list":["2024-05-01T00:00:00Z",null,"soon"]}', "invalid_time_list"),
    ('{"local":"2024-05-01T00:00:00Z"}', "invalid_time_local"),
    ('{"day":"2024-05-01T00:00:00Z"}', "invalid_time_day"),
    ('{"day":"2024-5-1"}', "invalid_time_day"),
    ('{"day":"2024"}', "invalid_time_day"),
    ('{"day":"2023-02-29"}', "invalid_time_day"),
]


def test_a_text_is_strict_json_of_the_declared_types_or_says_why_not(spark: "SparkSession") -> None:
    rows = verdicts(spark, widely, [text for text, _ in texts_and_rules])
    found = [(text, row["_rule"]) for (text, _), row in zip(texts_and_rules, rows, strict=True)]
    assert found == texts_and_rules


accepted: list[tuple[str, Any]] = [
    ('{"id":10000000000000000000001}', "10000000000000000000001"),
    ('{"id":1.0}', "1.0"),
    ('{"id":"1.10"}', "1.10"),
    ('{"id":true}', "true"),
    ('{"id":{"a": [1, "x"]}}', '{"a":[1,"x"]}'),
    ('{"big":9223372036854775807}', 9223372036854775807),
    ('{"price":12.30}', "12.30"),
    ('{"price":"12.3000"}', "12.30"),
    ('{"price":1.5e2}', "150.00"),
    ('{"price":"150e-1"}', "15.00"),
    ('{"price":99999999.99}', "99999999.99"),
    ('{"price":null}', None),
    ('{"inner":{"price":-0.5,"at":null}}', "{null, -0.50}"),
    ('{"at":"2024-05-01T00:00Z"}', "2024-05-01 00:00:00"),
    ('{"at":"2024-05-01t02:30:00.123456789z"}', "2024-05-01 02:30:00.123456"),
    ('{"at":"2024-05-01T00:00:00-00:00"}', "2024-05-01 00:00:00"),
    ('{"at":"2024-05-01T00:00:00.1+23:59"}', "2024-04-30 00:01:00.1"),
    ('{"at":"2016-12-31T23:59:60.5Z"}', "2017-01-01 00:00:00.5"),
    ('{"at":"2017-01-01T08:59:60+09:00"}', "2017-01-01 00:00:00"),
    ('{"at":"0001-01-01T00:00:00Z"}', "0001-01-01 00:00:00"),
    ('{"list":["2024-05-01T00:00:00Z",null]}', "[2024-05-01 00:00:00, null]"),
    ('{"local":"2024-05-01T00:00:00.123456789"}', "2024-05-01 00:00:00.123456"),
    ('{"day":"2024-02-29"}', "2024-02-29"),
    ('{"names":["x",7,"1.50"]}', "[x, 7, 1.50]"),
]


def test_values_are_what_was_written(spark: "SparkSession") -> None:
    rows = parse(frame_of(spark, [text for text, _ in accepted]), widely).orderBy("_offset")
    names = [next(iter(json.loads(text))) for text, _ in accepted]
    found = rows.selectExpr("_rule", *[f"CAST({name} AS string) AS {name}" for name in dict.fromkeys(names)]).collect()
    assert [row["_rule"] for row in found] == [None] * len(accepted)
    values = [None if value is None else str(value) for _, value in accepted]
    assert [row[name] for name, row in zip(names, found, strict=True)] == values


declared = Parsing(
    schema="id string, seconds timestamp, millis timestamp, micros timestamp, day date, days date, "
    "trip struct<began: timestamp>, plain timestamp_ntz",
    required=(),
    event_time="seconds",
    event_time_min=None,
    time_formats=(
        ("seconds", "epoch_seconds"),
        ("millis", "epoch_millis"),
        ("micros", "epoch_micros"),
        ("day", "dd.MM.yyyy"),
        ("days", "epoch_days"),
        ("trip.began", "yyyy-MM-dd HH:mm"),
        ("plain", "epoch_millis"),
    ),
)


def test_other_formats_of_time_are_declared(spark: "SparkSession") -> None:
    whole = {
        "seconds": -1,
        "millis": 1714557600123,
        "micros": 1,
        "day": "01.05.2024",
        "days": -1,
        "trip": {"began": "2024-05-01 07:30"},
        "plain": 0,
    }
    wrong = [{"seconds": "1"}, {"millis": 1.5}, {"millis": 10**18}, {"day": "2024-05-01"}, {"trip": {"began": "x"}}]
    texts = [json.dumps(each) for each in (whole, *wrong)]
    rows = verdicts(spark, declared, texts)
    rules = [None, "wrong_type", "wrong_type", "invalid_time_millis", "invalid_time_day", "invalid_time_trip"]
    assert [row["_rule"] for row in rows] == rules
    texts_of_times = parse(frame_of(spark, [json.dumps(whole)]), declared).selectExpr(
        *[f"CAST({name} AS string)" for name in whole]
    )
    assert tuple(texts_of_times.first() or ()) == (
        "1969-12-31 23:59:59",
        "2024-05-01 10:00:00.123",
        "1970-01-01 00:00:00.000001",
        "2024-05-01",
        "1969-12-31",
        "{2024-05-01 07:30:00}",
        "1970-01-01 00:00:00",
    )


def test_the_least_event_time_can_be_moved_or_left_out(spark: "SparkSession") -> None:
    text = '{"id":"a","seen_at":"1969-07-20T20:17:00Z"}'
    options: dict[str, Any] = {"schema": "id string, seen_at timestamp", "required": (), "event_time": "seen_at"}
    rules = {
        least: verdicts(spark, Parsing(**options, event_time_min=least), [text])[0]["_rule"]
        for least in (None, "1900-01-01T00:00:00Z", "1969-07-20T20:17:01Z", event_time_min_default)
    }
    assert list(rules.values()) == [None, None, "seen_at_before_1969_07_20_20_17_01", "seen_at_before_1970_01_03"]
    assert Parsing(**options).waivable == ("late", "seen_at_in_the_future", "seen_at_before_1970_01_03")


def test_numbers_that_json_lacks_come_from_debezium_as_text(spark: "SparkSession") -> None:
    parsing = replace(captured, schema="id bigint, ratio double")
    values = [1.5, 9007199254740993.0, '"NaN"', '"-Infinity"', "1e400", '"1e400"', '"INF"', "NaN"]
    source = '{"ts_ms":1767225600000,"lsn":1}'
    texts = [f'{{"op":"c","after":{{"id":9007199254740993,"ratio":{each}}},"source":{source}}}' for each in values]
    rows = verdicts(spark, parsing, texts)
    assert [row["_rule"] for row in rows] == [None] * 4 + ["wrong_type"] * 3 + ["malformed_json"]
    assert [str(row["ratio"]) for row in rows[:4]] == ["1.5", "9007199254740992.0", "nan", "-inf"]
    assert rows[0]["id"] == 9007199254740993
