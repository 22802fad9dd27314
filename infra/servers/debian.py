"""Debian's packages: installed where we may, and named where we may not; none of their services is left running."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.errors import SluiceError

cluster_settings = Path("/etc/postgresql-common/createcluster.d/sluice.conf")
start_policy = Path("/usr/sbin/policy-rc.d")


def install(*packages: str) -> None:
    """Installs those that are missing; without root or Debian, a SluiceError with the command to run."""
    missing = [package for package in packages if not is_installed(package)]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SluiceError(
            f"{', '.join(missing)} must be installed. On Debian or Ubuntu: "
            f"sudo apt-get install --no-install-recommends {' '.join(missing)}. Elsewhere: put them on the PATH."
        )
    with without_services():
        run("apt-get", "update", "--quiet")
        run("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing)


def is_installed(package: str) -> bool:
    """Whether the package, or its program from elsewhere, is installed."""
    program = {"postgresql": "postgres"}.get(package, package)
    debian_keeps = Path("/usr/lib/postgresql").glob(f"*/bin/{program}")
    # Debian keeps some servers where only root's PATH leads.
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
    return shutil.which(program, path=path) is not None or any(debian_keeps)


@contextmanager
def without_services() -> Iterator[None]:
    """Keeps Debian from making a cluster and from starting services: ours have separate data and ports."""
    cluster_settings.parent.mkdir(parents=True, exist_ok=True)
    cluster_settings.write_text("create_main_cluster = false\n")
    had_policy = start_policy.exists()
    if not had_policy:
        start_policy.write_text("#!/bin/sh\nexit 101\n")
        start_policy.chmod(0o755)
    try:
        yield
    finally:
        if not had_policy:
            start_policy.unlink()


def run(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SluiceError(f"{' '.join(command)} failed: {done.stderr[-1000:]}")
