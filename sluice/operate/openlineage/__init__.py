"""Events of OpenLineage: what each run lands, refreshes, checks and publishes, with schema, lineage and tests.

They go to a file, an HTTP address or a topic of Kafka. Nothing that goes wrong here is an error of the work itself.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from typing import Any

from sluice.engine.blocked import reason_of
from sluice.engine.catalogue import Catalogue
from sluice.engine.observer import Observer, Watch, Work
from sluice.errors import UsageError
from sluice.model.ledger import InputVersion
from sluice.operate.describe import Described, describe, described
from sluice.runtime.settings import Settings
from sluice.storage.delta import Lake

try:
    from openlineage.client import event_v2 as events
    from openlineage.client import facet_v2
    from openlineage.client.uuid import generate_new_uuid
except ImportError as missing:
    raise UsageError("openlineage-python is not installed: pip install 'sluice-lakehouse[lineage]'") from missing

from sluice.operate.openlineage import facets, places
from sluice.operate.openlineage.places import Place
from sluice.operate.openlineage.sending import Send, delivering

producer = f"urn:sluice-lakehouse:{version('sluice-lakehouse')}"


@contextmanager
def emitting(settings: Settings, lake: Lake, warn: Callable[[str], None]) -> Iterator[Observer]:
    """An observer that sends what it hears, until the end of the block."""
    facet_v2.set_producer(producer)
    with delivering(settings, warn) as send:
        yield Emitter(settings, lake, send, warn)


@dataclass(frozen=True)
class Run:
    """One run of a job, as events name it; `parent` is the pass that it is part of."""

    job: str
    kind: Work | str
    parent: "Run | None" = None
    run_id: str = field(default_factory=lambda: str(generate_new_uuid()))


@dataclass(frozen=True)
class Emitter(Observer):
    """Sends an event when work begins, and one when it ends."""

    settings: Settings
    lake: Lake
    send: Send
    warn: Callable[[str], None]
    passes: "list[Pass]" = field(default_factory=list)
    described: "dict[int, tuple[Catalogue, dict[str, Described]]]" = field(default_factory=dict)

    @contextmanager
    def passing(self) -> Iterator[None]:
        own = Pass(self)
        self.passes.append(own)
        try:
            yield
        except BaseException as error:
            own.ended(said_of(error))
            raise
        else:
            own.ended(None)
        finally:
            self.passes.remove(own)

    @contextmanager
    def watching(self, work: Work, tables: Sequence[str], catalogue: Catalogue, *, target: str = "") -> Iterator[Watch]:
        watched = Watched(self, work, tuple(tables), catalogue, target)
        try:
            yield watched
        except BaseException as error:
            watched.failed(said_of(error))
            raise
        else:
            watched.ended()

    def known(self, catalogue: Catalogue) -> dict[str, Described]:
        """The tables of a catalogue in words, which are put together once."""
        found = self.described.get(id(catalogue))
        if found is None:
            # It is kept with its catalogue, so that no other has its identity.
            found = catalogue, {each.name: each for each in describe(catalogue)}
            self.described.clear()
            self.described[id(catalogue)] = found
        return found[1]

    def place(self, table: str) -> Place:
        return places.of_table(self.settings, table)

    @contextmanager
    def harmless(self) -> Iterator[None]:
        """What goes wrong with an event is reported, and is no error of the work."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the work itself is done, or goes on
            with suppress(Exception):
                self.warn(f"An event could not be made: {type(error).__name__}: {error}")

    def emit(
        self,
        state: events.RunState,
        run: Run,
        *,
        inputs: Sequence[events.InputDataset] = (),
        outputs: Sequence[events.OutputDataset] = (),
        run_facets: Mapping[str, Any] | None = None,
        job_facets: Mapping[str, Any] | None = None,
    ) -> None:
        """Sends one event of a run."""
        job_type = facet_v2.job_type_job.JobTypeJobFacet("BATCH", "SLUICE", run.kind.upper())
        engine = facet_v2.processing_engine_run.ProcessingEngineRunFacet(
            version("pyspark"), "spark", version("openlineage-python")
        )
        parent = {"parent": self.parent_of(run.parent)} if run.parent else {}
        self.send(
            events.RunEvent(
                eventType=state,
                eventTime=datetime.now(UTC).isoformat(timespec="milliseconds"),
                run=events.Run(run.run_id, {"processing_engine": engine, **parent, **(run_facets or {})}),
                job=events.Job(self.namespace, run.job, {"jobType": job_type, **(job_facets or {})}),
                inputs=list(inputs),
                outputs=list(outputs),
            )
        )

    @property
    def namespace(self) -> str:
        """That of the jobs: the project's name."""
        return self.settings.project.name or "sluice"

    def parent_of(self, run: Run) -> facet_v2.parent_run.ParentRunFacet:
        made = facet_v2.parent_run
        root = made.Root(made.RootRun(run.run_id), made.RootJob(self.namespace, run.job))
        return made.ParentRunFacet(made.Run(run.run_id), made.Job(self.namespace, run.job), root)


class Pass:
    """A pass over the catalogue: a run of its own once something in it has begun."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.lock = threading.Lock()
        self.begun: Run | None = None
        self.failed = 0

    def run(self) -> Run:
        """The run of the pass, whose start is sent with the first work in it."""
        with self.lock:
            if self.begun is None:
                self.begun = Run("sluice.run", "pass")
                self.emitter.emit(events.RunState.START, self.begun)
            return self.begun

    def ended(self, error: str | None) -> None:
        if self.begun is None:
            return
        message = error or (f"{self.failed} of its tables failed." if self.failed else None)
        with self.emitter.harmless():
            state = events.RunState.FAIL if message else events.RunState.COMPLETE
            self.emitter.emit(state, self.begun, run_facets=error_facet(message))


class Watched(Watch):
    """One piece of work, and its run once it has begun."""

    def __init__(
        self, emitter: Emitter, work: Work, tables: tuple[str, ...], catalogue: Catalogue, target: str
    ) -> None:
        self.emitter, self.work, self.tables = emitter, work, tables
        self.catalogue, self.target = catalogue, target
        self.run: Run | None = None
        self.own_pass: Pass | None = None
        self.cause, self.inputs = "", dict[str, InputVersion]()
        # The types of tables as the event that is made now has them: on S3 each look is a request.
        self.seen: dict[str, dict[str, str]] = {}
        self.rows, self.tests, self.broken = 0, tuple[Mapping[str, Any], ...](), tuple[str, ...]()

    @cached_property
    def known(self) -> dict[str, Described]:
        return self.emitter.known(self.catalogue)

    def began(self, cause: str, inputs: Mapping[str, InputVersion] | None = None) -> None:
        with self.emitter.harmless():
            self.cause, self.inputs = cause, dict(inputs or {})
            self.own_pass = next(iter(self.emitter.passes), None)
            self.run = Run(self.job, self.work, self.own_pass.run() if self.own_pass else None)
            self.send(events.RunState.START)

    def done(
        self,
        rows: int = 0,
        *,
        tests: Sequence[Mapping[str, Any]] = (),
        broken: Sequence[str] = (),
        tables: Sequence[str] | None = None,
    ) -> None:
        self.rows, self.tests, self.broken = rows, tuple(tests), tuple(broken)
        self.tables = self.tables if tables is None else tuple(tables)

    def ended(self) -> None:
        """The work came to its end; rows that would break something critical were not written."""
        if self.broken:
            self.failed(f"Refused: it would break {', '.join(self.broken)}.")
        elif self.run is not None:
            with self.emitter.harmless():
                self.send(events.RunState.COMPLETE)

    def failed(self, message: str) -> None:
        if self.run is None and self.work != "publish":
            self.began("error")
        if self.run is not None:
            with self.emitter.harmless():
                if self.own_pass is not None:
                    self.own_pass.failed += 1
                self.send(events.RunState.FAIL, message)

    def send(self, state: events.RunState, message: str | None = None) -> None:
        """Sends an event with all that is known by now."""
        if self.run is None:
            return
        self.seen.clear()
        tags = facet_v2.tags_run
        run_facets = {
            "tags": tags.TagsRunFacet([tags.TagsRunFacetFields("cause", self.cause, "SLUICE")]),
            **error_facet(message),
            **({"test": facets.executions(self.tests)} if self.tests and self.work != "check" else {}),
        }
        is_done = state == events.RunState.COMPLETE
        self.emitter.emit(
            state,
            self.run,
            inputs=self.inputs_now(is_done=state != events.RunState.START),
            outputs=self.outputs_now(is_done=is_done),
            run_facets=run_facets,
            job_facets=self.job_facets,
        )

    @property
    def job(self) -> str:
        """The name of the job: `silver.orders.refresh`; `sluice.promote` for work on several tables together."""
        if self.work in ("promote", "rollback", "maintain"):
            return f"sluice.{self.work}"
        target = self.target.split(" ")[0] if self.work == "publish" else ""
        return ".".join([*self.tables, self.work, target]).rstrip(".")

    @property
    def job_facets(self) -> dict[str, Any]:
        table = self.known.get(self.tables[0]) if len(self.tables) == 1 else None
        if table is None or not table.meaning:
            return {}
        return {"documentation": facet_v2.documentation_job.DocumentationJobFacet(table.meaning)}

    def inputs_now(self, *, is_done: bool) -> list[events.InputDataset]:
        """The tables that are read, or the topic that lands."""
        if self.work == "land":
            return [self.topic(name) for name in self.tables]
        names = self.tables if self.work in ("check", "publish") else tuple(self.inputs)
        return [self.input(name, is_done=is_done) for name in names]

    def topic(self, table: str) -> events.InputDataset:
        place = self.place_of_topic(self.known[table].topic or table)
        return events.InputDataset(place.namespace, place.name)

    def place_of_topic(self, topic: str) -> Place:
        return places.of_topic(self.emitter.settings, topic)

    def input(self, table: str, *, is_done: bool) -> events.InputDataset:
        place, of = self.emitter.place(table), self.inputs.get(table)
        own = self.facets_of(table, None if of is None else of.version, is_done=is_done)
        checks: dict[str, Any] = {}
        if is_done and self.work == "check":
            rows = self.emitter.lake.row_count(table)
            metrics = facet_v2.data_quality_metrics_input_dataset.DataQualityMetricsInputDatasetFacet({}, rowCount=rows)
            checks = {"dataQualityAssertions": facets.assertions(self.tests), "dataQualityMetrics": metrics}
        return events.InputDataset(place.namespace, place.name, facets=own, inputFacets=checks)

    def outputs_now(self, *, is_done: bool) -> list[events.OutputDataset]:
        """The tables that are written, or where they are published to."""
        if self.work == "check":
            return []
        if self.work == "publish":
            place = places.of_target(self.emitter.settings, self.target)
            found = self.described(self.tables[0])
            own = {"schema": facets.schema(found.columns)} if found else {}
            return [self.output(place, own, is_done=is_done)]
        if self.work in ("release", "quarantine"):
            # What is said of records is a record of the log; the next refresh tells of the rows.
            return [self.output(self.place_of_topic(self.target), {}, is_done=is_done)]
        return [self.table_written(name, is_done=is_done) for name in self.tables]

    def table_written(self, table: str, *, is_done: bool) -> events.OutputDataset:
        commit = self.emitter.lake.last_commit(table) if is_done else None
        own = self.facets_of(table, commit.version if commit else None, is_done=is_done)
        found = self.described(table)
        # What is made from columns refers to the schema, which is not known before there is a table.
        if found is not None and "schema" in own and self.work not in ("land", "maintain"):
            own["columnLineage"] = facets.lineage(found, self.known, self.emitter.place)
        return self.output(self.emitter.place(table), own, is_done=is_done and self.work != "maintain")

    def output(self, place: Place, own: dict[str, Any], *, is_done: bool) -> events.OutputDataset:
        statistics = facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        written: dict[str, Any] = {"outputStatistics": statistics(rowCount=self.rows)} if is_done else {}
        return events.OutputDataset(place.namespace, place.name, facets=own, outputFacets=written)

    def facets_of(self, table: str, number: int | None, *, is_done: bool) -> dict[str, Any]:
        """What is known of a table, and of which version of it is meant.

        Some types are only known from the table: a receiver would take a column without type for another one.
        """
        found = facets.named(self.emitter.namespace, table)
        described = self.described(table)
        if described is not None:
            found |= facets.about(described)
            if is_done or self.types(table):
                found["schema"] = facets.schema(described.columns)
        if number is not None:
            found["version"] = facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(str(number))
        return found

    def described(self, table: str) -> Described | None:
        """A table of the catalogue in words, with the columns and types that only the table has."""
        if table not in self.known:
            return None
        types = self.types(table)
        if not types:
            return self.known[table]
        return described(self.catalogue.by_name[table], self.catalogue, types, self.known, ())

    def types(self, table: str) -> dict[str, str]:
        """The types of a table's columns, where there is a table."""
        if table not in self.seen:
            self.seen[table] = self.emitter.lake.types(table) if self.emitter.lake.last_commit(table) else {}
        return self.seen[table]


def said_of(error: BaseException) -> str:
    """What went wrong, as `sluice status` says it."""
    return (reason_of(error) if isinstance(error, Exception) else "") or type(error).__name__


def error_facet(message: str | None) -> dict[str, Any]:
    """Why a run failed; nothing where it did not."""
    if message is None:
        return {}
    return {"errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet(message, "python")}
