"""Fixtures for pytest: ``pytest_plugins = ["aiochronicle.testing.fixtures"]`` in a conftest.py."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiochronicle._services.bus import Bus
from aiochronicle.testing.clock import ManualClock
from aiochronicle.testing.open_files import files_in_use

__all__ = ["bus", "clock", "nothing_left_open", "queue_path"]

_START_NS = 1_700_000_000_000_000_000


@pytest.fixture
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bus]:
    """A Bus in its own directory, closed after the test."""
    if "nothing_left_open" in request.fixturenames:
        request.getfixturevalue("nothing_left_open")  # first, so that it looks when this is closed
    with Bus(tmp_path / "bus") as opened:
        yield opened


@pytest.fixture
def queue_path(tmp_path: Path) -> Path:
    """A path where a queue can be created."""
    return tmp_path / "queue"


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still at a time in 2023 until the test moves it."""
    return ManualClock(_START_NS)


@pytest.fixture
def nothing_left_open(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Fail a test that ends with more files of a queue open or mapped than it began with."""
    root = tmp_path_factory.getbasetemp()
    before = files_in_use(root)
    yield
    left = files_in_use(root) - before
    if left:
        gc.collect()  # a traceback or a cycle may hold a message a little longer
        left = files_in_use(root) - before
    assert not left, f"{request.node.name} leaves files behind: {dict(left)}"
