"""Senders of webhooks that a test kills: forks of a process that has imported all that they need."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import deltalake  # noqa: F401 - what a delivery imports when it comes to it
import tenacity  # noqa: F401
import urllib3  # noqa: F401

from sluice import Project
from sluice.operate.webhook import PositionFile, Webhook

Sender = Callable[[Path, str, str], None]


def careful(folder: Path, url: str, secret: str) -> None:
    """Delivers the changes of the lake in a folder, from the position there."""
    os.chdir(folder)
    with Project(".", {"lake": "lake"}, any_folder=True) as project:
        project.deliver("gold.sold", url, secret=secret, position="position")


def hasty(folder: Path, url: str, secret: str) -> None:
    """Keeps the position of each change before it is accepted."""
    deliver = Webhook.deliver

    def too_early(self: Webhook, message_id: str, body: bytes, stop: threading.Event) -> bool:
        PositionFile(Path("position"), "gold.sold").write(json.loads(body)["data"]["cursor"])
        return deliver(self, message_id, body, stop)

    Webhook.deliver = too_early  # type: ignore[method-assign]
    careful(folder, url, secret)
