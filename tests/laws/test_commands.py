"""Commands: what is decided without Spark is what Spark computes, whatever the expressions and the values are."""

import json
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from sluice import bronze, gold, silver
from sluice.errors import DeclarationError, UsageError
from sluice.model.ddl import struct
from sluice.model.evaluator import Expression, compiled
from sluice.model.values import OutOfRange
from sluice.operate import quarantine
from sluice.operate.commands import Answer, Decider
from tests.kit import Lakehouse, plain
from tests.laws.drawn_expressions import Drawn, each_function, kinds, row, scopes

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

seeds = [int(each) for each in os.environ.get("SLUICE_COMMAND_SEEDS", "1").split()]
expressions_count, rows_count = 140, 30
epoch = datetime(1970, 1, 1, tzinfo=UTC)


class Failed:
    """Stands for the value of an expression that cannot be computed."""


def drawn(draw: random.Random) -> list[tuple[str, Expression]]:
    """Expressions that can be evaluated without Spark: each function once, and random ones."""
    found = [(text, compiled("drawn: it", text, scopes)) for text in each_function]
    while len(found) < expressions_count:
        text = Drawn(draw).of(draw.choice(kinds), draw.randrange(1, 4))
        # Some may have more digits than there are.
        with suppress(DeclarationError):
            found.append((text, compiled("drawn: it", text, scopes)))
    return found


def evaluated(expression: Expression, values: dict[str, dict[str, Any]]) -> Any:
    try:
        found = expression.of(values)
    except OutOfRange:
        return Failed
    return (found - epoch).total_seconds() if isinstance(found, datetime) else found


def in_spark(number: int, text: str, kind: str, failing: list[int]) -> "Column":
    """The expression, except for the rows where it fails: Spark would fail as a whole."""
    guarded = f"CASE WHEN id NOT IN ({', '.join(map(str, failing))}) THEN {text} END" if failing else text
    found = F.expr(guarded)
    # Python cannot hold all of Spark's times.
    return (F.unix_micros(found) / 1_000_000.0 if kind == "timestamp" else found).alias(f"e{number}")


@pytest.mark.parametrize("seed", seeds)
def test_an_expression_has_the_value_that_it_has_in_spark(spark: "SparkSession", seed: int) -> None:
    draw = random.Random(seed)
    rows = [row(draw) for _ in range(rows_count)]
    expressions = drawn(draw)
    found = [[evaluated(expression, values) for values in rows] for _, expression in expressions]
    schema = ", ".join(["id int", *(f"{scope} {struct(columns)}" for scope, columns in scopes.items())])
    frame = spark.createDataFrame(
        [(number, *(tuple(values[scope].values()) for scope in scopes)) for number, values in enumerate(rows)], schema
    )
    columns = [
        in_spark(number, text, expression.kind, [at for at, each in enumerate(found[number]) if each is Failed])
        for number, (text, expression) in enumerate(expressions)
    ]
    wanted = {each["id"]: each for each in frame.select("id", *columns).collect()}
    assert sum(each is Failed for values in found for each in values) < len(found) * rows_count / 3
    wrong = [
        f"{text}\n  of {rows[at]}\n  is {value!r}, and in Spark {wanted[at][f'e{number}']!r}"
        for number, (text, _) in enumerate(expressions)
        for at, value in enumerate(found[number])
        if value is not Failed and value != wanted[at][f"e{number}"]
    ]
    assert not wrong, f"seed {seed}:\n" + "\n".join(wrong[:10])


topic = bronze.topic("account_decisions")
decisions = silver.events(
    "account_decisions",
    source=topic,
    schema="command_id string, command string, outcome string, version bigint, event string, expected_version bigint, "
    "reason string, message string, decided_at timestamp, account string, branch int, amount decimal(12,2), "
    "note string, tags array<string>, held_until timestamp",
    keys=["command_id"],
    event_time="decided_at",
)
accounts = gold.state(
    "accounts",
    source=decisions,
    where="outcome = 'accepted'",
    keys=["branch", "account"],
    sequence_by="version",
    schema="balance decimal(12,2), entries tinyint, note string, tags array<string>, held_until timestamp, "
    "fees decimal(20,6), total bigint",
    initial={
        "balance": "0",
        "entries": "0",
        "note": "account || '/' || CAST(branch AS string)",
        "tags": "array()",
        "held_until": "NULL",
        "fees": "0",
        "total": "0",
    },
    reduce={
        "balance": "CASE WHEN event.event = 'booked' THEN state.balance + event.amount ELSE state.balance END",
        "entries": "state.entries + CAST(1 AS tinyint)",
        "note": "coalesce(event.note, state.note)",
        "tags": "coalesce(event.tags, state.tags)",
        "held_until": "CASE event.event WHEN 'held' THEN event.held_until ELSE state.held_until END",
        "fees": "state.fees + coalesce(event.amount, 0.0) * 0.0125",
        "total": "state.total * 3 + length(coalesce(event.note, ''))",
    },
)
bank = gold.commands(
    "bank",
    topic=topic,
    state=accounts,
    commands={
        "book": gold.command(
            "branch int, account string, amount decimal(12,2), note string",
            rules={
                "is_covered": "state.balance + command.amount >= -100",
                "is_free": "state.held_until IS NULL OR state.held_until < command.decided_at",
            },
            event="booked",
            optional=["note"],
        ),
        "tag": gold.command(
            "branch int, account string, tag string",
            rules={"is_new": "NOT array_contains(state.tags, command.tag)"},
            event="tagged",
            payload={"tags": "array_append(state.tags, command.tag)"},
        ),
        "hold": gold.command(
            "branch int, account string",
            rules={"is_rich": "state.balance > 50.5"},
            event="held",
            payload={"held_until": "command.decided_at + INTERVAL 1 SECOND"},
        ),
    },
)


def asked(draw: random.Random, number: int) -> bytes:
    """A random command; some repeat one before, some expect a version, and some are wrong."""
    name = draw.choice(["book", "book", "book", "tag", "hold"])
    own = draw.randrange(number + 1) if draw.random() < 0.1 else number
    said: dict[str, Any] = {"command": name, "command_id": f"c-{own}"}
    said |= {"branch": draw.choice([1, -1]), "account": draw.choice(["a", "é😀", "it's", ""])}
    if name == "book":
        amounts = ["10.00", "-20.5", "0.01", "9999999999.99", "-9999999999.99", "5000000000", "1.234", '"1"']
        said |= {"amount": draw.choice(amounts), "note": draw.choice([None, "", "x", "e\u0301 ﷽"])}
    if name == "tag":
        said["tag"] = draw.choice(["a", "b", "", None])
    if draw.random() < 0.2:
        said["expected_version"] = draw.randrange(4)
    text = json.dumps({each: value for each, value in said.items() if each != "amount"})
    return (text[:-1] + f', "amount": {said["amount"]}}}' if "amount" in said else text).encode()


def test_what_is_decided_by_is_the_table_of_the_state(lakehouse: Lakehouse) -> None:
    draw = random.Random(7)
    commands = [asked(draw, number) for number in range(300)]
    answers: list[Answer] = []
    # Several processes, one after the other.
    for part in (commands[:100], commands[100:200], commands[200:]):
        with Decider(lakehouse.log, bank) as decider:
            answers += [answer for each in groups(draw, part) for answer in decider.decide(each)]
            known = decider.memory.aggregates
    assert {each.kind for each in answers} == {"accepted", "rejected", "version_differs", "wrong", "reused"}
    reasons = {each.as_dict().get("reason") for each in answers}
    assert {"is_covered", "is_new", "out_of_range", "expected_version"} <= reasons
    lakehouse.declare(accounts).run()
    table = lakehouse.rows("gold.accounts", *accounts.columns or (), "_events")
    memory = [(*key, *map(plain, each.state.values()), each.version) for key, each in known.items()]
    assert table == sorted(memory, key=repr)
    fates = lakehouse.audit()["silver.account_decisions"]
    assert (fates.balanced, fates.duplicate, fates.quarantined) == (True, 0, 0)
    # The next command would be decided by what the table no longer has.
    position = (
        lakehouse.lake.read(lakehouse.spark, "bronze.account_decisions")
        .selectExpr("concat_ws('/', topic, partition, offset)")
        .first()
    )
    assert position is not None
    decisions = quarantine.consumer(lakehouse.catalogue, "silver.account_decisions")
    with pytest.raises(UsageError, match="has what commands decided"):
        quarantine.add(lakehouse.lake, lakehouse.log, decisions, [position[0]], "because")


def groups(draw: random.Random, commands: list[bytes]) -> Iterator[list[bytes]]:
    at = 0
    while at < len(commands):
        size = draw.randrange(1, 6)
        yield commands[at : at + size]
        at += size
