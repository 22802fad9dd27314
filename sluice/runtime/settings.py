"""Every setting, read once from the environment (`SLUICE_*`)."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from sluice.errors import UsageError, suggestion
from sluice.log import AnyLog, KafkaLog, KafkaSecurity, Log
from sluice.runtime.schema_registry import SchemaRegistry
from sluice.storage.location import Location, is_bucket, location_of

prefix = "SLUICE_"
s3_address = re.compile(r"s3a://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.=-]+)*/?", re.ASCII)
spark_pattern = r"^(local\[(\d+|\*)\]|spark://[^\s/:]+:\d+(,[^\s/:]+:\d+)*|sc://[^\s/:]+(:\d+)?(/;\S*)?)$"
half_an_address = re.compile(r"\w+:(?!//)")
memory_pattern = r"^\d+[mg]$"
# What to write where a setting does not look as it must.
examples = {spark_pattern: "local[2], spark://HOST:7077 or sc://HOST:15002", memory_pattern: "512m or 2g"}
kafka_address = re.compile(r"kafka://[^\s,/:]+:\d+(,[^\s,/:]+:\d+)*")
# No user and no password: they would be in the log. The path of a receiver is OpenLineage's own by default.
receiver_address = re.compile(
    r"file:///[^\s?#]+|https?://[^\s/@?#]+(/[^\s@?#]*)?|kafka://[^\s,/:@]+:\d+(,[^\s,/:@]+:\d+)*/[\w.-]+"
)
registry_address = re.compile(r"https?://[^\s/@?#]+(/[^\s@?#]*)?")
# Read by the installer of the servers, not by the engine.
elsewhere = {"SLUICE_SERVERS"}


class Settings(BaseSettings):
    """Where things are and how large they may be; each field is the variable `SLUICE_<FIELD>`."""

    model_config = SettingsConfigDict(env_prefix=prefix, frozen=True, extra="forbid")

    project: Path = Path()
    """The folder of the project."""
    lake: str = ""
    """Where the tables are: a local path, or `s3a://BUCKET/PREFIX`. Empty: `.sluice/lake` in the project."""
    log: str = ""
    """Where the log is: a local path, or `kafka://HOST:PORT`. Empty: `.sluice/log` in the project."""
    spark: Annotated[str, Field(pattern=spark_pattern)] = "local[*]"
    """Local cores (`local[2]`), a cluster (`spark://HOST:7077`), or a Spark Connect server (`sc://HOST:15002`)."""
    driver_memory: Annotated[str, Field(pattern=memory_pattern)] = "2g"
    """The heap of the driver's JVM, in megabytes (`m`) or gigabytes (`g`)."""
    cluster_cores: Annotated[int, Field(ge=1)] = 4
    """On a cluster, how many cores all executors use together."""
    executor_memory: Annotated[str, Field(pattern=memory_pattern)] = "1g"
    """On a cluster, the heap of each executor."""
    jars: Path = Path.home() / ".cache" / "sluice" / "jars"
    """The folder for the jars, which are downloaded once and verified, and for Spark's class archive."""
    java_options: str = ""
    """Further options for the JVM."""
    keep_spark_minutes: Annotated[float, Field(ge=0, le=1440)] = 5
    """How long the JVM of a command waits for the next one, which starts without it in seconds; 0: it ends at once."""
    batch_records_max: Annotated[int, Field(ge=1)] = 5_000_000
    """How many records of a topic land in one commit."""
    parallel: Annotated[int, Field(ge=1, le=64)] = 2
    """How many datasets are refreshed at the same time."""
    lease_seconds: Annotated[float, Field(ge=3, le=600)] = 30.0
    """On S3, how long a run that was killed keeps the next one waiting, in seconds."""
    single_writer: bool = False
    """On S3, accept a server without conditional writes. You make sure that no other process writes the lake."""
    spark_ui_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """The port of Spark's UI on loopback during a run; 0: no UI."""
    poll_seconds: Annotated[float, Field(gt=0)] = 1.0
    """How often `run --continuous` looks for new records when there are none, in seconds."""
    changed_declarations: Literal["rebuild", "hold"] = "rebuild"
    """What a run does with a dataset whose declaration changed: rebuild it, or leave it as it is."""
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How the log on Kafka is reached."""
    kafka_sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = ""
    """How to log in to Kafka."""
    kafka_sasl_username: str = ""
    """The user name for Kafka."""
    kafka_sasl_password: SecretStr = SecretStr("")
    """The password for Kafka."""
    kafka_ssl_ca: Path | None = None
    """A PEM file with the certificate of the authority that signed the broker's."""
    kafka_ssl_keystore: Path | None = None
    """A PEM file with our certificate and its key."""
    schema_registry: str = ""
    """The schema registry: `https://HOST[/PATH]`. Empty: schemas come from the topic `sluice_schemas` alone."""
    schema_registry_username: str = ""
    """The user name for the schema registry."""
    schema_registry_password: SecretStr = SecretStr("")
    """The password for the schema registry."""
    schema_registry_token: SecretStr = SecretStr("")
    """A bearer token for the schema registry, instead of a user name and a password."""
    http_token: SecretStr = SecretStr("")
    """The tokens that `sluice listen http` accepts, each of at least 32 characters."""
    webhook_secrets: SecretStr = SecretStr("")
    """The secrets of `sluice listen http --webhook`: `TOPIC:SECRET` with commas between several."""
    amqp: SecretStr = SecretStr("")
    """The broker of `sluice listen amqp`: `amqp://user:password@host:5672/vhost`."""
    mqtt: SecretStr = SecretStr("")
    """The broker of `sluice listen mqtt`: `mqtt://user:password@host:1883`, or `mqtts://…` with TLS."""
    postgres: SecretStr = SecretStr("")
    """The database of `sluice capture postgres`, as a libpq address. It may have a password, so it is never printed."""
    publish_postgres: SecretStr = SecretStr("")
    """The database of `sluice publish`, as a libpq address. It may have a password, so it is never printed."""
    publish_kafka: str = ""
    """The brokers of `sluice publish`: `kafka://HOST:PORT`, with the `SLUICE_KAFKA_*` settings. Empty: the log's."""
    openlineage: str = ""
    """Where OpenLineage events go: `file:///PATH`, `https://HOST[/PATH]`, or `kafka://HOST:PORT/TOPIC`."""
    openlineage_token: SecretStr = SecretStr("")
    """The key that an HTTP receiver of OpenLineage events asks for, sent as a bearer token."""
    sql_users: SecretStr = SecretStr("")
    """The users of `sluice serve sql`, as NAME:PASSWORD with commas between several; none: no passwords."""
    ui_token: SecretStr = SecretStr("")
    """The token that readers of `sluice ui` log in with, of at least 32 characters; none: no login."""

    @field_validator("project")
    @classmethod
    def resolved(cls, value: Path) -> Path:
        return value.resolve()

    @field_validator("lake")
    @classmethod
    def local_or_s3(cls, value: str) -> str:
        if "://" in value and not s3_address.fullmatch(value):
            raise ValueError("must be a local path, or s3a://BUCKET/PREFIX")
        return value.rstrip("/") if is_bucket(value) else value

    @field_validator("publish_kafka")
    @classmethod
    def brokers(cls, value: str) -> str:
        if value and not kafka_address.fullmatch(value):
            raise ValueError("must be kafka://HOST:PORT with commas between several")
        return value

    @field_validator("openlineage")
    @classmethod
    def receiver(cls, value: str) -> str:
        if value and not receiver_address.fullmatch(value):
            raise ValueError("must be file:///PATH, http(s)://HOST[:PORT][/PATH], or kafka://HOST:PORT/TOPIC")
        return value

    @field_validator("schema_registry")
    @classmethod
    def registry(cls, value: str) -> str:
        if value and not registry_address.fullmatch(value):
            raise ValueError("must be http(s)://HOST[:PORT][/PATH], without a user, a password and parameters")
        return value

    @field_validator("log")
    @classmethod
    def local_or_kafka(cls, value: str) -> str:
        if "://" in value and not kafka_address.fullmatch(value):
            raise ValueError("must be a local path, or kafka://HOST:PORT with commas between several")
        return value

    @property
    def lake_root(self) -> str:
        if is_bucket(self.lake):
            return self.lake
        return str(Path(self.project, self.lake or ".sluice/lake").resolve())

    @property
    def location(self) -> Location:
        """Where the tables are."""
        return location_of(self.lake_root)

    @property
    def is_on_cluster(self) -> bool:
        """True when Spark's work is done by other processes than its driver."""
        return self.spark.startswith("spark://")

    @property
    def is_remote(self) -> bool:
        """True when Spark is a Spark Connect server, and no JVM is started here."""
        return self.spark.startswith("sc://")

    @property
    def spark_logs(self) -> Path:
        """The folder for what the JVM has to say, which is on this machine wherever the tables are."""
        return self.location.folder or Path(self.project, ".sluice")

    @property
    def is_on_kafka(self) -> bool:
        """True when the log is not the embedded one."""
        return self.log.startswith("kafka://")

    def open_schema_registry(self) -> SchemaRegistry | None:
        """The schema registry, where there is one; nothing is asked of it yet."""
        if not self.schema_registry:
            return None
        return SchemaRegistry(
            self.schema_registry,
            self.schema_registry_username,
            self.schema_registry_password.get_secret_value(),
            self.schema_registry_token.get_secret_value(),
        )

    @property
    def log_folder(self) -> Path:
        """The folder of a log that is not on Kafka."""
        return Path(self.project, self.log or ".sluice/log").resolve()

    def open_log(self) -> AnyLog:
        """The log that the settings point to; nothing is asked of it yet."""
        return self.kafka(self.log) if self.is_on_kafka else Log(self.log_folder)

    def kafka(self, address: str) -> KafkaLog:
        """The topics of the brokers at `kafka://HOST:PORT`."""
        security = KafkaSecurity(
            protocol=self.kafka_security_protocol,
            sasl_mechanism=self.kafka_sasl_mechanism,
            sasl_username=self.kafka_sasl_username,
            sasl_password=self.kafka_sasl_password.get_secret_value(),
            ssl_ca=self.kafka_ssl_ca,
            ssl_keystore=self.kafka_ssl_keystore,
        )
        return KafkaLog(address.removeprefix("kafka://"), security)


def public(text: str) -> str:
    """A setting as a message may repeat it: without the parameters of an address, and without who logs in there."""
    without_parameters = re.split(r"[;?]", text, maxsplit=1)[0]
    shown = re.sub(r"//[^/@]*@", "//…@", without_parameters)
    return shown if shown == text else f"{shown.removesuffix('…')}…"


def read_settings(project: Path, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a project, of which `overrides` take the place of variables.

    A UsageError names the variable, or the override, that is wrong or does not exist.
    """
    require_known(overrides or {})
    known = {f"{prefix}{name.upper()}" for name in Settings.model_fields if name != "project"}
    for name in os.environ:
        if name.startswith(prefix) and name not in known | elsewhere:
            hint = suggestion(name, known, f"there are {', '.join(sorted(known))}.")
            raise UsageError(f"{name} is not a setting; {hint}")
    try:
        settings = Settings(project=project, **(overrides or {}))
    except ValidationError as error:
        first = error.errors()[0]
        name = f"{prefix}{'_'.join(str(part) for part in first['loc'])}".upper()
        example = examples.get(str(first.get("ctx", {}).get("pattern")))
        reason = f"write for example {example}" if example else first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{name}={public(str(first['input']))!r} cannot be used: {reason}.") from None
    require_plain_paths(settings)
    return settings


def require_known(overrides: Mapping[str, Any]) -> None:
    """A UsageError for an override that is no setting."""
    known = [name for name in Settings.model_fields if name != "project"]
    for name in overrides:
        if name not in known:
            hint = suggestion(name, known, f"there are {', '.join(sorted(known))}.")
            raise UsageError(f"{name} is not a setting; {hint}")


def require_plain_paths(settings: Settings) -> None:
    """A UsageError for a folder of tables or of the log whose name Spark, Delta or SQL would take for a pattern."""
    for name, text in {"LAKE": settings.lake, "LOG": settings.log}.items():
        if half_an_address.match(text):
            raise UsageError(
                f"{prefix}{name}={public(text)!r} is not an address: write {text.partition(':')[0]}:// at its "
                f"beginning. For a folder of this name write ./{public(text)}"
            )
    folders = {"LAKE": settings.location.folder, "LOG": None if settings.is_on_kafka else settings.log_folder}
    for name, path in folders.items():
        folder = str(path or "")
        signs = sorted({sign for sign in folder if sign in "#?[]{}*%\\" or not sign.isprintable()})
        if signs:
            raise UsageError(
                f"{prefix}{name} is {folder!r}, and Spark cannot be given a path with {' '.join(signs)}. "
                f"Move the project, or set {prefix}{name} to a folder without these signs."
            )
