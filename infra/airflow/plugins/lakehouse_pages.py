"""Pages of the lakehouse in Airflow, for logged-in users, and links to them from each task."""

from __future__ import annotations

import html
import json
import mimetypes
import os
import subprocess
from pathlib import Path

from airflow.api_fastapi.core_api.security import get_user
from airflow.plugins_manager import AirflowPlugin
from airflow.sdk import BaseOperatorLink
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import FileResponse, HTMLResponse, Response

prefix = "/lakehouse"
project = Path(os.environ.get("LAKEHOUSE_PROJECT", "."))
sluice = os.environ.get("LAKEHOUSE_SLUICE", "sluice")
lake = os.environ.get("SLUICE_LAKE") or ".sluice/lake"
reports = Path(project, lake) / "_reports"
pages = FastAPI(title="Lakehouse", dependencies=[Depends(get_user)])
# These pages stand on Airflow's own origin: nothing that came with the data may run there.
policy = "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self'; base-uri 'none'; form-action 'none'"


@pages.middleware("http")
async def without_scripts(request, call_next) -> Response:
    """Every page forbids scripts, and is what it says it is."""
    response = await call_next(request)
    response.headers["Content-Security-Policy"] = policy
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


@pages.get("/reports/{name}")
def report(name: str) -> Response:
    """A page of the report, or what it is shown with."""
    if lake.startswith("s3a://"):
        return report_on_s3(name)
    # Only existing files, so that no name can lead out of the folder.
    known = {path.name: path for path in reports.glob("*")}
    if name not in known:
        raise HTTPException(404, "There is no such page yet: run the DAG quality, or sluice check")
    return FileResponse(known[name])


def report_on_s3(name: str) -> Response:
    """The same from an object store, which the command reads: Airflow's environment has nothing that could."""
    command = [sluice, "report", f"--show={name}", "--project", str(project)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HTTPException(404, done.stderr.strip())
    return Response(done.stdout, media_type=mimetypes.guess_type(name)[0] or "text/plain")


@pages.get("/audit")
def audit() -> HTMLResponse:
    """What became of every record and row, counted now."""
    command = [sluice, "audit", "--json", "--project", str(project)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise HTTPException(503, done.stderr.strip() or "sluice audit said nothing")
    tables = "".join(table([each for each in json.loads(done.stdout) if kind in each]) for kind in ("topic", "law"))
    verdict = "Everything adds up." if done.returncode == 0 else "<strong>It does not add up.</strong>"
    return HTMLResponse(
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Audit</title><style>'
        "body { font-family: sans-serif; margin: 2rem } table { border-collapse: collapse; margin-bottom: 2rem } "
        "td, th { border-bottom: 1px solid #ddd; padding: 0.3rem 0.8rem; text-align: left } "
        ".number { text-align: right }"
        f"</style></head><body><h1>Audit</h1><p>{verdict}</p>{tables}</body></html>"
    )


def table(rows: list[dict]) -> str:
    """Rows as an HTML table."""
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(cell(value) for value in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def cell(value: object) -> str:
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'NO'}</td>"
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{html.escape(str(value))}</td>"


class DataDocs(BaseOperatorLink):
    """From a task that is named as a dataset to its page, and from any other to the index."""

    name = "Data Docs"

    def get_link(self, operator, *, ti_key) -> str:
        page = f"{ti_key.task_id}.html" if "." in ti_key.task_id else "index.html"
        return f"{prefix}/reports/{page}"


class Audit(BaseOperatorLink):
    """What became of every record and row."""

    name = "Audit"

    def get_link(self, operator, *, ti_key) -> str:
        return f"{prefix}/audit"


class SparkUi(BaseOperatorLink):
    """The running driver's jobs, where `SLUICE_SPARK_UI_PORT` gives them a port."""

    name = "Spark UI"

    def get_link(self, operator, *, ti_key) -> str:
        port = os.environ.get("SLUICE_SPARK_UI_PORT", "0")
        return f"http://127.0.0.1:{port}" if port != "0" else ""


class Lakehouse(AirflowPlugin):
    """The pages, and the links to them."""

    name = "lakehouse"
    fastapi_apps = [{"app": pages, "url_prefix": prefix, "name": "Lakehouse"}]
    global_operator_extra_links = [DataDocs(), Audit(), SparkUi()]
