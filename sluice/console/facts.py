"""What the pages say beside the rows: the state of each table, its checks, its commits, and the flow of records."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sluice.api import Project
from sluice.console.snapshots import Snapshot
from sluice.errors import UsageError
from sluice.model.labels import Label, label_of
from sluice.operate.describe import Described, with_verdicts
from sluice.operate.status import newest_checks, time_of, verdicts_sql

commits_shown_max = 200


@dataclass(frozen=True)
class Table:
    """A table as the pages know it. `problem` says why it does not follow its declaration or the log; None: it does."""

    name: str
    meaning: str = ""
    layer: str = ""
    keys: tuple[str, ...] = ()
    grain: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    rows: int | None = None
    version: int | None = None
    lag: int = 0
    watermark: datetime | None = None
    updated_at: datetime | None = None
    problem: str | None = None
    checks_passed: int = 0
    checks_broken: tuple[str, ...] = ()
    checked_version: int | None = None
    is_declared: bool = True
    described: Described | None = None
    seconds: float | None = None

    def unit_of(self, column: str) -> str:
        """The unit of a column as the list of columns has it: declared, or else by its name."""
        found = self.described.column(column) if self.described else None
        return label_of(column).unit if found is None else found.unit

    def label_of(self, column: str) -> str:
        """A column's name as people read it, with its unit."""
        return Label(label_of(column).text, self.unit_of(column)).with_unit

    @property
    def state(self) -> str:
        """One word for it, which the stylesheet has a colour for."""
        if not self.is_declared:
            return "bookkeeping"
        if self.version is None and self.problem is None:
            return "missing"
        if self.problem:
            return self.problem.split(":")[0].split(" ")[0]
        if self.checks_broken:
            return "broken"
        return "behind" if self.lag else "current"


class Facts:
    """Looks things up for all readers together, at most every few seconds."""

    def __init__(self, project: Project, newest_versions: Callable[[], Mapping[str, int | None]]) -> None:
        self.project, self.newest_versions = project, newest_versions
        self.lock = threading.RLock()
        self.known: dict[str, tuple[float, object, Any]] = {}

    def kept(self, name: str, seconds: float, compute: Callable[[], Any]) -> Any:
        """What was computed for the newest versions, or within these seconds."""
        versions = dict(self.newest_versions())
        with self.lock:
            at, of, value = self.known.get(name, (0.0, None, None))
            if of != versions or time.monotonic() - at > seconds:
                value = compute()
                self.known[name] = (time.monotonic(), versions, value)
            return value

    def tables(self) -> dict[str, Table]:
        """Every table by its name, upstream first; those that nothing declares come last."""
        found: dict[str, Table] = self.kept("tables", 5.0, self.looked_up)
        return found

    def looked_up(self) -> dict[str, Table]:
        checks = newest_checks(self.project.lake)
        described = {each.name: each for each in with_verdicts(self.project.catalogue(tables=True), checks)}
        found = {}
        for state in self.project.status():
            each = described[state.dataset]
            verdicts = checks.get(state.dataset, [])
            found[state.dataset] = Table(
                name=each.name,
                meaning=each.meaning,
                layer=each.layer,
                keys=each.keys,
                grain=each.grain,
                sources=each.sources,
                rows=state.rows,
                version=state.version,
                lag=state.lag,
                watermark=state.watermark,
                updated_at=state.updated_at,
                problem=state.held,
                checks_passed=sum(row["verdict"] == "passed" for row in verdicts),
                checked_version=next((row["version"] for row in verdicts), None),
                checks_broken=tuple(str(row["expectation"]) for row in verdicts if row["verdict"] != "passed"),
                described=each,
                seconds=state.seconds,
            )
        for name in sorted(set(self.newest_versions()) - set(found)):
            found[name] = Table(name, layer=name.split(".")[0], version=self.newest_versions()[name], is_declared=False)
        return found

    def times(self, *tables: str) -> list[dict[str, Any]]:
        """When the tables were committed, since all of them are there, the oldest first: the stops of the slider."""
        known = [self.project.lake.commits(table) for table in tables]
        begin = max((commits[0].timestamp_ms for commits in known if commits), default=0)
        commits = [
            each
            for table in known
            for each in table
            if each.timestamp_ms >= begin and (each.entry.rows.total or each.version == 0)
        ]
        return [
            {"at": time_of(each.timestamp_ms).isoformat(timespec="milliseconds"), "version": each.version}
            for each in sorted(commits, key=lambda each: each.timestamp_ms)[-commits_shown_max:]
        ]

    def at(self, table: Table, known_at: datetime, snapshot: Snapshot) -> dict[str, Any]:
        """What the page says of a table, as it was known at a time."""
        until = known_at.timestamp()
        commits = [each for each in self.project.lake.commits(table.name) if each.timestamp_ms / 1000 <= until]
        if not commits:
            raise UsageError(f"{table.name} was not there yet.")
        newest = commits[-1]
        try:
            verdicts = [verdict for (verdict,) in snapshot.query(verdicts_sql, [table.name]).rows]
        except UsageError:
            # Nothing was checked yet.
            verdicts = []
        passed = verdicts.count("passed")
        return {
            "rows": self.project.lake.row_count(table.name, newest.version),
            "version": newest.version,
            "updated_at": time_of(newest.timestamp_ms),
            "watermark": newest.entry.watermark if table.watermark else None,
            "passed": passed,
            "broken": len(verdicts) - passed,
        }

    def flow(self) -> dict[str, Any]:
        """What became of all records, the integrity checks that do not hold, and how tables are made."""
        found: dict[str, Any] = self.kept("flow", 30.0, self.added_up)
        return found

    def added_up(self) -> dict[str, Any]:
        audit = self.project.audit()
        quarantined = [asdict(each) for each in self.project.quarantine.list()]
        return {
            "balanced": audit.balanced,
            "fates": [asdict(each) | {"balanced": each.balanced} for each in audit.fates],
            "broken": [asdict(each) for each in audit.laws if not each.balanced],
            "laws": len(audit.laws),
            "stopped": [asdict(each) for each in audit.stopped],
            "quarantined": quarantined,
        }

    def passes(self) -> Sequence[dict[str, Any]]:
        """The newest commits of all tables, the newest first."""
        found: Sequence[dict[str, Any]] = self.kept("passes", 30.0, self.newest_commits)
        return found

    def newest_commits(self) -> list[dict[str, Any]]:
        found: list[tuple[datetime, dict[str, Any]]] = []
        for name, table in self.tables().items():
            if table.version is None or not table.is_declared:
                continue
            for each in self.project.lake.commits(name)[-20:]:
                at = time_of(each.timestamp_ms)
                entry = each.entry
                row = {"at": at, "table": name, "cause": entry.cause, "rows": entry.rows, "because": entry.because}
                row["seconds"] = each.seconds
                found.append((at, row))
        return [row for _, row in sorted(found, key=lambda each: each[0], reverse=True)][:40]
