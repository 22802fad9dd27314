"""Postgres → capture → Kafka → bronze on S3 → silver → gold on a cluster of two workers, each killed under load."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from infra.servers import S3, Kafka, Postgres, Running, SparkMaster, SparkWorker, running
from infra.servers.spark import quick_start
from sluice.engine.catalogue import load
from sluice.errors import LogUnreachable
from sluice.log import KafkaLog, KafkaSecurity, Record
from sluice.operate.audit import audit
from sluice.operate.query import query
from sluice.storage.delta import Lake
from tests.kit import Lakehouse
from tests.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.servers, pytest.mark.spark]
declared = '''"""Orders of a shop whose products are rows of a database."""

from sluice import bronze, gold, silver
from sluice.windows import window

orders = silver.events(
    "orders",
    source=bronze.topic("orders"),
    schema="order_id string, placed_at timestamp, product_id int, quantity int",
    keys=["order_id"],
    event_time="placed_at",
)
products = silver.history(
    "products",
    source=bronze.topic("products_changes", topic="shop_products"),
    format="debezium",
    schema="product_id int, name string, price_euro decimal(10,2)",
    keys=["product_id"],
)
priced = silver.as_of("priced", facts=orders, event_time="placed_at", dimensions={"product": products})
revenue = gold.aggregate(
    "revenue",
    source=priced,
    group_by=["product.name AS product", window("placed_at", "1 day")],
    measures={"orders": "count(*)", "revenue_euro": "sum(quantity * product.price_euro)"},
)
'''
tables = {
    "bronze.orders": '"partition", "offset", key, value',
    "bronze.products_changes": '"partition", "offset", key, value',
    "silver._fates": 'dataset, topic, "partition", "offset", fate, reason, detail',
    "silver.orders": "order_id, placed_at, product_id, quantity, _partition, _offset",
    "silver.products": "product_id, name, price_euro, valid_from, valid_to, is_current",
    "silver.priced": "order_id, product.name, product.price_euro",
    "gold.revenue": "product, window_start, orders, revenue_euro",
}
products = range(1, 4)


class Worker(SparkWorker):
    """One whose executors start as cheaply as it does."""

    def environment(self) -> dict[str, str]:
        return super().environment() | {"JDK_JAVA_OPTIONS": quick_start()}


class Shop:
    """The servers, the project that runs on them, and who writes into them: what they acknowledged is counted."""

    def __init__(self, folder: Path, servers: ExitStack) -> None:
        self.folder = folder
        self.project = folder / "project"
        (self.project / "pipelines").mkdir(parents=True)
        (self.project / "pipelines" / "__init__.py").write_text(declared)
        self.postgres = servers.enter_context(running(Postgres(folder / "postgres")))
        self.kafka = servers.enter_context(running(Kafka(folder / "kafka")))
        self.s3 = servers.enter_context(running(S3(folder / "s3")))
        self.master = servers.enter_context(running(SparkMaster(folder / "master")))
        address, store = self.master.server.address, self.s3.server
        self.workers = [
            servers.enter_context(running(Worker(folder / f"worker-{number}", master=address, store=store)))
            for number in range(2)
        ]
        self.log = KafkaLog(self.kafka.server.address, KafkaSecurity(), answer_seconds=5)
        self.lake = Lake(store.settings()["SLUICE_LAKE"])
        self.orders = 0
        self.stop = threading.Event()

    def environment(self) -> dict[str, str]:
        return os.environ | {
            **self.s3.server.settings(),
            "SLUICE_LOG": str(self.log),
            "SLUICE_SPARK": f"spark://{self.master.server.address}",
            "SLUICE_CLUSTER_CORES": "2",
            "SLUICE_EXECUTOR_MEMORY": "900m",
            "SLUICE_POSTGRES": self.postgres.server.url,
        }

    def sluice(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "sluice.cli", *arguments, "--project", str(self.project)]
        with open(self.folder / f"{arguments[0]}.txt", "ab") as said:
            return subprocess.Popen(command, env=self.environment(), stdout=said, stderr=said)

    def said(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in self.folder.glob("*.txt"))

    def wait(self, is_true: Callable[[], Any], what: str) -> None:
        eventually(is_true, lambda: f"{what}\n{self.said()}", 1)

    @contextmanager
    def kept_running(self, *arguments: str) -> Iterator[None]:
        """A command that goes on, and that is started again when it ended, as its supervisor would."""
        ended = threading.Event()

        def supervise() -> None:
            while not ended.is_set():
                process = self.sluice(*arguments)
                while process.poll() is None and not ended.wait(0.2):
                    continue
                process.terminate()
                process.wait()

        supervisor = threading.Thread(target=supervise)
        supervisor.start()
        try:
            yield
        finally:
            ended.set()
            supervisor.join()

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """Orders into Kafka, prices into Postgres, several times a second; what is not acknowledged is said again."""
        threads = [threading.Thread(target=self.keep, args=(each,)) for each in (self.place_order, self.change_price)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()

    def keep(self, do: Callable[[], None]) -> None:
        while not self.stop.wait(0.2):
            try:
                do()
            except (LogUnreachable, psycopg2.OperationalError, psycopg2.InterfaceError):
                continue

    def place_order(self) -> None:
        order = {
            "order_id": f"n{self.orders}",
            "placed_at": datetime.now(UTC).isoformat(),
            "product_id": products[self.orders % len(products)],
            "quantity": 1 + self.orders % 3,
        }
        self.log.append("orders", [Record(json.dumps(order).encode(), key=str(order["product_id"]))])
        self.orders += 1

    def change_price(self) -> None:
        self.database("UPDATE products SET price_euro = price_euro + 0.1 WHERE product_id = 1 + floor(random() * 3)")

    def database(self, statement: str) -> list[tuple[Any, ...]]:
        connection = psycopg2.connect(self.postgres.server.url, connect_timeout=5)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def in_gold(self) -> int:
        if self.lake.last_commit("gold.revenue") is None:
            return 0
        return int(query(self.lake, "SELECT coalesce(sum(orders), 0) FROM gold.revenue").rows[0][0])

    def prices_in_silver(self) -> list[Any]:
        current = "SELECT product_id, price_euro FROM silver.products WHERE is_current ORDER BY 1"
        return list(query(self.lake, current).rows)

    def crash(self, server: Running[Any]) -> None:
        """Kills a server, lets the others notice, starts it again on the same data, and lets them go on."""
        before = self.orders
        server.kill()
        time.sleep(2)
        server.start()
        self.wait(lambda: self.orders > before + 10, f"orders to go on after {type(server.server).__name__}")


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder, ExitStack() as servers:
        # Postgres has a user of its own, who must come to its data.
        Path(folder).chmod(0o711)
        found = Shop(Path(folder), servers)
        # This process reads the tables too.
        for name, value in found.s3.server.settings().items():
            monkeypatch.setenv(name, value)
        yield found


def content(lake: Lake) -> dict[str, list[str]]:
    """The rows of all tables, in a total order."""
    return {
        table: sorted(map(repr, query(lake, f"SELECT {columns} FROM {table}").rows))
        for table, columns in tables.items()
    }


def test_each_server_is_killed_under_load_and_the_tables_are_those_of_the_embedded_default(
    shop: Shop, lakehouse: Lakehouse
) -> None:
    shop.database("CREATE TABLE products (product_id int PRIMARY KEY, name text, price_euro numeric(10,2))")
    shop.database("INSERT INTO products VALUES (1, 'Tea', 3), (2, 'Cup', 12), (3, 'Pot', 30)")
    capture = ("capture", "postgres", "--tables", "public.products", "--topic-prefix", "shop")
    with shop.kept_running(*capture), shop.under_load(), shop.kept_running("run", "--continuous"):
        shop.wait(lambda: shop.in_gold() > 3, "the first orders in gold")
        assert shop.master.server.says()["activeapps"], "the work is done on the cluster"
        for server in (shop.workers[0], shop.kafka, shop.s3, shop.master, shop.postgres):
            shop.crash(server)
        shop.stop.set()
        shop.wait(lambda: shop.in_gold() == shop.orders, f"all orders in gold, {shop.orders}")
        wanted = shop.database("SELECT product_id, price_euro FROM products ORDER BY 1")
        shop.wait(lambda: shop.prices_in_silver() == wanted, f"the prices of the database, {wanted}")

    catalogue = load(shop.project)
    assert all(each.balanced for each in audit(shop.lake, catalogue))
    for topic in ("orders", "shop_products"):
        for partition in shop.log.partitions(topic):
            records = [
                Record(each.value, each.key, each.timestamp, each.headers) for each in shop.log.read(topic, partition)
            ]
            lakehouse.log.default_partitions = len(shop.log.partitions(topic))
            lakehouse.log.append_to(topic, partition, records)
    lakehouse.catalogue = catalogue
    lakehouse.run()
    assert content(shop.lake) == content(lakehouse.lake)
