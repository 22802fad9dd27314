"""Completeness: a window is open until the watermark passes it, and revised when it changes after that."""

import pytest

from sluice import bronze, gold, silver
from sluice.windows import Window, session_window, sliding_window, window
from tests.kit import Lakehouse, Row, text

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
    assert lakehouse.table("gold.sums").where("_revised_at IS NOT NULL").count() == 2
    assert lakehouse.run() == {}
    assert lakehouse.run(rebuild=True)["gold.sums"].rows.total == 0


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


def test_a_changed_measure_revises_what_was_complete(lakehouse: Lakehouse) -> None:
    declare(lakehouse, window("at", "1 hour"))
    publish(lakehouse, ("a", 0.5, 1), ("b", 0.6, 3), ("c", 1.5, 1), hours=9)
    lakehouse.run()
    declare(lakehouse, window("at", "1 hour"), "cast(max(value) AS bigint)")
    lakehouse.run()
    assert states(lakehouse) == [(0.0, 3, "revised", 1), (1.0, 1, "open", 0)]


@pytest.mark.parametrize("each", [session_window("at", gap="1 hour"), sliding_window("at", "1 hour")])
def test_other_windows_complete_as_well(lakehouse: Lakehouse, each: Window) -> None:
    declare(lakehouse, each)
    publish(lakehouse, ("a", 0.5, 1), ("b", 5.5, 1), hours=9)
    lakehouse.run()
    publish(lakehouse, ("c", 9.5, 1), hours=10)
    lakehouse.run()
    assert [state for _, _, state, _ in states(lakehouse)][:2] == ["complete", "complete"]
    publish(lakehouse, ("late", 0.7, 1), hours=11)
    lakehouse.run()
    assert "revised" in {state for _, _, state, _ in states(lakehouse)}
    assert lakehouse.run(rebuild=True)["gold.sums"].rows.total == 0
