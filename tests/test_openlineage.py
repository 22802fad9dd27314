"""OpenLineage: events of real work, valid against the public schema, and of no consequence to the work."""

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

from infra.servers import Kafka, Running, free_port, running
from sluice import Project, bronze, gold, silver
from sluice.engine.catalogue import Catalogue, expecting, ordered
from sluice.engine.observer import Observer
from sluice.errors import SluiceError, UsageError
from sluice.log import KafkaLog, KafkaSecurity
from sluice.model.datasets import Dataset
from sluice.model.expectations import expect, suite
from sluice.model.ledger import Entry
from sluice.operate.describe import describe
from sluice.operate.openlineage import emitting, facets, places, sending
from sluice.runtime.settings import Settings, read_settings
from sluice.shapes.fates import by_command
from sluice.storage.delta import Lake
from tests.kit import Lakehouse, text
from tests.test_describe import hostile
from tests.test_project import append_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Event = dict[str, Any]
schemas = Path(__file__).with_name("openlineage")


def registry() -> Registry[Any]:
    """The public schema, by the addresses that events refer to."""
    found = [json.loads(file.read_text()) for file in schemas.rglob("*.json")]
    return Registry().with_resources((each["$id"], Resource.from_contents(each)) for each in found)


known = registry()


def validate(event: Event) -> None:
    """An error where an event, or one of its facets, is not what the public schema says."""
    validator("https://openlineage.io/spec/2-0-2/OpenLineage.json").validate(event)
    for facet in facets_of(event):
        validator(facet["_schemaURL"]).validate(facet)


def validator(address: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": address}, registry=known, format_checker=FormatChecker())


def facets_of(event: Event) -> Iterator[Event]:
    for holder in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        for name in ("facets", "inputFacets", "outputFacets"):
            yield from (holder.get(name) or {}).values()


def declared(scale: int = 1) -> Catalogue:
    topic = bronze.topic("orders")
    orders = silver.events(
        "orders",
        source=topic,
        schema="id string, at timestamp, quantity int",
        keys=["id"],
        event_time="at",
        meaning=hostile,
        owner=hostile,
        comments={"quantity": f"How many [{scale}]", "id": hostile},
    )

    def doubled(rows: Any) -> Any:
        return rows.selectExpr("id", f"quantity * {scale * 2} AS twice", "'x' AS unread")

    twice = silver.join("twice", inputs={"rows": orders}, keys=["id"], shape=doubled)
    totals = gold.aggregate("totals", source=twice, group_by=["length(id) AS length"], measures={"total": "sum(twice)"})
    rule = expect("column_values_to_be_between", column="total", max_value=100, severity="critical")
    return expecting(ordered([totals]), {"gold.totals": suite("gold.totals", rule)})


def test_only_what_is_declared_is_a_description() -> None:
    """`order_id` means no more than its name, and a receiver would show "Order id" as what somebody wrote."""
    totals = gold.aggregate(
        "totals",
        source=silver.events(
            "orders", source=bronze.topic("orders"), schema="order_id string, n int", keys=["order_id"]
        ),
        group_by=["order_id"],
        measures={"pieces": "sum(n)", "waited_minutes": "sum(n)"},
        comments={"pieces": "How many pieces [pieces]"},
    )
    columns = next(each for each in describe(ordered([totals])) if each.name == "gold.totals").columns
    assert {each.name: each.description for each in facets.schema(columns).fields or []} == {
        "order_id": None,
        "pieces": "How many pieces [pieces]",
        "waited_minutes": "[min]",
    }


def settings_of(folder: Path, address: str = "", **others: str) -> Settings:
    address = address or f"file://{folder}/events.jsonl"
    return read_settings(folder, {"openlineage": address, "lake": str(folder / "lake"), **others})


@contextmanager
def observed(folder: Path, warnings: list[str] | None = None, **others: str) -> Iterator[Observer]:
    settings = settings_of(folder, **others)
    with emitting(settings, Lake(settings.lake_root), (warnings if warnings is not None else []).append) as observer:
        yield observer


def events_in(folder: Path) -> list[Event]:
    """The events that were written, all valid."""
    found = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for event in found:
        validate(event)
    return found


def sent(events: list[Event]) -> list[tuple[str, str]]:
    return [(event["job"]["name"], event["eventType"]) for event in events]


def only(events: list[Event], job: str, state: str) -> Event:
    (found,) = [each for each in events if (each["job"]["name"], each["eventType"]) == (job, state)]
    return found


def test_the_schema_refuses_what_is_wrong(tmp_path: Path) -> None:
    with observed(tmp_path) as observer, observer.watching("refresh", ["silver.orders"], declared()) as watch:
        watch.began("changes")
    event = events_in(tmp_path)[1]
    for broken in (
        {**event, "eventType": "BEGUN"},
        {**event, "run": {**event["run"], "runId": "7"}},
        {**event, "job": {"name": "x"}},
        {**event, "outputs": [{"namespace": "x"}]},
    ):
        with pytest.raises(Exception, match=r"is not|required"):
            validate(broken)
    wrong = json.loads(json.dumps(event))
    wrong["outputs"][0]["facets"]["schema"]["fields"][0].pop("name")
    with pytest.raises(Exception, match="'name' is a required property"):
        validate(wrong)


def test_work_begins_and_ends_as_part_of_a_pass(tmp_path: Path) -> None:
    with observed(tmp_path) as observer, observer.passing():
        with observer.watching("refresh", ["silver.orders"], declared()) as watch:
            watch.began("changes")
            watch.done(4)
        with observer.watching("refresh", ["silver.twice"], declared()):
            # Nothing to do.
            pass
    events = events_in(tmp_path)
    assert sent(events) == [
        ("sluice.run", "START"),
        ("silver.orders.refresh", "START"),
        ("silver.orders.refresh", "COMPLETE"),
        ("sluice.run", "COMPLETE"),
    ]
    assert {each["run"]["facets"]["parent"]["run"]["runId"] for each in events[1:3]} == {events[0]["run"]["runId"]}
    assert events[0]["run"]["runId"] == events[3]["run"]["runId"]
    assert events[1]["run"]["runId"] == events[2]["run"]["runId"] != events[0]["run"]["runId"]
    (output,) = events[2]["outputs"]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 4
    assert (output["namespace"], output["name"]) == ("file", f"{tmp_path}/lake/silver/orders")
    assert output["facets"]["ownership"]["owners"] == [{"name": hostile}]
    assert output["facets"]["documentation"]["description"] == hostile


def test_a_pass_with_nothing_to_do_sends_nothing(tmp_path: Path) -> None:
    with (
        observed(tmp_path) as observer,
        observer.passing(),
        observer.watching("refresh", ["silver.orders"], declared()),
    ):
        pass
    assert not (tmp_path / "events.jsonl").exists()


def test_work_that_fails_is_reported_with_its_error_and_the_error_goes_on(tmp_path: Path) -> None:
    def failing(observer: Observer) -> None:
        with observer.passing():
            with pytest.raises(SluiceError, match="no room"), observer.watching("land", ["bronze.orders"], declared()):
                raise SluiceError("no room <b>")
            with observer.watching("refresh", ["gold.totals"], declared()) as watch:
                watch.began("changes")
                watch.done(broken=["total_be_between"])

    with observed(tmp_path) as observer:
        failing(observer)
    events = events_in(tmp_path)
    landed, refused = only(events, "bronze.orders.land", "FAIL"), only(events, "gold.totals.refresh", "FAIL")
    assert landed["run"]["facets"]["errorMessage"]["message"] == "no room <b>"
    assert "would break total_be_between" in refused["run"]["facets"]["errorMessage"]["message"]
    assert only(events, "sluice.run", "FAIL")["run"]["facets"]["errorMessage"]["message"] == "2 of its tables failed."


def test_an_interrupt_is_reported_as_the_end_that_it_is(tmp_path: Path) -> None:
    def interrupted(observer: Observer) -> None:
        with observer.passing(), observer.watching("refresh", ["gold.totals"], declared()) as watch:
            watch.began("changes")
            raise KeyboardInterrupt

    with observed(tmp_path) as observer, pytest.raises(KeyboardInterrupt):
        interrupted(observer)
    assert sent(events_in(tmp_path))[2:] == [("gold.totals.refresh", "FAIL"), ("sluice.run", "FAIL")]


def test_columns_are_reported_with_what_they_are_made_from(tmp_path: Path) -> None:
    with observed(tmp_path) as observer, observer.watching("refresh", ["gold.totals"], declared()) as watch:
        watch.began("changes")
    (output,) = only(events_in(tmp_path), "gold.totals.refresh", "COMPLETE")["outputs"]
    lineage = output["facets"]["columnLineage"]
    (source,) = lineage["fields"]["total"]["inputFields"]
    assert (source["name"], source["field"]) == (f"{tmp_path}/lake/silver/twice", "twice")
    assert [(each["type"], each["subtype"]) for each in source["transformations"]] == [("DIRECT", "AGGREGATION")]
    (group,) = lineage["dataset"]
    assert (group["field"], group["transformations"][0]["subtype"]) == ("id", "GROUP_BY")


def test_what_a_function_makes_is_reported_as_possible_sources(tmp_path: Path) -> None:
    with observed(tmp_path) as observer, observer.watching("refresh", ["silver.twice"], declared()) as watch:
        watch.began("changes")
    (output,) = only(events_in(tmp_path), "silver.twice.refresh", "COMPLETE")["outputs"]
    sources = output["facets"]["columnLineage"]["fields"]["twice"]["inputFields"]
    assert [each["field"] for each in sources] == ["id", "at", "quantity"]
    assert "cannot be followed" in sources[0]["transformations"][0]["description"]


def test_work_on_several_tables_is_one_run(tmp_path: Path) -> None:
    with observed(tmp_path) as observer:
        with observer.watching("promote", [], declared()) as watch:
            watch.began("to see")
            watch.done(tables=["silver.orders", "gold.totals"])
        with observer.watching("maintain", ["silver.orders", "gold._checks"], declared()) as watch:
            watch.began("maintain")
            watch.done()
    events = events_in(tmp_path)
    done = only(events, "sluice.promote", "COMPLETE")
    assert [each["name"].rsplit("/", 1)[-1] for each in done["outputs"]] == ["orders", "totals"]
    assert "parent" not in done["run"]["facets"]
    assert len(only(events, "sluice.maintain", "COMPLETE")["outputs"]) == 2


def test_a_publication_is_reported_by_where_it_goes(tmp_path: Path) -> None:
    address = "postgresql://me:secret@db.example:5433/shop"
    with (
        observed(tmp_path, publish_postgres=address) as observer,
        observer.watching("publish", ["gold.totals"], declared(), target="postgres public.totals") as watch,
    ):
        watch.began("changes")
        watch.done(2)
    event = only(events_in(tmp_path), "gold.totals.publish.postgres", "COMPLETE")
    (output,) = event["outputs"]
    assert (output["namespace"], output["name"]) == ("postgres://db.example:5433", "shop.public.totals")
    assert "secret" not in json.dumps(event)


def test_records_that_are_set_aside_or_released_are_reported_with_the_record_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").touch()
    (tmp_path / "pipelines" / "orders.py").write_text(
        "from sluice import bronze, silver\n"
        "orders = silver.events('orders', source=bronze.topic('orders'), schema='id string', keys=['id'])\n"
    )
    entry = Entry(dataset="bronze.orders")
    said = CommitProperties(custom_metadata={"userMetadata": entry.to_json()})
    at = pa.array([datetime(2026, 1, 1, tzinfo=UTC)])
    place: dict[str, Any] = {"topic": ["orders"], "partition": [0], "offset": pa.array([3], pa.int64())}
    landed = {**place, "timestamp": at, "value": pa.array([b"{}"])}
    fate = {**place, "dataset": ["silver.orders"], "fate": ["quarantined"], "reason": [by_command], "_timestamp": at}
    write_deltalake(tmp_path / "lake" / "bronze" / "orders", pa.table(landed), commit_properties=said)
    write_deltalake(tmp_path / "lake" / "silver" / "_fates", pa.table(fate))
    settings = {"lake": f"{tmp_path}/lake", "log": f"{tmp_path}/log", "openlineage": f"file://{tmp_path}/events.jsonl"}
    with Project(tmp_path, settings) as project:
        assert project.quarantine.add("silver.orders", ["orders/0/3"], "a test") == 1
        with pytest.raises(UsageError, match="nothing has landed"):
            project.quarantine.add("silver.orders", ["orders/0/4"], "a test")
        assert project.quarantine.release("silver.orders", because="it counts", reason=by_command).records == 1
    events = events_in(tmp_path)
    assert sent(events) == [
        ("silver.orders.quarantine", "START"),
        ("silver.orders.quarantine", "COMPLETE"),
        ("silver.orders.quarantine", "START"),
        ("silver.orders.quarantine", "FAIL"),
        ("silver.orders.release", "START"),
        ("silver.orders.release", "COMPLETE"),
    ]
    assert "nothing has landed" in events[3]["run"]["facets"]["errorMessage"]["message"]
    (landed_in,), (output,) = events[5]["inputs"], events[5]["outputs"]
    assert (landed_in["name"], output["name"]) == (f"{tmp_path}/lake/bronze/orders", f"{tmp_path}/log/sluice_releases")
    assert {each["name"] for each in landed_in["facets"]["schema"]["fields"]} >= {"topic", "offset", "value"}
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert events[5]["run"]["facets"]["tags"]["tags"][0]["value"] == "it counts"


def test_tables_and_topics_have_the_names_that_others_give_them(tmp_path: Path) -> None:
    kafka = settings_of(tmp_path, lake="s3a://bucket/some/lake", log="kafka://one:9092,two:9092")
    assert places.of_table(kafka, "silver.orders") == places.Place("s3://bucket", "some/lake/silver/orders")
    assert places.of_topic(kafka, "orders") == places.Place("kafka://one:9092", "orders")
    assert places.of_target(kafka, "kafka copies") == places.Place("kafka://one:9092", "copies")


@pytest.mark.spark
def test_a_real_run_is_reported_from_the_log_to_gold(lakehouse: Lakehouse) -> None:
    folder = lakehouse.folder
    lakehouse.catalogue = declared()
    lakehouse.publish("orders", *({"id": f"o{n}", "at": text(n), "quantity": n} for n in range(4)), key="k")
    with observed(folder) as observer:
        lakehouse.runner(observer=observer).until_caught_up()
        lakehouse.runner(observer=observer).until_caught_up()
    events = events_in(folder)
    assert sorted(sent(events)) == sorted(
        (job, state)
        for job in (
            "sluice.run",
            "bronze.orders.land",
            "silver.orders.refresh",
            "silver.twice.refresh",
            "gold.totals.refresh",
        )
        for state in ("START", "COMPLETE")
    )
    # A receiver gets no column without its type, before there is a table that has it.
    (begun,) = only(events, "gold.totals.refresh", "START")["outputs"]
    assert not {"schema", "columnLineage"} & begun["facets"].keys()
    # What a function makes is known from its table, also where nobody reads it.
    (twice,) = only(events, "silver.twice.refresh", "COMPLETE")["outputs"]
    assert {each["name"]: each["type"] for each in twice["facets"]["schema"]["fields"]}["unread"] == "string"
    assert "unread" in twice["facets"]["columnLineage"]["fields"]
    done = only(events, "gold.totals.refresh", "COMPLETE")
    assert [each["facets"]["version"]["datasetVersion"] for each in done["inputs"]] == ["0"]
    (output,) = done["outputs"]
    assert output["facets"]["version"]["datasetVersion"] == "0"
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1
    types = {each["name"]: each["type"] for each in output["facets"]["schema"]["fields"]}
    assert types == {"length": "int", "total": "bigint"}
    (test,) = done["run"]["facets"]["test"]["tests"]
    assert (test["name"], test["status"], test["severity"]) == ("total_be_between", "pass", "error")
    (source,) = only(events, "bronze.orders.land", "START")["inputs"]
    assert source["name"].endswith("/log/orders")
    # The last orders break what is critical, and the next ones cannot be computed.
    lakehouse.publish("orders", {"id": "o9", "at": text(9), "quantity": 90})
    with observed(folder) as observer:
        lakehouse.runner(observer=observer).until_caught_up()
    assert (
        only(events_in(folder), "gold.totals.refresh", "FAIL")["run"]["facets"]["test"]["tests"][0]["status"] == "fail"
    )


@pytest.mark.spark
def test_a_dataset_that_cannot_be_computed_is_reported(lakehouse: Lakehouse) -> None:
    def broken(rows: Any) -> Any:
        return rows.selectExpr("id", "CAST(id AS INT) AS wrong")

    (orders,) = [each for each in declared().datasets if each.name == "silver.orders"]
    wrong: Dataset = silver.join("wrong", inputs={"rows": orders}, keys=["id"], shape=broken)
    lakehouse.declare(wrong).publish("orders", {"id": "a", "at": text(1), "quantity": 1})
    with observed(lakehouse.folder) as observer:
        lakehouse.runner(observer=observer).until_caught_up()
    events = events_in(lakehouse.folder)
    failed = only(events, "silver.wrong.refresh", "FAIL")["run"]["facets"]["errorMessage"]["message"]
    assert "CAST_INVALID_INPUT" in failed or "cannot be cast" in failed
    assert "\tat " not in failed
    assert ("sluice.run", "FAIL") in sent(events)
    assert ("silver.orders.refresh", "COMPLETE") in sent(events)


def test_all_that_a_project_does_is_reported(spark: "SparkSession", tmp_path: Path) -> None:
    address = f"file://{tmp_path}/events.jsonl"
    with Project.create(tmp_path / "shop", settings={"openlineage": address}, spark=spark) as shop:
        append_lines(shop)
        shop.run()
        shop.check("gold.revenue_daily")
        shop.backfill("gold.revenue_daily", since=datetime(2026, 1, 1, tzinfo=UTC))
        shop.maintain("gold.revenue_daily")
        replay = shop.replays.start("gold.revenue_daily", because="to see")
        shop.replays.promote(replay.name)
        with pytest.raises(SluiceError, match="nothing to roll back"):
            shop.rollback("gold.revenue_daily", because="not so")
    events = events_in(tmp_path)
    names = {name for name, state in sent(events) if state == "COMPLETE"}
    assert names == {
        *(f"bronze.{name}.land" for name in ("orders", "products")),
        *(f"silver.{name}.refresh" for name in ("orders", "products_changes", "products", "priced_orders")),
        *(f"gold.revenue_daily.{work}" for work in ("refresh", "check", "backfill")),
        *(f"sluice.{work}" for work in ("run", "maintain", "promote")),
    }
    assert Counter(state for _, state in sent(events)) == {"START": len(names) + 1, "COMPLETE": len(names), "FAIL": 1}
    refused = only(events, "sluice.rollback", "FAIL")["run"]["facets"]
    assert "nothing to roll back" in refused["errorMessage"]["message"]
    assert refused["tags"]["tags"] == [{"key": "cause", "value": "not so", "source": "SLUICE"}]
    (checked,) = only(events, "gold.revenue_daily.check", "COMPLETE")["inputs"]
    assertions = {each["name"]: each for each in checked["inputFacets"]["dataQualityAssertions"]["assertions"]}
    assert assertions["rows_that_are_there_twice"]["success"]
    assert checked["inputFacets"]["dataQualityMetrics"]["rowCount"] == 3
    # A struct has its fields, and the price is that of the version.
    (output,) = only(events, "silver.priced_orders.refresh", "COMPLETE")["outputs"]
    product = {each["name"]: each for each in output["facets"]["schema"]["fields"]}["product"]
    assert {each["name"]: each["type"] for each in product["fields"]}["price_euro"] == "decimal(10,2)"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running[Kafka]]:
    with running(Kafka(tmp_path_factory.mktemp("kafka") / "kafka")) as started:
        yield started


def test_events_are_records_of_a_topic(kafka: Running[Kafka], tmp_path: Path) -> None:
    log, warnings = KafkaLog(kafka.server.address, KafkaSecurity(), partitions=2), list[str]()
    log.create("lineage")
    with observed(tmp_path, warnings, address=f"kafka://{kafka.server.address}/lineage") as observer:
        a_refresh(observer)
    assert warnings == []
    records = [record for number in log.partitions("lineage") for record in log.read("lineage", number)]
    events = [json.loads(record.value or b"") for record in records]
    for event in events:
        validate(event)
    # A pass and what is part of it are in one partition, so they are read in their order.
    assert [state for _, state in sent(events)] == ["START", "START", "COMPLETE", "COMPLETE"]
    assert len({record.key for record in records}) == 1


def test_brokers_that_do_not_answer_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "answer_seconds", 0.5)
    warnings = list[str]()
    with observed(tmp_path, warnings, address=f"kafka://127.0.0.1:{free_port()}/lineage") as observer:
        a_refresh(observer)
    assert "no broker took it" in warnings[0]
    assert warnings[-1].startswith("4 of 4 events")


class Receiver(ThreadingHTTPServer):
    """A receiver on loopback that answers with a status, and keeps what it is sent."""

    daemon_threads = True

    def __init__(self, status: int = 201) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.status, self.received = status, list[tuple[str, Mapping[str, str], Event]]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def receiving(status: int = 201) -> Iterator[Receiver]:
    with Receiver(status) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def a_refresh(observer: Observer) -> None:
    with observer.passing(), observer.watching("refresh", ["gold.totals"], declared()) as watch:
        watch.began("changes")


@pytest.mark.parametrize(("path", "asked"), [("", "/api/v1/lineage"), ("/other/place", "/other/place")])
def test_events_are_posted_with_the_token(tmp_path: Path, path: str, asked: str) -> None:
    warnings: list[str] = []
    with receiving() as server:
        with observed(tmp_path, warnings, address=f"{server.url}{path}", openlineage_token="key") as observer:
            a_refresh(observer)
        assert [found for found, _, _ in server.received] == [asked] * 4
        assert {headers["Authorization"] for _, headers, _ in server.received} == {"Bearer key"}
        for _, _, event in server.received:
            validate(event)
    assert warnings == []


@pytest.mark.parametrize("status", [400, 500, None])
def test_a_receiver_that_is_down_is_reported_once_and_what_was_lost_is_counted(
    tmp_path: Path, status: int | None
) -> None:
    warnings: list[str] = []
    if status is None:
        with observed(tmp_path, warnings, address=f"http://127.0.0.1:{free_port()}") as observer:
            a_refresh(observer)
    else:
        with receiving(status) as server, observed(tmp_path, warnings, address=server.url) as observer:
            a_refresh(observer)
    first, last = warnings
    assert "are lost" in first
    assert "The run goes on." in first
    assert last.startswith("4 of 4 events could not be sent to http://127.0.0.1:")


def test_a_slow_receiver_delays_nobody_and_the_end_waits_no_longer_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "waiting_max", 2)
    monkeypatch.setattr(sending, "end_seconds", 0.2)
    released, warnings = threading.Event(), list[str]()
    with receiving() as server:
        server.RequestHandlerClass = type("Slow", (Answering,), {"do_POST": lambda self: released.wait(20)})
        with observed(tmp_path, warnings, address=server.url) as observer:
            for _ in range(5):
                a_refresh(observer)
        assert warnings == [f"20 of 20 events could not be sent to {server.url}."]
        released.set()


def test_what_goes_wrong_with_an_event_is_no_error_of_the_work(tmp_path: Path) -> None:
    warnings: list[str] = []
    with observed(tmp_path, warnings) as observer, observer.watching("land", ["bronze.other"], declared()) as watch:
        watch.began("changes")
    assert warnings
    assert "An event could not be made: KeyError" in warnings[0]


@pytest.mark.parametrize(
    "address",
    ["ftp://x/y", "http://me:secret@x/y", "http://x/y?key=1", "kafka://x:9092", "file://x/y", "/a/file", "http://"],
)
def test_an_address_that_cannot_be_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(UsageError, match="SLUICE_OPENLINEAGE") as error:
        settings_of(tmp_path, address)
    assert "secret" not in str(error.value)


def test_a_token_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="unencrypted"),
        observed(tmp_path, address="http://lineage.example", openlineage_token="key"),
    ):
        pass


@pytest.mark.process
def test_without_the_setting_nothing_of_it_is_loaded() -> None:
    code = "import sys, sluice.api.driver; print([name for name in sys.modules if 'openlineage' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
