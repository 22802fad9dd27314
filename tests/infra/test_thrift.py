"""Spark's Thrift server: Hive's own client sees the tables as they become, and changes nothing."""

import dataclasses
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.servers import Postgres, Running, Thrift, readonly, running
from infra.servers.stack import Stack
from infra.servers.thrift import as_xml
from sluice import bronze, gold, silver
from sluice.operate.query import query
from sluice.runtime import logstore
from sluice.runtime.jars import spark_home
from sluice.runtime.logstore.__main__ import class_path
from tests.infra.listeners import listeners
from tests.kit import Lakehouse
from tests.waiting import eventually

orders = silver.events(
    "orders",
    source=bronze.topic("orders"),
    schema="order_id string, shop string, at timestamp, amount decimal(12,2)",
    keys=["order_id"],
    event_time="at",
    future_tolerance="1000 days",
)
sales = gold.aggregate("sales", source=orders, group_by=["shop"], measures={"orders": "count(*)", "sum": "sum(amount)"})
largest = gold.aggregate("largest", source=orders, group_by=["shop"], measures={"amount": "max(amount)"})
by_shop = "SELECT shop, orders, `sum` FROM gold.sales ORDER BY shop"
by_order = "SELECT count(*) AS orders, sum(amount) AS amount FROM silver.orders"
writes = (
    "DELETE FROM gold.largest",
    "UPDATE gold.largest SET amount = 0",
    "INSERT INTO gold.largest SELECT * FROM gold.largest",
    "MERGE INTO gold.largest a USING gold.largest b ON a.shop = b.shop WHEN MATCHED THEN DELETE",
    "DROP TABLE gold.largest",
    "VACUUM gold.largest",
    "CREATE TABLE gold.more USING DELTA AS SELECT 1 AS one",
    "EXECUTE IMMEDIATE 'DELETE FROM gold.largest'",
)
refused = "java.lang.UnsupportedOperationException: The tables are read-only here"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's own, which only its owner may pass through: Postgres has a user of its own."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.mark.servers
@pytest.mark.skipif(os.environ.get("SLUICE_TEST_THRIFT") != "1", reason="takes 90 s; set SLUICE_TEST_THRIFT=1")
def test_clients_see_the_tables_as_they_become_and_change_nothing(folder: Path, lakehouse: Lakehouse) -> None:
    lakehouse.lake = dataclasses.replace(lakehouse.lake, deletion_vectors_from_rows=1)
    lakehouse.declare(orders, sales)
    lakehouse.publish("orders", *[order(number, number) for number in range(300)]).run()
    with (
        running(Postgres(folder / "postgres")) as postgres,
        running(
            Thrift(folder / "thrift", lake=lakehouse.lake.root, metastore=postgres.server, spark="local[2]")
        ) as thrift,
    ):
        assert listeners(thrift.pid) == {"127.0.0.1"}
        assert answers(thrift, by_shop, by_order) == expected(lakehouse, by_shop, by_order)
        # A corrected row is marked as deleted where it was, and no table is registered again.
        lakehouse.publish("orders", order(7, 1000)).run()
        assert any(
            "deletionVector" in file.read_text()
            for file in Path(lakehouse.lake.path("silver.orders"), "_delta_log").glob("*.json")
        )
        assert answers(thrift, by_shop, by_order) == expected(lakehouse, by_shop, by_order)
        lakehouse.declare(orders, sales, largest).run()
        until_it_lists(thrift, "largest", True)
        # The catalogue is all that forgets a table: its files are none of the server's.
        shutil.rmtree(lakehouse.lake.path("gold.sales"))
        until_it_lists(thrift, "sales", False)
        versions = lakehouse.versions()
        complaints = beeline(thrift, *writes, f"INSERT OVERWRITE DIRECTORY '{folder}/out' USING parquet SELECT 1")[1]
        assert complaints.count(f"Caused by: {refused}") == len(writes) + 1, complaints
        assert lakehouse.versions() == versions
        thrift.kill()
        thrift.start()
        assert answers(thrift, "SHOW TABLES IN gold") == [["namespace,tableName,isTemporary", "gold,largest,false"]]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("javac") is None, reason="users of the jar need no compiler")
def test_the_jar_is_what_its_source_gives(tmp_path: Path) -> None:
    logstore.build(tmp_path / "built.jar", class_path(), readonly.source)
    assert (tmp_path / "built.jar").read_bytes() == readonly.jar.read_bytes(), "Run: make logstore"


def test_it_starts_only_when_it_is_named_and_keeps_its_lake(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    assert "thrift" not in stack.chosen([])
    assert stack.chosen(["thrift"]) == ["thrift"]
    stack.change_thrift({"lake": "/lakes/flights"})
    stack.change_thrift({"spark": "local[1]"})
    thrift = Stack(tmp_path).servers["thrift"]
    assert isinstance(thrift, Thrift)
    assert (thrift.lake, thrift.spark, thrift.port) == ("/lakes/flights", "local[1]", 10000)


def test_the_password_of_the_catalogue_is_in_no_command_and_no_variable(tmp_path: Path) -> None:
    thrift = Thrift(tmp_path, lake=str(tmp_path), metastore=Postgres(tmp_path / "postgres"))
    password = thrift.metastore.password
    assert password in as_xml(thrift.hive_site())
    assert not any(password in value for value in [*thrift.command(), *thrift.environment().values()])
    assert as_xml({"a": "<&>"}) == (
        "<configuration>\n<property><name>a</name><value>&lt;&amp;&gt;</value></property>\n</configuration>\n"
    )


def order(number: int, amount: int) -> dict[str, object]:
    return {"order_id": f"{number}", "shop": f"shop {number % 3}", "at": "2026-01-01T00:00:00Z", "amount": amount}


def answers(thrift: Running[Thrift], *statements: str) -> list[list[str]]:
    """The lines of each answer, as Hive's client prints them."""
    return [beeline(thrift, each)[0].splitlines() for each in statements]


def beeline(thrift: Running[Thrift], *statements: str) -> tuple[str, str]:
    """What Hive's client prints for statements, without its prompt, and what it complains of."""
    said = [word for each in statements for word in ("-e", each)]
    command = [str(spark_home() / "bin" / "beeline"), "-u", f"jdbc:hive2://{thrift.server.address}", "-n", "analyst"]
    done = subprocess.run(
        [*command, "--silent=true", "--force=true", "--outputformat=csv2", *said],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return re.sub(r"0: jdbc:\S+> ", "", done.stdout), done.stderr


def expected(lakehouse: Lakehouse, *statements: str) -> list[list[str]]:
    """The same by `sluice query`."""
    found = [query(lakehouse.lake, each.replace("`", '"')) for each in statements]
    return [[",".join(map(str, row)) for row in [each.columns, *each.rows]] for each in found]


def until_it_lists(thrift: Running[Thrift], table: str, is_there: bool) -> None:
    def is_so() -> bool:
        return (f"gold,{table},false" in beeline(thrift, "SHOW TABLES IN gold")[0]) == is_there

    eventually(is_so, f"gold.{table} to be as it should")
