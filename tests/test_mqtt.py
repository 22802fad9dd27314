"""MQTT: what the broker has acknowledged is in the log, whatever is killed, and what may come again says so."""

import asyncio
import random
import resource
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from gmqtt import Client, Subscription

from sluice import bronze, silver
from sluice.errors import SluiceError, UsageError
from sluice.ingest.receivers import mqtt
from sluice.ingest.receivers.mqtt import Options, address_of, filters_of, record_of
from sluice.log import Log
from tests.kit import Lakehouse
from tests.servers.mosquitto import Mosquitto
from tests.test_receivers import listening, records_of, said_at_once
from tests.waiting import eventually, patience_seconds


class Listener:
    """A receiver in a thread of this process, which starts sooner than one of its own; it is stopped as by a signal."""

    def __init__(self, log: Log, url: str, options: Options) -> None:
        self.said: list[str] = []
        self.error: BaseException | None = None
        self.is_made = threading.Event()
        self.thread = threading.Thread(target=self.run, args=[log, address_of(url), options])
        self.thread.start()

    def run(self, log: Log, address: mqtt.Address, options: Options) -> None:
        async def receive() -> None:
            self.loop = asyncio.get_running_loop()
            self.loop.set_exception_handler(mqtt.without_refusals)
            self.receiver = mqtt.Receiver(log, options, self.said.append)
            self.is_made.set()
            await mqtt.receive(self.receiver, address)

        try:
            asyncio.run(receive())
        except SluiceError as error:
            self.error = error

    def hears(self, text: str) -> str:
        found = eventually(lambda: [each for each in self.said if text in each], f"{text} in {self.said}")
        return str(found[0])

    def ends(self) -> None:
        self.is_made.wait()
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.receiver.stop)
        self.thread.join()


@contextmanager
def listener(broker: Mosquitto, log: Log, client: str, url: str = "", **options: Any) -> Iterator[Listener]:
    filters = {f"plants/{client}/+": "heats"}
    made = Listener(log, url or broker.url, Options(**{"client_id": client, "filters": filters, "qos": 2, **options}))
    try:
        yield made
    finally:
        made.ends()


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto")) as broker:
        yield broker


def arguments(client: str) -> list[str]:
    return ["mqtt", "--subscribe", f"plants/{client}/+=heats", "--client-id", client, "--qos", "2"]


def numbered(client: str, first: int, end: int) -> list[tuple[str, bytes, dict[str, Any]]]:
    """Messages of QoS 1 and 2 by turns."""
    return [
        (
            f"plants/{client}/{number % 3}",
            f'{{"n": {number}}}'.encode(),
            {"qos": 1 + number % 2, "user_property": ("message_id", str(number))},
        )
        for number in range(first, end)
    ]


def ids_of(log: Log) -> Counter[str]:
    return Counter(record.headers["message_id"] for record in records_of(log, "heats"))


def test_messages_are_records_with_their_properties(mosquitto: Mosquitto, tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    fields = {"key_field": "sensor", "topic_field": "sensor", "id_field": "id"}
    options: dict[str, Any] = {"filters": {"plants/seen/+": "heats", "other/#": "others"}, **fields}
    properties = [("message_id", "m"), ("unit", "°C"), ("unit", "K"), ("sluice_erased", "7"), ("retained", "no")]
    mosquitto.publish([("other/kept", b"retained before", {"retain": True})])
    with listener(mosquitto, log, "seen", **options) as receiver:
        assert "a new session" in receiver.hears("Connected to")
        eventually(lambda: records_of(log, "others"), "the retained message")
        mosquitto.publish(
            [
                ("plants/seen/1", b'{"a":1}', {"user_property": properties}),
                ("plants/seen/2", b"\x00\xff", {"qos": 2}),
                ("plants/seen/3", b"", {"qos": 0}),
                ("plants/unseen/1", b"not ours", {}),
                ("other/deep/er", b"more", {}),
            ]
        )
        eventually(lambda: len(records_of(log, "heats")) == 3 and len(records_of(log, "others")) == 2, "the messages")
    found = {record.headers["mqtt_topic"]: record for record in records_of(log, "heats")}
    first = found["plants/seen/1"]
    assert (first.key, first.value) == ("plants/seen/1", b'{"id":"m","sensor":"plants/seen/1","a":1}')
    assert first.headers == {
        "message_id": "m", "unit": "°C", "unit#2": "K", "retained#2": "no",
        "mqtt_topic": "plants/seen/1", "mqtt_qos": "1",
    }  # fmt: skip
    assert (found["plants/seen/2"].value, found["plants/seen/2"].headers["mqtt_qos"]) == (b"\x00\xff", "2")
    assert found["plants/seen/3"].headers["mqtt_qos"] == "0"
    others = {record.headers["mqtt_topic"]: record for record in records_of(log, "others")}
    assert others["other/kept"].headers["retained"] == "true"
    assert others["other/deep/er"].value == b"more"
    assert "5 messages taken: 0 of them perhaps again, and 1 of QoS 0" in "".join(receiver.said)
    # The retained message came with the subscription, and does not come again with a connection.
    with listener(mosquitto, log, "seen", **options) as receiver:
        assert "the session goes on" in receiver.hears("Connected to")
        mosquitto.publish([("other/last", b"last", {})])
        eventually(lambda: len(records_of(log, "others")) >= 3, "the last message")
    assert len(records_of(log, "others")) == 3


def test_what_came_while_the_receiver_was_away_comes_later(mosquitto: Mosquitto, tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    with listener(mosquitto, log, "away") as receiver:
        receiver.hears("Connected to")
        mosquitto.publish(numbered("away", 0, 1))
        eventually(lambda: ids_of(log), "the first")
    mosquitto.publish(numbered("away", 1, 150))
    mosquitto.end()
    mosquitto.start()
    with listener(mosquitto, log, "away"):
        eventually(lambda: len(ids_of(log)) == 150, "all")
    assert set(ids_of(log).values()) == {1}


def test_messages_come_again_after_a_kill_between_append_and_ack(mosquitto: Mosquitto, tmp_path: Path) -> None:
    log = Log(tmp_path / "log", partitions=2)
    log.create("heats")
    # The second partition is locked: the first has its half when the receiver is killed, and nothing is acknowledged.
    with (
        FileLock(log.root / "heats" / "1" / ".lock"),
        listening(tmp_path, *arguments("again"), SLUICE_MQTT=mosquitto.url) as receiver,
    ):
        receiver.hears("(Connected to)")
        mosquitto.publish(numbered("again", 0, 10))
        eventually(lambda: log.segments("heats"), "the first half")
        receiver.ends(signal.SIGKILL)
    first = ids_of(log)
    assert 0 < len(first) < 10
    with listener(mosquitto, log, "again") as restarted:
        eventually(lambda: len(ids_of(log)) == 10, "all messages")
    # One that came before any of the second partition was acknowledged.
    twice = {message for message, count in ids_of(log).items() if count > 1}
    assert twice <= set(first)
    again = [record for record in records_of(log, "heats") if record.headers.get("redelivered") == "true"]
    assert {record.headers["message_id"] for record in again} >= twice
    assert f"{len(again)} of them perhaps again" in "".join(restarted.said)


def test_nothing_is_lost_when_the_receiver_is_killed_and_the_broker_restarts(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    log, dice = Log(tmp_path / "log"), random.Random(2)
    acknowledged: set[str] = set()

    def publish() -> None:
        """Each twenty until the broker has acknowledged them; some may then be there twice."""
        for first in range(0, 600, 20):
            eventually(partial(published, mosquitto, numbered("killed", first, first + 20)), "the broker")
            acknowledged.update(str(number) for number in range(first, first + 20))

    to = arguments("killed")
    with listening(tmp_path, *to, SLUICE_MQTT=mosquitto.url) as receiver:
        receiver.hears("(Connected to)")
        publishing = threading.Thread(target=publish)
        publishing.start()
        reached = 0
        for restarts_broker in (False, True, False, True):
            reached += dice.randrange(80, 140)
            eventually(partial(has_at_least, log, reached), "more messages", 0.1)
            if restarts_broker:
                mosquitto.end()
                mosquitto.start()
            else:
                receiver.ends(signal.SIGKILL)
                receiver.__init__(tmp_path, *to, SLUICE_MQTT=mosquitto.url)  # type: ignore[misc]
        publishing.join()
        eventually(lambda: ids_of(log).keys() >= acknowledged, "all that the broker has acknowledged", 0.1)
        receiver.hears("(Connected to)")
        assert receiver.ends() == 0
        assert "Traceback" not in "".join(receiver.said)
    assert len(acknowledged) == 600
    assert ids_of(log).keys() == acknowledged
    assert {record.headers["message_id"]: record.value for record in records_of(log, "heats")} == {
        each: f'{{"n": {each}}}'.encode() for each in acknowledged
    }


def has_at_least(log: Log, count: int) -> bool:
    return len(ids_of(log)) >= count


def published(broker: Mosquitto, messages: list[tuple[str, bytes, dict[str, Any]]]) -> bool:
    try:
        broker.publish(messages)
    except (OSError, TimeoutError, AttributeError):
        return False
    return True


def test_nothing_is_acknowledged_while_the_log_cannot_be_written(mosquitto: Mosquitto, tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.create("heats")
    with listening(tmp_path, *arguments("full"), SLUICE_MQTT=mosquitto.url) as receiver:
        receiver.hears("(Connected to)")
        pid = receiver.process.pid
        unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
        mosquitto.publish(numbered("full", 0, 3))
        receiver.hears("(Nothing is acknowledged)")
        # Stopped like this, it has acknowledged none of them.
        assert receiver.ends() == 0
        assert "Traceback" not in "".join(receiver.said)
    assert ids_of(log) == Counter()
    with listener(mosquitto, log, "full"):
        eventually(lambda: set(ids_of(log)) == {"0", "1", "2"}, "the messages")


def test_what_does_not_pass_by_itself_ends_the_receiver(mosquitto: Mosquitto, tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    code, said = said_at_once(tmp_path, *arguments("x"), SLUICE_MQTT=mosquitto.url.replace("secret", "wrong"))
    assert (code, "refused the connection" in said, "wrong" in said) == (1, True, False)
    with listener(mosquitto, log, "twice") as receiver:
        receiver.hears("Connected to")
        with listener(mosquitto, log, "twice"):
            receiver.hears("Is another client connected as twice?")
    # A filter that the session still has, and the command does not: its messages have no topic of the log.
    mosquitto.publish([("plants/twice/1", b"{}", {})])
    with listener(mosquitto, log, "twice", filters={"other/twice": "others"}) as receiver:
        receiver.thread.join(patience_seconds)
    assert "a subscription that --subscribe does not name" in str(receiver.error)
    with listener(mosquitto, log, "twice"):
        eventually(lambda: records_of(log, "heats"), "the message, which was not lost")


def test_tls_is_used_and_only_a_trusted_certificate_is_taken(
    mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "log")
    url = mosquitto.url.replace("mqtt://", "mqtts://").replace(str(mosquitto.port), str(mosquitto.tls_port))
    with listener(mosquitto, log, "tls", url) as receiver:
        receiver.thread.join(patience_seconds)
    assert "certificate is not trusted" in str(receiver.error)
    monkeypatch.setenv("SSL_CERT_FILE", str(mosquitto.certificate))
    with listener(mosquitto, log, "tls", url) as receiver:
        receiver.hears("Connected to")
        mosquitto.publish(numbered("tls", 0, 1))
        eventually(lambda: records_of(log, "heats"), "the message")


def test_the_law_notices_an_acknowledgement_before_the_append(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """A client that acknowledges at once, as the library does by default: what it had when it ended is lost."""

    async def optimistic(optimistic_acknowledgement: bool, client_id: str) -> int:
        begun, again = asyncio.Event(), asyncio.Event()
        came = 0

        async def take(*_: Any) -> int:
            nonlocal came
            came += 1
            begun.set()
            await again.wait()
            return 0

        async def client() -> Client:
            found = Client(
                client_id,
                clean_session=False,
                optimistic_acknowledgement=optimistic_acknowledgement,
                session_expiry_interval=60,
            )
            found.set_config({"reconnect_retries": -2})
            found.set_auth_credentials("sluice", "secret")
            found.on_message = take
            await found.connect("127.0.0.1", mosquitto.port)
            found.subscribe(Subscription("plants/law", qos=2))
            return found

        killed = await client()
        await asyncio.sleep(0.2)
        await asyncio.to_thread(mosquitto.publish, [("plants/law", b"x", {"qos": 2})])
        async with asyncio.timeout(10):
            await begun.wait()
        # A connection that is cut while the message is under way.
        killed._connection._transport.abort()
        came = 0
        restarted = await client()
        await asyncio.sleep(0.5)
        await restarted.disconnect()
        return came

    assert asyncio.run(optimistic(False, "law-careful")) == 1
    assert asyncio.run(optimistic(True, "law-optimistic")) == 0


def test_two_subscriptions_that_a_broker_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    options = Options("c", {"a/7426": "t7426", "a/13658": "t13658"})
    with pytest.raises(UsageError, match="could not tell two of the subscriptions apart"):
        mqtt.Receiver(Log(tmp_path), options, print)


def test_what_comes_twice_has_the_fate_duplicate(lakehouse: Lakehouse) -> None:
    heats = bronze.topic("heats")
    schema = "message_id string, n int"
    lakehouse.declare(heats, silver.events("by_mqtt", source=heats, schema=schema, keys=["message_id"]))
    options = Options("c", {"plants/#": "heats"}, id_field="message_id")
    for dup in (0, 1):
        properties = {"dup": dup, "user_property": [("message_id", "m")]}
        lakehouse.log.append("heats", [record_of("plants/1", b'{"n": 1}', 1, properties, options)])
    lakehouse.run()
    assert lakehouse.rows("silver.by_mqtt", "message_id", "n") == [("m", 1)]
    assert lakehouse.rows("silver._fates", "fate", "reason") == [("duplicate", "same_payload")]


@pytest.mark.parametrize("wrong", [["a"], ["=a"], ["a="], ["a=b", "a=c"], ["a=sluice_releases"], []])
def test_what_is_no_subscription_is_reported(wrong: list[str]) -> None:
    with pytest.raises(UsageError):
        filters_of(wrong)


@pytest.mark.parametrize("wrong", ["a/#/b=c", "a+/b=c", "a/b#=c"])
def test_a_filter_that_a_broker_cannot_read_is_reported(wrong: str) -> None:
    with pytest.raises(UsageError, match="is no filter of MQTT"):
        filters_of([wrong])


def test_a_filter_may_have_any_sign() -> None:
    assert filters_of(["$share/g/a=b/+=c", "#=d"]) == {"$share/g/a=b/+": "c", "#": "d"}
    assert mqtt.identifier_of("a", "b") != mqtt.identifier_of("a", "c")


@pytest.mark.parametrize("wrong", ["", "host", "http://h", "mqtt://", "mqtt://u:secret@h:x", "mqtt://u:secret@h/path"])
def test_what_is_no_address_is_reported_without_its_password(wrong: str) -> None:
    with pytest.raises(UsageError, match="must be a URL") as error:
        address_of(wrong)
    assert "secret" not in str(error.value)


def test_an_address_has_a_port_and_perhaps_a_password() -> None:
    found = address_of("mqtts://a%40b:p%3Aq@host")
    assert (found.host, found.port, found.has_tls, found.user, found.password) == ("host", 8883, True, "a@b", "p:q")
    assert "p:q" not in repr(found)
    assert address_of("mqtt://host:99").port == 99
