"""One Spark for all tests of the pipeline: starting it takes longer than most of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiochronicle.spark import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session as users get it."""
    started = session(master="local[2]")
    yield started
    started.stop()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory for queues."""
    path = tmp_path / "bus"
    path.mkdir()
    return path
