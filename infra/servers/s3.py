"""S3: versitygw over a folder, built from its Go module with every dependency pinned by go.sum."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from infra.servers.server import Server, cache, page, private_folder, secret
from sluice.errors import SluiceError

version = "1.8.0"
module = Path(__file__).with_name("versitygw")
bucket = "sluice"
region = "us-east-1"
access_key = "sluice"


@dataclass(frozen=True)
class S3(Server):
    """An object store: a bucket is a folder, an object is a file. Requests are signed with a key made here."""

    @classmethod
    def install(cls) -> None:
        if program().exists():
            return
        # Go's own installer leaves it to the user to put it on the PATH.
        go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
        if go is None:
            raise SluiceError("versitygw is built with Go 1.25 or newer, and there is no go on the PATH. Install it.")
        program().parent.mkdir(parents=True, exist_ok=True)
        with FileLock(program().with_name(f"{program().name}.lock")):
            if not program().exists():
                build(go)

    def prepare(self) -> None:
        private_folder(self.folder)
        (self.data / bucket).mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        if not program().exists():
            raise SluiceError("versitygw is not installed. Run: python -m infra.servers install s3")
        return [
            str(program()),
            "--port",
            self.address,
            "--region",
            region,
            "--health",
            "/health",
            "posix",
            str(self.data),
        ]

    def environment(self) -> dict[str, str]:
        return super().environment() | {
            "ROOT_ACCESS_KEY_ID": access_key,
            "ROOT_SECRET_ACCESS_KEY": self.secret_key,
        }

    def is_healthy(self) -> bool:
        return page(self.port, "/health") is not None

    def settings(self) -> dict[str, str]:
        return {
            "SLUICE_LAKE": f"s3a://{bucket}/lake",
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": region,
        }

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def secret_key(self) -> str:
        return secret(self.folder / ".secret_key")


def program() -> Path:
    return cache() / f"versitygw-{version}"


def build(go: str) -> None:
    """Builds it aside, two packages at a time, and gives it its name when it is whole."""
    part = program().with_name(f"{program().name}.part")
    # Nobody debugs it: a tenth of the work is what a debugger would read.
    flags = ["-p", "2", "-trimpath", "-ldflags", "-s -w", "-gcflags", "all=-dwarf=false", "-mod=readonly"]
    done = subprocess.run(
        [go, "build", *flags, "-o", str(part), "github.com/versity/versitygw/cmd/versitygw"],
        cwd=module,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SluiceError(f"versitygw could not be built: {done.stderr[-1000:]}")
    part.replace(program())
