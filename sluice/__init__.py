"""Sluice turns event logs into tables you can trust."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.api import Project
else:

    def __getattr__(name: str) -> Any:
        """Imports the API when it is asked for: the words of a declaration need none of it."""
        if name != "Project":
            raise AttributeError(f"module 'sluice' has no attribute {name!r}")
        from sluice.api import Project

        return Project


__all__ = ["Project"]
