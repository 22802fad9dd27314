"""What servers need to listen: an address that is free, and files for TLS that can be used."""

import errno
import socket
import ssl
from pathlib import Path

from sluice.errors import UsageError

loopback = ("127.0.0.1", "::1", "localhost")


def listening(host: str, port: int, waiting_max: int) -> socket.socket:
    """A socket that listens; a UsageError says why there is none, and what to do about it."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=waiting_max)
    except OSError as error:
        why = {
            errno.EADDRINUSE: "another program listens there. End it, or give another --port",
            errno.EACCES: "this user may not. Give a --port above 1023",
            errno.EADDRNOTAVAIL: "this machine does not have the address. Give one of its own as --host",
        }.get(error.errno or 0, f"{error.strerror or error}. Give another --host or --port")
        raise UsageError(f"Cannot listen on {host}:{port}: {why}.") from error


def tls_of(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The TLS of a server; a UsageError for files that cannot be used. None: neither is given."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS needs both --certificate and --key.")
    for path in (certificate, key):
        try:
            path.read_bytes()
        except FileNotFoundError:
            raise UsageError(f"There is no file {path}.") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    found = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # A key with a password would be asked for at the terminal.
        found.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{certificate} and {key} are no certificate and its private key, in PEM and without a password "
            f"({getattr(error, 'reason', None) or 'not understood'})."
        ) from error
    return found
