"""A driver in a separate process: it executes commands from standard input, and answers on standard output.

write STORE PATH     writes a file of Delta's log by a log store
look                 reads where the table bronze.contended stands
append OFFSET        appends a record to it that follows what was looked at
command JSON         runs a command of sluice with this driver's Spark: its arguments, folder and environment
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice.api import sessions
from sluice.errors import Superseded
from sluice.model.ledger import Commit, Entry, LandedPartition
from sluice.runtime.session import sized_for, spark_session
from sluice.runtime.settings import read_settings
from sluice.storage.delta import Lake
from tests.servers.commanded import answer

table = "bronze.contended"


class Committer:
    """Its answers are 'won', or by what it was refused."""

    def __init__(self, spark: SparkSession, lake: Lake, me: str) -> None:
        self.spark, self.lake, self.me = spark, lake, me
        self.known: Commit | None = None

    def write(self, store: str, path: str) -> str:
        context: Any = self.spark.sparkContext
        jvm, conf = context._jvm, context._jsc.hadoopConfiguration()
        arguments = context._gateway.new_array(jvm.java.lang.Object, 1)
        arguments[0] = conf
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        log_store = loader.loadClass(store).getConstructors()[0].newInstance(arguments)
        actions = jvm.java.util.ArrayList()
        actions.add(json.dumps({"commitInfo": {"by": self.me}}))
        try:
            log_store.write(jvm.org.apache.hadoop.fs.Path(path), actions.iterator(), False, conf)
        except Py4JError as error:
            return "refused" if "FileAlreadyExistsException" in str(error) else str(error)
        return "won"

    def look(self) -> str:
        self.known = self.lake.last_commit(table)
        return str(self.known and self.known.version)

    def append(self, offset: str) -> str:
        rows = self.spark.createDataFrame([(int(offset), self.me)], "offset bigint, writer string")
        landed = {0: LandedPartition(next_offset=int(offset) + 1, head=self.me)}
        write = self.lake.append_rows if self.known else self.lake.replace_rows
        try:
            with sized_for(self.spark, 1):
                write(rows, table, Entry(dataset=table, landed=landed), self.known.fence if self.known else 0)
        except (Superseded, PySparkException, Py4JError) as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return "won"

    def command(self, asked: str) -> str:
        return answer(asked)


def main() -> None:
    settings = read_settings(Path())
    with spark_session(settings) as spark:

        @contextmanager
        def lent(*_: object, **__: object) -> Iterator[SparkSession]:
            yield spark

        vars(sessions)["spark_session"] = lent
        committer = Committer(spark, Lake(settings.lake_root), sys.argv[1])
        say("ready")
        for line in sys.stdin:
            verb, *arguments = line.split(maxsplit=1) if line.startswith("command") else line.split()
            say(getattr(committer, verb)(*arguments))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
