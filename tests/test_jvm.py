"""How the driver speaks to its JVM: each class is asked for once, and what no longer answers is left."""

import errno
import gc
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, active_count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy
import pytest
from py4j.java_gateway import JVMView
from py4j.protocol import CALL_COMMAND_NAME, MEMORY_COMMAND_NAME, REFLECTION_COMMAND_NAME, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sluice.errors import SluiceError, SparkEnded
from sluice.runtime import calls, session
from sluice.runtime.connect import require_language
from sluice.runtime.jvm import Jvm, TakenProcess, in_utf8
from sluice.runtime.session import stop
from tests.kit import Lakehouse, text
from tests.shop import sales
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def classes_asked_for(spark: "SparkSession") -> Iterator[list[str]]:
    """The commands that ask the JVM what a name is."""
    with commands(spark, REFLECTION_COMMAND_NAME) as found:
        yield found


@contextmanager
def commands(spark: "SparkSession", kind: str) -> Iterator[list[str]]:
    """The commands of a kind that the JVM is given."""
    gateway: Any = spark.sparkContext._gateway
    client, found = gateway._gateway_client, list[str]()
    send = client.send_command

    def counted(command: str, *arguments: Any, **options: Any) -> Any:
        if command.startswith(kind):
            found.append(command)
        return send(command, *arguments, **options)

    client.send_command = counted
    try:
        yield found
    finally:
        del client.send_command


def sale(number: int) -> dict[str, object]:
    return {"id": f"s{number}", "product": "tea", "sold_at": text(1.0), "pieces": 1}


@pytest.fixture
def shop(lakehouse: Lakehouse) -> Lakehouse:
    """A lakehouse that has run, and changed once."""
    lakehouse.declare(sales).publish("sales", sale(0), sale(1)).run()
    lakehouse.publish("sales", sale(2)).run()
    return lakehouse


def test_a_class_is_asked_for_once(shop: Lakehouse) -> None:
    shop.publish("sales", sale(3))
    with classes_asked_for(shop.spark) as asked:
        assert shop.run()["silver.sales"].rows.inserted == 1
    assert [each for each in asked if "spark" in each] == []


def test_else_it_is_asked_for_at_each_use(shop: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    view: Any = SparkContext._jvm
    monkeypatch.setattr(SparkContext, "_jvm", JVMView(view._gateway_client, jvm_name=view._jvm_name, id=view._id))
    shop.publish("sales", sale(3))
    with classes_asked_for(shop.spark) as asked:
        shop.run()
    assert len(asked) > len(set(asked))


def test_a_column_is_built_with_one_call(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """By default PySpark asks for the session and its settings too, and notes the line that it was called from."""
    column = F.col("pieces")
    with commands(spark, CALL_COMMAND_NAME) as called:
        column.isNull()
    assert len(called) == 1
    monkeypatch.setattr("pyspark.errors.utils._enable_debugging_cache", True)
    with commands(spark, CALL_COMMAND_NAME) as called:
        column.isNull()
    assert len(called) > 3


def test_the_column_of_a_name_is_made_once(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """But where Spark notes the line that each is made at."""
    F.col("pieces")
    spark.range(1).select("id")
    with commands(spark, CALL_COMMAND_NAME) as called:
        F.col("pieces")
        spark.range(1).select("id").select("id")
    assert [each for each in called if "\ncol\n" in each] == []
    monkeypatch.setattr("pyspark.errors.utils._enable_debugging_cache", True)
    with commands(spark, CALL_COMMAND_NAME) as called:
        F.col("pieces")
    assert [each for each in called if "\ncol\n" in each]


@pytest.mark.parametrize("count", [1, 2, 10, 11, 25])
def test_a_list_is_given_to_the_jvm_whole(spark: "SparkSession", count: int) -> None:
    names = [f"c{number}" for number in range(count)]
    df = spark.range(1).toDF("n")
    columns = [F.lit(number).alias(name) for number, name in enumerate(names)]
    with commands(spark, CALL_COMMAND_NAME) as called:
        wide = df.select(*columns)
    assert len(called) <= 4 + 2 * ((count - 1) // 10)
    assert wide.columns == names
    assert [tuple(row) for row in wide.selectExpr(*reversed(names)).collect()] == [tuple(reversed(range(count)))]


def test_lists_of_anything_else_are_as_before(spark: "SparkSession") -> None:
    (row,) = spark.createDataFrame([(None, 1.5), ("a", None)], "a string, b double").orderBy("b", F.lit(1)).tail(1)
    assert tuple(row) == (None, 1.5)
    assert spark.range(3).select(F.array(F.lit("x"), F.lit(None)).alias("x")).head() == (["x", None],)


def test_values_of_numpy_are_values_where_numpy_is_there(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    small: Any = numpy.int64(2)
    assert spark.range(5).where(F.col("id") < small).count() == 2
    gateway: Any = spark.sparkContext._gateway
    of_numpy = [each for each in gateway._gateway_client.converters if isinstance(each, calls.OfNumpy)]
    assert [each.can_convert(numpy.array([1, 2])) for each in of_numpy] == [True, False]
    assert [each.can_convert(small) for each in of_numpy] == [False, True]
    monkeypatch.delitem(sys.modules, "numpy")
    assert not any(each.can_convert(value) for each in of_numpy for value in (True, 1, "x", [1], small))


def test_what_nothing_in_python_stands_for_is_forgotten_together(spark: "SparkSession") -> None:
    gateway: Any = spark.sparkContext._gateway
    known = gateway.java_gateway_server.getGateway().getBindings()
    kept = F.lit("kept").alias("kept")
    gc.collect()
    before = known.size()
    with commands(spark, MEMORY_COMMAND_NAME) as asked:
        for number in range(10 * calls.left_max):
            F.lit(number)
        eventually(lambda: known.size() <= before + 3 * calls.left_max, "the JVM to forget")
    assert asked == []
    assert spark.range(1).select(kept).head() == ("kept",)


def test_objects_are_forgotten_by_several_threads_at_once(spark: "SparkSession") -> None:
    """As where a session ends while py4j's own thread forgets. The gateway's own objects are never forgotten."""
    left = calls.Left(spark.sparkContext._gateway)
    known = left.known.size()
    for number in range(20_000):
        left.ids.append(f"nothing{number}")
    left(calls.not_objects[0])
    left(calls.not_objects[1])
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(left.forget) for _ in range(8)]:
            done.result()
    assert not left.ids
    assert abs(left.known.size() - known) < calls.left_max


class Stopping:
    """A session that cannot be stopped, whose JVM answers or does not."""

    def __init__(self, *, answers: bool) -> None:
        context = SimpleNamespace(isStopped=lambda: False)
        self.stopped = Event()
        self.server = SimpleNamespace(shutdown=self.stopped.wait)
        jsc = SimpleNamespace(sc=lambda: context) if answers else None
        self.sparkContext = SimpleNamespace(_jsc=jsc, _accumulatorServer=self.server)

    def stop(self) -> None:
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_jvm_that_is_gone_does_not_hide_why_the_session_ends() -> None:
    stop(cast("SparkSession", Stopping(answers=False)))
    with pytest.raises(ConnectionRefusedError):
        stop(cast("SparkSession", Stopping(answers=True)))


def test_nobody_waits_for_what_looks_now_and_then_whether_it_shall_stop() -> None:
    session = Stopping(answers=False)
    before = active_count()
    stop(cast("SparkSession", session))
    assert active_count() == before + 1
    # That its other end is gone by then is no error, which `socketserver` would print.
    session.server.handle_error(None, "127.0.0.1")
    session.stopped.set()


@pytest.mark.parametrize("ends", [True, False])
def test_a_jvm_that_is_killed_while_a_session_starts_is_said_to_have_ended(tmp_path: Path, ends: bool) -> None:
    (tmp_path / "log").write_text("WARNING: Using incubator modules: jdk.incubator\n1 compiler directives added\n")
    alive, of_jvm = os.pipe()
    jvm = Jvm(0, "", TakenProcess(0, None, alive), alive, tmp_path, 1)
    if ends:
        os.close(of_jvm)
    with (
        pytest.raises(SparkEnded if ends else ConnectionRefusedError, match=r"^Spark stopped" if ends else "refused"),
        session.starting(tmp_path / "log", jvm),
    ):
        raise ConnectionRefusedError(111, "Connection refused")
    for each in (alive,) if ends else (alive, of_jvm):
        os.close(each)


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("No answer")])
@pytest.mark.parametrize("ends", [True, False])
def test_a_call_to_a_jvm_that_has_ended_says_so(tmp_path: Path, error: Exception, ends: bool) -> None:
    alive, of_jvm = os.pipe()
    jvm = Jvm(0, "", TakenProcess(0, None, alive), alive, tmp_path, 1)
    if ends:
        os.close(of_jvm)
    with pytest.raises(SparkEnded if ends else type(error)), session.unless_ended(jvm):
        raise error
    for each in (alive,) if ends else (alive, of_jvm):
        os.close(each)


def test_a_disk_that_is_full_while_a_jvm_starts_is_no_end_of_spark(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"), session.starting(tmp_path / "log", None):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_statements_of_many_rows_run_as_the_session_is_made(spark: "SparkSession") -> None:
    def compiled() -> str | None:
        return own.conf.get("spark.sql.codegen.factoryMode")

    own = spark.newSession()
    as_made = compiled()
    own.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    with session.sized_for(own, 10):
        assert compiled() == "NO_CODEGEN"
        with session.sized_for(own, None):
            assert compiled() == as_made
        assert compiled() == "NO_CODEGEN"
    assert compiled() == "FALLBACK"


@pytest.mark.parametrize(
    "sql",
    ["i + 2147483647 + 10", "10 + i + 2147483647", "i * 65536 * 65536", "if(i / z > 1, 'x', 'x')", "i / z = i / z"],
)
def test_few_rows_fail_where_many_do(spark: "SparkSession", sql: str) -> None:
    """Else a table could be computed bit by bit, and not be built again."""

    def computed(rows: int | None) -> object:
        with session.sized_for(own, rows):
            try:
                return own.createDataFrame([(-100, 0)], "i int, z int").selectExpr(f"{sql} AS value").collect()
            except PySparkException as error:
                return error.getCondition()

    own = spark.newSession()
    assert computed(10) == computed(None)


def test_steps_that_each_set_a_field_are_planned_in_time_for_few_rows(spark: "SparkSession") -> None:
    """One rule of Spark's optimizer is what keeps them from doubling a plan each."""
    df = spark.createDataFrame([(1, (1, 2))], "id int, fields struct<a: int, b: int>")
    with session.sized_for(spark, 10):
        for step in range(9):
            df = df.withColumn("fields", F.col("fields").withField("a", F.col("fields.a") + F.lit(step)))
        assert [tuple(row.fields) for row in df.collect()] == [(37, 2)]


def test_the_optimizer_infers_no_filters(spark: "SparkSession", tmp_path: Path) -> None:
    """To find those out took 17 s for the columns of a record (decision 60)."""

    def plan() -> str:
        found: Any = own.read.parquet(str(tmp_path)).where("id > 0")
        return str(found._jdf.queryExecution().optimizedPlan())

    own = spark.newSession()
    own.range(3).write.mode("overwrite").parquet(str(tmp_path))
    assert "isnotnull" not in plan()
    own.conf.set("spark.sql.constraintPropagation.enabled", "true")
    assert "isnotnull" in plan()


def test_a_commit_does_not_read_the_log_of_the_whole_table(spark: "SparkSession", tmp_path: Path) -> None:
    """Nor where the machine's zone is not UTC, as in these tests: Delta would, to compare what it has added up."""

    def is_read_by_a_commit(table: str) -> bool:
        path, delta = str(tmp_path / table), cast(Any, own._jvm).org.apache.spark.sql.delta
        for _ in range(2):
            own.range(3).write.format("delta").mode("append").save(path)
        snapshot = delta.DeltaLog.forTable(own._jsparkSession, path).unsafeVolatileSnapshot()
        return bool(snapshot.stateReconstructionTriggered())

    own = spark.newSession()
    assert not is_read_by_a_commit("as_set")
    own.conf.set("spark.databricks.delta.allFilesInCrc.verificationMode.forceOnNonUTC.enabled", "true")
    assert is_read_by_a_commit("as_delta_has_it")


def test_what_is_set_already_is_not_set_again(spark: "SparkSession") -> None:
    own = spark.newSession()
    with session.sized_for(own, 10), commands(spark, CALL_COMMAND_NAME) as called, session.sized_for(own, 20):
        pass
    assert called == []


def test_the_rows_of_the_driver_are_converted_as_its_session_is_set(lakehouse: Lakehouse) -> None:
    """Else Java would compile code for each form of them."""
    metrics: Any = lakehouse.spark._jvm
    compilations = metrics.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    lakehouse.declare(sales).publish("sales", sale(0)).run()
    lakehouse.publish("sales", sale(1))
    before = compilations.getCount()
    assert lakehouse.run()["silver.sales"].rows.inserted == 1
    assert compilations.getCount() == before


def test_letters_are_not_those_of_the_machines_language(spark: "SparkSession") -> None:
    """The tests' JVM is started as on a Turkish machine."""
    (row,) = spark.sql("SELECT upper('é i') AS upper, lower('É I') AS lower").collect()
    assert (row["upper"], row["lower"]) == ("É I", "é i")
    require_language(spark, "sc://here")
    util = cast(Any, spark.sparkContext._jvm).java.util
    # Sessions are in UTC all the same.
    assert util.TimeZone.getDefault().getID() == os.environ["TZ"] != "UTC"
    default = util.Locale
    default.setDefault(default("tr", "TR"))
    try:
        with pytest.raises(SluiceError, match="of i it makes İ"):
            require_language(spark, "sc://here")
    finally:
        default.setDefault(default("en", "US"))


@pytest.mark.parametrize(
    ("variables", "then"),
    [
        ({}, "C.UTF-8"),
        ({"LANG": "C"}, "C.UTF-8"),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, "C.UTF-8"),
        ({"LANG": "tr_TR.UTF-8"}, None),
        ({"LC_CTYPE": "de_DE.ISO-8859-1", "LANG": "C"}, None),
    ],
)
def test_a_jvm_reads_names_of_files_in_utf8_where_no_locale_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], then: str | None
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with in_utf8():
        assert os.environ.get("LC_ALL") == then
    assert os.environ.get("LC_ALL") == variables.get("LC_ALL")
