"""Requests to the process that owns the lake, and what stays of them."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import GenericError

from sluice.errors import SparkEnded
from sluice.operate.requests import Request, answer_name, answered, ask, attend, waiting
from sluice.storage.files import Files, local_errors


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(str(tmp_path))


def done(request: Request) -> dict[str, Any]:
    return {}


def test_requests_are_served_once_the_oldest_first(files: Files) -> None:
    served: list[tuple[str, ...]] = []

    def perform(request: Request) -> dict[str, Any]:
        served.append(request.datasets)
        return {}

    for name in ("silver.a", "silver.b"):
        ask(files, Request(do="check", datasets=(name,)))
    assert attend(files, perform) == 2
    assert attend(files, perform) == 0
    assert served == [("silver.a",), ("silver.b",)]


def test_a_request_in_which_spark_ends_is_left_to_the_next_run(files: Files) -> None:
    def ends(request: Request) -> dict[str, Any]:
        raise SparkEnded("its JVM ended")

    name = ask(files, Request(do="maintain"))
    with pytest.raises(SparkEnded):
        attend(files, ends)
    assert waiting(files) == [name]
    # It may be what ends Spark, and a third run is not to end of it.
    with pytest.raises(SparkEnded):
        attend(files, ends)
    assert waiting(files) == []
    assert [each and each.error for each in answered(files, name)] == ["its JVM ended"]
    assert files.below("_requests") == []


@pytest.mark.parametrize(("hours", "is_left"), [(25, False), (23, True)])
def test_the_answer_that_a_killed_command_did_not_read_goes_after_a_day(
    files: Files, hours: int, *, is_left: bool
) -> None:
    name = ask(files, Request(do="check"))
    attend(files, done)
    answered = time.time() - hours * 3600
    os.utime(f"{files.root}/{answer_name(name)}", (answered, answered))
    assert waiting(files) == []
    assert files.below("_requests") == ([answer_name(name), name] if is_left else [])


def test_a_request_that_waited_for_days_is_served_and_its_answer_stays_for_who_asked(files: Files) -> None:
    name = ask(files, Request(do="check"))
    asked = time.time() - 100 * 3600
    os.utime(f"{files.root}/{name}", (asked, asked))
    assert attend(files, done) == 1
    assert waiting(files) == []
    assert answer_name(name) in files.below("_requests")


def test_a_local_disk_that_is_full_is_an_os_error_with_the_file() -> None:
    said = "Generic LocalFileSystem error: Unable to copy data to file: No space left on device (os error 28)\n\nDebug"
    with pytest.raises(OSError, match="No space left") as found, local_errors("/lake/_replays/a.json"):
        raise GenericError(said)
    assert (found.value.errno, found.value.filename) == (errno.ENOSPC, "/lake/_replays/a.json")
    with pytest.raises(GenericError), local_errors("s3://lake/a.json"):
        raise GenericError("Generic S3 error: (os error 28)")
