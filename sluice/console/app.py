"""The console: pages over one consistent set of versions, and the JSON that their charts are drawn from."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from sluice.api import Change, Project
from sluice.console import chart, dashboards, downloads
from sluice.console.facts import Facts, Table
from sluice.console.guard import Guard, Options, logged_in
from sluice.console.snapshots import Rows, Snapshot, Snapshots, require_query
from sluice.errors import SluiceError, UsageError
from sluice.model.labels import label_of
from sluice.model.sql import double_quoted
from sluice.operate import documents, events

here = Path(__file__).parent
rows_shown_max = 100
answer_rows_max = 1_000
changes_at_once = 1_000
body_bytes_max = 100_000
answer_characters_max = 20_000_000
queries_at_once = 4
# What a request for a chart or rows says beside the values of columns.
parameters = ("known_at", "measure", "minus", "null", "offset")


class Console:
    """The pages of one project."""

    def __init__(self, project: Project, options: Options) -> None:
        self.project, self.options = project, options
        self.snapshots = Snapshots(project, options.memory, options.statement_seconds)
        self.facts = Facts(project, self.snapshots.newest_versions)
        self.templates = Jinja2Templates([here / "templates", documents.templates])
        self.templates.env.filters |= {"label": labelled, "text": shown, "when": when}
        self.explaining = threading.Lock()
        # Queries of readers that take long leave threads to the pages.
        self.asking, self.following = asyncio.Semaphore(queries_at_once), asyncio.Semaphore(queries_at_once)
        self.is_ending: Callable[[], bool] = lambda: False

    def application(self) -> Guard:
        """The ASGI application."""
        routes = [
            Route("/", self.page(self.overview)),
            Route("/tables/{table}", self.page(self.table)),
            Route("/flow", self.page(self.flow)),
            Route("/sql", self.page(self.sql)),
            Route("/dashboards/{name}", self.page(self.dashboard)),
            Route("/login", self.login, methods=["GET", "POST"]),
            Route("/api/tables/{table}/chart", self.answer(self.chart)),
            Route("/api/tables/{table}/rows", self.answer(self.rows)),
            Route("/api/tables/{table}/state", self.answer(self.state)),
            Route("/api/tables/{table}/why", self.answer(self.why)),
            Route("/api/tables/{table}/records", self.answer(self.records)),
            Route("/api/dashboards/{name}/{number:int}", self.answer(self.panel)),
            Route("/api/flow", self.answer(lambda request: self.facts.flow())),
            Route("/api/running", self.answer(lambda request: {"is_running": self.project.is_being_written})),
            Route("/api/quarantine/{table}", self.answer(self.quarantined)),
            Route("/api/sql", self.post_sql, methods=["POST"]),
            Route("/download/{table}.{form}", self.download),
            Route("/events", self.events),
            Route("/tables/{table}/events", self.table_events),
            Mount("/assets", StaticFiles(directory=here / "assets")),
        ]
        handlers = {404: self.nothing, 500: self.failed}
        application = Starlette(routes=routes, exception_handlers=handlers)
        # They lead to the Host that the client names.
        application.router.redirect_slashes = False
        # Outside of all of Starlette, so that errors carry the security headers too.
        return Guard(application, self.options)

    def page(self, fill: Callable[[Request], tuple[str, dict[str, Any]]]) -> Callable[[Request], Response]:
        """An endpoint that renders a template; an error of ours is a page that says what to do."""

        def answered(request: Request) -> Response:
            # Before the page is filled: it then hears of all that it does not show.
            versions = dict(self.snapshots.newest_versions())
            try:
                name, values = fill(request)
                status = 200
            except SluiceError as error:
                name, values, status = "problem.html", {"problem": str(error)}, 404
            return self.rendered(request, name, {"versions": versions, **values}, status)

        return answered

    def rendered(self, request: Request, name: str, values: Mapping[str, Any], status: int = 200) -> Response:
        common = {
            "project": self.project.settings.project.name,
            "dashboards": dashboards.names(self.project.settings.project),
            "path": request.url.path,
            "versions": {},
        }
        return self.templates.TemplateResponse(request, name, common | dict(values), status)

    def answer(self, compute: Callable[[Request], Any]) -> Callable[[Request], Response]:
        """An endpoint that answers JSON; an error of ours is a message."""

        def answered(request: Request) -> Response:
            try:
                return as_json(compute(request))
            except SluiceError as error:
                return as_json({"error": str(error)}, 400)

        return answered

    def nothing(self, request: Request, _: Exception) -> Response:
        return self.rendered(request, "problem.html", {"problem": "There is no such page."}, 404)

    def failed(self, _: Request, error: Exception) -> Response:
        return PlainTextResponse(f"{type(error).__name__}: the console could not answer. Its log says more.", 500)

    def known(self, request: Request) -> Table:
        """The table that a request names; a UsageError when there is none."""
        name = request.path_params["table"]
        tables = self.facts.tables()
        if name not in tables:
            raise UsageError(f"There is no table {name}.")
        return tables[name]

    def snapshot(self, request: Request, parameter: str = "known_at") -> Snapshot:
        return self.snapshots.at(time_in(request, parameter))

    # Pages

    def overview(self, _: Request) -> tuple[str, dict[str, Any]]:
        tables = list(self.facts.tables().values())
        declared = [each for each in tables if each.is_declared]
        layers = {layer: [each for each in declared if each.layer == layer] for layer in ("gold", "silver", "bronze")}
        layers["bookkeeping"] = [each for each in tables if not each.is_declared]
        values = {"layers": layers, "passes": self.facts.passes()[:8]}
        return "overview.html", values | {"is_running": self.project.is_being_written}

    def table(self, request: Request) -> tuple[str, dict[str, Any]]:
        found = self.known(request)
        if found.version is None:
            return "table.html", {"table": found, "chart": None, "types": {}}
        snapshot = self.snapshot(request)
        types = snapshot.types(found.name)
        plan = chart.chart_of(types, found.keys) if found.layer == "gold" else None
        values = {"table": found, "types": types, "chart": plan, "times": self.facts.times(found.name)}
        return "table.html", values | {"choices": choices(snapshot, found, plan) if plan else {}}

    def flow(self, _: Request) -> tuple[str, dict[str, Any]]:
        declared = [each for each in self.facts.tables().values() if each.is_declared]
        edges = [(source, each.name) for each in declared for source in each.sources]
        graph = {"nodes": [each.name for each in declared], "edges": edges}
        replays = self.project.replays.list()
        values = {"graph": graph, "passes": self.facts.passes(), "replays": replays}
        return "flow.html", values | {"is_running": self.project.is_being_written}

    def sql(self, request: Request) -> tuple[str, dict[str, Any]]:
        snapshot = self.snapshots.at()
        names = snapshot.query(
            "SELECT schema_name || '.' || table_name, column_name FROM duckdb_columns() "
            "WHERE schema_name IN ('bronze', 'silver', 'gold') ORDER BY ALL"
        ).rows
        tables: dict[str, list[str]] = {}
        for table, column in names:
            tables.setdefault(table, []).append(column)
        asked = {name: request.query_params.get(name, "") for name in ("sql", "known_at")}
        return "sql.html", {"tables": tables, **asked}

    def dashboard(self, request: Request) -> tuple[str, dict[str, Any]]:
        name = request.path_params["name"]
        found = dashboards.read(self.project.settings.project, name)
        tables = self.facts.tables().values()
        # What a query reads is not known; gold is what dashboards are made for.
        wanted = {panel.table for panel in found.charts} | {
            each.name for each in tables if each.layer == "gold" and any(panel.sql for panel in found.charts)
        }
        there = [each.name for each in tables if each.name in wanted and each.version is not None and each.is_declared]
        return "dashboard.html", {"dashboard": found, "name": name, "times": self.facts.times(*there)}

    async def login(self, request: Request) -> Response:
        wanted = request.query_params.get("next", "/")
        if request.method == "GET":
            return self.rendered(request, "login.html", {"is_wrong": False, "next": wanted, "dashboards": []})
        form = (await limited(request)).decode(errors="replace")
        done = logged_in(self.options, parse_qs(form).get("token", [""])[0], wanted)
        if done is None:
            # A guess takes its time.
            await asyncio.sleep(1)
            return self.rendered(request, "login.html", {"is_wrong": True, "next": wanted, "dashboards": []}, 401)
        return done

    # What pages ask for

    def chart(self, request: Request) -> dict[str, Any]:
        """The points of a measure; with `minus`, how they differ from what was known at that time."""
        found, snapshot = self.known(request), self.snapshot(request)
        types = snapshot.types(found.name)
        plan = chart.chart_of(types, found.keys)
        measure = request.query_params.get("measure") or (plan.measures[0] if plan else "")
        if plan is None or measure not in plan.measures:
            raise UsageError(f"{found.name} has no measure {measure}.")
        where = filters(request, plan.by)
        before = None
        if request.query_params.get("minus"):
            earlier = self.snapshot(request, "minus")
            before = points(earlier, plan, found.name, measure, where).by_name
        drawn = chart.drawn(
            plan,
            measure,
            points(snapshot, plan, found.name, measure, where).by_name,
            before,
            unit=found.unit_of(measure),
        )
        return drawn | {
            "title": f"{label_of(measure).text} of {found.name}",
            "version": None if snapshot.versions is None else snapshot.versions.get(found.name),
        }

    def rows(self, request: Request) -> dict[str, Any]:
        """A page of a table's rows, in the order of what tells them apart."""
        found, snapshot = self.known(request), self.snapshot(request)
        types = snapshot.types(found.name)
        where = [chart.condition_of(name, types[name], value) for name, value in filters(request, types).items()]
        offset = whole(request.query_params.get("offset", "0"))
        order = [name for name in ("window_start", *found.grain) if name in types]
        sql = f"SELECT * FROM {source_of(found.name)}"
        if where:
            sql += f" WHERE {' AND '.join(where)}"
        if order:
            sql += f" ORDER BY {', '.join(f'{double_quoted(name)} DESC' for name in dict.fromkeys(order))}"
        columns = ", ".join(f"{chart.readable(name, kind)} AS {double_quoted(name)}" for name, kind in types.items())
        answer = snapshot.query(f"SELECT {columns} FROM ({sql} LIMIT {rows_shown_max + 1} OFFSET {offset})")
        return listed(answer, rows_shown_max) | {"grain": list(found.grain), "offset": offset}

    def state(self, request: Request) -> dict[str, Any]:
        """What the page says above a table: as it is, or as it was known at a time."""
        found, known_at = self.known(request), time_in(request, "known_at")
        if known_at is not None:
            return self.facts.at(found, known_at, self.snapshot(request))
        return {
            "rows": found.rows,
            "version": found.version,
            "updated_at": found.updated_at,
            "watermark": found.watermark,
            "passed": found.checks_passed,
            "broken": len(found.checks_broken),
        }

    def why(self, request: Request) -> dict[str, Any]:
        """Every value that a row had, from the table's change feed: when, and by which kind of commit."""
        found = self.known(request)
        where = self.key_of(request, found)
        conditions = [chart.condition_of(name, kind, value) for (name, kind), value in where.items()]
        seconds_max, memory = self.options.statement_seconds, self.options.memory
        changes = self.project.subscribe(
            found.name, where=" AND ".join(conditions), seconds_max=seconds_max, memory=memory
        )
        values = [
            {
                "at": each.committed_at,
                "version": each.version,
                "cause": each.cause,
                "row": None if each.new is None else {name: shown(value) for name, value in each.new.items()},
            }
            for each in changes
            if each.operation in ("insert", "update", "delete")
        ]
        return {"key": {name: value for (name, _), value in where.items()}, "values": values}

    def records(self, request: Request) -> dict[str, Any]:
        """The records or declarations behind each value of a row. The first time, Spark starts for it."""
        found = self.known(request)
        key = {name: value for (name, _), value in self.key_of(request, found).items()}
        with self.explaining:
            values = self.project.explain(found.name, **key)
        return {"values": [{"version": each.version, "origins": [asdict(o) for o in each.origins]} for each in values]}

    def key_of(self, request: Request, table: Table) -> dict[tuple[str, str], str | None]:
        """The values by which a request names a row, with the types of their columns."""
        types = self.snapshots.at().types(table.name)
        try:
            sent = json.loads(request.query_params.get("key", ""))
            return {(name, types[name]): None if sent[name] is None else encodable(sent[name]) for name in table.grain}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"Name the row by {', '.join(table.grain)}.") from error

    def panel(self, request: Request) -> dict[str, Any]:
        """One chart of a dashboard."""
        found = dashboards.read(self.project.settings.project, request.path_params["name"])
        number = request.path_params["number"]
        if number >= len(found.charts):
            raise UsageError("There is no such chart.")
        panel, snapshot = found.charts[number], self.snapshot(request)
        if panel.sql is not None:
            source, table = "The answer", None
            # Other readers have the same connection: what a file says must not make or replace anything in it.
            require_query(panel.sql)
            answer = snapshot.query(panel.sql, rows_max=chart.points_max + 1)
            plan = chart.chart_of_answer(answer.types)
        else:
            source, table = str(panel.table), self.facts.tables().get(str(panel.table))
            if table is None or table.version is None:
                raise UsageError(f"There is no table {source}.")
            plan = chart.chart_of(snapshot.types(source), table.keys)
            if unknown := set(panel.where) - set(plan.by if plan else ()):
                raise UsageError(f"{source} is not grouped by {', '.join(sorted(unknown))}.")
        measure = panel.measure or (plan.measures[0] if plan else "")
        if plan is None or measure not in plan.measures:
            raise UsageError(f"{source} has no {f'measure {measure}' if measure else 'number to draw'}.")
        rows = answer if table is None else points(snapshot, plan, source, measure, dict(panel.where))
        drawn = chart.drawn(plan, measure, rows.by_name, unit=table.unit_of(measure) if table else None)
        return drawn | {"title": panel.title} | ({"unit": panel.unit} if panel.unit else {})

    def quarantined(self, request: Request) -> list[dict[str, Any]]:
        found = self.known(request)
        reason = request.query_params.get("reason") or None
        records = self.project.quarantine.records(found.name, reason=reason, limit=rows_shown_max)
        return [
            asdict(each)
            | {
                "position": each.position,
                # What of a malformed record is text can be read.
                "value": None if each.value is None else each.value.decode(errors="backslashreplace"),
            }
            for each in records
        ]

    async def post_sql(self, request: Request) -> Response:
        """The answer to a query of the SQL page, with a chart of it where it has numbers."""
        try:
            asked = json.loads(await limited(request))
            sql, known_at = encodable(asked["sql"]), asked.get("known_at")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return as_json({"error": "Send the query as JSON: sql, and known_at if wanted."}, 400)

        def answered() -> Response:
            # A connection of its own: a long query lets the pages be.
            at = None if not known_at else time_of(str(known_at))
            versions = None if at else self.snapshots.newest_versions()
            snapshot = self.snapshots.opened(at, versions)
            try:
                answer = snapshot.query(sql, rows_max=answer_rows_max + 1)
            finally:
                snapshot.connection.close()
            plan = chart.chart_of_answer(answer.types)
            found = listed(answer, answer_rows_max)
            if sum(len(value or "") for row in found["rows"] for value in row) > answer_characters_max:
                raise UsageError("The answer is too large to be shown: ask for fewer rows, or for parts of long texts.")
            rows = answer.by_name[:answer_rows_max]
            drawn = [chart.drawn(plan, name, rows) for name in plan.measures[:1]] if plan else []
            if found["has_more"]:
                for each in drawn:
                    each["notes"].insert(0, f"Only the first {answer_rows_max:,} rows are drawn.")
            return as_json(found | {"charts": drawn})

        try:
            async with self.asking:
                return await run_in_threadpool(answered)
        except SluiceError as error:
            return as_json({"error": str(error)}, 400)

    def download(self, request: Request) -> Response:
        """All rows of a table, as CSV or Parquet. An error after the first rows breaks the connection off."""
        form = request.path_params["form"]
        if request.scope["http_version"] == "1.0":
            problem = (
                "Ask for files with HTTP/1.1: with 1.0 a part of a file looks like all of it. This may be a proxy."
            )
            return self.rendered(request, "problem.html", {"problem": problem}, 426)
        try:
            found = self.known(request)
            known_at = time_in(request, "known_at")
            if form not in downloads.forms:
                raise UsageError(f"Rows can be had as {' or '.join(downloads.forms)}.")
            snapshot = self.snapshots.opened(known_at, None if known_at else self.snapshots.newest_versions())
            body = downloads.file_of(snapshot, source_of(found.name), snapshot.types(found.name), form)
        except SluiceError as error:
            return self.rendered(request, "problem.html", {"problem": str(error)}, 404)
        headers = {"Content-Disposition": f'attachment; filename="{found.name}.{form}"'}
        return StreamingResponse(body, media_type=downloads.media_types[form], headers=headers)

    async def events(self, request: Request) -> Response:
        """Server-sent events: the newest versions, each time that they change."""
        return StreamingResponse(self.changes(request), media_type="text/event-stream")

    async def table_events(self, request: Request) -> Response:
        """Server-sent events: the changes of a table, after `Last-Event-ID` or `since` and with `where` if given."""
        try:
            table = await run_in_threadpool(self.known, request)
            since = request.headers.get("last-event-id") or request.query_params.get("since")
            first, place = await self.next_changes(request, table.name, since)
        except SluiceError as error:
            return as_json({"error": str(error)}, 400)
        return StreamingResponse(self.table_changes(request, table.name, place, first), media_type=events.media_type)

    async def table_changes(
        self, request: Request, table: str, place: str | None, changes: list[Change]
    ) -> AsyncIterator[bytes]:
        """Events of the changes as they are committed, until one cannot be read; who asks again gets the reason."""
        read_to = None
        while not self.is_ending() and not await request.is_disconnected():
            for event in events.server_sent(changes):
                yield event
            read_to = changes[-1].cursor if changes else read_to
            if len(changes) < changes_at_once:
                yield events.heartbeat if place in (None, read_to) else events.read_to(place)
                read_to = place
                await asyncio.sleep(1)
            try:
                changes, place = await self.next_changes(request, table, place)
            except SluiceError:
                return

    async def next_changes(self, request: Request, table: str, since: str | None) -> tuple[list[Change], str | None]:
        """Some changes after a place, and the place up to which all was read."""

        def found() -> tuple[list[Change], str | None]:
            where, options = request.query_params.get("where"), self.options
            snapshot = request.query_params.get("snapshot") == "1"
            read: list[Change] = []
            place = since

            def moved(cursor: str) -> None:
                nonlocal place
                place = cursor

            changes = self.project.subscribe(
                table,
                since=since,
                where=where,
                snapshot=snapshot,
                seconds_max=options.statement_seconds,
                memory=options.memory,
                on_read=moved,
            )
            for change in islice(changes, changes_at_once):
                read.append(change)
                moved(change.cursor)
            return read, place

        async with self.following:
            return await run_in_threadpool(found)

    async def changes(self, request: Request) -> AsyncIterator[str]:
        sent: Mapping[str, int | None] | None = None
        quiet = 0
        while not self.is_ending() and not await request.is_disconnected():
            try:
                newest: Mapping[str, int | None] | None = await run_in_threadpool(self.snapshots.newest_versions)
            except Exception:  # noqa: BLE001 - a lake that cannot be read now may be again
                newest = sent
            if newest != sent:
                sent, quiet = newest, 0
                yield f"event: versions\ndata: {json.dumps(dict(newest or {}))}\n\n"
            elif (quiet := quiet + 1) % 15 == 0:
                yield ": still here\n\n"
            await asyncio.sleep(1)


def points(snapshot: Snapshot, plan: chart.Chart, table: str, measure: str, where: Mapping[str, str | None]) -> Rows:
    """The rows that a chart is drawn from."""
    types = snapshot.types(table)
    if not {measure, *plan.columns} <= types.keys():
        return Rows({}, [])
    conditions = [chart.condition_of(name, types[name], value) for name, value in where.items()]
    return snapshot.query(chart.sql_of(plan, source_of(table), measure, conditions))


def filters(request: Request, columns: Collection[str]) -> dict[str, str | None]:
    """The values that columns must have: those that `null` names have none.

    A column with the name of another parameter cannot be asked for.
    """
    values = request.query_params.items()
    wanted = [*values, *((name, None) for name in request.query_params.getlist("null"))]
    return {name: value for name, value in wanted if name in columns and name not in parameters}


def choices(snapshot: Snapshot, table: Table, plan: chart.Chart) -> dict[str, list[str | None]]:
    """The values of each group, to choose one; first null, if a group has it."""
    found = {}
    for name in (each for each in plan.by if each not in parameters):
        column = double_quoted(name)
        sql = f"SELECT DISTINCT {column} FROM {source_of(table.name)} ORDER BY 1 NULLS FIRST LIMIT 501"
        values = (row[0] for row in snapshot.query(sql).rows)
        found[name] = [None if value is None else chart.text_of(value) for value in values]
    return found


def source_of(table: str) -> str:
    layer, name = table.split(".")
    return f'{layer}."{name}"'


def listed(answer: Rows, rows_max: int) -> dict[str, Any]:
    """An answer as a page lists it."""
    rows = [[shown(value) for value in row] for row in answer.rows[:rows_max]]
    return {
        "columns": [
            {"name": name, "type": kind, "is_number": chart.is_number(kind), "places": chart.decimal_places(kind)}
            for name, kind in answer.types.items()
        ],
        "rows": rows,
        "has_more": len(answer.rows) > rows_max,
    }


def shown(value: Any) -> str | None:
    """A value as text; None for null."""
    if value is None:
        return None
    if isinstance(value, dict | list | tuple):
        return json.dumps(nested(value), default=chart.text_of, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else chart.text_of(value)


def nested(value: Any) -> Any:
    """A nested value with texts as keys, as JSON has them."""
    if isinstance(value, dict):
        return {chart.text_of(key): nested(each) for key, each in value.items()}
    return [nested(each) for each in value] if isinstance(value, list | tuple) else value


def encodable(value: object) -> str:
    """A value that was sent, as text; a UnicodeEncodeError, which is a ValueError, for half a character."""
    return str(value).encode().decode()


def labelled(column: str) -> str:
    return label_of(column).with_unit


def when(value: datetime | None) -> str:
    return "" if value is None else chart.utc(value).isoformat(timespec="seconds")


def time_in(request: Request, parameter: str) -> datetime | None:
    text = request.query_params.get(parameter)
    return time_of(text) if text else None


def time_of(text: str) -> datetime:
    """A time that a page sends; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text[:50]!r} is no time; write for example 2026-03-01T12:00:00Z.") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise UsageError(f"{text[:50]!r} is no offset.")
    return int(text)


async def limited(request: Request) -> bytes:
    """The body of a request; empty when it is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > body_bytes_max:
            return b""
    return body


def as_json(value: Any, status: int = 200) -> Response:
    text = json.dumps(value, default=plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


def plain(value: Any) -> Any:
    """What JSON has no type for: a time as ISO text, anything else as it is shown."""
    return value.isoformat() if isinstance(value, datetime) else shown(value)
