"""One Spark session for all tests of the pipeline: starting it takes longer than most tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiochronicle.spark import session
from spark.java_options import JAVA_OPTIONS

os.environ["SPARK_SUBMIT_OPTS"] = f"{JAVA_OPTIONS} {os.environ.get('SPARK_SUBMIT_OPTS', '')}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of these tests: on a busy machine a query may take half a minute."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with the settings that users get."""
    started = session(master="local[2]")
    yield started
    started.stop()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory for queues."""
    path = tmp_path / "bus"
    path.mkdir()
    return path
