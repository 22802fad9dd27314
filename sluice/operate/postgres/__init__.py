"""The tables by the Postgres protocol, for tools that have a driver for it: read-only, through DuckDB."""

from sluice.operate.postgres.server import Options, Server

__all__ = ["Options", "Server"]
