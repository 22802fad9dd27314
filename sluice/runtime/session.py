"""The Spark session: a JVM on this machine, with the jars and settings for where log and tables are; or a server's."""

import hashlib
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, utils
from pyspark.logger import PySparkLogger

from sluice.errors import SparkEnded
from sluice.runtime import connect, jars, logstore
from sluice.runtime.class_archive import ClassArchive
from sluice.runtime.java import one_language, require_java
from sluice.runtime.jvm import Jvm, Place, forget_gateway, is_used, started, trust
from sluice.runtime.pandas_later import postpone_for_pyspark
from sluice.runtime.settings import Settings
from sluice.storage.lock import Lock
from sluice.storage.s3 import log_store

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

spark_ended = (
    "Spark stopped: its JVM ended. Run again: nothing was lost. If it was killed for memory, "
    "lower SLUICE_DRIVER_MEMORY."
)
lines_noted = "spark.sql.dataFrameQueryContext.enabled"
spark_settings = {
    "spark.app.name": "sluice",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Else each call that builds a frame or a column asks the JVM four times, and walks both stacks, to note its line.
    # `noting_lines` does so where it is worth that.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    lines_noted: "false",
    # Every statement is described for the UI; its default costs a tenth of a small one.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # Spark's own default, INT96, knows no statistics and ends in the year 2262 for other readers.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.ansi.enabled": "true",
    # For each filter the optimizer would add up what is certain of all columns below it. Of a record's columns, each of
    # which is a long expression of the same value, it did that for 17 s. Reads have the bounds of a scope as
    # literals, so none has to be found that way.
    "spark.sql.constraintPropagation.enabled": "false",
    # Delta hands the rows of a change feed on as objects of Java. The older ones for times have the JVM's own zone, in
    # which clocks were put back, and lack ten days of 1582.
    "spark.sql.datetime.java8API.enabled": "true",
    # Values of a scope that are listed (`scope.listed_max`) are looked for as such, and not as one range.
    "spark.sql.parquet.pushdown.inFilterThreshold": "32",
    # Else `${env:HOME}` within a statement, or a value in one, is replaced by what it names.
    "spark.sql.variable.substitute": "false",
    # Rows of a table are found by many keys in a join. From this size of the table on, a Bloom filter of the keys skips
    # most other rows before they are shuffled; what Spark takes the keys' size for does not matter. Eight bits for each
    # of four million keys: a filter has 4 MB. A dozen are on the heap at a time, as plans and tasks have copies, and
    # Spark's memory manager knows nothing of them.
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "16m",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "1000p",
    "spark.sql.optimizer.runtime.bloomFilter.expectedNumItems": "4000000",
    "spark.sql.optimizer.runtime.bloomFilter.numBits": "33554432",
    # Defaults are sized for clusters: 200 shuffle tasks and 50 tasks to read a table's log.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.commit.idempotencyCheck.enabled": "true",
    # Where the machine's zone is not UTC, Delta would read the whole table's log after each commit, to compare what it
    # has added up. It is in doubt of times that were written in that zone; ours are in the session's, which is UTC.
    "spark.databricks.delta.allFilesInCrc.verificationMode.forceOnNonUTC.enabled": "false",
    # What Spark remembers of its past, plans and all, is memory that a driver of days has not.
    "spark.sql.ui.retainedExecutions": "200",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.ui.retainedTasks": "2000",
    # The same of the files that it listed, up to 250 MB; we list them again each time.
    "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
    # Each task that sorts or groups takes a page, and each small table of a join keeps one: of 64 MB by default.
    "spark.buffer.pageSize": "4m",
    # A difference is computed once and for all before it is merged.
    "spark.databricks.delta.merge.materializeSource": "none",
}

# Half of a driver's work in its first hundred passes would be that of the second compiler, for code that hardly runs:
# it waits ten times as long as Java's default.
compiled_when_hot = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

# The same compiler took 10 s of the demo's first run for Spark's own compiler of Java, and for what loads classes: they
# run for a while, and never again. The first compiler's code is good enough for them.
compiled_once = f"-XX:+UnlockDiagnosticVMOptions -XX:CompilerDirectivesFile={Path(__file__).with_name('compiler.json')}"

# Of so many rows no plan is adapted while it runs, and filters of keys have 1 MB: eight bits for each row.
of_some = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.optimizer.runtime.bloomFilter.expectedNumItems": "1000000",
    "spark.sql.optimizer.runtime.bloomFilter.numBits": "8388608",
}
# For a few rows planning takes the time: no filters of keys either, and no code generated for each projection. Values
# of a scope are part of that code, so it is compiled again in each pass; of 1,500 rows a pass costs a quarter less
# without.
of_few = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
settings_up_to_rows = {20_000: of_few, 1_000_000: of_some}


@contextmanager
def sized_for(spark: "SparkSession", rows: int | None) -> Iterator[None]:
    """Runs statements with the settings that suit this number of rows; None: many, as the session is made."""
    fitting = [settings for most, settings in settings_up_to_rows.items() if rows is not None and rows <= most]
    usual = {name: spark_settings.get(name) for settings in settings_up_to_rows.values() for name in settings}
    wanted = usual | (fitting[0] if fitting else {})
    before = sizes.get(spark) or {name: spark.conf.get(name, None) for name in wanted}
    size(spark, before, wanted)
    try:
        yield
    finally:
        size(spark, wanted, before)


# Asking a session for them takes as long as setting them.
sizes: "WeakKeyDictionary[SparkSession, dict[str, str | None]]" = WeakKeyDictionary()


def size(spark: "SparkSession", before: dict[str, str | None], wanted: dict[str, str | None]) -> None:
    """Sets what is not set already."""
    change(spark, {name: value for name, value in wanted.items() if value != before[name]})
    sizes[spark] = wanted


def change(spark: "SparkSession", settings: Mapping[str, str | None]) -> None:
    """Sets what a session does; None: what it does by default."""
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@contextmanager
def spark_session(
    settings: Settings, lock: Lock | None = None, *, descriptors: Sequence[int] = (), place: Place | None = None
) -> "Iterator[SparkSession]":
    """A Spark session, stopped at the end.

    With a `lock` it may write: the lake stays locked until the JVM is dead too, or the JVM dies with the lock. What a
    Spark Connect server continues for a process that died is fenced only by Delta (`Lake.fence`). Without a `lock` the
    JVM may inherit `descriptors` that are locked later, each time something is written. The JVM comes from its `place`
    if one waits there, and goes there if it has the lock's file and all went well.
    """
    where = settings.location
    if settings.is_remote:
        wanted = spark_settings | {"spark.sql.shuffle.partitions": str(cores(settings)), lines_noted: "true"}
        with connect.remote_session(settings.spark, server_settings(where.spark_settings("")), wanted) as spark:
            yield spark
        return
    # py4j logs the stack of each call to a JVM that has ended, or that is interrupted; what that means we say.
    logging.getLogger().addFilter(lambda record: not str(record.msg).endswith("while sending command."))
    # Our own message reports what cannot be computed, not the JVM's whole stack for each attempt.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    if place is None or place.jvm is None:
        # Spark's resolver of jars needs it, too.
        require_java()
    files = jars.jar_files(settings.jars, bundles(settings)) + ([logstore.jar] if where.jars else [])
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    postpone_for_pyspark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    waited = None if place is None else place.take()
    scratch = waited.scratch if waited else new_scratch(settings, lock)
    conf = configured(settings, lock, scratch, files)
    log, inherited = spark_log(settings, lock), [*(lock.descriptors if lock else ()), *descriptors]
    with starting(log, waited):
        jvm = waited.reached() if waited else started(with_classes(conf, settings, place), log, inherited, scratch)
    if lock and lock.lease:
        lock.lease.jvm = jvm.process
    try:
        if where.ca_bundle:
            trust(jvm.gateway, where.ca_bundle, scratch / "trusted.p12")
        with starting(log, jvm), own_interrupts():
            spark = SparkSession(SparkContext(conf=conf, gateway=jvm.gateway))
        try:
            with unless_ended(jvm):
                yield spark
        finally:
            if not jvm.has_ended:
                stop(spark)
        can_wait = waited is not None or lock is not None or descriptors
        if place is not None and can_wait and not jvm.has_ended:
            jvm.forget_session()
            place.jvm = jvm
    finally:
        if place is None or place.jvm is None:
            jvm.end()
        forget_gateway()


@contextmanager
def starting(log: Path, jvm: Jvm | None) -> Iterator[None]:
    """SparkEnded, with what the JVM wrote, where it ends meanwhile; None: a JVM that is being started."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        if jvm is not None and not jvm.ends_within(seconds=1):
            raise
        lines = [line for line in log.read_text(errors="replace").splitlines() if not said_always.match(line)]
        said = " ".join(line.strip("# ") for line in lines)[:500].strip(" .")
        # Killed, it says nothing.
        raise SparkEnded(f"Spark did not start: {said}. {check_java}" if said else spark_ended) from error


@contextmanager
def unless_ended(jvm: Jvm) -> Iterator[None]:
    """SparkEnded where a call fails because the JVM ended meanwhile; not for the errors that it answers with."""
    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if isinstance(error, Py4JJavaError) or not jvm.ends_within(seconds=1):
            raise
        raise SparkEnded(spark_ended) from error


said_always = re.compile(r"WARNING: Using inc|Setting default log level|To adjust logging level|\d+ compiler dir|#?$")
check_java = "Check SLUICE_DRIVER_MEMORY and SLUICE_JAVA_OPTIONS."


def stop(spark: "SparkSession") -> None:
    """Stops a session; one whose JVM no longer answers is about to end by itself."""
    context: Any = spark.sparkContext
    of_accumulators, context._accumulatorServer = getattr(context, "_accumulatorServer", None), None
    try:
        spark.stop()
    except (Py4JError, OSError):
        if is_alive(spark):
            raise
    finally:
        if of_accumulators:
            # It looks every half a second whether it shall stop. Nobody else has to wait for that, and by then its
            # other end may be gone, which is no error to print.
            of_accumulators.handle_error = lambda *_: None
            threading.Thread(target=of_accumulators.shutdown, daemon=True).start()


def configured(settings: Settings, lock: Lock | None, scratch: Path, files: Sequence[Path]) -> "SparkConf":
    """All that a session is started with."""
    from pyspark import SparkConf

    conf = SparkConf(loadDefaults=False)
    conf.setMaster(settings.spark)
    placed = settings.location.spark_settings(str(scratch)) | {"spark.local.dir": str(scratch)}
    for name, value in (spark_settings | sized(settings) | placed).items():
        conf.set(name, value)
    if settings.spark_ui_port and lock is not None:
        conf.set("spark.ui.enabled", "true").set("spark.ui.port", str(settings.spark_ui_port))
        # Spark's UI takes its address only from here; by default it is every address of the machine.
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    conf.set("spark.jars", ",".join(map(str, files)))
    conf.set("spark.sql.warehouse.dir", f"{scratch}/warehouse")
    return conf


def with_classes(conf: "SparkConf", settings: Settings, place: Place | None) -> "SparkConf":
    """Lets a new JVM read its classes from the archive; where there is none yet, its place has it made at the end."""
    archive = ClassArchive.of(settings.jars, require_java())
    if place is not None:
        place.archive = archive
    options = "spark.driver.extraJavaOptions"
    return conf.set(options, f"{conf.get(options)} {archive.option}")


@contextmanager
def own_interrupts() -> Iterator[None]:
    """PySpark takes SIGINT for itself; a program that handles it otherwise than Python does goes on to do so."""
    before = signal.getsignal(signal.SIGINT)
    yield
    is_own = callable(before) and before is not signal.default_int_handler
    if is_own and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def server_settings(of_location: Mapping[str, str]) -> dict[str, str]:
    """What a Spark Connect server must have been started with, given Spark's settings for where the tables are."""
    of_delta = {name: spark_settings[name] for name in ("spark.sql.extensions", "spark.sql.catalog.spark_catalog")}
    return of_delta | {name: value for name, value in of_location.items() if name == log_store}


@contextmanager
def named_jobs(spark: "SparkSession", name: str) -> "Iterator[SparkSession]":
    """A separate session, whose jobs have the name in Spark's UI: commit metadata cannot leak into another session.

    SparkEnded where Spark has ended before.
    """
    if connect.is_remote():
        with connect.cloned(spark) as own:
            own.addTag(name)
            yield own
        return
    try:
        spark.sparkContext.setJobGroup(name, name)
        own = spark.newSession()
        # Rows that the driver has are converted as the active session is set.
        getattr(own._jvm, "org.apache.spark.sql.SparkSession").setActiveSession(own._jsparkSession)
    except Exception as error:
        if is_alive(spark):
            raise
        raise SparkEnded(spark_ended) from error
    yield own


@contextmanager
def noting_lines(spark: "SparkSession") -> Iterator[None]:
    """Errors of this session say at which line of the project the column was built that cannot be computed."""
    if connect.is_remote():
        yield
        return
    change(spark, {lines_noted: "true"})
    search = object()
    with switch:
        searches.add(search)
        cast(Any, utils)._enable_debugging_cache = True
    try:
        yield
    finally:
        with switch:
            searches.remove(search)
            cast(Any, utils)._enable_debugging_cache = bool(searches)


# PySpark has one switch for all threads.
switch, searches = threading.Lock(), set[object]()


def is_alive(spark: "SparkSession") -> bool:
    """True while Spark answers; False once its JVM, its context or its server has ended."""
    try:
        return bool(spark.version) if connect.is_remote() else not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # noqa: BLE001 - asking what is gone fails in many ways
        return False


def spark_message(error: PySparkException | Py4JError) -> str:
    """What went wrong in Spark, by the exception that caused all others, without the stack of its JVM."""
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        return f"Spark failed: {error}"
    try:
        cause = root_cause(error)
        said = str(error) if cause is None else str(cause.getMessage() or cause.toString())
    except Exception:  # noqa: BLE001 - the JVM died, and asking it fails in many ways
        return spark_ended
    said = bypass.sub("", said)
    # The plan that follows has names and numbers of Spark's own.
    said = after_state.sub(r"\1", said.split("JVM stacktrace", maxsplit=1)[0])
    return f"Spark failed: {said}".strip()


# Sluice has no such setting: a figure that cannot be computed is never replaced.
bypass = re.compile(r" If necessary,? set \"spark\.sql\.ansi\.enabled\" to \"false\"[^.]*\.")
after_state = re.compile(r"(?<=SQLSTATE: \w{5})(; line \d+ pos \d+)?;\n.*", re.DOTALL)


def root_cause(error: PySparkException | Py4JError) -> Any:
    """The exception of the JVM that caused the others; None where the error has none, as one of Spark Connect."""
    found = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while found is not None and (cause := found.getCause()) is not None and not cause.equals(found):
        found = cause
    return found


def tasks_of(spark: "SparkSession", name: str) -> tuple[int, int]:
    """The number of tasks in the running stages of jobs with this name, and of those done; zeros if unknown."""
    if connect.is_remote():
        return 0, 0
    tracker = spark.sparkContext.statusTracker()
    stages = [
        stage
        for job in tracker.getJobIdsForGroup(name)
        if (info := tracker.getJobInfo(job)) is not None and info.status == "RUNNING"
        for stage_id in info.stageIds
        if (stage := tracker.getStageInfo(stage_id)) is not None
    ]
    return sum(stage.numTasks for stage in stages), sum(stage.numCompletedTasks for stage in stages)


def spark_log(settings: Settings, lock: Lock | None) -> Path:
    """Where the JVM writes what it has to say, empty; what matters of it reaches the user by the command's message."""
    name = ".spark.log" if lock is not None else ".spark-reader.log"
    path = settings.spark_logs / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def bundles(settings: Settings) -> list[jars.Bundle]:
    """The jars for where the log and the tables are."""
    return [
        jars.delta,
        *(jars.kafka if settings.is_on_kafka else ()),
        *(jars.by_name[name] for name in settings.location.jars),
    ]


def new_scratch(settings: Settings, lock: Lock | None) -> Path:
    """A folder for what the JVM spills; those of JVMs that have ended are removed by the one that owns the lake."""
    if lock is None:
        return Path(tempfile.mkdtemp(prefix="sluice-"))
    prefix = scratch_prefix(settings)
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if not is_used(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=prefix))


def scratch_prefix(settings: Settings) -> str:
    """How the scratch folders of this lake's drivers are named."""
    return f"sluice-{hashlib.sha256(settings.lake_root.encode()).hexdigest()[:16]}-"


def sized(settings: Settings) -> dict[str, str]:
    """What depends on the machines: one shuffle task per core, memory, and who may reach the driver."""
    log4j = Path(__file__).with_name("log4j2.properties")
    flags = [*one_language, "-XX:+UseParallelGC", compiled_when_hot, compiled_once, settings.java_options]
    options = f"-Dlog4j2.configurationFile={log4j} {' '.join(flags)}"
    here = {
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": options,
        "spark.executor.extraJavaOptions": " ".join(one_language),
        "spark.sql.shuffle.partitions": str(cores(settings)),
    }
    if settings.is_on_cluster:
        here |= {"spark.cores.max": str(cores(settings)), "spark.executor.memory": settings.executor_memory}
    if not settings.is_on_cluster or settings.spark.startswith(("spark://127.0.0.1:", "spark://localhost:")):
        here |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    return here


def cores(settings: Settings) -> int:
    """How many tasks run at once."""
    if settings.is_on_cluster or settings.is_remote:
        return settings.cluster_cores
    asked = settings.spark.removeprefix("local[").removesuffix("]")
    return os.cpu_count() or 1 if asked == "*" else int(asked)
