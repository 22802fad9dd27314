"""A project from Python: everything that the commands do, as methods."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sluice import scaffold
from sluice.api import answers
from sluice.api.answers import Answer
from sluice.api.driver import asked, attended, driver, observing, replaced_by
from sluice.api.erase import erased, searched_topics
from sluice.api.export import export_table
from sluice.api.log import ProjectLog, Value
from sluice.api.opened import Message, Notify, Opened, to_logger
from sluice.api.publish import publish_once, publish_until
from sluice.api.quarantine import Quarantine
from sluice.api.replays import Replays
from sluice.api.results import Audit, Checked, Maintained, RunResult
from sluice.api.sessions import EachCall, Given, Kept, Sessions
from sluice.api.standing import Standing
from sluice.api.subscribe import changes_of, deliver_changes
from sluice.api.times import backfill_range, with_zone
from sluice.engine import catalogue as catalogues
from sluice.engine.catalogue import Catalogue
from sluice.engine.runner import Event, Listener
from sluice.errors import UsageError, suggestion
from sluice.operate import (
    audit,
    checks,
    describe,
    doctor,
    documents,
    explain,
    forecast,
    lineage,
    maintain,
    recompute,
    requests,
    status,
)
from sluice.operate.commands import Decider, require_all_there
from sluice.operate.describe import Described
from sluice.operate.doctor import Finding
from sluice.operate.erase import Erased, Subject
from sluice.operate.explain import Value as ExplainedValue
from sluice.operate.export import Exported, Format
from sluice.operate.forecast import Step
from sluice.operate.lineage import Traced
from sluice.operate.publish import Published
from sluice.operate.recompute import Recomputed
from sluice.operate.search import Hit, search
from sluice.operate.status import State
from sluice.operate.subscribe import Change
from sluice.runtime.session import named_jobs, tasks_of
from sluice.runtime.settings import Settings, read_settings, require_plain_paths
from sluice.storage.delta import Lake
from sluice.storage.lock import is_locked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Project:
    """A folder with declarations in `pipelines`, with its log and its tables.

    >>> with Project("my_lakehouse") as project:
    ...     order = {"order_id": "o-1", "placed_at": "2026-03-02T15:00:00Z", "product_id": "tea", "quantity": 2}
    ...     project.append("orders", [order], key_field="order_id")
    ...     project.run()
    ...     project.table("gold.revenue_daily").pandas()

    Spark starts when a method first needs it (`run`, `explain`, `check` …; 5 to 15 seconds), and is kept until `close`,
    the end of the `with` block, or the end of the process. `status`, `audit`, `table` and `query` need none. A process
    has one Spark: a second project shares it by `spark=first.spark`.

    One process or thread at a time writes the tables. Where another one does, `run` raises LakeLocked; the other
    process serves what it can between the passes of its run (`backfill`, `check`, `rollback`, `maintain`, …).

    All times have a time zone. Every error that the user can fix is a SluiceError that says how; wrong use is its
    subclass UsageError. Declarations are read again by each call.
    """

    def __init__(
        self,
        path: str | Path = ".",
        settings: Settings | Mapping[str, Any] | None = None,
        *,
        spark: "SparkSession | None" = None,
        keep_spark: bool = True,
        any_folder: bool = False,
        on_event: Listener = lambda event: None,
        on_message: Notify = to_logger,
    ) -> None:
        """Opens the project in the folder `path`; a UsageError when it has no `pipelines`, or a setting is wrong.

        `settings` are overrides of the variables `SLUICE_…`, such as `{"lake": "s3a://bucket/lake", "parallel": 4}`, or
        all Settings, with their own project folder. `spark` is a session to use, which `close` leaves open; without
        `keep_spark` each call starts and ends its own, as the commands do. `any_folder` accepts a folder without
        declarations, whose log and tables can be used. `on_event` receives the progress of runs and `on_message`
        messages for the user, by default the logger `sluice`. Both may be called from other threads.
        """
        if isinstance(settings, Settings):
            require_plain_paths(settings)
            found = settings
        else:
            found = read_settings(Path(path), settings)
        log = found.open_log()
        if not any_folder:
            catalogues.require_project(found.project)

        def notice(text: str) -> None:
            on_message(Message("notice", text))

        sessions: Sessions
        if spark is not None:
            sessions = Given(found, notice, spark)
        elif keep_spark:
            sessions = Kept(found, on_event, notice)
        else:
            sessions = EachCall(found, on_event, notice)
        self._here = Opened(found, log, sessions, on_event, on_message)

    @classmethod
    def create(cls, path: str | Path, settings: Mapping[str, Any] | None = None, **options: Any) -> Self:
        """Writes a small project to a new or empty folder, with data to try it on, and opens it with these options.

        A UsageError when the folder is not empty.
        """
        scaffold.write(Path(path))
        return cls(path, settings, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Project({str(self.settings.project)!r})"

    def close(self) -> None:
        """Ends the Spark session that this project started; a later call starts another."""
        self._here.sessions.close()

    @property
    def settings(self) -> Settings:
        """All settings: the overrides, the variables `SLUICE_…`, and the defaults."""
        return self._here.settings

    @property
    def is_being_written(self) -> bool:
        """True while some process writes the tables, such as a run."""
        return is_locked(self.settings.lake_root)

    @property
    def lake(self) -> Lake:
        """The Delta tables; a SluiceError when they are in a bucket that cannot be used."""
        return self._here.lake

    @property
    def spark(self) -> "SparkSession":
        """The Spark session, which starts when there is none; for other projects, and for reading tables by Spark."""
        if isinstance(self._here.sessions, EachCall):
            raise UsageError("With keep_spark=False each call has its own Spark session.")
        with self._here.sessions.reading() as spark:
            return spark

    @cached_property
    def log(self) -> ProjectLog:
        """The log: `append`, `import_files`, `tail`, `topics`, `verify`, `retain`, `skip`, `add_schema`."""
        return ProjectLog(self._here)

    @cached_property
    def quarantine(self) -> Quarantine:
        """The quarantined records: `list`, `records`, `add`, `release`."""
        return Quarantine(self._here)

    @property
    def standing(self) -> Standing:
        """The stored queries of `silver.standing_queries`: `add`, `remove`, `list`."""
        return Standing(self._here)

    @cached_property
    def replays(self) -> Replays:
        """Tables computed beside the live ones: `start`, `list`, `show`, `promote`, `drop`."""
        return Replays(self._here)

    def append(
        self, topic: str, records: Iterable[Value], *, key: str | None = None, key_field: str | None = None
    ) -> dict[int, int]:
        """Appends records to a topic of the log; they are durable when it returns. The same as `log.append`.

        >>> project.append("weather", [{"origin": "JFK", "visibility_miles": 0.1}], key_field="origin")
        {2: 1801}
        """
        return self.log.append(topic, records, key=key, key_field=key_field)

    def decider(self, name: str) -> Decider:
        """Decides the commands that `gold.commands(name, …)` declares, in this process, until it is closed.

        >>> with project.decider("seats") as seats:
        ...     (answer,) = seats.decide([b'{"command": "sell_seat", "command_id": "c-1", "flight": "UA1", …}'])

        It reads all earlier decisions first. A UsageError for commands that are not declared, or a log on Kafka; a
        LogError when another process decides them, or the log is not whole.
        """
        commands = self._here.catalogue().commands_of(name)
        require_all_there(self._here.log, self._here.lake, commands)
        return Decider(self._here.log, commands)

    def run(self, *datasets: str, rebuild: bool = False) -> RunResult:
        """Lands the new records of the log and refreshes all that depends on them, until caught up.

        `datasets` are brought up to date with all that they are made from; none: all. `rebuild` computes them from
        bronze, and writes what differs. A LakeLocked when another run is under way; a UsageError for a dataset that is
        not declared; a LogError when the log cannot be read. A dataset that cannot be computed is no error: it is
        `blocked` in the result, and the others go on.

        >>> project.run("gold.revenue_daily").changed
        {'bronze.orders': 6, 'silver.orders': 4, 'gold.revenue_daily': 3}
        """
        here = self._here
        catalogue = here.catalogue().upstream_of(datasets)
        here.log.require()
        with driver(here, catalogue) as runner:
            # The requests that a killed run did not finish.
            attended(here, runner)
            start = time.monotonic()
            events = runner.until_caught_up(rebuild=rebuild)
            return RunResult(tuple(events), time.monotonic() - start, len(catalogue.nodes) - len(events))

    def continuously(self, *datasets: str, stop: threading.Event | None = None) -> None:
        """The same repeatedly, until `stop` is set (None: until an interrupt); also serves the requests of others.

        It blocks; run it in a thread, and set `stop` to end it after the pass under way. When there is nothing to do it
        waits for `settings.poll_seconds`. `on_event` reports what is done, and waits for a log that does not answer.

        >>> stop = threading.Event()
        >>> thread = threading.Thread(target=project.continuously, kwargs={"stop": stop})
        """
        here = self._here
        catalogue = here.catalogue().upstream_of(datasets)
        here.log.require()
        with driver(here, catalogue) as runner:
            runner.continuously(
                here.settings.poll_seconds, stop or threading.Event(), partial(attended, here, flow=datasets)
            )

    def backfill(self, *datasets: str, since: datetime | None = None, until: datetime | None = None) -> dict[str, int]:
        """Recomputes the rows with event times from `since` until before `until`, in place; writes what differs.

        Only `datasets` are recomputed, not what they are made from; none: all. Returns how many rows changed in each. A
        continuous run goes on meanwhile, between the tables and between pieces of a long range.
        A UsageError for an empty range; a SluiceError when the new rows would break what is critical.

        >>> project.backfill("gold.revenue_daily", since=datetime(2026, 3, 1, tzinfo=UTC))
        {'gold.revenue_daily': 0}
        """
        known = self._here.catalogue().upstream_of(datasets).datasets
        part = backfill_range(since, until)
        if part is None:
            raise UsageError("Which event times? Give since, until, or both.")
        names = tuple(each.name for each in known if not datasets or each.name in datasets)
        return asked(self._here, requests.Request(do="refresh", datasets=names, part=part))

    def status(self) -> list[State]:
        """Rows, version, lag, watermark and freshness of every topic and dataset, upstream first.

        `lag` counts records that have not landed, or versions of inputs that were not seen; `held` says why a table
        does not follow (None: it does). A LogUnreachable when Kafka does not answer.
        """
        here = self._here
        return status.status(here.lake, here.log, here.catalogue())

    def plan(self) -> list[Step]:
        """What the next `run` will do to each topic and dataset, and why, upstream first; nothing is run.

        `rows` are those that the table has now: of one to `recompute`, all of them may change. After them come tables
        that nothing declares. A LogUnreachable when Kafka does not answer.

        >>> [step.name for step in project.plan() if step.action == "recompute"]
        []
        """
        here = self._here
        hold_changed = here.settings.changed_declarations == "hold"
        return forecast.forecast(here.lake, here.log, here.catalogue(), hold_changed=hold_changed)

    def audit(self, recompute: float | None = None, seed: int | None = None) -> Audit:
        """Adds up what became of every landed record and every row; `balanced` is False when one is lost or doubled.

        `recompute` is the share of the rows of every table, in (0, 1], that are also recomputed from their inputs and
        compared; it needs Spark. Another `seed` chooses other rows; by default it changes every day.

        >>> project.audit(recompute=0.01).balanced
        True
        """
        here = self._here
        catalogue = here.catalogue()
        if recompute is not None and not 0 < recompute <= 1:
            raise UsageError(f"recompute={recompute} is no share of the rows; give for example 0.01, or 1 for all.")
        fates = audit.audit(here.lake, catalogue)
        laws = audit.integrity(here.lake, catalogue) + audit.erased_by_none(here.lake, here.log, fates)
        stopped = audit.stopped(here.lake, catalogue) + audit.erasures_left(here.lake, here.log, catalogue)
        found = Audit(tuple(fates), tuple(laws), tuple(stopped))
        if recompute is None:
            return found
        chosen = datetime.now(UTC).toordinal() if seed is None else seed
        return replace(found, recomputed=recomputed(here, catalogue, recompute, chosen))

    def check(self, *datasets: str) -> Checked:
        """Checks the newest version of each table against what is expected of it, and keeps that in `gold._checks`.

        Rows that were refused are in no version: `refused` in the result says what they break. Needs Spark. A
        UsageError for a dataset that is not declared; broken expectations are no errors.

        >>> [(row["dataset"], row["expectation"]) for row in project.check("gold.revenue_daily").broken]
        []
        """
        here = self._here
        catalogue = here.catalogue()
        catalogue.upstream_of(datasets)
        wanted = [each for each in catalogue.datasets if not datasets or each.name in datasets]
        names = tuple(each.name for each in wanted)
        refused = {name: rows for name, rows in status.refusals(here.lake).items() if name in names}
        if is_locked(here.settings.lake_root):
            # A run under way is warm already.
            return Checked(asked(here, requests.Request(do="check", datasets=names)), refused)
        with observing(here) as observer, here.sessions.reading() as spark:
            here.listener(Event("step", "checking"))
            return Checked(checks.check(spark, here.lake, catalogue, wanted, observer), refused)

    def report(self, checked: Checked | None = None) -> str:
        """Writes the pages of what was checked, by default of the newest checks; returns where the index is.

        A UsageError names what is not installed.
        """
        from sluice.operate import report

        here = self._here
        found = status.newest_checks(here.lake) if checked is None else checked.found
        return report.write(here.lake, here.catalogue(), found)

    def report_file(self, name: str) -> str:
        """The text of one file of the report that is there; a UsageError lists its files."""
        from sluice.operate import report

        return report.file(self._here.lake, name)

    def catalogue(self, *, tables: bool = False) -> list[Described]:
        """The topics and datasets, upstream first: columns, types, units, meanings, owners, tests, and lineage.

        It is what the declarations say; with `tables`, also the columns and types that only the tables have.
        """
        return describe.describe(self._here.catalogue(), self.lake if tables else None)

    def docs(self, folder: str | Path | None = None) -> Path:
        """Writes the catalogue as pages that need no server, and returns the index.

        They say of each table what `catalogue` says, with the newest results of its tests. None: `.sluice/docs` in the
        project. A UsageError names what is not installed.
        """
        settings = self.settings
        tables = describe.with_verdicts(self.catalogue(tables=True), status.newest_checks(self.lake))
        out = Path(settings.project, ".sluice/docs") if folder is None else Path(folder)
        return documents.write(out, settings.project.name, tables)

    def lineage(self, name: str) -> Traced:
        """What a column is made from, down to the log, and what is made from it: `TABLE.column`, or all of `TABLE`.

        It is read from the declarations, and their SQL by a parser; what a function of the project computes cannot be
        followed, and its links say so in `unknown`. A UsageError when there is no such table or column.

        >>> [link.source for link in project.lineage("gold.revenue_daily.quantity").upstream]
        ['silver.priced_orders.quantity', 'silver.orders.quantity', 'bronze.orders.value']
        """
        return lineage.trace(self.catalogue(tables=True), name)

    def table(self, name: str, known_at: datetime | None = None) -> Answer:
        """All rows of a table, as it is or as it was known at a time; read without Spark, when they are asked for.

        A UsageError when there is no such table, or was none at that time.

        >>> project.table("gold.revenue_daily").arrow().num_rows
        3
        """
        return answers.table(self._here.lake, name, with_zone(known_at, "known_at"))

    def query(self, sql: str, known_at: datetime | None = None, *, allow_files: bool = False) -> Answer:
        """The answer to a SQL query over the tables by their names, as they are or as they were known at a time.

        It is DuckDB's SQL, and needs no Spark. With `allow_files` the query may read and write other files. A
        UsageError says what is wrong with it.

        >>> project.query("SELECT count(*) FROM silver.orders").rows
        [(4,)]
        """
        return answers.query(self._here.lake, sql, with_zone(known_at, "known_at"), allow_files=allow_files)

    def export(
        self,
        table: str,
        folder: str | Path,
        format: Format = "parquet",  # noqa: A002 - as the option is called
        *,
        partition_by: Sequence[str] = (),
        known_at: datetime | None = None,
        where: str | None = None,
        changelog: bool = False,
        since: str | int | None = None,
        replace: bool = False,
    ) -> Exported:
        """Writes one version of a table to a new folder, as `parquet` or `csv`; it is there whole, or not at all.

        It is the newest version, or that of the time `known_at`. `partition_by` names columns whose values become
        folders (`column=value`), and `where` is a SQL condition on the rows. With `changelog` the changes after the
        version `since` are written instead, each with the old and the new row; also as `jsonl`. `replace` exchanges an
        export that is there. Needs no Spark.

        A UsageError for a table or a column that does not exist, options that do not go together, values that the
        format cannot have, and a folder that has something else.

        >>> project.export("gold.revenue_daily", "exports/revenue", "csv").rows
        3
        """
        return export_table(
            self._here,
            table,
            Path(folder),
            format,
            partition_by=partition_by,
            known_at=with_zone(known_at, "known_at"),
            where=where,
            changelog=changelog,
            since=since,
            replace=replace,
        )

    def subscribe(
        self,
        table: str,
        since: str | int | None = None,
        *,
        where: str | None = None,
        snapshot: bool = False,
        follow: bool = False,
        stop: threading.Event | None = None,
        seconds_max: float | None = None,
        memory: str | None = None,
        on_read: Callable[[str], None] = lambda cursor: None,
    ) -> Iterator[Change]:
        """The changes of a table, in an order that never changes: every row that came, changed or went, and why.

        `since` is the `cursor` of the last change that was received, or a version, and the changes after it come; None:
        all from the table's first version on. With `snapshot` they begin with the rows as they are, after a `reset`;
        with `since`, only if the changes after it are lost. `where` is a SQL condition on the rows: one that comes to
        meet it is an insert, and one that no longer does a delete. With `follow` the iterator waits for more, and looks
        every `settings.poll_seconds`, until `stop` is set. `seconds_max` is the longest that the rows of one version
        may take to compare, and `memory` (`1GB`) the most. `on_read` gets the cursor of each version that was read,
        also where `where` lets none of its changes through: who goes on there need not read it again. Needs no Spark.

        A UsageError for a table that does not exist, a condition or a cursor that is wrong; a SluiceError when the
        changes can no longer be read.

        >>> [(change.operation, change.new) for change in project.subscribe("gold.revenue_daily", since=3)]
        []
        """
        return changes_of(
            self._here,
            table,
            since,
            where=where,
            snapshot=snapshot,
            follow=follow,
            stop=stop or threading.Event(),
            seconds_max=seconds_max,
            memory=memory,
            on_read=on_read,
        )

    def deliver(
        self,
        table: str,
        url: str,
        *,
        secret: str,
        position: str | Path,
        since: str | int | None = None,
        where: str | None = None,
        snapshot: bool = False,
        follow: bool = False,
        give_up_seconds: float = 3600.0,
        stop: threading.Event | None = None,
    ) -> int:
        """Delivers the changes of a table by webhook, in order, one signed request each; returns how many.

        `position` is a file with the place of the last change that was accepted. It goes on there, or where there is no
        such file after `since`. A request that fails is repeated for `give_up_seconds`. `secret` is `whsec_` and 24 to
        64 bytes in base64. The other options are those of `subscribe`.

        A PublishError when the receiver refuses a change, or does not accept it in time; a UsageError for an address, a
        secret or a position that cannot be used, or that another process uses.
        """
        return deliver_changes(
            self._here,
            table,
            url,
            secret=secret,
            position=Path(position),
            since=since,
            where=where,
            snapshot=snapshot,
            follow=follow,
            give_up_seconds=give_up_seconds,
            stop=stop or threading.Event(),
        )

    def publish(self, *tables: str, again: bool = False) -> list[Published]:
        """Writes the changes of the tables that `gold.publish` declares to their targets, from where these are.

        No `tables`: all. With `again` all rows are written, whatever the targets have. A target that cannot be written
        is no error: its result says why in `error`, and the others go on. A UsageError for a table that is not
        published, or when no setting says where to. Needs no Spark.

        >>> [(each.target, each.version, each.changes) for each in project.publish()]
        [('postgres public.revenue_daily', 3, 2)]
        """
        return publish_once(self._here, tables, again=again)

    def publish_continuously(self, *tables: str, stop: threading.Event | None = None) -> None:
        """The same repeatedly, until `stop` is set (None: until an interrupt); looks every `settings.poll_seconds`.

        A target that cannot be written is tried again, and `on_message` says why.
        """
        publish_until(self._here, tables, stop or threading.Event())

    def explain(self, dataset: str, /, **row: Any) -> list[ExplainedValue]:
        """Every value that a row has had, when it became known, and which records or declarations made it so.

        `row` names the row by every column that tells rows apart; values are text, numbers, or times with a zone. Bytes
        are hexadecimal text, structs and arrays JSON. The oldest value comes first; none when there never was such a
        row. Needs Spark. A UsageError for a dataset that is not there, or when columns are missing.

        >>> project.explain("gold.revenue_daily", product="Tea", window_start="2026-03-01")[-1].origins[0].records
        ('products/1/3',)
        """
        here = self._here
        node = here.catalogue().dataset(dataset)
        wanted = {name: as_typed(value) for name, value in row.items()}
        explain.require_grain(node, wanted)
        # Its own session has settings of its own, whoever explains another row meanwhile.
        with here.sessions.reading() as spark, named_jobs(spark, f"explain {dataset}") as own:
            return explain.Explainer(own, here.lake).explain(node, wanted)

    def rollback(self, *datasets: str, because: str) -> dict[str, int]:
        """Gives datasets back the rows that they had before they were last promoted or rebuilt.

        The name of one replay that was promoted stands for all its tables. `because` stays in the ledger. Returns how
        many rows changed in each; a SluiceError when there is nothing to go back to.
        """
        if not datasets:
            raise UsageError("Which datasets? Name them, or a replay that was promoted.")
        here = self._here
        # A promotion that was killed may wait to be finished, and replaces more.
        if not requests.waiting(here.lake.files):
            replaced_by(here.lake, here.catalogue(), datasets)
        return asked(here, requests.Request(do="rollback", datasets=datasets, because=because))

    def maintain(self, *tables: str, log_keep: timedelta | None = None) -> Maintained:
        """Compacts the tables' files, and deletes those that no version of the last 30 days refers to.

        No `tables`: all. What landed leaves the log as its topics say (`project.log.retain`); with `log_keep`, also
        records that are older of topics that say nothing. A UsageError for a table that does not exist, or when
        replays older than 30 days are kept.
        """
        here = self._here
        known = here.lake.tables()
        unknown = sorted(set(tables) - set(known))
        if unknown:
            hint = suggestion(unknown[0], known, f"there are {', '.join(known)}." if known else "run first: sluice run")
            raise UsageError(f"There is no table {', '.join(unknown)}; {hint}")
        found = asked(here, requests.Request(do="maintain", datasets=tables or tuple(known)))
        left = maintain.retain(here.log, here.lake, here.catalogue(), log_keep)
        segments = {topic: each.segments_removed for topic, each in left.items()}
        return Maintained(found, segments, {topic: each.records_compacted for topic, each in left.items()})

    def erase(
        self,
        topic: str,
        *,
        key: str | None = None,
        where: str | None = None,
        fields: Sequence[str] | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> Erased:
        """Erases the records of a `key`, or that meet a condition, from the log, the tables and their older versions.

        `where` is SQL over key, value, timestamp, headers and `record`, the value as JSON. Of the records only these
        `fields` of the JSON become null; without it all but offset and timestamp goes. `reason` stays in the log, which
        names neither key nor condition. With `dry_run` the records are only counted. What keeps the erasure from
        being complete is in `in_the_way`; each run tries it again. A UsageError for what cannot be erased.
        """
        if isinstance(fields, str):
            raise UsageError(f"fields is text; give a list, even of one name: ['{fields}']")
        if fields is not None and not fields:
            raise UsageError("fields names none; leave it out to erase whole records.")
        subject = Subject(topic, key, where, tuple(fields or ()))
        return erased(self._here, subject, reason, dry_run=dry_run)

    def search_files(self, value: str) -> list[Hit]:
        """Where a value is found in any file of the log and the tables, older versions and statistics included.

        Of a log on Kafka those topics are read that the project declares, and Sluice's own.
        """
        here = self._here
        return search(here.lake, here.log, value, searched_topics(here))

    def doctor(self) -> list[Finding]:
        """Tries all that a run needs: Java, the jars, the log, the tables' place and what it promises."""
        return doctor.examine(self.settings)

    def spark_tasks(self, name: str) -> tuple[int, int]:
        """How many tasks the running Spark stages of a dataset have, and how many are done; zeros if unknown."""
        spark = self._here.sessions.spark
        return (0, 0) if spark is None else tasks_of(spark, name)


def recomputed(here: Opened, catalogue: Catalogue, share: float, seed: int) -> tuple[Recomputed, ...]:
    """Recomputes a share of the rows of every table: by the run under way, if there is one."""
    if is_locked(here.settings.lake_root):
        names = tuple(each.name for each in catalogue.datasets)
        found = asked(here, requests.Request(do="recompute", datasets=names, share=share, seed=seed))
        return tuple(Recomputed.model_validate(each) for each in found.values())
    with here.sessions.reading() as spark:
        here.listener(Event("step", "recomputing"))
        return tuple(recompute.recompute(spark, here.lake, catalogue.datasets, share, seed))


def as_typed(value: Any) -> str:
    """A value as it is typed in a command."""
    if isinstance(value, datetime):
        return str(with_zone(value, "a time of the row"))
    if isinstance(value, bytes):
        return value.hex()
    return "null" if value is None else str(value)
