"""Commands: each is decided once, in order, by the events before it, whatever is sent twice, killed or full."""

import json
import os
import random
import resource
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from decimal import Decimal
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice import bronze, gold, silver
from sluice.engine.catalogue import load
from sluice.errors import DeclarationError, LogError, UsageError
from sluice.log import KafkaLog, KafkaSecurity, Log, Record, Retention, StoredRecord
from sluice.log.segments import Segment, records_in
from sluice.model.commands import Commands, metadata
from sluice.model.erasure import Removal
from sluice.model.evaluator import compiled
from sluice.model.values import NotOfType, OutOfRange, json_object, reader_of
from sluice.operate.commands import Answer, Decider
from tests.commands import sluice
from tests.test_receivers import Listening, listening, orders_token, port_of, post, token
from tests.waiting import eventually, patience_seconds

# A longer run: SLUICE_KILLS=50 SLUICE_COMMANDS_EACH=100
kills, commands_each = int(os.environ.get("SLUICE_KILLS", "2")), int(os.environ.get("SLUICE_COMMANDS_EACH", "6"))
project_folder = Path(__file__).parents[1] / "examples" / "seats"


@pytest.fixture(scope="module")
def seats() -> Commands:
    """The commands of the example."""
    return load(project_folder).commands_of("seats")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


def command(name: str, command_id: str, **fields: Any) -> bytes:
    return json.dumps({"command": name, "command_id": command_id, **fields}).encode()


def sell(command_id: str, seat: str = "1A", flight: str = "UA1", passenger: str = "Ada", **fields: Any) -> bytes:
    return command("sell_seat", command_id, flight=flight, seat=seat, passenger=passenger, **fields)


opened = command("open_flight", "open", flight="UA1", seats=2)


def decisions_in(log: Log) -> list[dict[str, Any]]:
    return [json_object(record.value or b"") for record in log.read("seat_decisions", 0)]


def said(answers: list[Answer]) -> list[str]:
    """What became of commands, in short: the event with its version, or the reason."""
    bodies = [each.as_dict() for each in answers]
    return [f"{body['event']} {body['version']}" if "event" in body else body["reason"] for body in bodies]


# One decider


def test_a_command_becomes_an_event_or_a_rejection_with_its_reason(log: Log, seats: Commands) -> None:
    with Decider(log, seats) as decider:
        answers = decider.decide([sell("early"), opened, sell("a"), sell("b"), sell("c", "1B"), sell("d", "1C")])
        assert said(answers) == [
            "flight_is_open", "flight_opened 1", "seat_sold 2", "seat_is_free", "seat_sold 3", "seats_are_left"
        ]  # fmt: skip
        assert answers[3].as_dict()["message"] == "This seat is sold."
    assert [each["outcome"] for each in decisions_in(log)] == [
        "rejected", "accepted", "accepted", "rejected", "accepted", "rejected"
    ]  # fmt: skip
    # A rejection says what was asked.
    assert (decisions_in(log)[3]["seat"], decisions_in(log)[3]["passenger"]) == ("1A", "Ada")


def test_a_command_that_is_sent_again_gets_the_same_answer_from_the_next_process_too(log: Log, seats: Commands) -> None:
    with Decider(log, seats) as decider:
        # In one group, too, before it is durable.
        first, again = decider.decide([opened, opened])
        assert first == again
        sold = decider.decide([sell("a")])
        sent_otherwise = b' {"passenger": "Ada","seat":"1A", "flight":"UA1","command_id":"a","command":"sell_seat"}'
        assert decider.decide([sent_otherwise]) == sold
    with Decider(log, seats) as decider:
        assert decider.decide([sell("a"), opened]) == [*sold, first]
        (other,) = decider.decide([sell("a", "1B")])
        assert (other.kind, "another command" in other.as_dict()["error"]) == ("reused", True)
        assert said(decider.decide([sell("b", "1B")])) == ["seat_sold 3"]
    assert len(decisions_in(log)) == 3


def test_a_command_can_expect_a_version(log: Log, seats: Commands) -> None:
    with Decider(log, seats) as decider:
        answers = decider.decide([
            command("open_flight", "o", flight="UA1", seats=9, expected_version=0),
            sell("a", expected_version=0),
            sell("b", expected_version=1),
        ])  # fmt: skip
        assert said(answers) == ["flight_opened 1", "expected_version", "seat_sold 2"]
        assert (answers[1].kind, answers[1].as_dict()["version"]) == ("version_differs", 1)
        # It was decided: the answer stays, also when the version would fit by now.
        assert decider.decide([sell("a", expected_version=0)]) == [answers[1]]


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"", "is no JSON"),
        (b"[]", "is no object"),
        (b'{"command_id": "a", "command_id": "b"}', "command_id twice"),
        (b"\xff{}", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b'{"a": 1e99999999999999999999999}', "it is no JSON: 1e99999999999999999999999 is out of the range"),
        (b"{" + b", ".join(b'"a%d": 1' % each for each in range(60_000)) + b', "a59999": 1}', "it has a59999 twice"),
        (b'{"a": NaN}', "is no JSON"),
        (b"{}", "command_id must be given"),
        (sell(""), "command_id must be given"),
        (sell("x" * 256), "1 to 255 characters"),
        (sell("\ud800"), "command_id is no text"),
        (command("sell_sea", "a"), "did you mean sell_seat"),
        (b'{"command_id": "a", "command": 1.50}', "there are open_flight, sell_seat, return_seat"),
        (b'{"command_id": "a", "command": 1e30}', "command is no text"),
        (b'{"command_id": "a", "command": [[[[]]]]}', "command is no text"),
        (b'{"command_id": "a", "command": "sell_seat", "\\ud800": 1}', "? is no field of sell_seat"),
        (command("sell_seat", "a", flight="UA1", seat="1A"), "passenger is missing"),
        (command("sell_seat", "a", flight="UA1", seat=None, passenger="Ada"), "seat is missing"),
        (sell("a", flght="UA1"), "flght is no field of sell_seat; did you mean flight"),
        (sell("a", passenger="\udfff"), "passenger is no text"),
        (sell("a", expected_version="1"), "expected_version is no bigint"),
        (sell("a", expected_version=True), "expected_version is no bigint"),
        (command("open_flight", "a", flight="UA1", seats=1.5), "seats is no int"),
        (command("open_flight", "a", flight="UA1", seats=2**31), "seats is no int: it is too large"),
        (command("open_flight", "a", flight=7, seats=1), "flight is no string"),
    ],
)
def test_what_is_no_command_is_reported_and_leaves_nothing(log: Log, seats: Commands, sent: bytes, says: str) -> None:
    with Decider(log, seats) as decider:
        (answer,) = decider.decide([sent])
    assert (answer.kind, says in answer.as_dict()["error"]) == ("wrong", True), answer
    assert decisions_in(log) == []


names = st.sampled_from(["command", "command_id", "expected_version", "flight", "seat", "seats", "passenger"])
of_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["sell_seat", "a", "UA1"])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
sendings = st.binary(max_size=20) | st.dictionaries(names | st.text(max_size=2), of_json, max_size=6).map(
    lambda found: json.dumps({"command_id": "a", "command": "sell_seat"} | found).encode()
)


@settings(max_examples=150, deadline=None)
@given(sent=sendings)
@example(sent=b'{"command_id": "open", "a": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(sent=b'{"command_id": "open", "a": 1e9999999}')
@example(sent=b'{"command_id": "open", "a": 1e-999999999999999999}')
def test_whatever_bytes_are_sent_there_is_an_answer(fuzzed: Decider, sent: bytes) -> None:
    (answer,) = fuzzed.decide([sent])
    assert set(answer.as_dict()) & {"error", "outcome"}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory, seats: Commands) -> Iterator[Decider]:
    with Decider(Log(tmp_path_factory.mktemp("fuzzed") / "log"), seats) as decider:
        decider.decide([opened])
        yield decider


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_sent_no_seat_is_sold_twice_and_each_command_is_decided_once(
    log: Log, seats: Commands, seed: int
) -> None:
    draw = random.Random(seed)
    answered: dict[bytes, set[Answer]] = {}
    sent: list[bytes] = []
    for _ in range(6):
        with Decider(log, seats) as decider:
            for _ in range(draw.randrange(1, 6)):
                group = [draw.choice(sent) if sent and draw.random() < 0.2 else drawn(draw) for _ in range(15)]
                sent += group
                for each, answer in zip(group, decider.decide(group), strict=True):
                    answered.setdefault(each, set()).add(answer)
    assert all(len(answers) == 1 for answers in answered.values())
    require_right(decisions_in(log))
    assert len(decisions_in(log)) == len({json_object(each)["command_id"] for each in answered})


def drawn(draw: random.Random) -> bytes:
    name = draw.choice(["open_flight", "sell_seat", "sell_seat", "sell_seat", "return_seat"])
    fields: dict[str, Any] = {"flight": draw.choice(["UA1", "UA2", "é"])}
    fields |= {"seats": draw.choice([0, 3, 5])} if name == "open_flight" else {"seat": draw.choice("ABCDEFG")}
    fields |= {"passenger": "Ada"} if name == "sell_seat" else {}
    return command(name, f"c-{draw.randrange(10**9)}", **fields)


def require_right(decisions: list[dict[str, Any]]) -> None:
    """What must hold of all decisions: by a plain reading of them, without the rules."""
    assert max(Counter(each["command_id"] for each in decisions).values()) == 1
    versions: Counter[str] = Counter()
    sold: dict[str, set[str]] = {}
    capacity: dict[str, int] = {}
    for each in decisions:
        flight = each["flight"]
        if each["outcome"] == "accepted":
            versions[flight] += 1
            taken = sold.setdefault(flight, set())
            if each["event"] == "flight_opened":
                assert flight not in capacity
                capacity[flight] = each["seats"]
            elif each["event"] == "seat_sold":
                assert each["seat"] not in taken
                taken.add(each["seat"])
                assert len(taken) <= capacity[flight]
            else:
                taken.remove(each["seat"])
        assert each["version"] == versions[flight]


def test_to_change_a_rule_changes_no_decision(log: Log, seats: Commands) -> None:
    with Decider(log, seats) as decider:
        before = decider.decide([opened, sell("a"), sell("b")])
    stricter = gold.commands(
        "seats",
        topic=seats.topic,
        state=seats.state,
        commands={
            "sell_seat": gold.command(
                "flight string, seat string, passenger string", rules={"never": "false"}, event="seat_sold"
            )
        },
    )
    with Decider(log, stricter) as decider:
        # Also of a command that can no longer be asked.
        assert decider.decide([opened, sell("a"), sell("b")]) == before
        (refused,) = decider.decide([sell("c", "1B")])
        assert refused.as_dict()["message"] == "never is not fulfilled: false"
        assert decider.decide([command("open_flight", "d", flight="UA2", seats=1)])[0].kind == "wrong"


# The topic


def test_two_cannot_decide_at_once_and_nobody_else_writes_the_topic(log: Log, seats: Commands) -> None:
    with Decider(log, seats):
        with pytest.raises(LogError, match="Another process has topic seat_decisions"):
            Decider(Log(log.root), seats)
        with pytest.raises(LogError, match="stop that one"):
            log.erase("seat_decisions", {})
    for append in (log.append, lambda topic, records: Log(log.root).append(topic, records)):
        with pytest.raises(UsageError, match="has what the commands seats decided: only it may append"):
            append("seat_decisions", [Record(b"{}")])
    with Decider(log, seats) as decider:
        assert decider.decisions == 0


def test_a_topic_of_decisions_keeps_all_of_them(log: Log, seats: Commands) -> None:
    with Decider(log, seats) as decider:
        for each in (opened, sell("a"), sell("b", "1B")):
            decider.decide([each])
    with pytest.raises(UsageError, match="it retains them"):
        log.retain("seat_decisions", Retention(compact=True))
    assert log.trim("seat_decisions", 0, 2, None, bytes_max=1) == 0
    assert log.compact("seat_decisions", 0, 3, next(log.read("seat_decisions", 0)).timestamp) == 0
    log.start_at("seat_decisions", {0: 1})
    with pytest.raises(LogError, match="does not retain all of its records"):
        Decider(log, seats)


@pytest.mark.parametrize("partitions", [1, 4])
def test_commands_need_a_topic_of_their_own(tmp_path: Path, seats: Commands, partitions: int) -> None:
    log = Log(tmp_path / "log", partitions=partitions)
    log.append("seat_decisions", [Record(b"{}")])
    with pytest.raises(UsageError, match="Give commands a"):
        Decider(log, seats)
    other = Log(tmp_path / "other")
    other.own("seat_decisions", "trains").close()
    with pytest.raises(UsageError, match="has the decisions of trains"):
        Decider(other, seats)


def test_kafka_is_refused(seats: Commands) -> None:
    with pytest.raises(UsageError, match="Commands need the embedded log"):
        Decider(KafkaLog("127.0.0.1:1", KafkaSecurity()), seats)


def test_fields_can_be_erased_and_their_commands_are_not_decided_again(log: Log, seats: Commands) -> None:
    with Decider(log, seats) as decider:
        decider.decide([opened, sell("a")])
    log.erase("seat_decisions", {0: {1: [Removal(0, ("passenger",))]}})
    assert "Ada" not in "".join(path.read_text() for path in log.root.rglob("*.jsonl"))
    with Decider(log, seats) as decider:
        (again,) = decider.decide([sell("a")])
        assert (again.kind, again.as_dict()["passenger"], again.as_dict()["version"]) == ("accepted", None, 2)
        assert said(decider.decide([sell("b"), sell("c", "1B")])) == ["seat_is_free", "seat_sold 3"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "whole records must stay"),
        (["--fields", "passenger,flight,version"], "flight, version must stay"),
    ],
)
def test_decisions_themselves_are_not_erased(tmp_path: Path, seats: Commands, options: list[str], says: str) -> None:
    shutil.copytree(project_folder, tmp_path, dirs_exist_ok=True)
    with Decider(Log(tmp_path / ".sluice" / "log"), seats) as decider:
        decider.decide([opened, sell("a")])
    command = ["erase", "seat_decisions", "--key", "UA1", "--reason", "asked for", *options]
    done = sluice(*command, here=tmp_path)
    assert (done.returncode, says in " ".join(done.stderr.split())) == (2, True), done.stderr


def test_a_damaged_log_is_reported_and_nothing_is_decided_by_it(log: Log, seats: Commands) -> None:
    with Decider(log, seats) as decider:
        for each in (opened, sell("a"), sell("b", "1B")):
            decider.decide([each])
    segments = [each.path for each in log.segments("seat_decisions")]
    contents = [each.read_bytes() for each in segments]
    segments[-1].write_bytes(contents[-1][:-20])
    with pytest.raises(LogError, match="ends in the middle of a line"):
        Decider(log, seats)
    segments[-1].write_bytes(contents[-1].replace(b"seat_sold", b"seat_lost"))
    with pytest.raises(LogError, match="another checksum"):
        Decider(log, seats)
    segments[-1].write_bytes(contents[-1])
    segments[1].unlink()
    with pytest.raises(LogError, match="offset 1 is missing"):
        Decider(log, seats)
    segments[1].write_bytes(contents[1])
    with Decider(log, seats) as decider:
        assert decider.decisions == 3


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"version": 3}, "its version is 3, and 2 should come"),
        ({"version": 1}, "its version is 1, and 2 should come"),
        ({"outcome": "rejected"}, "its version is 2, and 1 should come"),
        ({"command_id": "open"}, "a command of its id was decided before"),
        ({"flight": None}, "it has no flight"),
        ({"seats": "many"}, "its seats is no int"),
    ],
    ids=str,
)
def test_a_log_that_contradicts_itself_is_reported(
    log: Log, seats: Commands, changed: dict[str, Any], says: str
) -> None:
    with Decider(log, seats) as decider:
        decider.decide([opened, sell("a")])
    values = [decision | (changed if number else {}) for number, decision in enumerate(decisions_in(log))]
    forged = Log(log.root.parent / "forged")
    owned = forged.own("seat_decisions", "seats")
    owned.append([Record(json.dumps(each).encode()) for each in values])
    owned.close()
    with pytest.raises(LogError, match=f"offset 1: .*{says}"):
        Decider(forged, seats)


def test_a_state_that_cannot_be_folded_any_more_is_reported_with_its_offset(log: Log, seats: Commands) -> None:
    with Decider(log, seats) as decider:
        decider.decide([command("open_flight", "o", flight="UA1", seats=200)])
    narrower = declared(reduce={"seats": "CAST(event.seats AS tinyint)"}, schema="seats tinyint")
    with pytest.raises(LogError, match=r"offset 0: the state cannot be folded.*200 is no tinyint"):
        Decider(log, narrower)


@pytest.mark.parametrize("is_there", [False, True], ids=["before its name", "after its name"])
def test_an_append_that_fails_decides_nothing_or_everything(
    log: Log, seats: Commands, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def failing(source: Path, target: Path) -> None:
        if is_there:
            link(source, target)
        raise OSError(28, "No space left on device")

    with Decider(log, seats) as decider:
        decider.decide([opened])
        with monkeypatch.context() as patch:
            patch.setattr(os, "link", failing)
            for _ in range(2):
                with pytest.raises(LogError, match="No space left"):
                    decider.decide([sell("a"), sell("b")] if not is_there else [sell(f"x{time.monotonic_ns()}")])
        assert decider.decisions in (1, 2)
        first = decider.decide([sell("a", "1B"), sell("b", "1B")])
        assert said(first)[1] == "seat_is_free"
    with Decider(log, seats) as decider:
        assert decider.decide([sell("a", "1B"), sell("b", "1B")]) == first
    require_right(decisions_in(log))


def test_a_topic_that_is_moved_away_is_reported_and_nothing_is_appended_beside_it(log: Log, seats: Commands) -> None:
    with Decider(log, seats) as decider:
        decider.decide([opened])
        older = shutil.copytree(log.root / "seat_decisions", log.root.parent / "older")
        decider.decide([sell("a")])
        newest = (log.root / "seat_decisions").rename(log.root.parent / "newest")
        for says in ("is gone", "cannot be read"):
            with pytest.raises(LogError, match=says):
                decider.decide([sell("b", "1B")])
        older.rename(log.root / "seat_decisions")
        for _ in range(2):
            with pytest.raises(LogError, match=r"01\.jsonl is gone"):
                decider.decide([sell("b", "1B")])
        shutil.rmtree(log.root / "seat_decisions")
        newest.rename(log.root / "seat_decisions")
        assert said(decider.decide([sell("a"), sell("b", "1B")])) == ["seat_sold 2", "seat_sold 3"]


def test_a_batch_that_is_sent_again_reads_its_segment_once(
    log: Log, seats: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [opened, *(sell(str(each), str(each)) for each in range(50))]
    reads: list[Segment] = []

    def counted(segment: Segment) -> Iterator[StoredRecord]:
        reads.append(segment)
        return records_in(segment)

    with Decider(log, seats) as decider:
        first = decider.decide(batch)
        monkeypatch.setattr("sluice.log.owned.records_in", counted)
        assert decider.decide(batch) == first
    assert len(reads) == 1


def test_a_segment_that_could_not_be_read_is_folded_once(
    log: Log, seats: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(segment: Segment) -> Iterator[StoredRecord]:
        yield next(records_in(segment))
        raise LogError("Input/output error")

    def unsynced(_: Path) -> None:
        raise OSError(5, "Input/output error")

    with Decider(log, seats) as decider:
        with monkeypatch.context() as patch:
            patch.setattr("sluice.log.segments.sync", unsynced)
            with pytest.raises(LogError, match="Input/output error"):
                decider.decide([opened, sell("a")])
        for name, broken in {"sync": unsynced, "records_in": failing}.items():
            with monkeypatch.context() as patch:
                patch.setattr(f"sluice.log.owned.{name}", broken)
                with pytest.raises(LogError, match="Input/output error"):
                    decider.decide([opened])
        assert said(decider.decide([opened, sell("a")])) == ["flight_opened 1", "seat_sold 2"]


# Declarations


def declared(name: str = "seats", **options: Any) -> Commands:
    """The commands of a small state, some of it declared otherwise."""
    topic = bronze.topic("seat_decisions")
    columns = ", ".join(f"{column} {kind}" for column, kind in metadata.items())
    decisions = silver.events(
        "seat_decisions",
        source=options.get("source", topic),
        schema=f"{columns}, flight string, seats int, ratio double, departs_at timestamp{options.get('columns', '')}",
        keys=options.get("keys", ["command_id"]),
        **options.get("events", {}),
    )
    state = gold.state(
        "flights",
        source=decisions,
        keys=options.get("state_keys", ["flight"]),
        where=options.get("where", "outcome = 'accepted'"),
        sequence_by=options.get("sequence_by", "version"),
        schema=options.get("schema", "seats int"),
        initial=options.get("initial", {"seats": "0"}),
        reduce=options.get("reduce", {"seats": "event.seats"}),
    )
    given: dict[str, Any] = {"fields": "flight string, seats int", "rules": {}, "event": "opened"}
    given |= options.get("command", {})
    fields = given.pop("fields")
    return gold.commands(
        name, topic=topic, state=options.get("state", state), commands={"open": gold.command(fields, **given)}
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "Seats"}, "'Seats' is no name"),
        ({"state": "gold.flights"}, "declare it with gold.state"),
        ({"where": ""}, "outcome = 'accepted'"),
        ({"where": "outcome = 'accepted' AND seats > 1"}, "outcome = 'accepted'"),
        ({"sequence_by": "decided_at"}, "sequence_by='version'"),
        ({"source": bronze.topic("others")}, "must be the silver.events of bronze.seat_decisions"),
        ({"events": {"event_time": "decided_at", "hold_later_than": "1 hour"}}, "has hold_later_than"),
        ({"events": {"from_record": {"flight": "key"}}}, "has from_record"),
        ({"events": {"event_time": "departs_at"}}, "the event time of silver.seat_decisions must be decided_at"),
        ({"keys": ["flight"]}, "the keys of silver.seat_decisions must be command_id"),
        ({"state_keys": ["decided_at"]}, "the key decided_at of gold.flights is a timestamp"),
        ({"schema": "seats double"}, "seats is a double, whose values only Spark knows"),
        ({"reduce": {"seats": "event.ratio"}}, "event.ratio is a double"),
        ({"reduce": {"seats": "CAST(rand() AS int)"}}, "rand gives another value each time"),
        ({"initial": {"seats": "'none'"}}, "a string cannot become a int"),
        ({"command": {"fields": "seats int"}}, "give the key of the state as a field: flight string"),
        ({"command": {"fields": "flight string, seats double"}}, "seats is a double"),
        ({"command": {"fields": "flight string, version int"}}, "version is what every decision has"),
        ({"command": {"fields": "flight string, chairs int"}}, "events have no column chairs"),
        ({"command": {"rules": {"is_new": "state.seat = 0"}}}, "there is no state.seat; did you mean seats?"),
        ({"command": {"rules": {"is_new": "state.seats"}}}, "rule is_new is state.seats, a int; write a condition"),
        ({"command": {"rules": {"is_new": "event.seats = 0"}}}, "event.seats is not known here"),
        ({"command": {"rules": {"is_new": "state.seats = 'a'"}}}, "a int and a string do not go together"),
        ({"command": {"rules": {"is_new": "seats ="}}}, "cannot be read"),
        ({"command": {"rules": {"is_new": r"'\n' = 'a'"}}}, "has a backslash"),
        (
            {"command": {"rules": {"is_new": "now() > command.decided_at"}}},
            "is not decided without Spark",
        ),
        ({"command": {"rules": {"is_new": "try_cast(state.seats AS smallint) = 1"}}}, "try_cast is not known"),
        ({"command": {"rules": {"is_new": "if(state.seats = 0, true)"}}}, "if has three values"),
        ({"command": {"rules": {"is_new": "nvl(true, true, true)"}}}, "nvl takes two values; write coalesce"),
        # Spark reads `''` as a quotation mark, and the parser as the end of one text and the beginning of another.
        ({"command": {"rules": {"is_new": "'it''s' = 'its'"}}}, "has two texts without an operator between"),
        # Spark reads these comparisons from left to right, and the parser binds some closer.
        ({"command": {"rules": {"is_new": "true = false < false"}}}, "put brackets around FALSE < FALSE"),
        ({"command": {"rules": {"is_new": "true = false BETWEEN false AND true"}}}, "put brackets around"),
        ({"command": {"rules": {"is_new": "command.seats BETWEEN SYMMETRIC 2 AND 1"}}}, "Spark has no BETWEEN SYM"),
        # Spark says true, also where the number is null.
        ({"command": {"rules": {"is_new": "command.seats < 99999999999999999999"}}}, "no whole number is near"),
        ({"command": {"rules": {"is_new": "abs(CAST(command.seats AS decimal(35,0))) = 1"}}}, "Spark rounds"),
        ({"command": {"rules": {"is_new": "size(array_append(array(1.5), command.seats)) = 2"}}}, "CAST it"),
        ({"command": {"rules": {"out_of_range": "true"}}}, "out_of_range is a reason of its own"),
        ({"command": {"event": "Opened!"}}, "'Opened!' is no name"),
        ({"command": {"payload": {"seat": "1"}}}, "events have no column seat; did you mean seats?"),
        ({"command": {"payload": {"seats": "command.flight"}}}, "a string cannot become a int"),
        ({"command": {"optional": ["flight"]}}, "no field beside the key"),
    ],
    ids=str,
)
def test_a_declaration_that_cannot_be_decided_exactly_is_refused(options: dict[str, Any], says: str) -> None:
    # The column of doubles is in the table, and commands do without it.
    with pytest.raises(DeclarationError) as error:
        declared(**options)
    assert says in str(error.value)


def test_each_topic_has_one_declaration_and_no_rule_takes_decisions_away(tmp_path: Path) -> None:
    shutil.copytree(project_folder, tmp_path, dirs_exist_ok=True)
    declaration = tmp_path / "pipelines" / "seats.py"
    declaration.write_text(
        declaration.read_text()
        + "\nothers = gold.commands('others', topic=topic, state=flights, commands={'sell_seat': gold.command("
        "'flight string, seat string', rules={}, event='seat_sold')})\n"
    )
    with pytest.raises(DeclarationError, match="seats and others decide in one topic"):
        load(tmp_path)
    shutil.copytree(project_folder / "pipelines", tmp_path / "pipelines", dirs_exist_ok=True)
    (tmp_path / "expectations" / "silver").mkdir()
    (tmp_path / "expectations" / "silver" / "__init__.py").write_text("")
    (tmp_path / "expectations" / "silver" / "seat_decisions.py").write_text(
        "from sluice.expect import expect, suite\nexpectations = suite('silver.seat_decisions', "
        "expect('column_values_to_be_between', column='seats', min_value=2, severity='quarantine'))\n"
    )
    with pytest.raises(DeclarationError, match="would quarantine what was decided"):
        load(tmp_path)
    with pytest.raises(UsageError, match=r"No commands seat are declared \(there are: seats\)"):
        load(project_folder).commands_of("seat")


# Values and expressions; that they are those of Spark, tests/laws/test_commands.py says


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("int", "1"), ("int", 1.5), ("int", True), ("tinyint", 128), ("bigint", 2**63), ("boolean", 1), ("string", 1),
        ("decimal(4,2)", "1.5"), ("decimal(4,2)", True), ("decimal(4,2)", 100), ("decimal(4,2)", "1e-3"),
        ("date", "2026-02-30"), ("date", "2026-1-1"), ("date", 1), ("timestamp", "2026-01-01T00:00:00"),
        ("timestamp", "2026-01-01"), ("timestamp", "2026-01-01T00:00:00.1234567Z"),
        ("timestamp", "0001-01-01T00:00:00+14:00"), ("timestamp", "2026-01-01T25:00:00Z"), ("array<int>", 1),
        ("array<int>", ["a"]), ("timestamp", "\u0662026-01-01T00:00:00Z"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_none(kind: str, found: Any) -> None:
    text = found if kind.startswith("decimal") and isinstance(found, str) else json.dumps(found)
    given = json_object(f'{{"it": {text}}}'.encode()) if text != "1.5" else {"it": "1.5"}
    with pytest.raises(NotOfType):
        reader_of(kind)(given["it"])


@pytest.mark.parametrize("text", ["1e400000000", "-1e-400000000", "123456789012345678901234567890", "0.000001"])
def test_a_number_that_does_not_fit_a_decimal_is_none(text: str) -> None:
    with pytest.raises(NotOfType):
        reader_of("decimal(10,2)")(json_object(f'{{"it": {text}}}'.encode())["it"])


@pytest.mark.parametrize(
    "text",
    [
        "2147483647 + 1", "-(-2147483648)", "abs(-2147483648)", "CAST(128 AS tinyint)", "CAST(99.995 AS decimal(4,2))",
        "1 % 0", "1 div 0", "9223372036854775807 * 2", "CAST('9' AS int)",
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_never_another_number(text: str) -> None:
    with pytest.raises((OutOfRange, DeclarationError)):
        compiled("commands: rule it", text, {}).of({})


def test_an_overflow_is_a_rejection(log: Log) -> None:
    counting = declared(
        reduce={"seats": "state.seats + event.seats"},
        command={"rules": {"fits": "state.seats + 1 > 0"}},
    )
    most = command("open", "a", flight="UA1", seats=2**31 - 1)
    with Decider(log, counting) as decider:
        (taken, refused, by_the_rule) = decider.decide(
            [most, command("open", "b", flight="UA1", seats=1), command("open", "c", flight="UA1", seats=-1)]
        )
    assert said([taken, refused, by_the_rule]) == ["opened 1", "out_of_range", "out_of_range"]
    assert "2147483648 is no int" in refused.as_dict()["message"]


def test_decimals_have_all_of_their_digits(log: Log) -> None:
    topic = bronze.topic("amounts")
    columns = ", ".join(f"{column} {kind}" for column, kind in metadata.items())
    decisions = silver.events(
        "amounts", source=topic, schema=f"{columns}, account string, amount decimal(38,4)", keys=["command_id"]
    )
    state = gold.state(
        "accounts", source=decisions, keys=["account"], where="outcome = 'accepted'", sequence_by="version",
        schema="amount decimal(38,4)", initial={"amount": "0"}, reduce={"amount": "event.amount"},
    )  # fmt: skip
    fields = "account string, amount decimal(38,4)"
    put = gold.command(fields, rules={}, event="was_put", payload={"amount": "command.amount"})
    most = "9" * 34 + ".9999"

    def of(amount: str) -> bytes:
        return b'{"command": "put", "command_id": "a", "account": "A", "amount": %b}' % amount.encode()

    with Decider(log, gold.commands("amounts", topic=topic, state=state, commands={"put": put})) as decider:
        first, again, other, text = decider.decide([of(each) for each in (most, f"{most}00", f"{most[:-1]}8", "0.10")])
        assert (first.kind, first.as_dict()["amount"]) == ("accepted", Decimal(most))
        assert (again, other.kind, text.kind) == (first, "reused", "reused")


def test_a_decision_that_no_record_can_hold_is_not_made(log: Log) -> None:
    longer = {"fields": "flight string, note string", "rules": {}, "event": "noted"}
    payload = {"note": " || ".join(["command.note"] * 11)}
    noting = declared(columns=", note string", command={**longer, "payload": payload})
    with Decider(log, noting) as decider:
        refused, taken = decider.decide([
            command("open", "a", flight="UA1", note="x" * 1_000_000), command("open", "b", flight="UA1", note="x")
        ])  # fmt: skip
    assert (refused.kind, taken.kind, taken.as_dict()["version"]) == ("wrong", "accepted", 1)
    assert "and a record can have" in refused.as_dict()["error"]


# HTTP


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Log, Listening]]:
    """A receiver that decides the commands of the example."""
    project = tmp_path_factory.mktemp("seats")
    shutil.copytree(project_folder, project, dirs_exist_ok=True)
    tokens = f"{token},orders:{orders_token}"
    with listening(project, "http", "--port", "0", "--commands", "seats", SLUICE_HTTP_TOKEN=tokens) as receiver:
        yield port_of(receiver), Log(project / "log"), receiver


def ask(port: int, *commands: bytes, **options: Any) -> Any:
    return post(port, b"\n".join(commands), "/commands/seats", **options)


def test_an_answer_says_what_was_decided(served: tuple[int, Log, Listening]) -> None:
    port, log, _ = served
    answers = [
        ask(port, each)
        for each in (
            command("open_flight", "h-1", flight="H1", seats=2), sell("h-2", flight="H1"), sell("h-3", flight="H1"),
            sell("h-4", "1B", flight="H1", expected_version=7), sell("h-2", "1C", flight="H1"), b"{}",
        )
    ]  # fmt: skip
    assert [each.status for each in answers] == [201, 201, 422, 409, 422, 400]
    assert answers[1].body["event"] == "seat_sold"
    assert (answers[2].body["reason"], answers[2].body["message"]) == ("seat_is_free", "This seat is sold.")
    assert (answers[3].body["reason"], answers[3].body["version"]) == ("expected_version", 2)
    assert ask(port, sell("h-2", flight="H1")).body == answers[1].body
    batch = ask(
        port,
        sell("h-5", "1B", flight="H1"),
        b"",
        b"no",
        sell("h-6", "1C", flight="H1"),
        Content_Type="application/x-ndjson",
    )
    assert (batch.status, [each["status"] for each in batch.body["answers"]]) == (200, [201, 400, 422])
    assert batch.body["answers"][2]["answer"]["reason"] == "seats_are_left"
    require_right(decisions_in(log))


@pytest.mark.parametrize(
    ("status", "says", "path", "options"),
    [
        (401, "Send the token", "/commands/seats", {"bearer": None}),
        (403, "may not write the topic seat_decisions", "/commands/seats", {"bearer": orders_token}),
        (404, "there are seats", "/commands/seat", {}),
        (403, "Only commands write the topic seat_decisions", "/topics/seat_decisions", {}),
        (400, "have no parameters", "/commands/seats?key=a", {}),
        (400, "no commands", "/commands/seats", {"body": b"\n", "Content_Type": "application/x-ndjson"}),
        (415, "without a Content-Encoding", "/commands/seats", {"Content_Encoding": "gzip"}),
    ],
)
def test_a_wrong_request_is_reported(
    served: tuple[int, Log, Listening], status: int, says: str, path: str, options: Mapping[str, Any]
) -> None:
    answer = post(served[0], path=path, **options)
    assert (answer.status, says in answer.body["error"]) == (status, True), answer


def test_a_full_disk_is_503_until_it_is_not(served: tuple[int, Log, Listening]) -> None:
    port, log, receiver = served
    assert ask(port, command("open_flight", "f-1", flight="F1", seats=1)).status == 201
    unlimited = resource.prlimit(receiver.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(receiver.process.pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
    try:
        assert ask(port, sell("f-2", flight="F1")).status == 503
    finally:
        resource.prlimit(receiver.process.pid, resource.RLIMIT_FSIZE, unlimited)
    assert ask(port, sell("f-2", flight="F1")).status == 201
    assert [each["command_id"] for each in decisions_in(log)].count("f-2") == 1


def test_a_second_receiver_is_refused(served: tuple[int, Log, Listening]) -> None:
    project = served[1].root.parent
    environment = {"SLUICE_LOG": str(served[1].root), "SLUICE_HTTP_TOKEN": token}
    done = sluice("listen", "http", "--port", "0", "--commands", "seats", here=project, environment=environment)
    assert (done.returncode, "Another process has topic seat_decisions" in " ".join(done.stderr.split())) == (1, True)
    done = sluice("listen", "http", "--port", "0", "--commands", "trains", here=project, environment=environment)
    assert (done.returncode, "there are: seats" in done.stderr) == (2, True)


class Client(threading.Thread):
    """Sells random seats, and asks each time until there is an answer."""

    def __init__(self, number: int, rush: "Rush") -> None:
        super().__init__()
        self.number, self.rush, self.draw = number, rush, random.Random(number)
        self.answers: dict[bytes, Any] = {}

    def run(self) -> None:
        for index in range(self.rush.commands_each):
            flight, seat = f"K{self.draw.randrange(2)}", str(self.draw.randrange(60))
            asked = sell(f"k-{self.number}-{index}", seat, flight, passenger=str(self.number))
            self.answers[asked] = self.until_answered(asked)
            if self.draw.random() < 0.2:
                assert self.until_answered(asked) == self.answers[asked]

    def until_answered(self, asked: bytes) -> Any:
        deadline = time.monotonic() + patience_seconds
        while time.monotonic() < deadline:
            try:
                answer = ask(self.rush.port, asked)
            except (OSError, ValueError, HTTPException) as error:
                self.rush.unanswered.append(error)
                time.sleep(0.05)
                continue
            if answer.status != 503:
                return answer.status, answer.body
        raise AssertionError("no answer")


class Rush:
    """Many clients at once, of a receiver that is killed while they wait for answers."""

    def __init__(self, project: Path, clients: int, commands_each: int, kills: int) -> None:
        self.project, self.commands_each, self.kills = project, commands_each, kills
        self.unanswered: list[Exception] = []
        self.port = 0
        self.clients = [Client(number, self) for number in range(clients)]

    def has_answered(self, count: int) -> bool:
        return sum(len(each.answers) for each in self.clients) >= count

    def run(self) -> None:
        draw = random.Random(self.kills)
        with ExitStack() as stack:
            receiver = self.started(stack)
            for flight in ("K0", "K1"):
                assert ask(self.port, command("open_flight", flight, flight=flight, seats=40)).status == 201
            for each in self.clients:
                each.start()
            for count in sorted(draw.sample(range(len(self.clients) * (self.commands_each - 1)), self.kills)):
                eventually(partial(self.has_answered, count), "answers")
                receiver.ends(signal.SIGKILL)
                receiver = self.started(stack)
            for each in self.clients:
                each.join()

    def started(self, stack: ExitStack) -> Listening:
        receiver = stack.enter_context(listening(self.project, "http", "--port", "0", "--commands", "seats"))
        self.port = port_of(receiver)
        return receiver


@pytest.mark.process
def test_fifty_clients_and_kills_sell_no_seat_twice(tmp_path: Path) -> None:
    shutil.copytree(project_folder, tmp_path, dirs_exist_ok=True)
    rush = Rush(tmp_path, 50, commands_each, kills)
    rush.run()
    decisions = decisions_in(Log(tmp_path / "log"))
    require_right(decisions)
    answers = {asked: answer for client in rush.clients for asked, answer in client.answers.items()}
    assert len(answers) == 50 * rush.commands_each
    by_id = {each["command_id"]: each for each in decisions}
    assert len(by_id) == len(answers) + 2
    for asked, (status, body) in answers.items():
        decision = by_id[json_object(asked)["command_id"]]
        assert (status, body["version"]) == (201 if decision["outcome"] == "accepted" else 422, decision["version"])
    assert rush.unanswered
