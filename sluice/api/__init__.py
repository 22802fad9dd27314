"""Sluice from Python: a `Project`, what its methods return, and what it tells while it works."""

from sluice.api.answers import Answer
from sluice.api.opened import Message
from sluice.api.project import Project
from sluice.api.results import Audit, Checked, Maintained, RunResult, TopicOffsets
from sluice.engine.runner import Event
from sluice.log import Record

__all__ = [
    "Answer",
    "Audit",
    "Checked",
    "Event",
    "Maintained",
    "Message",
    "Project",
    "Record",
    "RunResult",
    "TopicOffsets",
]
