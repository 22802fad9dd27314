"""The tables by the Postgres protocol, for tools that have a driver for it: read-only, through DuckDB."""

from sluice.operate.postgres.dialect import Comment
from sluice.operate.postgres.server import Options, Server

__all__ = ["Comment", "Options", "Server"]
