"""RabbitMQ as Debian packages it: a child process on loopback, that can be killed and started again."""

import logging
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pika
from pika.exceptions import AMQPError

from infra.servers import free_port
from tests.waiting import patience_seconds

# Debian's command in the PATH changes the user and the folder; the script itself does not.
script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
how_to_install = "apt-get install -y --no-install-recommends rabbitmq-server"
# A broker that is not there yet is nothing to write home about.
logging.getLogger("pika").setLevel(logging.CRITICAL)


class RabbitMQ:
    """A broker with its node, data, ports and port mapper (epmd) to itself."""

    def __init__(self, folder: Path) -> None:
        epmd = shutil.which("epmd")
        if not script.exists() or epmd is None:
            raise RuntimeError(f"RabbitMQ is not installed. Install it with: {how_to_install}")
        self.folder = folder
        self.port, self.distribution_port, self.epmd_port = (free_port() for _ in range(3))
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"
        self.epmd_command = [epmd, "-address", "127.0.0.1", "-port", str(self.epmd_port)]
        self.epmd: subprocess.Popen[bytes] | None = None
        self.broker: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "rabbitmq.conf").write_text("disk_free_limit.absolute = 10MB\nlog.console = false\n")
        (self.folder / "plugins").write_text("[].\n")
        # Started here in the foreground: a broker would leave one behind as a daemon.
        self.epmd = subprocess.Popen(self.epmd_command, stdin=subprocess.DEVNULL)
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def start(self) -> None:
        """Starts the broker, and waits until it answers."""
        with open(self.folder / "output", "ab") as output:
            self.broker = subprocess.Popen(
                [script],
                env=self.environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + patience_seconds
        while not self.answers():
            if self.broker.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"RabbitMQ did not start: {(self.folder / 'output').read_text()[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Ends the broker as a power failure does."""
        if self.broker is not None and self.broker.poll() is None:
            os.killpg(self.broker.pid, signal.SIGKILL)
            self.broker.wait()

    def end(self) -> None:
        self.kill()
        if self.epmd is not None:
            self.epmd.kill()
            self.epmd.wait()

    def answers(self) -> bool:
        try:
            self.connection().close()
        except (AMQPError, OSError):
            return False
        return True

    def connection(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.URLParameters(self.url))

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),  # where Erlang keeps its cookie
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": f"sluice{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            # The script becomes the broker, so that a signal to the child reaches it.
            "RABBITMQ_ALLOW_INPUT": "true",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-noinput +S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}"
            ),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
