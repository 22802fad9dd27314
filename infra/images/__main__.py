"""Build both images with buildah and run the year's first month in them: publish, run, audit, query, Airflow's health.

The base is the image of Python that the Dockerfiles name. Where no registry of images can be reached, it is made from
Debian's own packages, and has the Python of Debian 12.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from infra.servers import debian
from infra.servers.server import free_port, project, wait_until
from sluice.errors import SluiceError
from sluice.runtime.jars import jar_files

app = typer.Typer(add_completion=False, help=__doc__, rich_markup_mode=None, pretty_exceptions_enable=False)
dockerfiles = {"sluice": "infra/images/sluice.Dockerfile", "sluice-airflow": "infra/airflow/Dockerfile"}
python_image = "python:3.12-slim-bookworm"
debian_image = "localhost/python-of-debian:bookworm"
# Neither needs a daemon, namespaces of users or a bridge.
confined = ("--isolation", "chroot", "--network", "host")
folders = {"SLUICE_LAKE": "lake", "SLUICE_LOG": "log", "SLUICE_JARS": "jars"}
pull_seconds_max = 120
healthy_seconds_max = 300


@app.command()
def images(
    months: Annotated[int, typer.Option(min=1, max=12, help="How much of the year is run in the image.")] = 1,
) -> None:
    """Builds both images and tries them."""
    debian.install("buildah", "debootstrap")
    base = base_image()
    for name, dockerfile in dockerfiles.items():
        typer.echo(f"Building {name} from {base} …", err=True)
        build = ["build", *confined, "--layers", "--build-arg", f"PYTHON_IMAGE={base}", "--tag", name]
        buildah(*build, "--file", dockerfile, ".", show=True)
    # Where others may pass: the user in the container is another than ours.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o711)
        try_sluice(Path(folder), months)
        try_airflow(Path(folder))
    typer.echo("Both images work.", err=True)


def base_image() -> str:
    """The image of Python, from its registry; else one that is made of Debian's packages, once."""
    try:
        buildah("pull", "--quiet", python_image, seconds_max=pull_seconds_max)
    except SluiceError:
        typer.echo(f"{python_image} cannot be had: a base is made from Debian's packages.", err=True)
    else:
        return python_image
    if debian_image not in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        make_debian_image()
    return debian_image


def make_debian_image() -> None:
    """A small Debian with Python where the Dockerfiles expect it, and the certificates that this machine trusts."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        root = Path(folder) / "root"
        packages = "--include=python3,python3-venv,python3-pip,ca-certificates"
        debian.run("debootstrap", "--variant=minbase", packages, "bookworm", str(root))
        (root / "usr/bin/python").symlink_to("python3")
        for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            marker.unlink()
        for settings in ("etc/ssl/certs/ca-certificates.crt", "etc/pip.conf"):
            if Path("/", settings).exists():
                shutil.copy(Path("/", settings), root / settings)
        container = buildah("from", "scratch")
        try:
            buildah("add", "--quiet", container, str(root), "/")
            buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", container)
            buildah("commit", "--quiet", container, debian_image)
        finally:
            buildah("rm", container)


def try_sluice(folder: Path, months: int) -> None:
    """Does once what compose's `publish` and `sluice` do, and queries the result."""
    with container("sluice", folder, ["/data"]) as run:
        bring_jars(folder / "data")
        buildah(*run, "python", "-m", "infra.sources.nycflights", "--log", "/data/log", "--months", str(months))
        for command in (["run"], ["audit"], ["query", "SELECT count(*) AS departures FROM silver.departures"]):
            typer.echo(f"sluice {' '.join(command)} …", err=True)
            buildah(*run, "sluice", *command, show=True)


def bring_jars(data: Path) -> None:
    """Fetches Spark's jars here: in the image Java may not trust what stands between this machine and its network."""
    owner = data.stat()
    for path in [data / "jars", data / "jars" / ".lock", *jar_files(data / "jars")]:
        os.chown(path, owner.st_uid, owner.st_gid)


def try_airflow(folder: Path) -> None:
    """Airflow comes up healthy, and reads every DAG without an error."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with container("sluice-airflow", folder, ["/data", "/airflow"]) as run:
        command = [".venv-airflow/bin/python", "-m", "infra.airflow.start", "--home", "/airflow", "--port", str(port)]
        # A separate process group, to end what buildah starts as well.
        typer.echo(f"Airflow at {address} …", err=True)
        log = folder / "airflow.log"
        with open(log, "wb") as said:
            started = subprocess.Popen(["buildah", *run, *command], start_new_session=True, stdout=said, stderr=said)
        try:
            wait_for(lambda: is_healthy(address), "Airflow is not healthy", started, log)
            passwords = json.loads((folder / "airflow" / "passwords.json").read_text())
            token = answer(f"{address}/auth/token", {"username": "admin", "password": passwords["admin"]})
            wait_for(lambda: dags(address, token["access_token"]), "Airflow has no DAGs", started, log)
        finally:
            os.killpg(started.pid, signal.SIGTERM)
            started.wait()


@contextmanager
def container(image: str, folder: Path, volumes: Sequence[str]) -> Iterator[list[str]]:
    """A container of an image, as the arguments by which buildah runs a command in it.

    Each volume begins as a volume of compose does: with the owner that its folder has in the image.
    """
    name = buildah("from", image)
    try:
        mounted = Path(buildah("mount", name))
        settings = [f"--env={name}=/data/{of}" for name, of in folders.items()]
        for volume in volumes:
            of_host = folder / volume.strip("/")
            of_host.mkdir(exist_ok=True)
            owner = (mounted / volume.strip("/")).stat()
            os.chown(of_host, owner.st_uid, owner.st_gid)
            settings += ["--volume", f"{of_host}:{volume}"]
        buildah("umount", name)
        # By a name that it can look up, for Spark listens there.
        yield ["run", *confined, "--hostname", "localhost", *settings, name, "--"]
    finally:
        buildah("rm", name)


def buildah(*arguments: str, show: bool = False, seconds_max: float | None = None) -> str:
    """What a command of buildah prints; it is shown instead when asked for. A SluiceError when it fails."""
    keep = None if show else subprocess.PIPE
    try:
        done = subprocess.run(
            ["buildah", *arguments], stdout=keep, stderr=keep, text=True, check=False, timeout=seconds_max, cwd=project
        )
    except subprocess.TimeoutExpired as error:
        raise SluiceError(f"buildah {arguments[0]} took longer than {seconds_max} s.") from error
    if done.returncode:
        raise SluiceError(f"buildah {' '.join(arguments)} failed. {(done.stderr or '')[-1000:]}")
    return (done.stdout or "").strip()


def wait_for(is_true: Callable[[], bool], complaint: str, started: "subprocess.Popen[bytes]", log: Path) -> None:
    """Returns once the condition is true; a SluiceError on a timeout, or if the process that was started has ended."""

    def said() -> str:
        return f"{complaint}. {log.read_text()[-1000:]}"

    wait_until(lambda: started.poll() is not None or is_true(), said, healthy_seconds_max)
    if started.poll() is not None:
        raise SluiceError(said())


def is_healthy(address: str) -> bool:
    """True when each of Airflow's processes has a recent heartbeat."""
    try:
        found = answer(f"{address}/api/v2/monitor/health")
    except OSError:
        return False
    return all(each["status"] == "healthy" for each in found.values())


def dags(address: str, token: str) -> bool:
    """True when the DAGs are there; a SluiceError when one of them cannot be read."""
    wrong = answer(f"{address}/api/v2/importErrors", token=token)["import_errors"]
    if wrong:
        raise SluiceError(f"Airflow cannot read a DAG: {wrong[0]['stack_trace']}")
    return bool(answer(f"{address}/api/v2/dags", token=token)["total_entries"])


def answer(address: str, body: dict[str, str] | None = None, token: str | None = None) -> Any:
    """The JSON that an address answers with."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(address, json.dumps(body).encode() if body else None, headers)
    with urllib.request.urlopen(request, timeout=10) as found:
        return json.loads(found.read())


if __name__ == "__main__":
    try:
        app()
    except SluiceError as error:
        raise SystemExit(f"Error: {error}") from error
