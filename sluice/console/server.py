"""The web server of the console."""

import threading
import time
from functools import partial

import uvicorn

from sluice.api import Project
from sluice.console.app import Console
from sluice.console.guard import Options
from sluice.operate.listening import listening
from sluice.operate.memory import Limited, bytes_of

watch_seconds = 0.1


class Server:
    """Listens when it is made; `serve` answers until `close`."""

    def __init__(self, project: Project, options: Options) -> None:
        """A UsageError for options that cannot be used, or an address where it cannot listen."""
        options.require()
        for limit in filter(None, (options.memory, options.process_memory)):
            bytes_of(limit)
        self.options, self.console = options, Console(project, options)
        self.socket = listening(options.host, options.port, waiting_max=256)
        config = uvicorn.Config(
            self.console.application(),
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=200,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=2,
            ssl_certfile=options.certificate,
            ssl_keyfile=options.key,
        )
        config.load()
        self.server = uvicorn.Server(config)
        self.console.is_ending = lambda: self.server.should_exit

    @property
    def url(self) -> str:
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        return f"{'https' if self.options.certificate else 'http'}://{host}:{self.socket.getsockname()[1]}"

    def serve(self) -> None:
        """Answers until `close` is called, in this thread."""
        # The declarations and the tables are read while the reader's browser opens.
        threading.Thread(target=partial(warmed, self.console), daemon=True).start()
        if self.options.process_memory:
            threading.Thread(target=self.keep_within, args=(self.options.process_memory,), daemon=True).start()
        try:
            self.server.run(sockets=[self.socket])
        finally:
            self.socket.close()

    def keep_within(self, process_memory: str) -> None:
        memory = Limited(bytes_of(process_memory))
        while not self.server.should_exit:
            memory.follow()
            time.sleep(watch_seconds)

    def close(self) -> None:
        """Ends `serve`; from any thread."""
        self.server.should_exit = True


def warmed(console: Console) -> None:
    """Reads what the first page needs."""
    try:
        console.facts.tables()
        console.snapshots.at()
    except Exception:  # noqa: BLE001 - the page says what is wrong
        return
