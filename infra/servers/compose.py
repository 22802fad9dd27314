"""The passwords of the stack in containers: made once, into the file that `docker compose` reads."""

import secrets
from pathlib import Path

from infra.servers.server import project, write_private

# What docker-compose.yml asks for and has no default.
names = ("POSTGRES_PASSWORD", "S3_SECRET_KEY")


def write_environment(path: Path = project / ".env") -> list[str]:
    """Adds the passwords that the file lacks, and says which; those that are there stay."""
    text = path.read_text() if path.exists() else ""
    known = {line.partition("=")[0].strip() for line in text.splitlines()}
    missing = [name for name in names if name not in known]
    added = "".join(f"{name}={secrets.token_urlsafe(24)}\n" for name in missing)
    write_private(path, text + ("\n" if text and not text.endswith("\n") else "") + added)
    return missing
