"""The catalogue in words: columns, types, units, meanings, tests and owners; and that words rebuild no table."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sluice import bronze, gold, silver, windows
from sluice.console.facts import Table
from sluice.engine.catalogue import Catalogue, expecting, ordered
from sluice.errors import DeclarationError
from sluice.model.datasets import Dataset
from sluice.model.expectations import built_in, expect, suite
from sluice.operate.describe import Column, Described, describe, described
from sluice.storage.delta import Lake

topic = bronze.topic("ships", owner="fleet", comments={"value": "A position report as JSON."})
hostile = "<script>alert('x')</script>\n[not a unit] `|** \u202e"


def positions(**words: Any) -> Dataset:
    return silver.events(
        "positions",
        source=topic,
        schema="ship_id string, at timestamp, speed double, depth_metres int",
        keys=["ship_id", "at"],
        event_time="at",
        **words,
    )


said = {"speed": "Speed over ground [knots]", "ship_id": "The IMO number."}
declared = positions(owner="bridge", comments=said, meaning="Where each ship was.")


def words_of(catalogue: Catalogue) -> dict[str, Described]:
    return {each.name: each for each in describe(catalogue)}


def column(name: str, *datasets: Dataset) -> Column:
    layer, table, own = name.split(".", 2)
    found = words_of(ordered(datasets))[f"{layer}.{table}"].column(own)
    assert found is not None
    return found


def test_a_table_is_described_by_its_declaration() -> None:
    found = words_of(ordered([declared]))["silver.positions"]
    assert (found.kind, found.owner, found.meaning) == ("events", "bridge", "Where each ship was.")
    assert [(each.name, each.type, each.unit, each.meaning) for each in found.columns] == [
        ("ship_id", "string", "", "The IMO number."),
        ("at", "timestamp", "", ""),
        ("speed", "double", "knots", "Speed over ground"),
        ("depth_metres", "int", "m", ""),
    ]


def test_a_topic_is_described_by_what_every_bronze_table_has() -> None:
    found = words_of(ordered([declared]))["bronze.ships"]
    assert (found.kind, found.topic, found.owner) == ("topic", "ships", "fleet")
    assert {each.name: each.meaning for each in found.columns}["value"] == "A position report as JSON."
    assert all(each.meaning and each.type for each in found.columns)


def test_a_column_that_is_another_one_has_its_type_unit_and_meaning() -> None:
    histories = silver.history("moves", source=declared, keys=["ship_id"], sequence_by="at", column_list=["speed"])
    first = gold.top("first", source=histories, group_by=["ship_id"], order_by="speed DESC", rows=1)
    found = column("gold.first.speed", first)
    assert (found.type, found.unit, found.meaning) == ("double", "knots", "Speed over ground")
    own = gold.aggregate(
        "own", source=declared, group_by=["ship_id"], measures={"speed": "max(speed)"}, comments={"ship_id": "A ship."}
    )
    # A maximum is another column, and what is said here counts more than what is said above.
    assert column("gold.own.speed", own).meaning == ""
    assert column("gold.own.ship_id", own).meaning == "A ship."


def test_the_columns_that_sluice_adds_are_listed_with_what_they_mean() -> None:
    hours = gold.aggregate(
        "hours", source=declared, group_by=[windows.window("at", "1 hour")], measures={"most": "max(speed)"}
    )
    state, revision, revised_at = words_of(ordered([hours]))["gold.hours"].columns[-3:]
    assert [(each.name, each.type) for each in (state, revision, revised_at)] == [
        ("_state", "string"),
        ("_revision", "int"),
        ("_revised_at", "timestamp"),
    ]
    assert "complete" in state.meaning
    assert "once that refresh is committed" in revised_at.meaning
    assert all(each.is_engine and each.made.by and not each.made.sources for each in (state, revision, revised_at))
    without = gold.aggregate("ships", source=declared, group_by=["ship_id"], measures={"most": "max(speed)"})
    assert not any(each.is_engine for each in words_of(ordered([without]))["gold.ships"].columns)


def test_a_table_says_which_columns_sluice_added(tmp_path: Path) -> None:
    row: dict[str, Any] = {"ship_id": ["a"], "_topic": ["ships"], "_lateness_seconds": [1.0], "_other": [1]}
    write_deltalake(tmp_path / "silver" / "positions", pa.table(row))
    catalogue = ordered([declared])
    types = Lake(str(tmp_path)).types("silver.positions")
    found = described(catalogue.by_name["silver.positions"], catalogue, types, {}, ())
    assert [(each.name, each.type) for each in found.columns] == [
        *((each, kind) for each, kind in (declared.columns or {}).items()),
        ("_topic", "string"),
        ("_lateness_seconds", "double"),
    ]


def test_a_unit_is_the_declared_one_before_that_of_the_name() -> None:
    own = gold.aggregate(
        "own",
        source=declared,
        group_by=["ship_id"],
        measures={"wait_minutes": "max(speed)"},
        comments={"wait_minutes": "How long it waited [hours]"},
    )
    table = Table("gold.own", described=words_of(ordered([own]))["gold.own"])
    assert column("gold.own.wait_minutes", own).unit == table.unit_of("wait_minutes") == "hours"
    assert table.label_of("wait_minutes") == "Wait (hours)"
    # What nothing describes has only its name.
    assert Table("gold.other").label_of("wait_minutes") == "Wait (min)"


def test_a_struct_has_a_line_for_each_field() -> None:
    moves = silver.history("moves", source=declared, keys=["ship_id"], sequence_by="at", column_list=["speed"])
    joined = silver.as_of("joined", facts=declared, event_time="at", dimensions={"move": moves})
    names = [each.name for each in words_of(ordered([joined]))["silver.joined"].columns]
    assert names == ["ship_id", "at", "speed", "depth_metres", "move", "move.speed", "move.valid_from"]
    assert column("silver.joined.move.speed", joined).unit == "knots"
    assert column("silver.joined.move.speed", joined).is_field


def test_tests_are_those_of_the_suite_and_those_that_every_table_has() -> None:
    suites = {
        "silver.positions": suite(
            "silver.positions",
            expect("column_values_to_be_between", column="speed", min_value=0, severity="quarantine"),
            expect("compound_columns_to_be_unique", column_list=["ship_id", "at"], severity="critical", name="keys"),
            built_in("freshness", severity="critical", within="2 hours"),
        )
    }
    found = words_of(expecting(ordered([declared]), suites))["silver.positions"]
    tests = {each.name: each for each in found.tests}
    assert tests["speed_be_between"].meaning == "speed: values to be between, min_value 0"
    assert tests["keys"].columns == ("ship_id", "at")
    assert (tests["freshness"].severity, tests["freshness"].is_built_in) == ("critical", True)
    assert tests["conservation"].severity == "critical"
    # The rules of a suite make the dataset again, and it is still documented.
    assert found.owner == "bridge"
    assert found.columns[0].meaning == "The IMO number."


@pytest.mark.parametrize(
    "make",
    [
        positions,
        lambda **words: silver.history(
            "h", source=topic, schema="ship_id string, at timestamp, n int", keys=["ship_id"], sequence_by="at", **words
        ),
        lambda **words: silver.history("h", source=declared, keys=["ship_id"], sequence_by="at", **words),
        lambda **words: silver.history_from_snapshots(
            "h", source=topic, schema="ship_id string, at timestamp, n int", keys=["ship_id"], taken_at="at", **words
        ),
        lambda **words: silver.events("e", source=declared, keys=["ship_id"], **words),
        lambda **words: silver.join("j", inputs={"rows": declared}, keys=["ship_id"], shape=lambda rows: rows, **words),
        lambda **words: gold.view("v", inputs={"rows": declared}, keys=["ship_id"], shape=lambda rows: rows, **words),
        lambda **words: silver.as_of("a", facts=declared, event_time="at", dimensions={}, **words),
        lambda **words: silver.interval_join(
            "i",
            left={"one": declared},
            right={"other": declared},
            keys=["ship_id"],
            between=("0 seconds", "1 hour"),
            **words,
        ),
        lambda **words: gold.aggregate("g", source=declared, group_by=["ship_id"], measures={"n": "count(*)"}, **words),
        lambda **words: gold.top("t", source=declared, group_by=["ship_id"], order_by="speed", rows=1, **words),
        lambda **words: gold.state(
            "s",
            source=declared,
            keys=["ship_id"],
            sequence_by="at",
            schema="n int",
            initial={"n": "0"},
            reduce={"n": "1"},
            **words,
        ),
    ],
)
def test_words_change_no_fingerprint_and_are_kept(make: Any) -> None:
    plain = make()
    documented = make(owner="bridge", comments={"ship_id": hostile})
    assert documented.fingerprint == plain.fingerprint
    assert (documented.owner, documented.comments) == ("bridge", {"ship_id": hostile})
    # The changes of a history are documented with it.
    inner = next(
        (each for each in ordered([documented]).datasets if each.name == f"{documented.name}_changes"), documented
    )
    assert inner.owner == "bridge"
    assert inner.comments == {"ship_id": hostile}


def test_a_comment_on_a_history_may_be_on_a_column_of_its_changes() -> None:
    words = {"at": "When it was measured.", "valid_from": "Since when.", "n": "A number."}
    moves = silver.history(
        "moves", source=topic, schema="id string, at timestamp, n int", keys=["id"], sequence_by="at", comments=words
    )
    assert column("silver.moves_changes.at", moves).meaning == "When it was measured."
    assert column("silver.moves.valid_from", moves).meaning == "Since when."
    assert column("silver.moves.n", moves).meaning == "A number."
    with pytest.raises(DeclarationError, match="comments names x, which it lacks"):
        silver.history(
            "m", source=topic, schema="id string, at timestamp", keys=["id"], sequence_by="at", comments={"x": ""}
        )


def a_topic(**words: Any) -> Dataset:
    reached = bronze.topic("reached", **words)

    def shape(rows: Any) -> Any:
        return rows.where(f"topic = '{reached.topic}'")

    return silver.join("j", inputs={"rows": declared}, keys=["ship_id"], shape=shape)


def test_words_about_a_topic_that_code_reaches_change_no_fingerprint() -> None:
    assert a_topic(owner="x", comments={"key": "y"}).fingerprint == a_topic().fingerprint


def test_a_comment_on_no_column_is_an_error() -> None:
    with pytest.raises(
        DeclarationError, match=r"silver\.positions: comments names sped, which it lacks; it has ship_id"
    ):
        positions(comments={"sped": "x"})
    with pytest.raises(DeclarationError, match=r"bronze\.ships: comments names body"):
        bronze.topic("ships", comments={"body": "x"})
    with pytest.raises(DeclarationError, match="the comment on speed is 7; write what the column means"):
        positions(comments={"speed": 7})


@pytest.mark.parametrize(
    ("comment", "meaning", "unit"),
    [
        (hostile, hostile, ""),
        ("", "", ""),
        ("[]", "", ""),
        ("[km]", "", "km"),
        ("a [b] c", "a [b] c", ""),
        ("a\nb [m/s] ", "a\nb", "m/s"),
        ("a [b] [c]", "a [b]", "c"),
        ("a ]b[", "a ]b[", ""),
    ],
)
def test_any_text_can_be_a_comment(comment: str, meaning: str, unit: str) -> None:
    found = column("silver.positions.ship_id", positions(comments={"ship_id": comment}))
    assert (found.meaning, found.unit) == (meaning, unit)
