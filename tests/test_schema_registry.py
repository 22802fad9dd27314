"""The schema registry: what it knows becomes records of the log; when it is down, records wait and are not lost."""

import io
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from infra.servers.registry import Registry
from infra.servers.running import Running, running
from sluice import bronze, silver
from sluice.engine.schemas import Learner
from sluice.errors import UsageError
from sluice.log import Record
from sluice.runtime.schema_registry import RegistryUnreachable, SchemaRegistry
from tests.kit import Lakehouse, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.servers
place: dict[str, Any] = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
order: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "place", "type": "Place"}],
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running[Registry]]:
    Registry.install()
    with running(Registry(tmp_path_factory.mktemp("registry"))) as found:
        yield found


def address(registry: Running[Registry]) -> str:
    return registry.server.settings()["SLUICE_SCHEMA_REGISTRY"]


def registered(registry: Running[Registry], subject: str, schema: Any, **more: Any) -> int:
    """Registers a schema, as a producer does; returns its id."""
    body = json.dumps({"schema": json.dumps(schema), **more}).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = urllib.request.Request(f"{address(registry)}/subjects/{subject}/versions", body, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return int(json.loads(answer.read())["id"])


def order_of(number: int, name: str) -> Record:
    """A record as Confluent's serializer writes it."""
    names: dict[str, Any] = {}
    fastavro.parse_schema(place, named_schemas=names)
    written = io.BytesIO()
    fastavro.schemaless_writer(
        written, fastavro.parse_schema(order, named_schemas=names), {"id": name, "place": {"city": "Kyoto"}}
    )
    return Record(b"\x00" + number.to_bytes(4, "big") + written.getvalue(), timestamp=at(0))


def run(found: Lakehouse, learner: Learner) -> dict[str, str | None]:
    """Passes until caught up; returns what is blocked, with the reason."""
    events = found.runner(learner=learner).until_caught_up()
    return {event.name: event.blocked for event in events if event.blocked}


def test_schemas_come_from_a_registry_and_stay_when_it_is_gone(
    spark: "SparkSession", tmp_path: Path, registry: Running[Registry]
) -> None:
    registered(registry, "place", place)
    reference = {"name": "Place", "subject": "place", "version": 1}
    number = registered(registry, "orders-value", order, references=[reference])
    orders = silver.events(
        "orders",
        source=bronze.topic("orders"),
        schema="id string, place struct<city: string>",
        keys=["id"],
        format=silver.avro(),
    )
    found = Lakehouse(spark, tmp_path).declare(orders)
    asked = Learner(SchemaRegistry(address(registry)))
    found.log.append("orders", [order_of(number, "a"), order_of(2_000_000, "b")])
    assert run(found, asked) == {}
    assert found.rows("silver.orders", "id", "place") == [("a", ("Kyoto",))]
    assert [row[1:] for row in found.fates()] == [("unknown_schema", "2000000")]
    versions = found.versions()
    assert run(found, asked) == {}
    assert found.versions() == versions

    # While it is down, what needs no new schema goes on, and what does waits and is asked for again.
    registry.kill()
    other = number + 1
    found.log.append("orders", [order_of(number, "c"), order_of(other, "d")])
    blocked = run(found, Learner(SchemaRegistry(address(registry))))
    assert list(blocked) == ["bronze.sluice_schemas"]
    assert "wait in quarantine as unknown_schema" in str(blocked["bronze.sluice_schemas"])
    assert [row[0] for row in found.rows("silver.orders", "id")] == ["a", "c"]
    registry.start()
    again = {**order, "doc": "the same fields"}
    assert registered(registry, "orders-value", again, references=[reference]) == other
    assert run(found, Learner(SchemaRegistry(address(registry)))) == {}
    assert [row[0] for row in found.rows("silver.orders", "id")] == ["a", "c", "d"]
    assert all(each.balanced for each in found.audits())
    # Without a registry the lake is rebuilt to the same rows.
    assert found.run(rebuild=True)["silver.orders"].rows.total == 0


def test_what_is_no_registry_is_said_without_its_password(registry: Running[Registry]) -> None:
    elsewhere = address(registry).replace("/apis/ccompat/v7", "/nothing")
    with pytest.raises(RegistryUnreachable, match=r"nothing cannot be asked: it answers 404") as error:
        SchemaRegistry(elsewhere, "someone", "a secret").schema(1)
    assert "secret" not in str(error.value)
    assert "secret" not in repr(SchemaRegistry(elsewhere, "someone", "a secret", "secret"))
    assert SchemaRegistry(address(registry)).schema(2_000_000) is None
    with pytest.raises(UsageError, match="would be sent unencrypted"):
        SchemaRegistry("http://registry.example/", "someone", "a secret")
