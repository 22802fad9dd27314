"""What a project exports: the version that is asked for, or the changes after one."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from sluice.api.answers import absence, require_table
from sluice.api.opened import Opened
from sluice.api.subscribe import key_of
from sluice.errors import UsageError
from sluice.operate.export import Exported, Format, export_changes, export_rows, require_apart
from sluice.operate.subscribe import Cursor, Subscription


def export_table(
    here: Opened,
    table: str,
    folder: Path,
    form: Format,
    *,
    partition_by: Sequence[str],
    known_at: datetime | None,
    where: str | None,
    changelog: bool,
    since: str | int | None,
    replace: bool,
) -> Exported:
    """Writes the rows, or with `changelog` the changes; a UsageError for options that do not go together."""
    require_apart(folder, [here.lake.location.folder, here.log.folder_of_files])
    if changelog and (partition_by or known_at is not None):
        raise UsageError("A changelog has all changes of the table in one folder: give no partition_by and no time.")
    if since is not None and not changelog:
        raise UsageError("Only a changelog begins after a version (--changelog --from VERSION).")
    if changelog:
        otherwise = "Export later changes (--from VERSION), or the rows as they are, without --changelog."
        subscription = Subscription(here.lake, table, key_of(here, table), where, otherwise=otherwise)
        cursor = None if since is None else Cursor.of(since)
        return export_changes(subscription, folder, form, since=cursor, replace=replace)
    version = version_of(here, table, known_at)
    return export_rows(
        here.lake, table, folder, form, version=version, partition_by=partition_by, where=where, replace=replace
    )


def version_of(here: Opened, table: str, known_at: datetime | None) -> int:
    """The newest version of a table, or that of a time; a UsageError when there is none."""
    require_table(here.lake, table)
    if known_at is None:
        return here.lake.newest_version(table)
    version = here.lake.known_version(table, known_at)
    if version is None:
        raise UsageError(absence(here.lake, table, known_at))
    return version
