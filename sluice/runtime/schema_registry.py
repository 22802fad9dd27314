"""The schema registry: schemas by their ids, by the protocol of Confluent's, which others speak too."""

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

from sluice.errors import SluiceError, UsageError

answer_seconds = 10.0
answer_bytes_max = 10 * 1024 * 1024
references_max = 100
# No such subject, version or schema.
unknown_codes = (40401, 40402, 40403)
loopback = ("127.0.0.1", "localhost", "::1")
Answer = Mapping[str, Any]


class RegistryUnreachable(SluiceError):
    """The schema registry does not answer, or not with schemas."""


class NoSchemaAnswered(RegistryUnreachable):
    """The schema registry answers, and not with the schema that it was asked for."""


@dataclass(frozen=True)
class SchemaRegistry:
    """A registry at an address. What it is asked with is never printed."""

    address: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if (self.password or self.token) and parts.scheme == "http" and parts.hostname not in loopback:
            raise UsageError(
                "The password or token of the schema registry would be sent unencrypted; give SLUICE_SCHEMA_REGISTRY "
                "an address with https://"
            )
        said = f"{self.username}{self.password}{self.token}"
        # Python's own error would print them.
        if not said.isprintable() or not self.token.isascii():
            raise UsageError(
                "The user name, password or token of the schema registry has a line break or another character that "
                "cannot be sent; correct SLUICE_SCHEMA_REGISTRY_USERNAME, _PASSWORD or _TOKEN."
            )

    def schema(self, number: int) -> dict[str, Any] | None:
        """The schema of an id as a record of the topic of schemas; None if the registry does not know it.

        Raises RegistryUnreachable.
        """
        found = self.get(f"schemas/ids/{number}")
        if found is None:
            return None
        try:
            references = list(self.referred(found, []))
            kind, text = found.get("schemaType") or "AVRO", found["schema"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self.failed(f"its answer is not as the protocol says: {error!r}") from None
        if not isinstance(kind, str) or not isinstance(text, str):
            raise self.failed("its answer has no schema")
        known = {"references": references} if references else {}
        return {"id": number, "type": kind, "schema": text, **known}

    def referred(self, answer: Answer, path: list[str]) -> Iterator[dict[str, str]]:
        """The schemas that one refers to, each after those that it refers to itself."""
        for each in answer.get("references") or ():
            place = f"subjects/{quote(str(each['subject']), safe='')}/versions/{int(each['version'])}"
            if place in path or len(path) >= references_max:
                raise self.failed(f"its references do not end at {place}")
            found = self.get(place)
            if found is None:
                raise self.failed(f"it has no {place}, to which a schema refers")
            yield from self.referred(found, [*path, place])
            yield {"name": str(each["name"]), "schema": str(found["schema"])}

    def get(self, path: str) -> Answer | None:
        """An answer in JSON; None where there is no such thing."""
        request = urllib.request.Request(f"{self.address.rstrip('/')}/{path}", headers=self.headers())  # noqa: S310 - the setting admits HTTP alone
        try:
            with opener.open(request, timeout=answer_seconds) as answer:
                found = json.loads(read_in_time(answer))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == HTTPStatus.NOT_FOUND and says_unknown(error):
                    return None
            raise self.failed(f"it answers {error.code} {error.reason}") from None
        except (OSError, HTTPException) as error:
            raise RegistryUnreachable(self.failure(str(error))) from None
        except (ValueError, RecursionError) as error:
            raise self.failed(str(error)) from None
        if not isinstance(found, dict):
            raise self.failed("its answer is no object")
        return found

    def headers(self) -> dict[str, str]:
        accepted = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self.token:
            return {**accepted, "Authorization": f"Bearer {self.token}"}
        if self.username:
            both = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
            return {**accepted, "Authorization": f"Basic {both}"}
        return accepted

    def failed(self, why: str) -> NoSchemaAnswered:
        return NoSchemaAnswered(self.failure(why))

    def failure(self, why: str) -> str:
        return (
            f"The schema registry at {self.address} cannot be asked: {why}. Records whose schema is not known wait in "
            "quarantine as unknown_schema, and are judged again once it answers. Check SLUICE_SCHEMA_REGISTRY."
        )


def says_unknown(answer: Any) -> bool:
    """Whether a registry says that it does not know something: another server's page may be missing too."""
    try:
        return json.loads(read_in_time(answer)).get("error_code") in unknown_codes
    except (OSError, HTTPException, ValueError, AttributeError, RecursionError):
        return False


def read_in_time(answer: Any) -> bytes:
    """The body of an answer; a TimeoutError for one that comes drop by drop, or does not end."""
    until, parts, size = time.monotonic() + answer_seconds, [], 0
    while part := answer.read1(64 * 1024):
        parts.append(part)
        size += len(part)
        if size > answer_bytes_max or time.monotonic() > until:
            raise TimeoutError(f"its answer did not end within {answer_seconds:.0f} s and {answer_bytes_max:,} bytes")
    return b"".join(parts)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the password would be sent wherever it points."""

    def redirect_request(self, *_: Any) -> None:
        return None


opener = urllib.request.build_opener(NoRedirect)
