"""What the log of a table says of some of its files: the `add` action of each, read without Spark.

Delta finds it by adding up all actions of the log, in a job of several stages for each commit.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.storage.delta.history import ChangesLost, History


def added(history: History, table: str, version: int, paths: Iterable[str]) -> dict[str, str]:
    """The newest `add` action of files that a version has, as a line of the log; a file is missing if none is found."""
    found = newest_actions(history, table, version, set(paths))
    return {path: json.dumps({"add": action}) for path, action in found.items()}


def newest_actions(history: History, table: str, version: int, sought: set[str]) -> dict[str, dict[str, Any]]:
    """Read backwards, from the commit of the version to the newest checkpoint before it."""
    found = dict[str, dict[str, Any]]()
    for number in range(version, -1, -1):
        checkpoint = Path(history.path(table), f"_delta_log/{number:020}.checkpoint.parquet")
        if not sought:
            return found
        try:
            if checkpoint.exists():
                return found | in_checkpoint(checkpoint, sought)
            actions = history.commit_file(table, number).actions
        # Another program may have left half a checkpoint, or removed it.
        except (ChangesLost, OSError, pa.ArrowInvalid):
            return found
        said = {each["add"]["path"]: each["add"] for each in actions if "add" in each}
        found |= {path: said[path] for path in sought & said.keys()}
        sought = sought - {*said, *(each["remove"]["path"] for each in actions if "remove" in each)}
    return found


def in_checkpoint(path: Path, sought: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The `add` actions of files in a checkpoint. One whose statistics are only columns there is left out."""
    # Comes with pandas, which would be a fifth of the start of each command.
    import pyarrow.dataset as ds

    rows = ds.dataset(path).filter(ds.field("add", "path").isin(list(sought)))
    # What is parsed of the statistics may be dates that Python does not know.
    names = [each.name for each in rows.schema.field("add").type if not each.name.endswith("_parsed")]
    actions = [plain(each) for each in rows.to_table({name: ds.field("add", name) for name in names}).to_pylist()]
    return {each["path"]: each for each in actions if "stats" in each}


def plain(action: Mapping[str, Any]) -> dict[str, Any]:
    """An action as in a commit: without what is null, and its maps as objects."""
    said = {name: value for name, value in action.items() if value is not None}
    if "deletionVector" in said:
        said["deletionVector"] = {name: value for name, value in said["deletionVector"].items() if value is not None}
    return said | {name: dict(said[name]) for name in ("partitionValues", "tags") if name in said}
