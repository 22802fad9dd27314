"""Statistics of files: what delta-rs would write wrong is not there, and what an older release wrote is mended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from pyarrow.parquet import ParquetFile
from pyspark.sql.types import StructType

from sluice import bronze, gold, silver
from sluice.engine.backfill import BackfillRange
from sluice.engine.refresh import refresh
from sluice.errors import SluiceError
from sluice.model.datasets import Dataset
from sluice.operate.forecast import forecast
from sluice.storage.delta import history, writer
from sluice.storage.delta.bloom import writer_properties
from sluice.storage.delta.opened import spark_types
from sluice.storage.delta.statistics import first, has_wrong_bounds, listed, properties_of, to_unset
from sluice.storage.key_filters import rows_min
from tests.kit import Lakehouse, at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Keys that delta-rs takes for other numbers: beyond 64 bits, and beyond a double.
keys = {
    "decimal(20,0)": "12345678901234567891",
    "decimal(38,18)": "0.936619517785620257",
    "decimal(16,2)": "97531087412535.32",
}


def options_of(kind: str) -> dict[str, Any]:
    """Of a table by a key, which is a field of a struct, too."""
    return {"schema": f"id {kind}, place struct<id {kind}>, v int, at timestamp", "future_tolerance": "1000 days"}


facts_topic = bronze.topic("facts")


def facts_of(kind: str, name: str = "facts") -> Dataset:
    return silver.events(name, source=facts_topic, keys=["v"], event_time="at", **options_of(kind))


def declared(kind: str) -> list[Dataset]:
    """A history by key, facts, each with its version, and figures by key."""
    things = silver.history(
        "things",
        source=bronze.topic("things"),
        keys=["id"],
        sequence_by="at",
        except_column_list=["place"],
        **options_of(kind),
    )
    facts = facts_of(kind)
    known = silver.as_of("known", facts=facts, event_time="at", dimensions={"thing": things})
    figures = gold.aggregate(
        "figures",
        source=known,
        group_by=["id", "place.id AS within"],
        measures={"n": "count(*)", "sum": "sum(v)", "known": "count(thing.v)"},
    )
    return [things, facts, known, figures]


def publish(lakehouse: Lakehouse, key: str, number: int) -> None:
    """One more version of the key and one more fact about it; both are among those of another key."""
    value = {"id": Decimal(key), "place": {"id": Decimal(key)}, "v": number, "at": at(number).isoformat()}
    text = str(value).replace("'", '"').replace(f'Decimal("{key}")', key).encode()
    others = [text.replace(key.encode(), b"0").replace(f'"v": {number}'.encode(), b'"v": 10')] if number == 1 else []
    lakehouse.publish("things", text, *others, hours=number)
    lakehouse.publish("facts", text, *others, hours=number)


def figures_of(lakehouse: Lakehouse, key: str) -> list[tuple[Any, ...]]:
    return [row[2:] for row in lakehouse.rows("gold.figures") if row[0] == Decimal(key)]


def versions_of(lakehouse: Lakehouse, key: str) -> list[tuple[Any, ...]]:
    return [row[1:] for row in lakehouse.rows("silver.things", "id", "v", "is_current") if row[0] == Decimal(key)]


@contextmanager
def older_release() -> Iterator[None]:
    """Statistics are written of all columns, and taken to be right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "properties_of", lambda schema: {})
        patch.setattr(history, "has_wrong_bounds", lambda table: False)
        yield


@pytest.fixture(scope="module")
def older(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse of that release: it made the tables, and went on with two more versions and facts."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("older")).declare(*declared("decimal(20,0)"))
    with older_release():
        publish(lakehouse, keys["decimal(20,0)"], 1)
        lakehouse.run()
        publish(lakehouse, keys["decimal(20,0)"], 2)
        publish(lakehouse, keys["decimal(20,0)"], 3)
        lakehouse.run()
    return lakehouse


def test_rows_of_a_long_decimal_are_found(lakehouse: Lakehouse) -> None:
    kind = "decimal(38,18)"
    lakehouse.declare(*declared(kind))
    for number in (1, 2, 3):
        publish(lakehouse, keys[kind], number)
        lakehouse.run()
    assert figures_of(lakehouse, keys[kind]) == [(3, 6, 3)]
    assert versions_of(lakehouse, keys[kind]) == [(1, False), (2, False), (3, True)]
    assert all(each.balanced for each in lakehouse.laws())
    of_key = lakehouse.table("gold.figures").where(f"id = CAST('{keys[kind]}' AS {kind})")
    assert of_key.count() == 1
    assert lakehouse.changed_by_rebuild() == {}
    before = lakehouse.versions()
    lakehouse.run()
    assert lakehouse.versions() == before


def test_what_an_older_release_wrote_is_mended_once(older: Lakehouse, tmp_path: Path) -> None:
    lakehouse, key = older.copied_to(tmp_path), keys["decimal(20,0)"]
    # This is the mutant, too: rows are not found, and stay beside those that are to replace them.
    assert len(figures_of(lakehouse, key)) > 1
    assert len(versions_of(lakehouse, key)) > 3
    steps = {each.name: each for each in forecast(lakehouse.lake, lakehouse.log, lakehouse.catalogue)}
    assert steps["silver.things"].action == steps["gold.figures"].action == "recompute"
    assert "wrong bounds of long decimals" in steps["silver.things"].because
    lakehouse.run()
    assert figures_of(lakehouse, key) == [(3, 6, 3)]
    assert versions_of(lakehouse, key) == [(1, False), (2, False), (3, True)]
    commit = lakehouse.lake.last_commit("silver.things")
    assert commit
    assert commit.entry.cause == "rebuild"
    assert "wrong bounds" in (commit.entry.because or "")
    before = lakehouse.versions()
    lakehouse.run()
    assert lakehouse.versions() == before
    publish(lakehouse, key, 4)
    lakehouse.run()
    assert figures_of(lakehouse, key) == [(4, 10, 4)]
    assert lakehouse.changed_by_rebuild() == {}


def odd_names(things: "DataFrame") -> "DataFrame":
    return things.selectExpr("id", "valid_from", r"v AS `it's\odd.``v```")


def text_of(number: str) -> str | None:
    """A number is a text if it is a whole one."""
    return number if number.isdigit() else None


# Types of the key one after the other, each with one more key that comes then.
retyped: list[tuple[str, Callable[[str], Any], str]] = [
    ("int", int, "7"),
    ("decimal(16,2)", Decimal, keys["decimal(16,2)"]),
    ("string", text_of, "7"),
]


def test_a_column_becomes_a_long_decimal_and_something_else_again(lakehouse: Lakehouse) -> None:
    """The list of columns follows them; what is left of it is of no harm."""
    said = [("0", 10)]
    for number, (kind, typed, key) in enumerate(retyped, 1):
        things, *others = declared(kind)
        odd = gold.view("odd", inputs={"things": things}, keys=["id"], shape=odd_names, grain=["id", "valid_from"])
        lakehouse.declare(things, *others, odd)
        publish(lakehouse, key, number)
        lakehouse.run()
        for table in ("silver.things", "silver.known", "gold.figures", "gold.odd"):
            found = DeltaTable(lakehouse.lake.path(table))
            assert not has_wrong_bounds(found)
            names = found.metadata().configuration.get(listed, "").replace("`", "").split(",")
            assert "id" not in names
        said.append((key, number))
        of_type = [(typed(each), v) for each, v in said if typed(each) is not None]
        by_key = {each: [v for known, v in of_type if known == each] for each, _ in of_type}
        assert {row[0]: row[1:] for row in lakehouse.rows("gold.figures")} == {
            each: (each, len(values), sum(values), len(values)) for each, values in by_key.items()
        }
        versions = {(each, v, v == values[-1]) for each, values in by_key.items() for v in values}
        assert set(lakehouse.rows("silver.things", "id", "v", "is_current")) == versions
        assert {row[::2] for row in lakehouse.rows("gold.odd")} == {row[:2] for row in versions}
    assert lakehouse.changed_by_rebuild() == {}


def test_a_table_without_long_decimals_has_no_list(lakehouse: Lakehouse) -> None:
    facts = facts_of("decimal(15,2)")
    lakehouse.declare(gold.aggregate("figures", source=facts, group_by=["id"], measures={"sum": "sum(v)"}))
    publish(lakehouse, "1.50", 1)
    lakehouse.run()
    for table in ("silver.facts", "gold.figures"):
        assert listed not in DeltaTable(lakehouse.lake.path(table)).metadata().configuration


@pytest.mark.usefixtures("spark")
def test_the_list_has_the_columns_whose_bounds_are_exact() -> None:
    def of(schema: str) -> dict[str, str]:
        return properties_of(cast("StructType", StructType.fromDDL(schema)))

    assert of("a int, b decimal(15,2), c decimal(18,0), d struct<e: decimal(15,15)>") == {}
    assert of("a int, b decimal(16,2), ok boolean, t array<int>, raw binary, at timestamp") == {listed: "`a`,`at`"}
    assert of("`a``b` string, d struct<e: decimal(19,0), `ü %`: date>") == {listed: "`a``b`,`d`.`ü %`"}
    assert of("a decimal(38,0), b boolean") == {first: "0"}
    many = ", ".join(f"c{number} int" for number in range(40))
    assert of(f"{many}, d decimal(38,0)")[listed].count(",") == 31


owners = [("v, at", True), ("`place`.`id`,v", False), ("place", False), ("ID", False), ("`at`", True), ("", True)]


@pytest.mark.parametrize(("list_of_owner", "is_safe"), owners)
def test_a_list_is_safe_that_has_no_long_decimals(tmp_path: Path, list_of_owner: str, is_safe: bool) -> None:
    long = pa.decimal128(20, 0)
    place = pa.struct([pa.field("id", long)])
    kinds: dict[str, pa.DataType] = {"id": long, "v": pa.int32(), "at": pa.timestamp("us", "UTC"), "place": place}
    write_deltalake(tmp_path, pa.schema(kinds).empty_table())
    assert has_wrong_bounds(DeltaTable(tmp_path))
    DeltaTable(tmp_path).alter.set_table_properties({listed: list_of_owner})
    assert has_wrong_bounds(DeltaTable(tmp_path)) is not is_safe


def test_a_safe_list_of_the_owners_is_kept(lakehouse: Lakehouse) -> None:
    """Each of a table of its own."""
    lists = dict(zip(("silver.one", "silver.other"), owners, strict=False))
    lakehouse.declare(*[facts_of("decimal(20,0)", name.removeprefix("silver.")) for name in lists])
    publish(lakehouse, keys["decimal(20,0)"], 1)
    lakehouse.run()
    for name, (list_of_owner, _) in lists.items():
        DeltaTable(lakehouse.lake.path(name)).alter.set_table_properties({listed: list_of_owner})
    lakehouse.run()
    for name, (list_of_owner, is_safe) in lists.items():
        found, schema = DeltaTable(lakehouse.lake.path(name)), lakehouse.table(name).schema
        wanted = list_of_owner if is_safe else properties_of(schema)[listed]
        assert found.metadata().configuration[listed] == wanted
        assert to_unset(found, schema) == []
    before = lakehouse.versions()
    lakehouse.run()
    assert lakehouse.versions() == before


def test_a_part_of_a_table_waits_until_all_of_it_is_mended(older: Lakehouse) -> None:
    (known,) = (each for each in older.catalogue.datasets if each.name == "silver.known")
    with pytest.raises(SluiceError, match=r"silver\.known: its log may have wrong bounds .* sluice run silver\.known"):
        refresh(older.spark, older.lake, known, backfill=BackfillRange(since=at(0), until=at(2)))


def measured(things: "DataFrame") -> "DataFrame":
    """Numbers that JSON has none of, in a column and within a struct."""
    return things.selectExpr("id", "CAST(said AS double) AS ratio", "named_struct('ratio', CAST(said AS float)) AS of")


ratios = silver.events("ratios", source=bronze.topic("ratios"), schema="id int, said string, at timestamp", keys=["id"])
view = gold.view("measured", inputs={"things": ratios}, keys=["id"], shape=measured, grain=["id"])
above = gold.aggregate("above", source=view, group_by=["id > 0 AS any"], measures={"n": "count(*)"}, where="ratio > 9")


def found_by_spark(lakehouse: Lakehouse) -> list[int]:
    """How many rows have a number that is greater than some, as Spark reads the files: NaN is."""
    rows = lakehouse.spark.read.format("delta").load(lakehouse.lake.path("gold.measured"))
    return [rows.where(f"{name} > 9").count() for name in ("ratio", "of.ratio")]


def publish_ratios(lakehouse: Lakehouse, *said: tuple[int, str]) -> None:
    values = [{"id": number, "said": text, "at": at(0).isoformat()} for number, text in said]
    lakehouse.publish("ratios", *values).run()


def test_rows_with_nan_are_found(lakehouse: Lakehouse) -> None:
    """Beside numbers, when they are written, when others of their file are replaced, and when files become one."""
    lakehouse.declare(ratios, view, above)
    publish_ratios(lakehouse, (1, "1"), (2, "NaN"))
    assert (found_by_spark(lakehouse), lakehouse.rows("gold.above")) == ([1, 1], [(True, 1)])
    publish_ratios(lakehouse, (3, "3"), (4, "NaN"), (5, "Infinity"))
    assert (found_by_spark(lakehouse), lakehouse.rows("gold.above")) == ([3, 3], [(True, 3)])
    DeltaTable(lakehouse.lake.path("gold.measured")).optimize.compact(
        writer_properties=writer_properties(spark_types(lakehouse.lake.open("gold.measured")), [], 5)
    )
    assert found_by_spark(lakehouse) == [3, 3]
    assert lakehouse.changed_by_rebuild() == {}


def test_else_they_are_not(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "writer_properties", lambda *_: WriterProperties(compression="SNAPPY"))
    lakehouse.declare(ratios, view)
    publish_ratios(lakehouse, (1, "1"), (2, "NaN"))
    assert found_by_spark(lakehouse) == [0, 0]


def test_other_columns_have_bounds() -> None:
    types = {"id": "string", "ratio": "double", "of": "struct<a:int,b:float>", "many": "array<double>"}
    rows = pa.table({"id": ["a", "b"], "ratio": [1.0, 2.0], "of": [{"a": 1, "b": 1.5}] * 2, "many": [[1.0]] * 2})
    for wanted, without in ((types, {"ratio", "of.a", "of.b", "many.list.item"}), ({"ratio": "double"}, {"ratio"})):
        with TemporaryDirectory() as folder:
            write_deltalake(folder, rows, writer_properties=writer_properties(wanted, ["id"], rows_min))
            (file,) = Path(folder).glob("*.parquet")
            group = ParquetFile(file).metadata.row_group(0)
        columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
        bounded = {name for name, each in columns.items() if each.statistics and each.statistics.has_min_max}
        assert {*columns} - bounded == without
