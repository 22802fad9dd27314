"""Webhooks: topics whose records come in requests that other systems sign."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sluice.errors import UsageError, suggestion
from sluice.log import require_open
from sluice.runtime.signatures import Scheme, key_of, schemes

form = "TOPIC=SCHEME, or TOPIC=SCHEME:FIELD for a key from a field of the JSON"
secrets_form = "TOPIC:SECRET, with commas between several"


@dataclass(frozen=True)
class Webhook:
    """How the requests for a topic are signed, with which keys, and which field of their JSON is the record's key."""

    scheme: Scheme
    keys: tuple[bytes, ...] = field(repr=False)
    key_field: str | None = None


def webhooks_of(said: Sequence[str], secrets: str) -> dict[str, Webhook]:
    """The webhooks of the options and the secrets of a setting; a UsageError, which repeats no secret, for others.

    A topic may have several secrets, so that one can be replaced without a gap.
    """
    kept = secrets_of(secrets)
    found: dict[str, Webhook] = {}
    for each in said:
        topic, equals, rest = each.partition("=")
        name, colon, key_field = rest.partition(":")
        if not topic or not equals or (colon and not key_field):
            raise UsageError(f"--webhook {each} cannot be read; write {form}.")
        if name not in schemes:
            known = f"there are {', '.join(schemes)}."
            raise UsageError(f"There is no scheme {name} of webhooks; {suggestion(name, schemes, known)}")
        require_open(topic)
        if topic in found:
            raise UsageError(f"--webhook {topic} is given twice; let each sender write a topic of its own.")
        if topic not in kept:
            raise UsageError(f"SLUICE_WEBHOOK_SECRETS has no secret for {topic}; write {secrets_form}.")
        keys = tuple(key_of(schemes[name], secret) for secret in kept[topic])
        found[topic] = Webhook(schemes[name], keys, key_field or None)
    return found


def secrets_of(text: str) -> dict[str, list[str]]:
    """The secrets of each topic."""
    found: dict[str, list[str]] = {}
    for place, each in enumerate(filter(None, (part.strip() for part in text.split(","))), start=1):
        topic, colon, secret = each.partition(":")
        if not colon or not topic:
            raise UsageError(f"SLUICE_WEBHOOK_SECRETS: secret {place} has no topic; write {secrets_form}.")
        found.setdefault(topic, []).append(secret)
    return found


class Refusals:
    """How many requests for each topic had no valid signature; the operator hears of the 1st, 2nd, 4th, 8th …."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.notify = notify
        self.counts: Counter[str] = Counter()

    def add(self, topic: str, why: str) -> None:
        self.counts[topic] += 1
        count = self.counts[topic]
        if count & (count - 1) == 0:
            self.notify(f"Refused with 401: a webhook for {topic}. {why} {count:,} refused so far.")
