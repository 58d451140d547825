"""Fixtures of the tests that need a disk or a program of their own."""

from collections.abc import Iterator

import pytest

from .actor import Actor
from .devices import Disk, missing


@pytest.fixture
def disk() -> Iterator[Disk]:
    """An empty ext4 file system on a disk whose blocks can be made to fail."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with Disk.make() as made:
        yield made


@pytest.fixture
def actor() -> Iterator[Actor]:
    """A program that runs the steps that the test sends."""
    with Actor() as started:
        yield started
