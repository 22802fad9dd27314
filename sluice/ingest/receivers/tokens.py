"""Bearer tokens of the HTTP receiver: which of them are valid, and for which topics."""

import hashlib
import hmac
from dataclasses import dataclass

from sluice.errors import UsageError

characters_min = 32
form = "TOKEN, or TOPIC+TOPIC:TOKEN for some topics only, with commas between several"


@dataclass(frozen=True)
class Token:
    """A token, by its digest, and the topics that it may write; None: all that the receiver writes."""

    digest: bytes
    topics: frozenset[str] | None = None

    def allows(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics


def tokens_of(text: str) -> tuple[Token, ...]:
    """The tokens that a setting lists; a UsageError, which repeats none of them, for one that is too short.

    Several may be valid for one topic at once, so that a token can be replaced without a gap.
    """
    return tuple(token_of(each.strip(), place) for place, each in enumerate(text.split(","), start=1))


def token_of(text: str, place: int) -> Token:
    topics, colon, secret = text.rpartition(":")
    if len(secret) < characters_min:
        raise UsageError(
            f"SLUICE_HTTP_TOKEN: token {place} has {len(secret)} characters, and needs {characters_min} or more. "
            f"Take what `openssl rand -hex 32` prints, and write {form}."
        )
    return Token(digest_of(secret), frozenset(topics.split("+")) if colon else None)


def matching(tokens: tuple[Token, ...], sent: str) -> list[Token]:
    """The valid tokens that equal what was sent; the time this takes does not depend on what was sent."""
    digest = digest_of(sent)
    return [each for each in tokens if hmac.compare_digest(each.digest, digest)]


def digest_of(secret: str) -> bytes:
    # Digests are of one length, so that a comparison does not reveal the length of a token.
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
