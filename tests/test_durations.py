"""The order of the tests, and who is given which."""

from itertools import groupby

import pytest

from tests import durations


def test_what_comes_after_the_turning_point_needs_no_session(request: pytest.FixtureRequest) -> None:
    """So a worker that has none is given all that it can do, and then ends."""
    parts = [list(items) for _, items in groupby(request.session.items, lambda item: durations.file_of(item.nodeid))]
    last = durations.turning_point([durations.file_of(items[0].nodeid) for items in parts])
    assert not [item.nodeid for items in parts[last + 1 :] for item in items if durations.has_session(item)]


@pytest.mark.parametrize(
    ("seconds", "last"),
    [([9, 3, 1, 5], 2), ([9, 3, 3, 4], 2), ([1, 2, 3], 0), ([3, 2, 1], 2), ([3], 0)],
)
def test_files_get_shorter_up_to_the_turning_point(
    seconds: list[float], last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {str(number): each for number, each in enumerate(seconds)}
    monkeypatch.setattr(durations, "read", lambda: known)
    assert durations.turning_point(list(known)) == last
