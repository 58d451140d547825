"""One Spark for all tests of the pipeline: starting it takes longer than most of them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiochronicle.spark import session
from spark.java_options import JAVA_OPTIONS

os.environ["SPARK_SUBMIT_OPTS"] = f"{JAVA_OPTIONS} {os.environ.get('SPARK_SUBMIT_OPTS', '')}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests more time than others: on a busy machine a query may take half a minute."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(600))


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
