"""What a dataset is declared to be: its kind, the version of that kind, and all that decides its rows."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class Specification:
    """The parts of a declaration that decide what rows it has; each kind of dataset has its own.

    `version` changes when the engine computes other rows from the same declaration: then tables of that kind are
    rebuilt. A new field with a default rebuilds no table.
    """

    kind: ClassVar[str]
    version: ClassVar[int]

    @property
    def content(self) -> Mapping[str, Any]:
        """What the fingerprint is made of: the fields that are not at their default, with the kind and its version."""
        said = {each.name: getattr(self, each.name) for each in fields(self) if not is_default(self, each)}
        return dict(sorted({"kind": f"{self.kind} {self.version}", **said}.items()))


def is_default(specification: Specification, each: Any) -> bool:
    default = each.default if each.default_factory is MISSING else each.default_factory()
    value = getattr(specification, each.name)
    return type(value) is type(default) and bool(value == default)
