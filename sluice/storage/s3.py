"""The address of an object store, and how each library gets it: by AWS's own variables.

`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN` are read by the libraries themselves, so no key is
ever in a setting, an option or a log. The rest is here: the address, the region, a custom certificate authority.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.errors import UsageError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Store

scheme = "s3a://"
# By which setting of Spark Delta knows how to commit there.
log_store = "spark.delta.logStore.s3a.impl"
# Where there is no other, AWS's first.
region_default = "us-east-1"
# A server that is started again is waited for.
retries_max, retries_seconds = 30, 30


@dataclass(frozen=True)
class S3:
    """A bucket, below a prefix, of AWS or of a server that speaks its protocol."""

    bucket: str
    prefix: str
    endpoint: str
    region: str
    ca_bundle: Path | None = None

    @classmethod
    def of(cls, root: str, environment: Mapping[str, str] = os.environ) -> "S3":
        """The store of `s3a://bucket/prefix`; a UsageError names the variable that is missing."""
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            if not environment.get(name):
                raise UsageError(f"The tables are in {root}, and {name} is not set. Set it to the key of the store.")
        bucket, _, prefix = root.removeprefix(scheme).partition("/")
        bundle = environment.get("AWS_CA_BUNDLE")
        if bundle and not Path(bundle).is_file():
            raise UsageError(f"AWS_CA_BUNDLE is {bundle}, and there is no such file.")
        return cls(
            bucket=bucket,
            prefix=prefix,
            endpoint=environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or "",
            region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or region_default,
            ca_bundle=Path(bundle).resolve() if bundle else None,
        )

    @property
    def is_plain_http(self) -> bool:
        return self.endpoint.startswith("http://")

    @property
    def address(self) -> str:
        """The server, as a message names it."""
        return self.endpoint or f"AWS in {self.region}"

    def store(self, timeout_seconds: float | None = None) -> "S3Store":
        """For small files: the prefix as a store of obstore, which gives up after a time where one is given."""
        from obstore.store import S3Store

        client: ClientConfig = {"allow_http": self.is_plain_http}
        if self.ca_bundle:
            client["root_certificate"] = self.ca_bundle.read_bytes()
        options: dict[str, Any] = {"endpoint": self.endpoint} if self.endpoint else {}
        patience = timedelta(seconds=retries_seconds)
        if timeout_seconds is not None:
            patience = timedelta(seconds=timeout_seconds)
            client["timeout"] = patience
        options["retry_config"] = {"max_retries": retries_max, "retry_timeout": patience}
        return S3Store(self.bucket, prefix=self.prefix or None, region=self.region, client_options=client, **options)

    def delta_options(self) -> dict[str, str]:
        """For delta-rs; its commits are put only where there is no object."""
        options = {"aws_region": self.region, "aws_conditional_put": "etag"}
        if self.endpoint:
            options |= {"aws_endpoint": self.endpoint, "aws_allow_http": str(self.is_plain_http).lower()}
        if self.ca_bundle:
            # It takes an authority only from here.
            os.environ["SSL_CERT_FILE"] = str(self.ca_bundle)
        return options | {"max_retries": str(retries_max), "retry_timeout": f"{retries_seconds}s"}

    def spark_settings(self) -> dict[str, str]:
        """For Spark: S3A, and a log store whose commits are put only where there is no object."""
        settings = {
            log_store: "sluice.logstore.S3ConditionalLogStore",
            "spark.hadoop.fs.s3a.aws.credentials.provider": (
                "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
            ),
            "spark.hadoop.fs.s3a.endpoint.region": self.region,
        }
        if self.endpoint:
            settings["spark.hadoop.fs.s3a.endpoint"] = self.endpoint
            settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
            settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(not self.is_plain_http).lower()
        return settings
