"""Top lists: the first rows of each group, whatever enters, leaves, ties or changes."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice import bronze, gold, silver
from sluice.engine import touched
from sluice.engine.refresh import refresh
from sluice.errors import DeclarationError
from sluice.model import small_frames
from sluice.model.datasets import Dataset
from sluice.model.ledger import RowCounts
from sluice.shapes.aggregate import Groups
from sluice.shapes.top import Order, Ties, Top, top
from sluice.windows import window
from tests.kit import Lakehouse, frame, text
from tests.laws.test_proportion import files_read, rows_written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

scores = silver.history(
    "scores",
    source=bronze.topic("scores"),
    schema="player string, game string, at timestamp, points int, gone boolean",
    keys=["player"],
    sequence_by="at",
    stored_as_scd_type=1,
    apply_as_deletes="gone",
    future_tolerance="1000 days",
)


def best(name: str = "best", **options: Any) -> Dataset:
    declared: dict[str, Any] = {"source": scores, "group_by": ["game"], "order_by": ["points DESC"], "rows": 2}
    return gold.top(name, **(declared | {"columns": ["player", "points"]} | options))


def score(game: str | None, player: str, points: int | None = None, hour: float = 0, **more: Any) -> dict[str, Any]:
    return {"player": f"{game}: {player}", "game": game, "at": text(hour), "points": points, **more}


def rebuilt(lakehouse: Lakehouse, dataset: Dataset) -> int:
    """Computes all rows of one table again; returns how many of them were others before."""
    return refresh(lakehouse.spark, lakehouse.lake, dataset, rebuild=True).rows.total


# What was there, what comes, and who is the best two then; `-` is no points, `gone` a delete, `moved` another game.
row_number = {
    "a late row enters, and the last one leaves": ("ann 9, bob 7, cid 5", "dan 8", "1 ann 9, 2 dan 8"),
    "a new leader pushes the others down": ("ann 9, bob 7, cid 5", "dan 10", "1 dan 10, 2 ann 9"),
    "the leader is deleted, and the next ones move up": ("ann 9, bob 7, cid 5", "ann gone", "1 bob 7, 2 cid 5"),
    "the leader falls behind, and leaves": ("ann 9, bob 7, cid 5", "ann 1", "1 bob 7, 2 cid 5"),
    "the leader goes to another game": ("ann 9, bob 7, cid 5", "ann moved", "1 bob 7, 2 cid 5"),
    "two change places": ("ann 9, bob 7, cid 5", "bob 10", "1 bob 10, 2 ann 9"),
    "one behind the last gets better, and stays behind": ("ann 9, bob 7, cid 5", "cid 6", "1 ann 9, 2 bob 7"),
    "a group is gone with its last row": ("ann 9", "ann gone", ""),
    "a group of one row gets a second": ("ann 9", "bob 10", "1 bob 10, 2 ann 9"),
    "who has no points comes last": ("ann 9, bob -, cid -", "dan 0", "1 ann 9, 2 dan 0"),
    "among those that tie the first by name are kept": ("ann 9, bob 7, cid 7", "dan 7", "1 ann 9, 2 bob 7"),
    "one that ties and has an earlier name comes first": ("bob 7, cid 7", "ann 7", "1 ann 7, 2 bob 7"),
}
rank = {
    "all that tie with the last one are kept": ("ann 9, bob 7", "cid 7", "1 ann 9, 2 bob 7, 2 cid 7"),
    "two leaders leave no second place": ("ann 9, bob 7, cid 7", "dan 9", "1 ann 9, 1 dan 9"),
    "one leader less, and the second place is back": ("ann 9, bob 7, dan 9", "dan gone", "1 ann 9, 2 bob 7"),
    "a value between takes the second place": ("ann 9, bob 7, cid 7", "dan 8", "1 ann 9, 2 dan 8"),
    "those without points tie": ("ann 9, bob -", "cid -", "1 ann 9, 2 bob -, 2 cid -"),
}
dense_rank = {
    "behind two leaders comes the second": ("ann 9, bob 7, cid 5", "dan 9", "1 ann 9, 1 dan 9, 2 bob 7"),
    "a third value pushes the least one out": ("ann 9, bob 7, cid 7", "dan 8", "1 ann 9, 2 dan 8"),
    "the third value moves up with all its rows": (
        "ann 9, bob 7, cid 5, dan 5",
        "bob gone",
        "1 ann 9, 2 cid 5, 2 dan 5",
    ),
}
tables: dict[Ties, Mapping[str, tuple[str, str, str]]] = {
    "row_number": row_number,
    "rank": rank,
    "dense_rank": dense_rank,
}
sentences = [(game, before, change) for of_ties in tables.values() for game, (before, change, _) in of_ties.items()]


def said(game: str, words: str, hour: float) -> list[dict[str, Any]]:
    """The records that `ann 9, bob gone` stands for."""
    found = []
    for player, what in (each.split() for each in words.split(", ")):
        points = int(what) if what.isdigit() else None
        record = score(game, player, points, hour, gone=what == "gone")
        found.append(record | ({"game": "another game", "points": 0} if what == "moved" else {}))
    return found


def found_in(lakehouse: Lakehouse, ties: Ties) -> dict[str, str]:
    """The rows of each game in the same words."""
    found: dict[str, list[str]] = {}
    for game, place, player, points in lakehouse.rows(f"gold.by_{ties}", "game", "rank", "player", "points"):
        name = player.removeprefix(f"{game}: ")
        found.setdefault(game, []).append(f"{place} {name} {'-' if points is None else points}")
    return {game: ", ".join(sorted(each)) for game, each in found.items()}


def test_a_top_list_is_right_after_each_change(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "rebuild_share", 1e9)
    lists = [best(f"by_{ties}", ties=ties) for ties in tables]
    lakehouse.declare(*lists)
    lakehouse.publish("scores", *[each for game, before, _ in sentences for each in said(game, before, hour=1)])
    lakehouse.run()
    lakehouse.publish("scores", *[each for game, _, change in sentences for each in said(game, change, hour=2)])
    done = lakehouse.run()
    for ties, of_ties in tables.items():
        assert done[f"gold.by_{ties}"].cause == "changes"
        found = found_in(lakehouse, ties)
        assert {game: found.get(game, "") for game in of_ties} == {
            game: after for game, (_, _, after) in of_ties.items()
        }
    assert [law for law in lakehouse.laws() if law.broken] == []
    assert [rebuilt(lakehouse, each) for each in lists] == [0, 0, 0]


def test_rows_without_a_group_are_one_and_a_list_without_groups_is_of_the_whole_table(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(touched, "rebuild_share", 1e9)
    overall = best("overall", group_by=[], order_by="points", ties="rank", rows=1, rank="place", columns=None)
    lakehouse.declare(best(), overall)
    players = [score(None, "ann", 3), score(None, "bob", 2), score("go", "cid", 1), score("go", "dan", 1)]
    lakehouse.publish("scores", *players).run()
    assert lakehouse.rows("gold.best", "game", "rank", "points") == [
        ("go", 1, 1),
        ("go", 2, 1),
        (None, 1, 3),
        (None, 2, 2),
    ]
    assert lakehouse.rows("gold.overall", "place", "player") == [(1, "go: cid"), (1, "go: dan")]
    lakehouse.publish("scores", score(None, "eve", 0, hour=1))
    done = lakehouse.run()
    assert lakehouse.rows("gold.overall", "place", "player") == [(1, "None: eve")]
    assert done["gold.overall"].cause == "changes"
    lakehouse.publish("scores", *[each | {"gone": True, "at": text(2)} for each in [*players, score(None, "eve")]])
    lakehouse.run()
    assert lakehouse.rows("gold.best") == lakehouse.rows("gold.overall") == []
    assert [law for law in lakehouse.laws() if law.broken] == []
    assert lakehouse.run() == {}


def test_groups_and_orders_are_expressions_and_the_columns_of_a_source_may_be_unknown(lakehouse: Lakehouse) -> None:
    doubled = silver.join(
        "doubled",
        inputs={"scores": scores},
        keys=["player"],
        shape=lambda scores: scores.selectExpr("player", "game", "2 * points AS `points-2`"),
    )
    leagues = gold.top(
        "leagues",
        source=doubled,
        group_by=["upper(game) AS league"],
        order_by=["abs(`points-2` - 10) ASC NULLS FIRST", "player desc"],
        rows=2,
        rank="place",
    )
    lakehouse.declare(leagues)
    lakehouse.publish("scores", score("go", "ann", 9), score("GO", "bob", 4), score("go", "cid", 6)).run()
    assert lakehouse.rows("gold.leagues") == [("GO", 1, "go: cid", "go", 12), ("GO", 2, "GO: bob", "GO", 8)]
    lakehouse.publish("scores", score("Go", "dan")).run()
    assert lakehouse.rows("gold.leagues", "place", "player") == [(1, "Go: dan"), (2, "go: cid")]
    assert rebuilt(lakehouse, leagues) == 0


def test_numbers_are_ordered_as_in_spark(spark: "SparkSession") -> None:
    rows = frame(spark, "id int, x double", [(1, float("nan")), (2, -0.0), (3, 0.0), (4, None), (5, -1.0), (6, 1e308)])
    groups = Groups.of([], {})
    for order, expected in {
        "x": [(1, 4), (2, 5), (3, 2), (3, 3), (5, 6), (6, 1)],
        "x DESC": [(1, 1), (2, 6), (3, 2), (3, 3), (5, 5), (6, 4)],
        "x ASC NULLS LAST": [(1, 5), (2, 2), (2, 3), (4, 6), (5, 1), (6, 4)],
        "x desc nulls  first": [(1, 4), (2, 1), (3, 6), (4, 2), (4, 3), (6, 5)],
    }.items():
        rule = Top(groups, (Order.of(order),), 6, "rank", "rank", ("id",), ("id",))
        assert sorted(tuple(row) for row in top(groups.grouped(rows), rule).collect()) == expected, order
    signed = Groups.of(["x"], {})
    rule = Top(signed, (Order.of("id"),), 6, "row_number", "rank", ("id",), ("id",))
    found = sorted((row["id"], row["rank"]) for row in top(signed.grouped(rows), rule).collect())
    assert found == [(1, 1), (2, 1), (3, 2), (4, 1), (5, 1), (6, 1)], "zero is one group, whatever its sign"


# So many rows that the driver does not read the tables itself.
groups_of_base, group_rows, rows_per_file = 110, 12, 100


def league(number: int) -> str:
    return f"league {number:04}"


def leagues(spark: "SparkSession", folder: Path, groups: int) -> Lakehouse:
    """A lakehouse with so many groups of a dozen rows, points 0, 10, … 110, and their first ten; it ran once."""
    lakehouse = Lakehouse(spark, folder).declare(*[best(f"by_{ties}", rows=10, ties=ties) for ties in tables])
    lakehouse.lake = dataclasses.replace(lakehouse.lake, rows_per_file=rows_per_file)
    players = [score(league(group), f"p{place}", 10 * place) for group in range(groups) for place in range(group_rows)]
    lakehouse.publish("scores", *players).run()
    return lakehouse


def test_a_late_row_costs_what_it_changes_however_many_groups_there_are(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the driver has the rows of so small tables in memory, and no file is read.
    monkeypatch.setattr(small_frames, "whole_rows_max", 10)
    read, written = [], []
    for times in (1, 4):
        lakehouse = leagues(spark, tmp_path / str(times), times * groups_of_base)
        before = lakehouse.versions()
        # The first ten have 110, 100, … 20 points.
        lakehouse.publish("scores", score(league(20), "late", 70, hour=1))
        with files_read(spark) as files:
            done = lakehouse.run()
        assert {ties: done[f"gold.by_{ties}"].rows for ties in tables} == {
            # By its name it is the fifth, and in each place from there on is another row than was.
            "row_number": RowCounts(updated=6),
            # It ties with the fifth, and moves the four behind; the last one leaves.
            "rank": RowCounts(inserted=1, updated=4, deleted=1),
            # It moves none.
            "dense_rank": RowCounts(inserted=1),
        }
        read.append(sum(files))
        written.append({ties: rows_written(lakehouse, f"gold.by_{ties}", before[f"gold.by_{ties}"]) for ties in tables})
    assert 0 < read[1] <= read[0] + 4
    assert written[1] == written[0]
    # Tables of gold have no deletion vectors, so the file of the group is written again.
    assert max(written[1].values()) <= rows_per_file + 1


def test_a_change_that_the_list_does_not_show_touches_no_group(lakehouse: Lakehouse) -> None:
    lakehouse.declare(best())
    lakehouse.publish("scores", score("go", "ann", 9)).run()
    lakehouse.publish("scores", score("go", "ann", 9, hour=1))
    done = lakehouse.run()
    assert done["silver.scores"].rows.updated == 1, "another time"
    assert done["gold.best"].rows.total == 0
    assert lakehouse.lake.last_commit("gold.best") is not None
    assert lakehouse.run() == {}


def only_as_they_are(rule: Top, changed: "DataFrame") -> "DataFrame":
    """The groups that changed rows are in now, without those that they were in."""
    if "_change_type" in changed.columns:
        changed = changed.where("_change_type IN ('insert', 'update_postimage')")
    return changed.select("game")


def test_a_list_goes_stale_where_rows_are_not_looked_at_as_they_were(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Top, "touched", only_as_they_are)
    monkeypatch.setattr(touched, "rebuild_share", 1e9)
    lakehouse.declare(best())
    lakehouse.publish("scores", score("go", "ann", 9), score("chess", "bob", 7)).run()
    lakehouse.publish("scores", score("go", "ann", 9, hour=1) | {"game": "chess"}).run()
    assert lakehouse.rows("gold.best", "game", "player") == [
        ("chess", "chess: bob"),
        ("chess", "go: ann"),
        ("go", "go: ann"),
    ]
    assert {law.law for law in lakehouse.laws() if law.broken} == {
        "groups with fewer rows than silver.scores gives, or more"
    }
    assert rebuilt(lakehouse, best()) == 1
    assert lakehouse.rows("gold.best", "game", "player") == [("chess", "chess: bob"), ("chess", "go: ann")]


def without_the_first(grouped: "DataFrame", rule: Top) -> "DataFrame":
    return top(grouped, rule).where("rank > 1")


def one_more(grouped: "DataFrame", rule: Top) -> "DataFrame":
    return top(grouped, dataclasses.replace(rule, rows=rule.rows + 1))


def of_others(grouped: "DataFrame", rule: Top) -> "DataFrame":
    return top(grouped, rule).selectExpr("game", "rank", "upper(player) AS player", "points")


def test_the_audit_notices_a_list_that_cannot_be(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    lakehouse.declare(best())
    lakehouse.publish("scores", *[score("go", player, 1) for player in ("ann", "bob", "cid")]).run()
    ranks, counts = "ranks with a gap or beyond 2", "groups with fewer rows than silver.scores gives, or more"
    mutants: list[tuple[Any, set[str]]] = [
        (one_more, {ranks}),
        (without_the_first, {ranks, counts}),
        (of_others, {"rows not of silver.scores"}),
        (top, set()),
    ]
    for wrong, broken in mutants:
        monkeypatch.setattr(gold, "top_rows", wrong)
        rebuilt(lakehouse, best())
        assert {law.law for law in lakehouse.laws() if law.broken} == broken


other = silver.interval_join(
    "pairs",
    left={
        "one": silver.events("ones", source=bronze.topic("o"), schema="k int, t timestamp", keys=["k"], event_time="t")
    },
    right={
        "two": silver.events("twos", source=bronze.topic("t"), schema="k int, t timestamp", keys=["k"], event_time="t")
    },
    keys=["k"],
    between=("0 seconds", "1 hour"),
)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rows": 0}, "gold.best: rows is 0; give how many rows of each group to keep, 1 or more"),
        ({"rows": True}, "rows is True"),
        ({"rows": 2.5}, "rows is 2.5"),
        ({"ties": "random"}, "ties is 'random'; write one of row_number, rank, dense_rank"),
        ({"order_by": []}, "order_by is empty; say which rows come first"),
        ({"order_by": [""]}, "order_by is '', which is no SQL expression"),
        ({"order_by": ["pints DESC"]}, "order_by reads pints, which is no column here; did you mean points?"),
        ({"order_by": ["points DESC, player"]}, "give each order as a separate text"),
        ({"order_by": ["points DESCENDING"]}, "which ends with a name"),
        ({"order_by": ["abs(points DESC"]}, "the brackets do not match"),
        ({"group_by": ["gam"]}, "group_by reads gam"),
        ({"group_by": ["upper(game)"]}, "give the group a name"),
        ({"group_by": ["upper(game) AS player"]}, "player and player would be one column"),
        ({"group_by": [window("at", "1 hour")]}, r"declare a gold.aggregate by that window, and a gold.top of it"),
        ({"columns": ["player", "pints"]}, "columns names pints, which silver.scores lacks"),
        ({"rank": "points"}, "points and points would be one column"),
        ({"rank": "Points"}, "Points and points would be one column"),
        ({"rank": "game"}, "game and game would be one column"),
        ({"rank": "the rank"}, "it has a space"),
        ({"rank": "_rank"}, "names that begin with _ are for bookkeeping"),
        (
            {"ties": "rank", "columns": ["points"]},
            "columns lacks player, which distinguish rows that tie; add them, or",
        ),
        ({"group_by": ["upper(player) AS player"], "ties": "rank"}, "player and player would be one column"),
    ],
)
def test_what_could_not_work_is_refused_with_a_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        best(**options)


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"columns": None, "rank": "place"}, ["game", "place", "player", "points", "gone", "at"]),
        ({"columns": ["points"]}, ["game", "rank", "points"]),
        ({"columns": []}, ["game", "rank"]),
        ({"columns": ["game", "points", "points"]}, ["game", "rank", "points"]),
        ({"group_by": [], "columns": ["points"]}, ["rank", "points"]),
        ({"group_by": ["upper(player) AS player"], "columns": ["points"]}, ["player", "rank", "points"]),
        ({"group_by": ["year(at) AS year"], "order_by": "at"}, ["year", "rank", "player", "points"]),
        (
            {"source": other, "group_by": ["k"], "order_by": "one.t", "columns": ["two"], "ties": "rank"},
            ["k", "rank", "two"],
        ),
    ],
)
def test_the_columns_of_the_result_are_known(options: dict[str, Any], columns: Sequence[str]) -> None:
    found = best(**options)
    assert list(found.columns or ()) == columns
    assert (found.columns or {})[options.get("rank", "rank")] == "int"
    assert found.fingerprint


def test_a_declaration_is_another_when_what_it_says_is() -> None:
    options: list[dict[str, Any]] = [
        {},
        {"rows": 3},
        {"ties": "rank"},
        {"rank": "place"},
        {"columns": None},
        {"group_by": []},
        {"order_by": ["points"]},
        {"order_by": ["points DESC NULLS FIRST"]},
    ]
    assert len({best(**each).fingerprint for each in options}) == len(options)
    assert best(order_by=["points   desc"]).fingerprint == best().fingerprint
