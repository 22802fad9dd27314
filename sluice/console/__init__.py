"""`sluice ui`: the tables in a browser. What a figure is, how fresh and complete, and why it changed (decision 38)."""

from sluice.console.guard import Options
from sluice.console.server import Server

__all__ = ["Options", "Server"]
