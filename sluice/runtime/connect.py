"""A Spark session on a Spark Connect server: plans are sent there, and Java, the jars and the work are the server's."""

import importlib.util
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyspark.errors import PySparkException

from sluice.errors import SluiceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

port_default = 15002
answers_within_seconds = 10


@contextmanager
def remote_session(address: str, needed: Mapping[str, str], wanted: Mapping[str, str]) -> "Iterator[SparkSession]":
    """A session of the server at `sc://host:port`, ended at the end.

    The address may go on with parameters of the protocol (`/;use_ssl=true;token=…`), which no message repeats. A
    SluiceError when none answers, when the server was started without one of the settings that are `needed`, or when it
    goes on to replace variables in statements, or has letters of another language. Settings that are `wanted` are set
    as far as a session may.
    """
    if importlib.util.find_spec("grpc") is None:
        raise SluiceError("Spark Connect needs grpc, which is not installed: pip install 'sluice-lakehouse[connect]'")
    server = public(address)
    require_answer(server)
    from pyspark.sql import SparkSession

    with failing_for(server):
        spark = SparkSession.builder.remote(address).create()
    try:
        with failing_for(server):
            require_settings(spark, server, needed)
            for name, value in wanted.items():
                if spark.conf.isModifiable(name):
                    spark.conf.set(name, value)
            require_no_substitution(spark, server)
            require_language(spark, server)
        yield spark
    finally:
        # Also of a server that is refused: a session that goes on asks it for minutes when the process ends.
        spark.stop()


@contextmanager
def failing_for(server: str) -> Iterator[None]:
    """What Spark says against a session, as a SluiceError."""
    try:
        yield
    except PySparkException as error:
        raise SluiceError(f"The Spark at {server} gives no session: {str(error).splitlines()[0]}") from error


def public(address: str) -> str:
    """The address without its parameters, one of which may be a token."""
    return address.partition("/;")[0]


def require_answer(server: str) -> None:
    """The client itself would go on trying for ten minutes."""
    parts = urlsplit(server)
    try:
        socket.create_connection((parts.hostname or "", parts.port or port_default), answers_within_seconds).close()
    except OSError as error:
        raise SluiceError(
            f"No Spark answers at {server}: {error.strerror or error}. Start it, or set SLUICE_SPARK."
        ) from error


def require_settings(spark: "SparkSession", server: str, needed: Mapping[str, str]) -> None:
    """Without Delta nothing is written, without its log store commits on S3 are lost; a session cannot mend that."""
    for name, value in needed.items():
        if value not in (spark.conf.get(name, "") or ""):
            raise SluiceError(
                f"The Spark at {server} was started without {name}={value}. "
                "What it must be started with: docs/how-to/run-on-a-cluster.md"
            )


def require_no_substitution(spark: "SparkSession", server: str) -> None:
    """A SluiceError where SQL is changed before it is read: a statement here has `${…}` only to mean itself."""
    (row,) = spark.sql("SELECT '${spark.sql.variable.substitute}' AS text").collect()
    if row["text"] != "${spark.sql.variable.substitute}":
        raise SluiceError(
            f"The Spark at {server} replaces variables in SQL, and its sessions cannot change that. "
            "Start it with spark.sql.variable.substitute=false: docs/how-to/run-on-a-cluster.md"
        )


def require_language(spark: "SparkSession", server: str) -> None:
    """A SluiceError where letters are those of a language that has its own: figures would depend on the machine."""
    (row,) = spark.sql("SELECT upper('é i') AS text").collect()
    if row["text"] != "É I":
        raise SluiceError(
            f"The Spark at {server} has capital letters of its machine's language: of i it makes {row['text'][-1]}. "
            "Start it and its executors with -Duser.language=en: docs/how-to/run-on-a-cluster.md"
        )


def is_remote() -> bool:
    """True when the session of this process is one of a Spark Connect server."""
    from pyspark.sql import is_remote

    return bool(is_remote())


@contextmanager
def cloned(spark: "SparkSession") -> "Iterator[SparkSession]":
    """A separate session on the same Spark Connect server, with the same settings."""
    own = spark.cloneSession()  # type: ignore[attr-defined]
    # A checkpoint is looked for in the thread's active session, whichever it was made by.
    active = type(own)._active_session
    before = getattr(active, "session", None)
    active.session = own
    try:
        yield own
    finally:
        active.session = before
        own.client.release_session()
        own.client.close()
