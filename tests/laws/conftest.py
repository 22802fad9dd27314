"""Worlds are drawn from a seed."""

import os

import pytest


@pytest.fixture
def seed() -> int:
    """The seed of a world; LAW_SEED gives another."""
    return int(os.environ.get("LAW_SEED", "1"))
