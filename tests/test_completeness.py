"""Completeness: a window is open until the watermark passes it, and revised when it changes after that."""

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from sluice import bronze, gold, silver
from sluice.engine import touched
from sluice.model.datasets import Dataset
from sluice.operate import replay
from sluice.operate.status import status
from sluice.windows import Window, calendar_window, session_window, sliding_window, window
from tests.kit import Lakehouse, Row, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

readings = silver.events(
    "readings",
    source=bronze.topic("readings"),
    schema="id string, at timestamp, value int",
    keys=["id"],
    event_time="at",
    future_tolerance="1000 days",
)


def declare(lakehouse: Lakehouse, each: Window, measure: str = "sum(value)") -> None:
    lakehouse.declare(gold.aggregate("sums", source=readings, group_by=[each], measures={"value": measure}))


def publish(lakehouse: Lakehouse, *rows: tuple[str, float, int], hours: float) -> None:
    values = [{"id": name, "at": text(hour), "value": value} for name, hour, value in rows]
    lakehouse.publish("readings", *values, key="one partition", hours=hours)


def states(lakehouse: Lakehouse) -> list[Row]:
    return lakehouse.rows("gold.sums", "window_start", "value", "_state", "_revision")


def test_a_window_is_open_then_complete_then_revised(lakehouse: Lakehouse) -> None:
    declare(lakehouse, window("at", "1 hour"))
    publish(lakehouse, ("a", 0.5, 1), ("b", 1.5, 1), hours=9)
    lakehouse.run()
    assert states(lakehouse) == [(0.0, 1, "complete", 0), (1.0, 1, "open", 0)]

    publish(lakehouse, ("c", 3.5, 1), hours=10)
    done = lakehouse.run()
    assert states(lakehouse) == [(0.0, 1, "complete", 0), (1.0, 1, "complete", 0), (3.0, 1, "open", 0)]
    # The new window, and the one that the watermark passed.
    assert done["gold.sums"].rows.total == 2

    publish(lakehouse, ("late", 0.6, 5), ("very late", 2.5, 7), hours=11)
    lakehouse.run()
    assert states(lakehouse) == [
        (0.0, 6, "revised", 1),
        (1.0, 1, "complete", 0),
        (2.0, 7, "revised", 1),
        (3.0, 1, "open", 0),
    ]
    assert [each is not None for (each,) in lakehouse.rows("gold.sums", "_revised_at")].count(True) == 2
    assert lakehouse.run() == {}
    assert lakehouse.run(rebuild=True)["gold.sums"].rows.total == 0


def test_duplicates_that_were_judged_before_do_not_move_time(lakehouse: Lakehouse, narrow: None) -> None:
    declare(lakehouse, window("at", "1 hour"))
    publish(lakehouse, ("a", 0.5, 1), ("a", 0.5, 2), ("b", 1.5, 1), hours=9)
    lakehouse.run()
    # The third of one key: the first two are judged again, of which one has no event time of its own there.
    publish(lakehouse, ("a", 0.5, 3), hours=10)
    lakehouse.run()
    assert states(lakehouse) == [(0.0, 1, "complete", 0), (1.0, 1, "open", 0)]
    commit = lakehouse.lake.last_commit("silver.readings")
    assert commit is not None
    assert commit.entry.watermark is not None
    assert f"{commit.entry.watermark:%H:%M}" == "01:30"


def test_a_watermark_that_moves_without_a_row_for_gold_still_completes_windows(lakehouse: Lakehouse) -> None:
    declare(lakehouse, window("at", "1 hour"))
    publish(lakehouse, ("a", 0.5, 1), hours=9)
    lakehouse.run()
    assert states(lakehouse) == [(0.0, 1, "open", 0)]
    # A duplicate of a known key, at a later time, changes no row; but time has come further.
    publish(lakehouse, ("a", 2.5, 1), hours=10)
    done = lakehouse.run()
    assert done["silver.readings"].rows.total == 0
    assert done["gold.sums"].cause == "watermark"
    assert states(lakehouse) == [(0.0, 1, "complete", 0)]
    assert lakehouse.run() == {}


def test_other_windows_complete_as_well(lakehouse: Lakehouse) -> None:
    kinds = {"sessions": session_window("at", gap="1 hour"), "sliding": sliding_window("at", "1 hour")}
    lakehouse.declare(
        *[
            gold.aggregate(name, source=readings, group_by=[each], measures={"n": "sum(value)"})
            for name, each in kinds.items()
        ]
    )

    def states_of(name: str) -> list[Any]:
        return [state for _, state in lakehouse.rows(f"gold.{name}", "window_start", "_state")]

    publish(lakehouse, ("a", 0.5, 1), ("b", 5.5, 1), hours=9)
    lakehouse.run()
    publish(lakehouse, ("c", 9.5, 1), hours=10)
    lakehouse.run()
    assert [states_of(name)[:2] for name in kinds] == [["complete", "complete"]] * 2
    publish(lakehouse, ("late", 0.7, 1), hours=11)
    lakehouse.run()
    assert all("revised" in states_of(name) for name in kinds)
    rebuilt = lakehouse.run(rebuild=True)
    assert [rebuilt[f"gold.{name}"].rows.total for name in kinds] == [0, 0]


def test_a_record_that_is_not_late_revises_nothing(lakehouse: Lakehouse) -> None:
    kinds = {
        "tumbling": window("at", "1 hour"),
        "hopping": window("at", "2 hours", every="1 hour"),
        "days": calendar_window("at", "day", time_zone="Europe/Oslo"),
        "sessions": session_window("at", gap="1 hour"),
        "sliding": sliding_window("at", "1 hour"),
    }
    sums = {
        name: gold.aggregate(name, source=readings, group_by=["value", each], measures={"n": "count(*)"})
        for name, each in kinds.items()
    }
    copies = gold.aggregate(
        "copies", source=sums["sessions"], group_by=["window_start", "window_end"], measures={"n": "sum(n)"}
    )
    lakehouse.declare(*sums.values(), copies)
    tables = [*[f"gold.{name}" for name in kinds], "gold.copies"]
    # The watermark stands at each of these times, which are ends of windows, when the last record of it comes.
    for number, hour in enumerate([21.5, 22.5, 23.0]):
        for again, values in enumerate([[1], [2, 1]]):
            rows = [(f"{number} {again} {value}", hour, value) for value in values]
            publish(lakehouse, *rows, hours=60 + number + again / 2)
            lakehouse.run()
    revisions = {table: {row[0] for row in lakehouse.rows(table, "_revision")} for table in tables}
    assert revisions == {table: {0} for table in tables}
    publish(lakehouse, ("the watermark", 50.0, 3), hours=200)
    lakehouse.run()
    ended = {
        table: {state for state, end in lakehouse.rows(table, "_state", "window_end") if end < 48} for table in tables
    }
    assert ended == {table: {"complete"} for table in tables}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scope is recomputed by itself, as in a table of normal size."""
    monkeypatch.setattr(touched, "rebuild_share", 1e9)


def publish_by(lakehouse: Lakehouse, key: str, *rows: tuple[str, float, int], hours: float) -> None:
    """Rows to the partition of a key."""
    values = [{"id": name, "at": text(hour), "value": value} for name, hour, value in rows]
    lakehouse.publish("readings", *values, key=key, hours=hours)


@pytest.mark.usefixtures("narrow")
def test_a_partition_that_wakes_up_opens_no_window_again(lakehouse: Lakehouse) -> None:
    declare(lakehouse, window("at", "1 hour"))
    publish_by(lakehouse, "a", ("a0", 0.5, 1), ("a1", 1.5, 1), ("a2", 2.5, 1), ("a3", 3.5, 1), hours=4)
    publish_by(lakehouse, "b", ("b0", 0.6, 1), hours=4)
    publish_by(lakehouse, "a", ("a5", 5.5, 1), hours=9)
    lakehouse.run()
    complete = [(0.0, 2, "complete", 0), *[(hour, 1, "complete", 0) for hour in (1.0, 2.0, 3.0)]]
    assert states(lakehouse) == [*complete, (5.0, 1, "open", 0)]
    publish_by(lakehouse, "b", ("b1", 1.6, 1), hours=9.1)
    lakehouse.run()
    after = [complete[0], (1.0, 2, "revised", 1), *complete[2:], (5.0, 1, "open", 0)]
    assert states(lakehouse) == after
    assert lakehouse.run(rebuild=True)["gold.sums"].rows.total == 0
    assert states(lakehouse) == after
    known = {each.dataset: each.watermark for each in status(lakehouse.lake, lakehouse.log, lakehouse.catalogue)}
    assert known["silver.readings"] == known["gold.sums"], "one time for all that is up to date"
    assert known["silver.readings"] is not None
    assert text(5.5) == known["silver.readings"].isoformat().replace("+00:00", "Z")


@pytest.mark.usefixtures("narrow")
def test_sessions_that_change_after_they_were_complete_are_revised(lakehouse: Lakehouse) -> None:
    declare(lakehouse, session_window("at", gap="1 hour"))
    publish(lakehouse, ("a", 0.5, 1), ("b", 3.0, 1), ("c", 6.0, 1), ("z", 9.0, 1), hours=30)
    lakehouse.run()
    last = (9.0, 1, "open", 0)
    assert states(lakehouse) == [(0.5, 1, "complete", 0), (3.0, 1, "complete", 0), (6.0, 1, "complete", 0), last]
    publish(lakehouse, ("grows at its end", 1.4, 1), hours=31)
    lakehouse.run()
    assert states(lakehouse)[0] == (0.5, 2, "revised", 1)
    assert [each is not None for (each,) in lakehouse.rows("gold.sums", "_revised_at")].count(True) == 1
    publish(lakehouse, ("begins earlier", 0.0, 1), hours=32)
    lakehouse.run()
    assert states(lakehouse)[0] == (0.0, 3, "revised", 2)
    publish(lakehouse, ("merges two", 2.2, 1), hours=33)
    lakehouse.run()
    assert states(lakehouse) == [(0.0, 5, "revised", 3), (6.0, 1, "complete", 0), last]
    # An earlier record of its key takes its place: the session falls apart again.
    publish(lakehouse, ("merges two", 6.5, 1), hours=29)
    lakehouse.run()
    assert states(lakehouse) == [(0.0, 3, "revised", 4), (3.0, 1, "revised", 4), (6.0, 2, "revised", 1), last]
    assert lakehouse.run(rebuild=True)["gold.sums"].rows.total == 0


@pytest.mark.usefixtures("narrow")
def test_a_session_grows_in_the_refresh_in_which_the_watermark_passes_its_old_end(lakehouse: Lakehouse) -> None:
    declare(lakehouse, session_window("at", gap="1 hour"))
    publish(lakehouse, ("a", 0.5, 1), ("b", 4.5, 1), hours=9)
    lakehouse.run()
    publish(lakehouse, ("grows", 5.25, 1), ("the watermark", 9.0, 1), hours=10)
    lakehouse.run()
    assert states(lakehouse) == [(0.5, 1, "complete", 0), (4.5, 2, "complete", 0), (9.0, 1, "open", 0)]
    assert lakehouse.changed_by_rebuild() == {}


def test_promoted_and_rolled_back_figures_are_revisions(lakehouse: Lakehouse) -> None:
    declare(lakehouse, window("at", "1 hour"))
    publish(lakehouse, ("a", 0.5, 1), ("b", 0.6, 3), ("c", 1.5, 1), ("d", 5.5, 1), hours=9)
    lakehouse.run()
    declare(lakehouse, window("at", "1 hour"), "cast(max(value) AS bigint)")
    planned = replay.plan(lakehouse.lake, lakehouse.catalogue, [], None, "the greatest")
    list(replay.build(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, planned))
    replay.promote(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, planned.name)
    assert states(lakehouse) == [(0.0, 3, "revised", 1), (1.0, 1, "complete", 0), (5.0, 1, "open", 0)]
    publish(lakehouse, ("e", 7.5, 1), hours=10)
    lakehouse.run()
    (sums,) = [each for each in lakehouse.catalogue.datasets if each.name == "gold.sums"]
    replay.rollback(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, [sums], "no")
    assert states(lakehouse) == [(0.0, 4, "revised", 2), (1.0, 1, "complete", 0), (5.0, 1, "complete", 0)]
    declare(lakehouse, window("at", "1 hour"))
    lakehouse.run()
    assert states(lakehouse)[3:] == [(7.0, 1, "open", 0)]


def best(sums: "DataFrame") -> "DataFrame":
    """The greatest sum of each window; all of its columns come along."""
    return sums.selectExpr(
        "*", "row_number() OVER (PARTITION BY window_start ORDER BY value DESC, name) AS place"
    ).where("place = 1")


def windowed_from_windowed() -> list[Dataset]:
    by_name = gold.aggregate(
        "by_name",
        source=readings,
        group_by=["substr(id, 1, 1) AS name", window("at", "1 hour")],
        measures={"value": "sum(value)"},
    )
    view = gold.view("best", inputs={"sums": by_name}, keys=["window_start"], shape=best)
    greatest = gold.aggregate(
        "greatest",
        source=by_name,
        group_by=["window_start", "window_end"],
        measures={"value": "max(value)", "name": "max_by(name, struct(value, name))"},
    )
    return [
        view,
        greatest,
        gold.aggregate("names", source=by_name, group_by=["name"], measures={"value": "sum(value)"}),
    ]


@pytest.mark.usefixtures("narrow")
def test_what_is_made_from_windows_says_whether_these_are_complete(lakehouse: Lakehouse) -> None:
    lakehouse.declare(*windowed_from_windowed())
    publish(lakehouse, ("a1", 0.5, 1), ("b1", 0.6, 3), ("c1", 1.5, 1), hours=9)
    lakehouse.run()
    wanted: list[Any] = [(0.0, "b", 3, "complete", 0), (1.0, "c", 1, "open", 0)]
    columns = ("window_start", "name", "value", "_state", "_revision")
    for table in ("gold.best", "gold.greatest"):
        assert lakehouse.rows(table, *columns) == wanted, table
    assert "_state" not in lakehouse.table("gold.names").columns
    # Time alone moves on: a duplicate of a known key, later.
    publish(lakehouse, ("a1", 2.5, 1), hours=10)
    done = lakehouse.run()
    assert {done[name].cause for name in ("gold.best", "gold.greatest")} == {"changes"}
    assert done["gold.names"].rows.total == 0
    # Of equal ones the view shows the first by name, the aggregate the last.
    publish(lakehouse, ("a2", 0.7, 9), ("b2", 1.2, 1), hours=11)
    lakehouse.run()
    wanted = [(0.0, "a", 10, "revised", 1), (1.0, "b", 1, "revised", 1)]
    assert lakehouse.rows("gold.best", *columns) == wanted
    assert lakehouse.rows("gold.greatest", *columns) == [wanted[0], (1.0, "c", 1, "complete", 0)]
    rebuilt = lakehouse.run(rebuild=True)
    assert {
        name: event.rows.total for name, event in rebuilt.items() if name.startswith("gold") and event.rows.total
    } == {}


@pytest.mark.usefixtures("narrow")
def test_a_table_of_an_older_release_gets_its_states_as_a_whole(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakehouse.declare(*windowed_from_windowed()[1:2])
    with monkeypatch.context() as older:
        older.setattr(Dataset, "is_windowed", property(lambda dataset: dataset.has_windows))
        publish(lakehouse, *[(f"a{hour}", hour + 0.5, 1) for hour in range(6)], hours=9)
        lakehouse.run()
        assert "_state" not in lakehouse.table("gold.greatest").columns
    publish(lakehouse, ("late", 0.7, 1), hours=10)
    lakehouse.run()
    found = lakehouse.rows("gold.greatest", "window_start", "_state", "_revision")
    assert found == [
        (0.0, "revised", 1),
        *[(hour, "complete", 0) for hour in map(float, range(1, 5))],
        (5.0, "open", 0),
    ]


def test_a_rebuild_with_other_columns_keeps_what_was_public(lakehouse: Lakehouse) -> None:
    def declared(groups: list[str], **measures: str) -> None:
        each = window("at", "1 hour")
        lakehouse.declare(gold.aggregate("sums", source=readings, group_by=[*groups, each], measures=measures))

    declared([], value="sum(value)")
    publish(lakehouse, ("a", 0.5, 1), ("b", 0.6, 3), ("c", 5.5, 1), hours=9)
    lakehouse.run()
    declared([], value="cast(sum(value) AS string)", rows="count(*)")
    lakehouse.run()
    assert states(lakehouse) == [(0.0, "4", "complete", 0), (5.0, "1", "open", 0)], "the figure is the same"
    declared([], value="cast(max(value) AS double)", rows="count(*)")
    lakehouse.run()
    assert states(lakehouse) == [(0.0, 3.0, "revised", 1), (5.0, 1.0, "open", 0)]
    declared(["id"], value="sum(value)")
    lakehouse.run()
    assert states(lakehouse) == [(0.0, 1, "revised", 1), (0.0, 3, "revised", 1), (5.0, 1, "open", 0)]


def test_nothing_is_complete_before_all_inputs_have_come_so_far(lakehouse: Lakehouse) -> None:
    others = silver.events(
        "others",
        source=bronze.topic("others"),
        schema="id string, at timestamp, value int",
        keys=["id"],
        event_time="at",
        future_tolerance="1000 days",
    )
    joined = silver.join(
        "joined",
        inputs={"readings": readings, "others": others},
        keys=["id"],
        shape=lambda readings, others: readings.join(others.select("id", F.lit(1).alias("n")), "id", "left"),
        event_time="at",
    )
    lakehouse.declare(
        gold.aggregate("sums", source=joined, group_by=[window("at", "1 hour")], measures={"value": "sum(value)"})
    )
    publish(lakehouse, ("a", 0.5, 1), ("b", 5.5, 1), hours=9)
    lakehouse.run()
    assert [state for _, _, state, _ in states(lakehouse)] == ["open", "open"], "nothing is known of the others' time"
    lakehouse.publish("others", {"id": "x", "at": text(0.9), "value": 1}, hours=9)
    lakehouse.run()
    assert [state for _, _, state, _ in states(lakehouse)] == ["open", "open"]
    lakehouse.publish("others", {"id": "y", "at": text(1.0), "value": 1}, hours=9)
    lakehouse.run()
    assert [state for _, _, state, _ in states(lakehouse)] == ["complete", "open"]
