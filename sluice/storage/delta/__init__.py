"""Every read and write of a Delta table: the only package that knows the format.

Rows go through Spark; small writes, versions, the ledger and small queries go through delta-rs, which needs no JVM.
"""

from dataclasses import dataclass

from sluice.storage.delta.forgetting import Forgetting
from sluice.storage.delta.history import ChangesLost, CommitFile
from sluice.storage.delta.images import Images, RowImages, of_state
from sluice.storage.delta.upkeep import Upkeep, retention_days


@dataclass(frozen=True)
class Lake(Forgetting, Upkeep, Images):
    """The tables below one root: read, written, and kept in order."""


__all__ = ["ChangesLost", "CommitFile", "Lake", "RowImages", "of_state", "retention_days"]
