"""Requests signed with a secret that both sides have (HMAC-SHA256): the schemes as data, and one check for all."""

import base64
import binascii
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluice.errors import UsageError

secret_prefix = "whsec_"  # noqa: S105 - what a secret begins with
secret_bytes = range(24, 65)
secret_characters_min = 16
moment_pattern = re.compile(rb"[0-9]{1,12}")

# The headers of a request as they came: names in lower case, and one that is repeated comes twice.
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Scheme:
    """How a sender signs.

    `signature` is the header with the signatures, which have `between` between them; one begins with `prefix`.
    `signed` is what they are of. `moment` is the header with the time in seconds, or a part `t=` of the signatures, and
    `message_id` the header with an id. `kept` are other headers that a record keeps, and `handshake` is the type
    of a message that asks for its field `challenge` back.
    """

    signature: bytes
    prefix: bytes
    signed: bytes
    between: bytes | None = None
    is_base64: bool = False
    moment: bytes | None = None
    message_id: bytes | None = None
    has_encoded_secret: bool = False
    kept: Mapping[bytes, str] = field(default_factory=dict)
    handshake: str | None = None


schemes = {
    # https://www.standardwebhooks.com; `sluice subscribe --webhook` signs like this too.
    "standard": Scheme(
        signature=b"webhook-signature",
        between=b" ",
        prefix=b"v1,",
        is_base64=True,
        moment=b"webhook-timestamp",
        message_id=b"webhook-id",
        signed=b"%(id)b.%(moment)b.%(body)b",
        has_encoded_secret=True,
    ),
    # The id is not signed, and there is no time.
    "github": Scheme(
        signature=b"x-hub-signature-256",
        prefix=b"sha256=",
        message_id=b"x-github-delivery",
        signed=b"%(body)b",
        kept={b"x-github-event": "github_event"},
    ),
    "stripe": Scheme(
        signature=b"stripe-signature", between=b",", prefix=b"v1=", moment=b"t=", signed=b"%(moment)b.%(body)b"
    ),
    "slack": Scheme(
        signature=b"x-slack-signature",
        prefix=b"v0=",
        moment=b"x-slack-request-timestamp",
        signed=b"v0:%(moment)b:%(body)b",
        handshake="url_verification",
    ),
}


class NotSigned(Exception):
    """A request whose sender does not have the secret, or who did not send it now."""


def key_of(scheme: Scheme, secret: str) -> bytes:
    """The key that a secret stands for; a UsageError that does not repeat it."""
    if scheme.has_encoded_secret:
        return secret_key(secret)
    if len(secret) < secret_characters_min:
        raise UsageError(
            f"The webhook's secret has {len(secret)} characters, and needs {secret_characters_min} or more."
        )
    return secret.encode(errors="surrogateescape")


def secret_key(secret: str) -> bytes:
    """The key of a secret `whsec_…`; a UsageError that does not repeat it."""
    try:
        found = base64.b64decode(secret.removeprefix(secret_prefix), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not secret.startswith(secret_prefix) or len(found) not in secret_bytes:
        raise UsageError(
            f"The webhook's secret is {secret_prefix} and 24 to 64 bytes in base64; make one with: "
            f'echo "{secret_prefix}$(openssl rand -base64 32)"'
        )
    return found


def signature(scheme: Scheme, key: bytes, body: bytes, *, moment: bytes = b"", message_id: bytes = b"") -> bytes:
    """The signature of a message, as its header has it."""
    digest = hmac.digest(key, scheme.signed % {b"id": message_id, b"moment": moment, b"body": body}, "sha256")
    return scheme.prefix + (base64.b64encode(digest) if scheme.is_base64 else digest.hex().encode())


def require_signed(
    scheme: Scheme, keys: Sequence[bytes], headers: Headers, body: bytes, *, now: float, seconds_max: float
) -> bytes | None:
    """The id of a request that was signed with one of the keys, at most so many seconds ago; None if it has no id.

    A NotSigned that says why for any other request.
    """
    found = required(headers, scheme.signature)
    given = found.split(scheme.between) if scheme.between else [found]
    message_id = None if scheme.message_id is None else only(headers, scheme.message_id)
    if b"%(id)b" in scheme.signed:
        require_plain(message_id)
    moment = moment_in(scheme, headers, given)
    expected = [signature(scheme, key, body, moment=moment, message_id=message_id or b"") for key in keys]
    if not any(hmac.compare_digest(one, other) for one in expected for other in given):
        raise NotSigned("The signature is not that of this body and secret.")
    if moment and abs(now - int(moment)) > seconds_max:
        raise NotSigned(f"It was signed more than {seconds_max:g} s ago, or a clock is wrong.")
    return message_id


def moment_in(scheme: Scheme, headers: Headers, signatures: Sequence[bytes]) -> bytes:
    """The time at which a request says that it was signed, in seconds; empty where a scheme has none."""
    if scheme.moment is None:
        return b""
    if scheme.moment.endswith(b"="):
        parts = [each.removeprefix(scheme.moment) for each in signatures if each.startswith(scheme.moment)]
        found = parts[0] if len(parts) == 1 else b""
    else:
        found = required(headers, scheme.moment)
    if not moment_pattern.fullmatch(found):
        raise NotSigned("Its time is no number of seconds.")
    return found


def require_plain(message_id: bytes | None) -> None:
    """Refuses an id that can be taken for another one with the time, as both are signed with dots between them."""
    if not message_id:
        raise NotSigned("It has no id.")
    if any(part.isdigit() for part in message_id.split(b".")[1:]):
        raise NotSigned("A part of its id after a dot is a number.")


def required(headers: Headers, name: bytes) -> bytes:
    found = only(headers, name)
    if found is None:
        raise NotSigned(f"It has no header {name.decode()}.")
    return found


def only(headers: Headers, name: bytes) -> bytes | None:
    """A header's text; None where it is missing. One that is repeated is refused: which of them was meant?"""
    found = [text for each, text in headers if each == name]
    if len(found) > 1:
        raise NotSigned(f"It has several headers {name.decode()}.")
    return found[0] if found else None
