"""An opened project: its settings, its log, its tables and its declarations, and who gets its messages."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sluice.api.sessions import Sessions
from sluice.engine import catalogue as catalogues
from sluice.engine.catalogue import Catalogue
from sluice.engine.runner import Listener
from sluice.log import AnyLog
from sluice.runtime.settings import Settings
from sluice.storage.delta import Lake

logger = logging.getLogger("sluice")
levels = {"notice": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True)
class Message:
    """A notice, warning or error for the user; the work continues."""

    kind: Literal["notice", "warning", "error"]
    text: str


Notify = Callable[[Message], None]


def to_logger(message: Message) -> None:
    """Writes a message to the logger `sluice`."""
    logger.log(levels[message.kind], message.text)


@dataclass(frozen=True)
class Opened:
    """A project with its settings, its tables and its log."""

    settings: Settings
    log: AnyLog
    sessions: Sessions
    listener: Listener
    notify: Notify

    @cached_property
    def lake(self) -> Lake:
        """The tables; a SluiceError when they are in a bucket that cannot be used."""
        self.settings.location.require()
        return Lake(self.settings.lake_root)

    def catalogue(self) -> Catalogue:
        """The declarations as they are now; a UsageError or DeclarationError when they cannot be used."""
        return catalogues.load(self.settings.project)
