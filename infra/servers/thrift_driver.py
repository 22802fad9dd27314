"""The process of the Thrift server: it keeps the tables of a lake registered by their locations, and answers SQL.

python -m infra.servers.thrift_driver LAKE
"""

import re
import signal
import sys
import time

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice.runtime.session import is_alive, spark_message
from sluice.storage.delta import Lake
from sluice.storage.location import is_bucket

looks_every_seconds = 10
layers = ("bronze", "silver", "gold")


def main(root: str) -> None:
    """Serves until its JVM ends; a look at the lake or the catalogue that fails is repeated."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    spark = SparkSession.builder.enableHiveSupport().getOrCreate()
    lake = Lake(root)
    try:
        registered = register(spark, lake, set())
        server = spark._jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2  # type: ignore[union-attr]
        server.startWithSparkSession(spark._jsparkSession, True)
        while is_alive(spark):
            time.sleep(looks_every_seconds)
            try:
                registered = register(spark, lake, registered)
            except Exception as error:  # noqa: BLE001 - the store or the catalogue may be back at the next look
                sys.stderr.write(f"The tables could not be registered: {error}\n")
    finally:
        end_jvm()


def end_jvm() -> None:
    """Ends it and waits: until then it has the port. It ends when its input does."""
    process = SparkContext._gateway.proc  # type: ignore[union-attr]
    process.stdin.close()
    process.wait()


def register(spark: SparkSession, lake: Lake, before: set[str]) -> set[str]:
    """Makes the catalogue name the tables that the lake has, unless these are those of before; says which it names."""
    found = set(lake.tables())
    if found == before:
        return found
    for layer in layers:
        if not spark.catalog.databaseExists(layer):
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {layer}")
    known = catalogued(spark)
    wanted = {table: address(lake.path(table)) for table in found}
    for table, location in known.items():
        if wanted.get(table) != location:
            # The catalogue forgets the name; the files of a table with a location stay.
            spark.sql(f"DROP TABLE IF EXISTS {table}")
    for table in sorted(found):
        if known.get(table) != wanted[table]:
            location = lake.path(table).replace("\\", "\\\\").replace("'", "\\'")
            try:
                spark.sql(f"CREATE TABLE IF NOT EXISTS {table} USING DELTA LOCATION '{location}'")
            except (PySparkException, Py4JError) as error:
                # One broken table hides no other, and is tried again at the next look.
                sys.stderr.write(f"{table} could not be registered. {spark_message(error)}\n")
                found.remove(table)
    return found


def catalogued(spark: SparkSession) -> dict[str, str]:
    """The location of each table that was registered by one; others are none of ours, and their files would go."""
    found = {}
    for layer in layers:
        for row in spark.sql(f"SHOW TABLE EXTENDED IN {layer} LIKE '*'").collect():
            location = re.search(r"^Type: EXTERNAL$.*^Location: (.*?)$", row.information, re.MULTILINE | re.DOTALL)
            if location:
                found[f"{layer}.{row.tableName}"] = location[1]
    return found


def address(path: str) -> str:
    """As the catalogue writes it."""
    return path if is_bucket(path) else f"file:{path}"


if __name__ == "__main__":
    main(sys.argv[1])
