"""Mosquitto as Debian packages it: a child process on loopback, that can be killed and started again on its data."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gmqtt import Client

from infra.servers import free_port
from tests.waiting import patience_seconds

how_to_install = "apt-get install -y --no-install-recommends mosquitto"
# A client whose broker has ended may wait for ever; who publishes tries again.
answer_seconds = 20


class Mosquitto:
    """A broker that keeps its sessions in its folder, and writes them whenever they change."""

    def __init__(self, folder: Path) -> None:
        # Debian keeps it where only root's PATH leads.
        program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
        if program is None:
            raise RuntimeError(f"Mosquitto is not installed. Install it with: {how_to_install}")
        self.program = program
        self.folder = folder
        self.port, self.tls_port = free_port(), free_port()
        self.certificate = folder / "certificate.pem"
        self.url = f"mqtt://sluice:secret@127.0.0.1:{self.port}"
        self.broker: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        passwords = self.folder / "passwords"
        passwords.write_text("sluice:secret\n")
        passwords.chmod(0o600)
        tool = str(Path(self.program).with_name("mosquitto_passwd"))
        tool = tool if Path(tool).exists() else "/usr/bin/mosquitto_passwd"
        subprocess.run([tool, "-U", str(passwords)], check=True)
        name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        files = ["-keyout", str(self.folder / "key.pem"), "-out", str(self.certificate)]
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subprocess.run([*command, *name, *files], check=True, capture_output=True)
        (self.folder / "access").write_text("user sluice\ntopic readwrite plants/#\ntopic readwrite other/#\n")
        (self.folder / "mosquitto.conf").write_text(
            f"listener {self.port} 127.0.0.1\n"
            f"listener {self.tls_port} 127.0.0.1\n"
            f"certfile {self.certificate}\nkeyfile {self.folder}/key.pem\n"
            f"user {os.environ.get('USER', 'root')}\n"
            "persistence true\n"
            f"persistence_location {self.folder}/\n"
            # After each change, so that a kill loses nothing that the broker has acknowledged.
            "autosave_interval 1\nautosave_on_changes true\n"
            "max_queued_messages 0\n"
            f"password_file {passwords}\n"
            f"acl_file {self.folder}/access\n"
        )
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGKILL)

    def start(self) -> None:
        """Starts the broker, and waits until it answers."""
        with open(self.folder / "output", "ab") as output:
            self.broker = subprocess.Popen(
                [self.program, "-c", str(self.folder / "mosquitto.conf")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + patience_seconds
        while not self.answers():
            if self.broker.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Mosquitto did not start: {(self.folder / 'output').read_text()[-2000:]}")
            time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ends the broker: by SIGTERM it writes its sessions first."""
        if self.broker is not None and self.broker.poll() is None:
            self.broker.send_signal(number)
            self.broker.wait()

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def publish(self, messages: Sequence[tuple[str, bytes, Mapping[str, Any]]]) -> None:
        """Publishes messages, and returns when the broker has acknowledged all of them."""
        asyncio.run(self.published(messages))

    async def published(self, messages: Sequence[tuple[str, bytes, Mapping[str, Any]]]) -> None:
        client = Client(f"producer-{time.monotonic_ns()}")
        client.set_config({"reconnect_retries": -2})
        client.set_auth_credentials("sluice", "secret")
        try:
            async with asyncio.timeout(answer_seconds):
                await client.connect("127.0.0.1", self.port)
                for number, (name, payload, options) in enumerate(messages):
                    client.publish(name, payload, **{"qos": 1, **options})
                    # Mosquitto allows twenty under way.
                    if number % 15 == 14:
                        await client._persistent_storage.wait_empty()
                await client._persistent_storage.wait_empty()
        finally:
            with suppress(OSError):
                await client.disconnect()
