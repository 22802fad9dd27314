"""Holds the open files of a JVM for some minutes, and hands them to the process that asks: a program of its own.

    python -I -S keeper.py SOCKET SECONDS SCRATCH ALIVE INPUT …

A JVM ends with its standard input, so it lives as long as some process has INPUT open: this one, or the one that asks
at SOCKET. ALIVE can be read once the JVM has ended. The folder SCRATCH is the JVM's, and is removed with it. What the
taker is given beside the files comes from the standard input. The program exits with 0 when it holds the files, and
goes on in the background; with 1 where the files of another JVM are held there already.
"""

import fcntl
import os
import select
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path


def main(path: str, seconds: float, scratch: str, files: list[int]) -> int:
    record = sys.stdin.buffer.read()
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 1
    with suppress(FileNotFoundError):
        # A keeper that was killed left it.
        Path(path).unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(1)
        if os.fork():
            return 0
        os.setsid()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            keep(server, seconds, scratch, record, files)
        finally:
            # The lock last: until then, nobody else puts a socket there.
            Path(path).unlink(missing_ok=True)
            Path(f"{path}.lock").unlink()
    return 0


def keep(server: socket.socket, seconds: float, scratch: str, record: bytes, files: list[int]) -> None:
    """Holds the files until they are asked for, or the JVM has ended; it is ended when its time is over."""
    asking, alive = server.fileno(), files[0]
    ready, _, _ = select.select([asking, alive], [], [], seconds)
    Path(server.getsockname()).unlink()
    if asking in ready and alive not in ready and hand_over(server, record, files):
        return
    for each in files[1:]:
        os.close(each)
    select.select([alive], [], [])
    shutil.rmtree(scratch, ignore_errors=True)


def hand_over(server: socket.socket, record: bytes, files: list[int]) -> bool:
    """Gives the files to the process that asks; False when it has gone."""
    try:
        with server.accept()[0] as taker:
            socket.send_fds(taker, [record], files)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1], float(sys.argv[2]), sys.argv[3], [int(each) for each in sys.argv[4:]]))
