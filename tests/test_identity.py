"""What a value or a key holds never decides what it is: corrections are kept, and hostile keys are keys like others."""

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from sluice import bronze, gold, silver
from sluice.engine import touched
from sluice.engine.backfill import BackfillRange
from sluice.errors import DeclarationError, SluiceError
from sluice.model import small_frames
from sluice.model.datasets import Dataset
from sluice.model.ledger import Entry, RowCounts
from sluice.model.scope import collect, compared_max
from sluice.model.small_frames import small_rows
from sluice.operate.explain import Explainer
from sluice.runtime.connect import require_no_substitution
from sluice.shapes.difference import operation
from sluice.shapes.fates import fates_table
from sluice.storage.delta import Lake
from sluice.windows import calendar_window, session_window, sliding_window
from tests.kit import Lakehouse, Row, rows_of, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

hostile = [
    *(
        "${x}",
        "${env:HOME}",
        "${spark:spark.app.name}",
        "it's",
        'a "quote"',
        "back\\slash",
        "\\",
        "\\'",
        "a%b_c",
        "line\nend",
    ),
    *(
        "tab\tcr\r",
        "nul\x00",
        "\x01",
        "\x02",
        "e\u0301",
        "\u0301",
        "é",
        "😀",
        "x, y",
        "--",
        "/*",
        ":a",
        "?",
        "null",
        " ",
        "k" * 20_000,
    ),
    *("readings/0/0", "things/0/1"),
]
things = bronze.topic("things")
history = silver.history(
    "things",
    source=things,
    schema="thing string, changed_at timestamp, x string, y string, tags array<array<int>>, b boolean, n int",
    keys=["thing"],
    sequence_by="changed_at",
    future_tolerance="1000 days",
)
readings = silver.events(
    "readings",
    source=bronze.topic("readings"),
    schema="reading string, thing string, read_at timestamp, level int",
    keys=["reading"],
    event_time="read_at",
    future_tolerance="1000 days",
)
joined = silver.as_of("readings_joined", facts=readings, event_time="read_at", dimensions={"of": history})
levels = gold.aggregate(
    "levels",
    source=joined,
    group_by=["thing", "of.x AS x", "of.y AS y"],
    measures={"readings": "count(*)", "level": "sum(level)"},
)
hourly = gold.aggregate(
    "levels_hourly",
    source=joined,
    group_by=["thing", session_window("read_at", gap="1 hour")],
    measures={"level": "sum(level)"},
)


def change(thing: str, hours: float, **values: Any) -> dict[str, Any]:
    return {"thing": thing, "changed_at": text(hours), **values}


def reading(name: str, thing: str, hours: float, level: int = 1) -> dict[str, Any]:
    return {"reading": name, "thing": thing, "read_at": text(hours), "level": level}


def is_as_rebuilt(lakehouse: Lakehouse) -> bool:
    """Whether a rebuild of everything changes no row, and all laws hold."""
    rebuilt = lakehouse.run(rebuild=True)
    assert {name for name, event in rebuilt.items() if event.rows.total} == set()
    assert all(each.balanced for each in lakehouse.audits())
    assert all(each.balanced for each in lakehouse.laws())
    return True


corrections: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"x": "A"}, {"y": "A"}),
    ({"tags": [[1], [2]]}, {"tags": [[1, 2]]}),
    ({"tags": [[None, 1]]}, {"tags": [[1, None]]}),
    ({"tags": []}, {"tags": None}),
    ({"tags": []}, {}),
    ({"b": True}, {"n": 1}),
]


@pytest.fixture(scope="module")
def all_read(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A reading of everything whose name is hostile, and of everything that is corrected later."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("all-read")).declare(levels, hourly)
    lakehouse.publish("things", *[change(f"t{number}", 1, **wrong) for number, (wrong, _) in enumerate(corrections)])
    lakehouse.publish("things", *[change(name, 1, x=name) for name in hostile])
    lakehouse.publish("readings", *[reading(f"r{number}", f"t{number}", 2) for number in range(len(corrections))])
    lakehouse.publish("readings", b"broken", *[reading(name, name, 2) for name in hostile])
    lakehouse.run()
    return lakehouse


late = {name: number for number, name in enumerate(["${x}", "${env:HOME}", "it's", "nul\x00"], start=1)}


@pytest.fixture(scope="module", params=[True, False], ids=["by the driver", "by Spark"])
def changed(request: pytest.FixtureRequest, all_read: Lakehouse, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """The same after a run that brought corrections, and changes and readings of hostile names."""
    lakehouse = all_read.copied_to(tmp_path_factory.mktemp("changed"))
    for number, (_, right) in enumerate(corrections):
        if right:
            lakehouse.publish("things", change(f"t{number}", 1, **right), hours=1)
    lakehouse.publish("things", change("t0", 1, y="A"), hours=2)
    with pytest.MonkeyPatch.context() as patched:
        if not request.param:
            patched.setattr(small_frames, "replaced_terms_max", 0)
        # No scope is large enough to be everything.
        patched.setattr(touched, "rebuild_share", 1e9)
        for name, level in late.items():
            lakehouse.publish("things", change(name, 1.5, y=name), hours=3)
            lakehouse.publish("readings", reading(name, name, 2), reading(f"late {name}", name, 1.6, level), hours=3)
        lakehouse.run()
    for table in ("silver.things", "silver.readings_joined", "gold.levels"):
        (last,) = lakehouse.lake.open(table).history(1)
        assert last["engineInfo"].startswith("delta-rs") is request.param, table
    return lakehouse


def test_a_correction_that_moves_a_value_is_kept_and_reaches_gold(changed: Lakehouse) -> None:
    assert ("silver.things_changes", "duplicate", "same_payload") in changed.rows(
        "silver._fates", "dataset", "fate", "reason"
    )
    found = {row[0]: row[1:] for row in changed.rows("silver.things", "thing", "x", "y", "b", "n")}
    assert (found["t0"], found["t5"]) == ((None, "A", None, None), (None, None, None, 1))
    tags = {row[0]: row[1] for row in changed.rows("silver.things", "thing", "tags")}
    assert (tags["t1"], tags["t2"], tags["t3"]) == ([[1, 2]], [[1, None]], None)
    assert [row for row in changed.rows("gold.levels") if row[0] == "t0"] == [("t0", None, "A", 1, 1)]


def test_hostile_keys_are_keys_like_others(all_read: Lakehouse, changed: Lakehouse) -> None:
    count = len(hostile) + len(corrections)
    assert len(all_read.rows("silver.readings")) == len(all_read.rows("gold.levels")) == count
    expected = [(name, None, name, 2, 1 + late[name]) if name in late else (name, name, None, 1, 1) for name in hostile]
    found = [row for row in changed.rows("gold.levels") if row[0] in hostile]
    assert found == sorted(expected, key=repr)
    assert changed.audit()["silver.readings"].duplicate == len(late)
    explained = Explainer(changed.spark, changed.lake).explain(readings, {"reading": "${env:HOME}"})
    assert [each.row["thing"] for each in explained if each.row] == ["${env:HOME}"]


def test_what_was_corrected_and_what_has_a_hostile_key_is_as_rebuilt(changed: Lakehouse) -> None:
    assert is_as_rebuilt(changed)


nested = silver.events(
    "nested",
    source=bronze.topic("nested"),
    schema="key struct<a: string, b: string>, list array<string>, number double, n int",
    keys=["key", "list", "number"],
)
by_nested = gold.aggregate(
    "by_nested", source=nested, group_by=["key", "list", "number"], measures={"n": "sum(n)", "rows": "count(*)"}
)


def test_structs_lists_and_fractions_are_keys(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "rebuild_share", 1e9)
    keys: list[tuple[Any, ...]] = [
        (("x, y", "z"), ["a"], 1.5),
        (("x", "y, z"), ["a"], 1.5),
        (("x", "y"), ["a, b"], 0.0),
        (("x", "y"), ["a", "b"], 0.0),
        (("x", "${x}"), [], 0.0),
        (("x", "${x}"), [""], -2.5),
    ]
    lakehouse.declare(by_nested)
    # Of keys that look alike, the one comes when the other is there.
    for arriving in keys[::2], keys[1::2]:
        for number, (key, values, fraction) in enumerate(arriving):
            made = {"key": {"a": key[0], "b": key[1]}, "list": values, "number": fraction, "n": number}
            lakehouse.publish("nested", made, made | {"number": -0.0} if fraction == 0 else made)
        lakehouse.run()
    assert len(lakehouse.rows("silver.nested")) == len(lakehouse.rows("gold.by_nested")) == len(keys)
    assert lakehouse.audit()["silver.nested"].duplicate == len(keys)
    assert is_as_rebuilt(lakehouse)


numbers = ["0.0", "NaN", "Infinity", "-Infinity", "1.5"]


@pytest.fixture(scope="module")
def fractions(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, name = tmp_path_factory.mktemp("fractions") / "lake", "gold.fractions"
    known = spark.createDataFrame([(each, index) for index, each in enumerate(numbers)], "k string, n int")
    rows = known.selectExpr("CAST(k AS double) k", "n").repartition(5, "n")
    Lake(str(folder)).replace_rows(rows, name, Entry(dataset=name), 0)
    return folder


@pytest.mark.parametrize("number", ["-0.0", *numbers])
def test_a_scope_of_fractions_finds_its_rows_in_files(
    spark: "SparkSession", fractions: Path, tmp_path: Path, number: str
) -> None:
    lake, name = Lake(str(shutil.copytree(fractions, tmp_path / "lake"))), "gold.fractions"
    rows = spark.createDataFrame([(number,)], "k string").selectExpr("CAST(k AS double) k")
    scope = collect(rows)
    tables = {"log": spark.read.format("delta").load(lake.path(name)), "files": lake.read(spark, name)}
    found = [scope.filter(each, [("k", "k")]).select(F.lit(by).alias("by")) for by, each in tables.items()]
    assert rows_of(found[0].union(found[1])) == [("files",), ("log",)]
    changed = rows.selectExpr("k", "9 AS n", f"'updated' AS {operation}")
    lake.merge_rows(
        changed,
        name,
        Entry(dataset=name, rows=RowCounts(updated=1)),
        lake.fence(name, name),
        grain=["k"],
        condition=scope.condition([("k", "k")], "own."),
    )
    assert lake.row_count(name) == len(numbers)
    assert lake.open(name).to_pyarrow_table()["n"].to_pylist().count(9) == 1


def test_rows_with_hostile_keys_are_replaced(spark: "SparkSession", tmp_path: Path) -> None:
    lake, name = Lake(str(tmp_path)), "gold.hostile"
    known = spark.createDataFrame([(key, 0) for key in hostile], "k string, n int")
    lake.replace_rows(known, name, Entry(dataset=name), 0)
    for is_small in (True, False):
        said = F.lit("updated").alias(operation)
        # So few that each is named in the condition; those first of which one is so long that only Spark replaces it.
        for start in reversed(range(0, len(hostile), compared_max)):
            part = hostile[start : start + compared_max]
            changed = spark.createDataFrame([(key, 1 + is_small) for key in part], "k string, n int").select("*", said)
            scope = collect(changed.select("k"))
            lake.merge_rows(
                changed,
                name,
                Entry(dataset=name, rows=RowCounts(updated=len(part))),
                lake.fence(name, name),
                grain=["k"],
                condition=scope.condition([("k", "k")], "own."),
                small=small_rows(changed) if is_small else None,
            )
        assert lake.open(name).history(1)[0]["engineInfo"].startswith("delta-rs") is is_small
        assert rows_of(lake.read(spark, name)) == sorted([(key, 1 + is_small) for key in hostile], key=repr)


def test_the_bounds_of_a_scope_skip_files(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path / "skipped")
    numbers = spark.range(100).selectExpr(
        "concat('k', lpad(id, 3, '0')) AS k",
        "CAST(id AS decimal(9,2)) AS d",
        "timestamp_seconds(id) AS at",
        "date_add(DATE '2026-01-01', CAST(id AS int)) AS day",
        "CAST(id AS double) AS f",
        "id AS n",
    )
    for start in (0, 50):
        numbers.where(f"n >= {start} AND n < {start + 50}").coalesce(1).write.format("delta").mode("append").save(path)
    wanted = numbers.where("n BETWEEN 10 AND 12").localCheckpoint()
    table = spark.read.format("delta").load(path)
    kept = {row[0] for row in table.where("n < 50").select("_metadata.file_name").distinct().collect()}
    for file in Path(path).glob("*.parquet"):
        if file.name not in kept:
            file.unlink()
    scope = collect(wanted)
    wanted.createOrReplaceTempView("wanted")
    for name in numbers.columns:
        # A file that is not skipped is missing.
        assert spark.read.format("delta").load(path).where(scope.condition([(name, name)])).count() == 3
    for name in numbers.columns:
        condition = scope.condition([(name, name)], "own.")
        merge = f"MERGE INTO delta.`{path}` AS own USING wanted ON own.n = wanted.n AND {condition}"
        # It looks for such rows, and there are none; no bound says so.
        spark.sql(f"{merge} WHEN MATCHED AND length(own.k) < 0 THEN DELETE").collect()


def test_nothing_within_a_statement_is_replaced_by_what_it_names(spark: "SparkSession") -> None:
    (row,) = spark.sql("SELECT '${env:HOME}' AS text").collect()
    assert row["text"] == "${env:HOME}"
    (row,) = spark.newSession().sql("SELECT '${env:HOME}' AS text").collect()
    assert row["text"] == "${env:HOME}"
    require_no_substitution(spark, "sc://here")
    other = spark.newSession()
    other.conf.set("spark.sql.variable.substitute", "true")
    with pytest.raises(SluiceError, match="substitute=false"):
        require_no_substitution(other, "sc://here")


shops = [
    silver.events(name, source=bronze.topic(name), schema="id string, n int", keys=["id"]) for name in ("east", "west")
]


def aged(lakehouse: Lakehouse) -> None:
    """The tables as another version of the code made them: with digests that are whole numbers, and other kinds."""
    lake, spark = lakehouse.lake, lakehouse.spark
    for name in ("silver.east", "silver.west", fates_table):
        table, commit = lake.read(spark, name), lake.last_commit(name)
        assert commit is not None
        old = table.withColumn("_digest", F.xxhash64("_digest")).localCheckpoint()
        entry = commit.entry.model_copy(update={"fingerprint": "another"})
        writer = old.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        if name == fates_table:
            writer = writer.partitionBy("dataset")
        writer.option("userMetadata", entry.to_json()).save(lake.path(name))


@pytest.fixture(scope="module")
def older(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse of an older version."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("older")).declare(*shops)
    for name in ("east", "west"):
        lakehouse.publish(name, {"id": "a", "n": 1}, {"id": "a", "n": 1}, {"id": "b", "n": 1}, b"broken")
    lakehouse.run()
    aged(lakehouse)
    return lakehouse


@pytest.fixture
def old(older: Lakehouse, tmp_path: Path) -> Lakehouse:
    return older.copied_to(tmp_path)


def kinds(lakehouse: Lakehouse) -> set[str]:
    return {dict(lakehouse.table(name).dtypes)["_digest"] for name in ("silver.east", "silver.west", fates_table)}


def test_tables_of_an_older_version_are_rebuilt(old: Lakehouse) -> None:
    before: list[Row] = old.fates()
    old.publish("east", {"id": "b", "n": 2})
    done = old.run()
    assert {done[name].cause for name in ("silver.east", "silver.west")} == {"declaration changed"}
    assert kinds(old) == {"binary"}
    assert len(old.fates()) == len(before) + 1
    assert (None, "duplicate") not in old.rows(fates_table, "_digest", "fate")
    old.publish("west", {"id": "a", "n": 1}, hours=1)
    old.run()
    assert old.run() == {}
    assert is_as_rebuilt(old)


def test_a_part_of_a_table_of_an_older_version_is_not_computed_by_itself(old: Lakehouse) -> None:
    before = {name: old.rows(name) for name in ("silver.east", fates_table)}
    east = next(dataset for dataset in old.catalogue.datasets if dataset.name == "silver.east")
    part = BackfillRange.of(None, None, ["east/0/0"])
    assert part is not None
    with pytest.raises(SluiceError, match="Compute all of it first"):
        old.runner().recompute_range([east], part)
    assert {name: old.rows(name) for name in before} == before


def test_one_dataset_rebuilt_leaves_the_fates_of_the_others(old: Lakehouse) -> None:
    old.declare(shops[0]).run()
    assert kinds(old) == {"binary", "bigint"}
    assert old.rows(fates_table, "dataset").count(("silver.west",)) == 2


sold = silver.events(
    "sold",
    source=bronze.topic("sold"),
    schema="id string, n int, price decimal(10,2), at timestamp",
    keys=["id"],
    event_time="at",
    future_tolerance="1000 days",
)
ordered = silver.events(
    "ordered",
    source=bronze.topic("ordered"),
    schema="oid string, g string, day string, large bigint, paid decimal(12,4), share double, at timestamp",
    keys=["oid"],
    event_time="at",
    future_tolerance="1000 days",
)


def both(sold: "DataFrame", ordered: "DataFrame") -> "DataFrame":
    return sold.join(ordered, "key").select("key", "id", "oid")


def joined_by(name: str, key_of_sold: str, key_of_ordered: str) -> list[Dataset]:
    """The pairs of one computed key, by a SELECT and by a function."""
    select = f"""SELECT {key_of_sold} AS key, s.id, o.oid
        FROM silver.sold s JOIN silver.ordered o ON {key_of_sold} = {key_of_ordered}"""
    on = {"sold": {"key": key_of_sold.replace("s.", "")}, "ordered": {"key": key_of_ordered.replace("o.", "")}}
    return [
        silver.join(f"{name}_by_select", inputs={"s": sold, "o": ordered}, shape=select),
        silver.join(
            f"{name}_by_function",
            inputs={"sold": sold, "ordered": ordered},
            keys=["key"],
            grain=["key", "id", "oid"],
            on=on,
            shape=both,
        ),
    ]


# Keys of the sold and of the ordered, and the kinds that they are of.
ambiguous = {
    "number_and_text": ("s.n % 10", "o.g", ("int", "string")),
    "date_and_text": ("to_date(s.at)", "o.day", ("date", "string")),
    "decimal_and_fraction": ("s.price * 1", "o.share", (r"decimal\(\d+,2\)", "double")),
    "too_long": ("CAST(s.price AS decimal(38,0))", "o.paid", (r"decimal\(38,0\)", r"decimal\(12,4\)")),
}
exact = {
    "whole": ("s.n % 10", "o.large"),
    "decimal": ("s.price + 0", "o.paid"),
    "text": ("CAST(s.n % 10 AS string)", "o.g"),
    "whole_and_decimal": ("s.n * 1", "o.paid"),
}


def test_values_that_may_be_equal_and_two_are_no_key(lakehouse: Lakehouse) -> None:
    # '01' and '1' are equal to 1, but a changed '01' does not say that rows of '1' are touched.
    joined = {name: joined_by(name, *keys[:2]) for name, keys in ambiguous.items()}
    lakehouse.declare(sold, ordered, *[each for both_ways in joined.values() for each in both_ways])
    lakehouse.publish("sold", {"id": "a", "n": 1, "price": "1.00", "at": text(0)})
    lakehouse.publish("ordered", {"oid": "x", "g": "1", "paid": "1.0000", "share": 1.0, "at": text(0)})
    runner = lakehouse.runner()
    runner.until_caught_up()
    for name, (_, _, kinds) in ambiguous.items():
        for dataset in joined[name]:
            error = runner.blocks.errors.get(dataset.name)
            assert isinstance(error, DeclarationError), (dataset.name, error)
            said = f"has the type {kinds[0]} in .* and {kinds[1]} in .*: CAST both"
            assert re.search(said, str(error)), (dataset.name, error)


def test_numbers_of_exact_types_are_one_key(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "rebuild_share", 1e9)
    joined = [each for name, keys in exact.items() for each in joined_by(name, *keys)]
    lakehouse.declare(sold, ordered, *joined)
    for number, name in enumerate("ab"):
        lakehouse.publish("sold", {"id": name, "n": 1, "price": "1.00", "at": text(0)}, hours=number)
        order = {"g": "1", "large": 1, "paid": "1.0000", "share": 1.0, "at": text(0)}
        lakehouse.publish("ordered", order | {"oid": f"x{name}"}, hours=number)
        lakehouse.run()
    pairs = [(sale, f"x{order}") for sale in "ab" for order in "ab"]
    assert {each.name: lakehouse.rows(each.name, "id", "oid") for each in joined} == {
        each.name: pairs for each in joined
    }
    assert lakehouse.changed_by_rebuild() == {}


def test_an_interval_has_keys_of_one_type(lakehouse: Lakehouse) -> None:
    unknown = silver.join(
        "unknown",
        inputs={"sold": sold},
        keys=["id"],
        shape=lambda sold: sold.withColumnRenamed("n", "g"),
        event_time="at",
    )
    near = silver.interval_join(
        "near", left={"sale": unknown}, right={"order": ordered}, keys=["g"], between=("0 hours", "1 hour")
    )
    lakehouse.declare(sold, ordered, unknown, near)
    lakehouse.publish("sold", {"id": "a", "n": 1, "at": text(0)})
    lakehouse.publish("ordered", {"oid": "x", "g": "1", "at": text(0)})
    with pytest.raises(DeclarationError, match="the key g has the type int in sale and string in order"):
        lakehouse.run()


reports = silver.events("reports", source=bronze.topic("reports"), schema="id string, k string, at string", keys=["id"])
# Of what a SELECT or a function computes no type is known before it has rows.
by_function = silver.join(
    "by_function", inputs={"r": reports}, keys=["id"], shape=lambda r: r.select("id", "k", F.struct("at").alias("st"))
)
on_time = silver.join(
    "on_time",
    inputs={"r": reports},
    shape="SELECT id, k, coalesce(k, k) AS same_k, CAST(at AS timestamp) AS at FROM r",
    event_time="at",
)
by_text = silver.join(
    "by_text", inputs={"r": reports}, shape="SELECT id, k, coalesce(at, at) AS at FROM r", event_time="at"
)
by_day = silver.join("by_day", inputs={"r": reports}, shape="SELECT id, k, CAST(at AS date) AS at FROM r")
numbered, named = (
    silver.history(
        name,
        source=bronze.topic(name),
        schema=f"k {kind}, at timestamp, v string",
        keys=["k"],
        sequence_by="at",
        future_tolerance="1000 days",
    )
    for name, kind in {"numbered": "int", "named": "string"}.items()
)


def counted_by(name: str, source: Dataset, group: Any) -> Dataset:
    return gold.aggregate(name, source=source, group_by=["k", group], measures={"n": "count(*)"})


def test_a_time_is_a_timestamp_and_equal_keys_of_two_types_are_no_key(lakehouse: Lakehouse) -> None:
    """The order of text is another one than that of the times, so windows and versions would be the wrong ones."""
    text_of_time = r"is at, and in silver\.by_text that is a string; CAST it there to timestamp"
    by_versions = silver.history("by_versions", source=by_text, keys=["k"], sequence_by="at", column_list=["id"])
    blocked = {
        silver.as_of("by_text_version", facts=on_time, event_time="at", dimensions={"d": by_versions}): (
            r"the time of the dimension d is valid_from, and in silver\.by_versions that is a string"
        ),
        silver.as_of("by_text_time", facts=by_text, event_time="at", dimensions={"d": named}): text_of_time,
        silver.as_of(
            "by_two_types",
            facts=on_time,
            event_time="at",
            dimensions={"d": silver.dimension(numbered, on={"k": "same_k"})},
        ): ("the key k has the type string in facts and int in d; .*CAST both"),
        counted_by("sessions", by_text, session_window("at", gap="1 hour")): text_of_time,
        counted_by("sliding", by_text, sliding_window("at", "1 hour")): text_of_time,
        counted_by("within", by_function, session_window("st.at", gap="1 hour")): "is st.at, which is no column of",
        counted_by("days", by_text, calendar_window("at", "day", time_zone="UTC")): text_of_time,
        counted_by(
            "by_days", by_day, sliding_window("at", "1 hour")
        ): r"in silver\.by_day that is a date; CAST it there",
        silver.interval_join(
            "pairs", left={"a": by_text}, right={"b": on_time}, keys=["k"], between=("0 seconds", "1 hour")
        ): text_of_time,
        silver.pattern(
            "falls",
            source=by_text,
            keys=["k"],
            order_by="at",
            pattern="A B+",
            define={"B": "id < PREV(id)"},
            within="1 hour",
            measures={"n": "count(*)"},
        ): text_of_time,
    }
    right = [
        silver.as_of("right", facts=on_time, event_time="at", dimensions={"d": named}),
        counted_by("right", on_time, session_window("at", gap="1 hour")),
    ]
    lakehouse.declare(*blocked, *right)
    lakehouse.publish("named", {"k": "1", "at": text(1), "v": "one"})
    lakehouse.publish("numbered", {"k": 1, "at": text(1), "v": "one"})
    lakehouse.publish("reports", *[{"id": each, "k": each, "at": text(2)} for each in ("1", "01")])
    found = {event.name: event.blocked for event in lakehouse.runner().until_caught_up()}
    for dataset, reason in blocked.items():
        assert re.search(reason, found[dataset.name] or ""), (dataset.name, found[dataset.name])
    assert [found[each.name] for each in right] == [None, None]
    assert lakehouse.rows("gold.right", "k", "n") == [("01", 1), ("1", 1)]
