"""History: changes in any order become versions laid end to end."""

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sluice.shapes.history import History, history, latest, unavailable, whole_snapshots, with_missing_deleted
from tests.kit import Row, frame, rows_of
from tests.oracles import histories as oracle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

schema = (
    "key string, at hours, colour string, _change string, "
    "_timestamp hours, _topic string, _partition int, _offset bigint"
)
plain = History(keys=("key",), sequence_by=("at",), valid_from="at", attributes=("colour",), tracked=("colour",))


def versions(spark: "SparkSession", *changes: tuple[str, float, str | None]) -> list[Row]:
    """The history of changes that arrive in the order given."""
    arrived = [(*change, "set", float(index), "t", 0, index) for index, change in enumerate(changes)]
    laid = history(frame(spark, schema, arrived), plain)
    return rows_of(laid, "key", "colour", "valid_from", "valid_to", "is_current")


def test_each_change_holds_until_the_next(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("a", 3.0, "blue")) == [
        ("a", "blue", 3.0, None, True),
        ("a", "red", 1.0, 3.0, False),
    ]


def test_a_late_change_slots_between_two_known_versions(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("a", 3.0, "blue"), ("a", 2.0, "green")) == [
        ("a", "blue", 3.0, None, True),
        ("a", "green", 2.0, 3.0, False),
        ("a", "red", 1.0, 2.0, False),
    ]


def test_equal_neighbours_are_one_version(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("a", 2.0, "red")) == [("a", "red", 1.0, None, True)]


def test_a_late_change_between_equal_neighbours_splits_them_again(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("a", 3.0, "red"), ("a", 2.0, "blue")) == [
        ("a", "blue", 2.0, 3.0, False),
        ("a", "red", 1.0, 2.0, False),
        ("a", "red", 3.0, None, True),
    ]


def test_of_two_changes_at_one_instant_the_later_in_the_log_counts(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("a", 1.0, "blue")) == [("a", "blue", 1.0, None, True)]


def test_a_change_to_null_and_back_is_three_versions(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("a", 2.0, None), ("a", 3.0, "red")) == [
        ("a", "red", 1.0, 2.0, False),
        ("a", "red", 3.0, None, True),
        ("a", None, 2.0, 3.0, False),
    ]


def test_a_history_may_begin_with_null(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, None)) == [("a", None, 1.0, None, True)]


def test_keys_do_not_touch_each_other(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("b", 2.0, "red")) == [
        ("a", "red", 1.0, None, True),
        ("b", "red", 2.0, None, True),
    ]


def changed(spark: "SparkSession", rule: History, *changes: Row) -> list[Row]:
    """The history of (change, key, at, colour, size) that arrive in the order given."""
    arrived = [(*change, float(index), "t", 0, index) for index, change in enumerate(changes)]
    wide = (
        "_change string, key string, at hours, colour string, size int, "
        "_timestamp hours, _topic string, _partition int, _offset bigint"
    )
    return rows_of(history(frame(spark, wide, arrived), rule), "key", "colour", "size", "valid_from", "valid_to")


both = replace(plain, attributes=("colour", "size"), tracked=("colour", "size"))


def test_a_delete_ends_a_version_and_a_later_set_begins_another(spark: "SparkSession") -> None:
    assert changed(
        spark, both, ("set", "a", 1.0, "red", 1), ("delete", "a", 2.0, None, None), ("set", "a", 3.0, "red", 1)
    ) == [("a", "red", 1, 1.0, 2.0), ("a", "red", 1, 3.0, None)]


def test_a_delete_that_arrives_before_what_it_deletes_still_deletes_it(spark: "SparkSession") -> None:
    assert changed(spark, both, ("delete", "a", 2.0, None, None), ("set", "a", 1.0, "red", 1)) == [
        ("a", "red", 1, 1.0, 2.0)
    ]


def test_a_truncate_ends_every_open_version_and_those_that_arrive_later(spark: "SparkSession") -> None:
    rule = replace(both, has_truncates=True)
    assert changed(
        spark,
        rule,
        ("set", "a", 1.0, "red", 1),
        ("truncate", None, 3.0, None, None),
        ("set", "b", 2.0, "blue", 1),
        ("set", "a", 4.0, "red", 1),
    ) == [("a", "red", 1, 1.0, 3.0), ("a", "red", 1, 4.0, None), ("b", "blue", 1, 2.0, 3.0)]


def test_null_leaves_a_column_as_it_was_where_that_is_declared(spark: "SparkSession") -> None:
    rule = replace(both, fill_nulls=("colour",))
    assert changed(spark, rule, ("set", "a", 1.0, "red", 1), ("set", "a", 2.0, None, None)) == [
        ("a", "red", 1, 1.0, 2.0),
        ("a", "red", None, 2.0, None),
    ]


def test_null_is_not_filled_from_before_a_delete(spark: "SparkSession") -> None:
    rule = replace(both, fill_nulls=("colour", "size"))
    assert changed(
        spark, rule, ("set", "a", 1.0, "red", 1), ("delete", "a", 2.0, "red", 1), ("set", "a", 3.0, None, 2)
    ) == [("a", "red", 1, 1.0, 2.0), ("a", None, 2, 3.0, None)]


def test_null_within_a_struct_leaves_its_field_as_it_was(spark: "SparkSession") -> None:
    wide = "_change string, key string, at hours, city string, street string, _timestamp hours"
    rows = [("set", "a", 1.0, "Oslo", "Elm", 0.0), ("set", "a", 2.0, None, "Oak", 1.0)]
    arrived = frame(spark, wide, rows).selectExpr(
        "*", "struct(city, street) AS home", "'t' AS _topic", "0 AS _partition", "0L AS _offset"
    )
    rule = replace(plain, attributes=("home",), tracked=("home",), fill_nulls=("home",))
    assert rows_of(history(arrived, rule), "home", "valid_from") == [(("Oslo", "Elm"), 1.0), (("Oslo", "Oak"), 2.0)]


left_alone = replace(both, unavailable=("colour",))


def test_a_value_that_was_not_sent_is_as_before_whenever_that_arrives(spark: "SparkSession") -> None:
    assert changed(
        spark,
        left_alone,
        ("set", "a", 4.0, unavailable, 3),
        ("set", "a", 1.0, "red", 1),
        ("set", "a", 3.0, None, 2),
        ("set", "a", 2.0, unavailable, 1),
    ) == [("a", "red", 1, 1.0, 3.0), ("a", None, 2, 3.0, 4.0), ("a", None, 3, 4.0, None)]


def test_a_value_that_was_never_sent_says_so_and_none_outlives_a_delete(spark: "SparkSession") -> None:
    assert changed(
        spark,
        left_alone,
        ("set", "a", 1.0, "red", 1),
        ("delete", "a", 2.0, "red", 1),
        ("set", "a", 3.0, unavailable, 1),
    ) == [("a", unavailable, 1, 3.0, None), ("a", "red", 1, 1.0, 2.0)]


def test_large_values_of_other_types_are_as_before_too(spark: "SparkSession") -> None:
    wide = "_change string, key string, at hours, text string, _timestamp hours"
    arrived = frame(spark, wide, [("set", "a", 1.0, "red", 0.0), ("set", "a", 2.0, unavailable, 1.0)]).selectExpr(
        "* EXCEPT (text)",
        "CAST(text AS binary) AS bytes",
        "array(text) AS texts",
        "at AS seen",
        "'t' AS _topic",
        "0 AS _partition",
        "0L AS _offset",
    )
    of_types = ("bytes", "texts")
    rule = replace(plain, attributes=(*of_types, "seen"), tracked=(*of_types, "seen"), unavailable=of_types)
    found = history(arrived, rule).orderBy("valid_from").selectExpr("CAST(bytes AS string)", "texts[0]")
    assert [tuple(row) for row in found.collect()] == [("red", "red")] * 2


def test_only_the_columns_that_a_change_names_are_set(spark: "SparkSession") -> None:
    wide = "_change string, key string, at hours, colour string, size int, names string, _timestamp hours"
    rows = [
        ("set", "a", 1.0, "red", 1, None, 0.0),
        ("set", "a", 2.0, None, 2, "colour", 1.0),
        ("set", "a", 3.0, "blue", 3, "size", 2.0),
        # The empty name stands for a null in the list.
        ("set", "a", 4.0, "green", 4, "size,", 3.0),
    ]
    arrived = frame(spark, wide, rows).selectExpr(
        "*",
        "transform(split(names, ','), name -> nullif(name, '')) AS named",
        "'t' AS _topic",
        "0 AS _partition",
        "0L AS _offset",
    )
    assert rows_of(history(arrived, replace(both, updated="named")), "colour", "size", "valid_from") == [
        ("red", 1, 1.0),
        (None, 1, 2.0),
        (None, 3, 3.0),
        (None, 4, 4.0),
    ]


def test_an_untracked_column_is_updated_in_place(spark: "SparkSession") -> None:
    rule = replace(both, tracked=("colour",))
    assert changed(
        spark,
        rule,
        ("set", "a", 1.0, "red", 1),
        ("set", "a", 2.0, "red", 2),
        ("set", "a", 3.0, "blue", 3),
        ("set", "a", 4.0, "blue", 4),
    ) == [("a", "blue", 4, 3.0, None), ("a", "red", 2, 1.0, 3.0)]


def test_a_second_sequence_column_breaks_ties_before_the_log_does(spark: "SparkSession") -> None:
    rule = replace(plain, attributes=("colour",), tracked=("colour",), sequence_by=("at", "size"))
    assert changed_colours(spark, rule, ("set", "a", 1.0, "red", 2), ("set", "a", 1.0, "blue", 1)) == [("red", 1.0)]


def test_a_version_never_begins_before_the_one_that_precedes_it(spark: "SparkSession") -> None:
    rule = replace(plain, sequence_by=("size",))
    assert changed_colours(
        spark, rule, ("set", "a", 5.0, "red", 1), ("set", "a", 3.0, "blue", 2), ("set", "a", 6.0, "pink", 3)
    ) == [("blue", 5.0), ("pink", 6.0)]


def changed_colours(spark: "SparkSession", rule: History, *changes: Row) -> list[Row]:
    wide = "_change string, key string, at hours, colour string, size int, _timestamp hours"
    arrived = [(*change, float(index)) for index, change in enumerate(changes)]
    positioned = frame(spark, wide, arrived).selectExpr("*", "'t' AS _topic", "0 AS _partition", "0L AS _offset")
    return rows_of(history(positioned, rule), "colour", "valid_from")


def snapshots(spark: "SparkSession", *rows: Row, row_count: str | None = None) -> list[Row]:
    """The history of snapshot rows (change, key, at, colour, size), where size is the snapshot's number of rows."""
    wide = "_change string, key string, at hours, colour string, size int, _timestamp hours"
    arrived = frame(spark, wide, [(*row, float(index)) for index, row in enumerate(rows)]).selectExpr(
        "*", "'t' AS _topic", "0 AS _partition", "0L AS _offset"
    )
    whole = whole_snapshots(arrived, ("key",), "at", row_count)
    laid = history(with_missing_deleted(arrived, whole, plain), plain)
    return rows_of(laid, "key", "colour", "valid_from", "valid_to")


def test_a_key_that_a_snapshot_lacks_is_deleted_by_it(spark: "SparkSession") -> None:
    assert snapshots(
        spark,
        ("set", "a", 1.0, "red", 2),
        ("set", "b", 1.0, "blue", 2),
        ("set", "b", 2.0, "blue", 1),
        ("set", "a", 3.0, "red", 2),
        ("set", "b", 3.0, "blue", 2),
    ) == [("a", "red", 1.0, 2.0), ("a", "red", 3.0, None), ("b", "blue", 1.0, None)]


def test_a_snapshot_counts_when_it_is_whole_and_an_empty_one_deletes_all(spark: "SparkSession") -> None:
    rows = [("set", "a", 1.0, "red", 2), ("set", "b", 1.0, "blue", 2), ("set", "b", 2.0, "blue", 2)]
    assert snapshots(spark, *rows, row_count="size") == [("a", "red", 1.0, None), ("b", "blue", 1.0, None)]
    empty = ("none", None, 4.0, None, 0)
    assert snapshots(spark, *rows, empty, row_count="size") == [("a", "red", 1.0, 4.0), ("b", "blue", 1.0, 4.0)]


@settings(
    max_examples=1,
    deadline=None,
    phases=[Phase.generate],
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("scd_type", [1, 2])
@pytest.mark.parametrize("tracked", [("colour",), ("colour", "size")])
@pytest.mark.parametrize("fill_nulls", [(), ("colour",), ("colour", "size")])
def test_300_random_change_logs_give_what_a_walk_along_them_gives(
    spark: "SparkSession", scd_type: int, tracked: tuple[str, ...], fill_nulls: tuple[str, ...], seed: int
) -> None:
    chance = random.Random(seed)
    changes = []
    for case in range(300):
        for _ in range(chance.randint(0, 7)):
            values = {"colour": chance.choice(["red", "blue", None]), "size": chance.choice([1, None])}
            kind = chance.choice(["set", "set", "set", "delete"])
            changes.append(oracle.Change(kind, str(case), chance.randint(0, 5) / 1.0, values))
    changes += [oracle.Change("truncate", None, 2.0, {"colour": None, "size": None})]
    chance.shuffle(changes)
    rows = [
        (each.kind, each.key, each.at, each.values["colour"], each.values["size"], float(index))
        for index, each in enumerate(changes)
    ]
    wide = "_change string, key string, at hours, colour string, size int, _timestamp hours"
    arrived = frame(spark, wide, rows).selectExpr("*", "'t' AS _topic", "0 AS _partition", "0L AS _offset")
    rule = replace(both, tracked=tracked, fill_nulls=fill_nulls, has_truncates=True)
    options = oracle.Options(("colour", "size"), tracked, fill_nulls)
    # Identical changes were made one before this shape; here they are told apart by their place.
    told_apart = [replace(each, sequence=(each.at, index)) for index, each in enumerate(changes)]
    if scd_type == 1:
        found = rows_of(latest(arrived, rule), "key", "colour", "size", "at")
        assert set(found) == oracle.current(told_apart, options)
    else:
        found = rows_of(history(arrived, rule), "key", "colour", "size", "valid_from", "valid_to", "is_current")
        assert set(found) == oracle.versions(told_apart, options)
