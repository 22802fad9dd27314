"""What a test needs decides the tier that runs it: by its marks, or by the fixtures that it asks for."""

import sys
from typing import Any

import pytest

marks = ("spark", "servers", "browser", "install", "process")
fixtures = {
    "spark": {"spark", "drivers"},
    "servers": {"server", "unguarded", "kafka", "postgres", "rabbitmq", "mosquitto"},
    "process": {"served", "signed", "driver", "site"},
}
# The unit test that runs now.
unit: list[str] = []


def mark(item: pytest.Item) -> None:
    """Marks a test by the fixtures that it asks for, itself or through others."""
    asked = set(getattr(item, "fixturenames", ()))
    for name, givers in fixtures.items():
        if asked & givers:
            item.add_marker(name)


def is_unit(item: pytest.Item) -> bool:
    """Whether it is a pure test, which needs nothing beside Python."""
    return not any(item.get_closest_marker(name) for name in marks)


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: a unit test that starts a process fails, so that no JVM hides in the fast tier."""
    if unit and event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
        raise AssertionError(f"{unit[0]} starts {arguments[1]}: mark it with what it needs ({', '.join(marks)}).")


sys.addaudithook(watch)
