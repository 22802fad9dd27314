"""The topics that only Sluice's own commands write."""

from sluice.errors import UsageError

# The engine reads commands from these topics; a producer that could write them could release records.
reserved_prefix = "sluice_"


def is_reserved(topic: str) -> bool:
    """Whether only Sluice's own commands may write a topic."""
    return topic.startswith(reserved_prefix)


def require_open(topic: str) -> None:
    """A UsageError for a topic that only Sluice's own commands may write."""
    if is_reserved(topic):
        raise UsageError(f"Topics that begin with {reserved_prefix} are reserved for Sluice; choose another name.")
