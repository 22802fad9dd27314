"""Signatures: a request is taken if the holder of a secret signed these very bytes just now, and otherwise refused."""

import hashlib
import hmac
from base64 import b64encode

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sluice.errors import UsageError
from sluice.ingest.receivers.webhooks import Refusals, webhooks_of
from sluice.runtime import signatures
from sluice.runtime.signatures import Headers, NotSigned, Scheme, key_of, require_signed, schemes, signature

now = 1_700_000_000
keys = (b"the key that is used, and is long", b"the key that comes after it")

names = st.sampled_from(sorted(schemes))
ids = st.from_regex(rb"[a-z]{1,4}(\.[a-z]{1,4})?", fullmatch=True)
# What is read as an id or a time where the parts of what is signed are taken apart differently.
dotted = st.lists(st.sampled_from([b"a", b"1", b"%d" % now, b"", b"{}"]), max_size=4).map(b".".join)


def signed(
    scheme: Scheme, body: bytes, *, key: bytes = keys[0], moment: int = now, message_id: bytes = b"m"
) -> Headers:
    """The headers of a request as its sender writes them."""
    at = b"%d" % moment
    found = signature(scheme, key, body, moment=at, message_id=message_id)
    if scheme.moment == b"t=":
        return [(scheme.signature, b"t=" + at + b"," + found)]
    headers = [(scheme.signature, found)]
    headers += [(scheme.moment, at)] if scheme.moment else []
    return headers + ([(scheme.message_id, message_id)] if scheme.message_id else [])


def taken(scheme: Scheme, headers: Headers, body: bytes) -> bool:
    try:
        require_signed(scheme, keys, headers, body, now=now, seconds_max=300)
    except NotSigned:
        return False
    return True


@given(names, st.binary(max_size=300), ids, st.sampled_from(keys), st.integers(now - 300, now + 300))
def test_what_a_key_signed_is_taken(name: str, body: bytes, message_id: bytes, key: bytes, moment: int) -> None:
    headers = signed(schemes[name], body, key=key, moment=moment, message_id=message_id)
    found = require_signed(schemes[name], keys, headers, body, now=now, seconds_max=300)
    assert found == (message_id if schemes[name].message_id else None)


@given(names, st.binary(max_size=60), st.data())
def test_no_other_byte_is_taken(name: str, body: bytes, data: st.DataObject) -> None:
    scheme = schemes[name]
    headers = list(signed(scheme, body))
    # GitHub does not sign its id.
    places = [at for at, (each, _) in enumerate(headers) if name != "github" or each != scheme.message_id]
    place = data.draw(st.sampled_from([-1, *places]))
    text = body if place < 0 else headers[place][1]
    at = data.draw(st.integers(0, len(text)))
    kind = data.draw(st.sampled_from(["insert", "delete", "change"]))
    byte = data.draw(st.binary(min_size=1, max_size=1))
    other = text[:at] + (b"" if kind == "delete" else byte) + text[at + (kind != "insert") :]
    assume(other != text)
    # Before or after the signature, where several are allowed, there may be anything.
    assume(place != 0 or scheme.between is None or scheme.prefix + text.partition(scheme.prefix)[2] not in other)
    changed = [*headers]
    if place >= 0:
        changed[place] = (headers[place][0], other)
    assert not taken(scheme, changed, other if place < 0 else body)


@pytest.mark.parametrize("name", sorted(schemes))
def test_a_request_that_lacks_or_repeats_a_header_is_refused(name: str) -> None:
    scheme, body = schemes[name], b"{}"
    headers = signed(scheme, body)
    assert taken(scheme, headers, body)
    for at, (each, text) in enumerate(headers):
        assert not taken(scheme, [*headers, (each, text)], body)
        is_needed = name != "github" or each != scheme.message_id
        assert taken(scheme, [*headers[:at], *headers[at + 1 :]], body) is not is_needed
    assert not taken(scheme, signed(scheme, body, key=b"another key of some length"), body)
    for seconds in (-301, 301):
        assert taken(scheme, signed(scheme, body, moment=now + seconds), body) is (scheme.moment is None)


@pytest.mark.parametrize("name", sorted(schemes))
@pytest.mark.parametrize("wrong", [b"", b"=", b"v1,", b"v1", b"sha256=", b"t=", b"t=1,t=2", b"\xff", b"\x00", b" "])
def test_a_signature_of_another_form_is_refused(name: str, wrong: bytes) -> None:
    (first, text), *rest = signed(schemes[name], b"{}")
    for other in (wrong, text[:-1], text + b"=", text.upper(), b64encode(text), text.hex().encode(), b" " + wrong):
        assert not taken(schemes[name], [(first, other), *rest], b"{}")


@given(st.lists(st.tuples(st.sampled_from([b"webhook-id", b"webhook-timestamp"]), st.binary(max_size=8)), max_size=4))
def test_any_headers_are_taken_or_refused(headers: Headers) -> None:
    for scheme in schemes.values():
        assert not taken(scheme, [*headers, (scheme.signature, b"t=1,v1=a")], b"{}")


def another_reading(message_id: bytes, body: bytes) -> bool:
    """Whether the bytes that were signed are taken with another id, time or body."""
    scheme = schemes["standard"]
    parts = (message_id + b".%d." % now + body).split(b".")
    found = signature(scheme, keys[0], body, moment=b"%d" % now, message_id=message_id)
    readings = [(b".".join(parts[:at]), parts[at], b".".join(parts[at + 1 :])) for at in range(1, len(parts) - 1)]
    return any(
        taken(scheme, [(scheme.signature, found), (b"webhook-timestamp", moment), (b"webhook-id", one)], rest)
        for one, moment, rest in readings
        if (one, moment, rest) != (message_id, b"%d" % now, body)
    )


@given(dotted, dotted)
def test_what_is_signed_is_read_in_one_way(message_id: bytes, body: bytes) -> None:
    taken_as_sent = taken(schemes["standard"], signed(schemes["standard"], body, message_id=message_id), body)
    assert not (taken_as_sent and another_reading(message_id, body))


def test_an_id_that_hides_a_time_would_be_read_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not another_reading(b"a", b"%d.{}" % now)
    monkeypatch.setattr(signatures, "require_plain", lambda message_id: None)
    assert another_reading(b"a", b"%d.{}" % now)


def test_the_signatures_are_those_of_the_senders_own_examples() -> None:
    github = signature(schemes["github"], b"It's a Secret to Everybody", b"Hello, World!")
    assert github == b"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&"
        b"channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&"
        b"response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&"
        b"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    slack = signature(schemes["slack"], b"8f742231b10e8888abcd99yyyzzz85a5", body, moment=b"1531420618")
    assert slack == b"v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    stripe = signature(schemes["stripe"], b"whsec_x", b"{}", moment=b"12")
    assert stripe == b"v1=" + hmac.new(b"whsec_x", b"12.{}", hashlib.sha256).hexdigest().encode()


secret = "a-secret-of-these-tests"
encoded = "whsec_" + b64encode(b"\x07" * 32).decode()


def test_each_topic_has_its_secrets() -> None:
    found = webhooks_of(["a=github:id", "b=standard"], f"a:{secret}, a:{secret}:2,b:{encoded},c:{secret}")
    assert {topic: (each.keys, each.key_field) for topic, each in found.items()} == {
        "a": ((secret.encode(), f"{secret}:2".encode()), "id"),
        "b": ((b"\x07" * 32,), None),
    }
    assert secret not in repr(found)


@pytest.mark.parametrize(
    ("said", "secrets", "message"),
    [
        (["a"], "", "cannot be read"),
        (["=github"], "", "cannot be read"),
        (["a=github:"], "", "cannot be read"),
        (["a=gitlab"], "", "no scheme gitlab"),
        (["a=github", "a=slack"], f"a:{secret}", "given twice"),
        (["sluice_erasures=github"], f"sluice_erasures:{secret}", "reserved for Sluice"),
        (["a=github"], f"b:{secret}", "no secret for a"),
        (["a=github"], secret, "secret 1 has no topic"),
        (["a=github"], "a:short-secret", "12 characters"),
        (["a=standard"], f"a:{secret}", "24 to 64 bytes"),
    ],
)
def test_what_is_no_webhook_is_reported_without_the_secret(said: list[str], secrets: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        webhooks_of(said, secrets)
    assert "secret-of-these" not in str(error.value)
    assert "short-secret" not in str(error.value)


def test_a_secret_that_is_short_is_refused() -> None:
    with pytest.raises(UsageError, match="16 or more"):
        key_of(schemes["slack"], "x" * 15)
    assert key_of(schemes["slack"], "x" * 16) == b"x" * 16


def test_refusals_are_counted_and_reported_more_and_more_rarely() -> None:
    said: list[str] = []
    refusals = Refusals(said.append)
    for _ in range(1000):
        refusals.add("orders", "It has no id.")
    assert refusals.counts == {"orders": 1000}
    assert len(said) == 10
    assert said[-1] == "Refused with 401: a webhook for orders. It has no id. 512 refused so far."
