"""Spark for a project: a session for each call, one that is kept until the project is closed, or one that is given."""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sluice.engine.runner import Event, Listener
from sluice.errors import LakeLocked, SluiceError, UsageError
from sluice.runtime import connect, jars
from sluice.runtime.jvm import place
from sluice.runtime.session import bundles, is_alive, server_settings, spark_message, spark_session, spark_settings
from sluice.runtime.settings import Settings
from sluice.storage.lock import Lock, lake_lock, lock_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Notice = Callable[[str], None]


class Sessions(Protocol):
    """Where a project's Spark comes from."""

    spark: "SparkSession | None"

    def reading(self) -> AbstractContextManager["SparkSession"]:
        """A session that only reads tables. A SluiceError says what went wrong in Spark."""

    def writing(self) -> AbstractContextManager["SparkSession"]:
        """A session that may write, with the lake locked; a LakeLocked when another run has it."""

    def close(self) -> None:
        """Ends what was started."""


class EachCall:
    """A session for each call: the lake stays locked until its JVM is dead, or waits unused for the next call."""

    def __init__(self, settings: Settings, listener: Listener, notice: Notice) -> None:
        self.settings, self.listener, self.notice = settings, listener, notice
        self.spark: SparkSession | None = None

    @contextmanager
    def reading(self) -> "Iterator[SparkSession]":
        tell_of_jars(self.settings, self.notice)
        with place(self.settings) as kept:
            file = kept.lock_file if kept else None
            descriptors = () if file is None else (file,)
            with spark_session(self.settings, descriptors=descriptors, place=kept) as spark, speaking():
                yield spark

    @contextmanager
    def writing(self) -> "Iterator[SparkSession]":
        with (
            place(self.settings, writes=True) as kept,
            locked(self.settings, self.notice, kept.lock_file if kept else None) as lock,
        ):
            tell_of_jars(self.settings, self.notice)
            self.listener(Event("starting", "Spark"))
            with spark_session(self.settings, lock, place=kept) as spark, speaking():
                self.spark = spark
                self.listener(Event("ready", "Spark"))
                try:
                    yield spark
                finally:
                    self.spark = None

    def close(self) -> None:
        """Nothing is kept."""


class Kept:
    """One session, started when it is first needed and ended by `close`, or with the process.

    The lake is locked only while something is written. The JVM has inherited the lock's file: if this process dies in
    the middle of a write, the lake stays locked until the JVM is dead too.
    """

    def __init__(self, settings: Settings, listener: Listener, notice: Notice) -> None:
        self.settings, self.listener, self.notice = settings, listener, notice
        self.spark: SparkSession | None = None
        self.lock_file: int | None = None
        self.turn, self.starting = threading.Lock(), threading.Lock()
        # The lock's file outlives each JVM that inherits it.
        self.files, self.started = ExitStack(), ExitStack()
        self.ended = weakref.finalize(self, close_all, self.started, self.files)

    @contextmanager
    def reading(self) -> "Iterator[SparkSession]":
        with speaking():
            yield self.session()

    @contextmanager
    def writing(self) -> "Iterator[SparkSession]":
        with turn_of(self.turn), locked(self.settings, self.notice, self.inherited_file()) as lock, speaking():
            spark = self.session()
            end_with(lock, spark)
            try:
                yield spark
            except Exception:
                raise
            except BaseException:
                # An interrupt leaves Spark at work, and it must not write once the lock is gone.
                self.end_session()
                raise

    def session(self) -> "SparkSession":
        """The session, started when there is none or when its JVM has ended."""
        with self.starting:
            if self.spark is not None and not is_alive(self.spark):
                self.end_session()
            if self.spark is None:
                require_no_other(self.settings)
                tell_of_jars(self.settings, self.notice)
                self.listener(Event("starting", "Spark"))
                file = self.inherited_file()
                made = spark_session(self.settings, descriptors=() if file is None else (file,))
                self.spark = self.started.enter_context(made)
                self.listener(Event("ready", "Spark"))
            return self.spark

    def inherited_file(self) -> int | None:
        """The open file of the lake's lock; None where a lease is the lock, or Spark is another machine's."""
        if self.settings.location.folder is None or self.settings.is_remote:
            return None
        if self.lock_file is None:
            self.lock_file = lock_file(self.settings.lake_root)
            self.files.callback(os.close, self.lock_file)
        return self.lock_file

    def end_session(self) -> None:
        self.spark = None
        self.started.close()

    def close(self) -> None:
        """Ends the session; the next call starts another."""
        self.end_session()
        self.lock_file = None
        self.files.close()


class Given:
    """The session that the caller gave; the caller also ends it."""

    def __init__(self, settings: Settings, notice: Notice, spark: "SparkSession") -> None:
        require_fit(spark, settings)
        self.settings, self.notice = settings, notice
        self.spark: SparkSession | None = spark
        self.given = spark
        self.turn = threading.Lock()

    @contextmanager
    def reading(self) -> "Iterator[SparkSession]":
        with speaking():
            yield self.given

    @contextmanager
    def writing(self) -> "Iterator[SparkSession]":
        with turn_of(self.turn), locked(self.settings, self.notice) as lock, speaking():
            end_with(lock, self.given)
            yield self.given

    def close(self) -> None:
        """The caller ends it."""


def close_all(*stacks: ExitStack) -> None:
    for stack in stacks:
        stack.close()


def tell_of_jars(settings: Settings, notice: Notice) -> None:
    """Says so before jars are fetched, which can take minutes."""
    if not settings.is_remote and not all(jars.is_fetched(each, settings.jars) for each in bundles(settings)):
        notice(f"Fetching the jars that Spark needs, once, into {settings.jars} …")


def locked(settings: Settings, notice: Notice, kept: int | None = None) -> AbstractContextManager[Lock]:
    """The right to write the project's lake."""
    return lake_lock(
        settings.lake_root,
        lease_seconds=settings.lease_seconds,
        is_single_writer=settings.single_writer,
        notify=notice,
        kept=kept,
    )


@contextmanager
def turn_of(turn: threading.Lock) -> Iterator[None]:
    """One thread of a project writes at a time: to the kernel they are one owner of the lake's lock."""
    if not turn.acquire(blocking=False):
        raise LakeLocked("Another thread is writing the lake with this project. Wait for it.")
    try:
        yield
    finally:
        turn.release()


def end_with(lock: Lock, spark: "SparkSession") -> None:
    """Lets the JVM end with the lease on an object store."""
    if lock.lease is not None and not connect.is_remote():
        lock.lease.jvm = getattr(spark.sparkContext._gateway, "proc", None)


@contextmanager
def speaking() -> Iterator[None]:
    """A SluiceError says what went wrong in Spark, without the stack of its JVM."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise SluiceError(spark_message(error)) from error


def require_no_other(settings: Settings) -> None:
    """A UsageError where this process has a Spark session already: there is one JVM for all."""
    from pyspark import SparkContext

    if not settings.is_remote and SparkContext._active_spark_context is not None:
        raise UsageError(
            "This process has a Spark session already. Close the project that started it, or share it: "
            "Project(path, spark=other.spark)."
        )


def require_fit(spark: "SparkSession", settings: Settings) -> None:
    """A UsageError for a session whose settings would make other rows, or none."""
    needed = {
        name: value for name, value in spark_settings.items() if name.startswith(("spark.sql.", "spark.databric"))
    }
    needed |= server_settings(settings.location.spark_settings(""))
    # Work is done in sessions beside it, which have what Spark was started with.
    conf = spark.conf if connect.is_remote() else spark.newSession().conf
    wrong = [f"{name}={value}" for name, value in needed.items() if value not in (conf.get(name, "") or "")]
    if wrong:
        raise UsageError(f"The Spark session was started without {', '.join(wrong)}, which a project needs.")
