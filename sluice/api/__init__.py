"""Sluice from Python: a `Project`, what its methods return, and what it says while it works."""

from sluice.api.answers import Answer
from sluice.api.opened import Message
from sluice.api.prepare import prepared
from sluice.api.project import Project
from sluice.api.results import Audit, Checked, Maintained, RunResult, TopicOffsets
from sluice.engine.catalogue import require_project
from sluice.engine.runner import Event, Listener
from sluice.log import Record
from sluice.operate.audit import IntegrityCheck, Stopped
from sluice.operate.commands import Answer as CommandAnswer
from sluice.operate.commands import Decider
from sluice.operate.describe import Column, Described, Expected
from sluice.operate.erase import Erased
from sluice.operate.explain import Origin, Value
from sluice.operate.export import Exported
from sluice.operate.forecast import Step
from sluice.operate.json_text import as_text, counted, json_line, plain
from sluice.operate.lineage import Link, Traced, trace
from sluice.operate.postgres import Comment as SqlComment
from sluice.operate.postgres import Options as SqlOptions
from sluice.operate.postgres import Server as SqlServer
from sluice.operate.publish import Published
from sluice.operate.recompute import Recomputed
from sluice.operate.replay import Replay
from sluice.operate.search import Hit
from sluice.operate.subscribe import Change
from sluice.quality.conservation import Fates
from sluice.quality.results import is_critical, severity_of, state_of

__all__ = [
    "Answer",
    "Audit",
    "Change",
    "Checked",
    "Column",
    "CommandAnswer",
    "Decider",
    "Described",
    "Erased",
    "Event",
    "Expected",
    "Exported",
    "Fates",
    "Hit",
    "IntegrityCheck",
    "Link",
    "Listener",
    "Maintained",
    "Message",
    "Origin",
    "Project",
    "Published",
    "Recomputed",
    "Record",
    "Replay",
    "RunResult",
    "SqlComment",
    "SqlOptions",
    "SqlServer",
    "Step",
    "Stopped",
    "TopicOffsets",
    "Traced",
    "Value",
    "as_text",
    "counted",
    "is_critical",
    "json_line",
    "plain",
    "prepared",
    "require_project",
    "severity_of",
    "state_of",
    "trace",
]
