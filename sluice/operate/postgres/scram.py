"""SCRAM-SHA-256 (RFC 5802, RFC 7677), the server's side: a client proves a password without sending it."""

import base64
import binascii
import hashlib
import hmac
import re
import secrets

iterations = 4096


class Refused(Exception):
    """The client does not know the password, or sent what is no message of SCRAM."""


class Scram:
    """One exchange. Without a password (None) it goes the same way, and fails in the end."""

    def __init__(self, password: str | None) -> None:
        self.is_known = password is not None
        self.salt = secrets.token_bytes(16)
        spoken = (password if password is not None else secrets.token_hex()).encode()
        self.salted = hashlib.pbkdf2_hmac("sha256", spoken, self.salt, iterations)
        self.exchanged = ""
        self.nonce = ""
        self.header = ""

    def first(self, message: bytes) -> bytes:
        """The answer to the client's first message."""
        found = re.fullmatch(r"([ny],(?:a=[^,]*)?,)(n=[^,]*,r=([!-+\--~]+)(?:,.*)?)", ascii_of(message))
        if found is None:
            raise Refused("no first message of SCRAM")
        self.header, bare, nonce = found.groups()
        self.nonce = nonce + secrets.token_urlsafe(18)
        answer = f"r={self.nonce},s={base64.b64encode(self.salt).decode()},i={iterations}"
        self.exchanged = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """The answer to the client's last message; Refused without the password."""
        found = re.fullmatch(r"(c=([^,]*),r=([^,]*)(?:,.*)?),p=([^,]*)", ascii_of(message))
        if found is None:
            raise Refused("no last message of SCRAM")
        without_proof, channel, nonce, proof = found.groups()
        client_key = digest(self.salted, b"Client Key")
        stored = hashlib.sha256(client_key).digest()
        exchanged = f"{self.exchanged},{without_proof}".encode()
        signature = digest(stored, exchanged)
        try:
            sent, bound = base64.b64decode(proof, validate=True), base64.b64decode(channel, validate=True)
        except binascii.Error:
            raise Refused("the proof is not Base64") from None
        expected = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        is_proven = hmac.compare_digest(sent, expected) and bound == self.header.encode()
        if not (is_proven and nonce == self.nonce and self.is_known):
            raise Refused("wrong password")
        return b"v=" + base64.b64encode(digest(digest(self.salted, b"Server Key"), exchanged))


def digest(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()


def ascii_of(message: bytes) -> str:
    try:
        return message.decode("ascii")
    except UnicodeDecodeError:
        raise Refused("a message of SCRAM is ASCII") from None
