"""The settings that a session passes to Java and the workers before they start."""

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from aiochronicle.spark.arrow import Batch, pa
from aiochronicle.spark.runtime.interpreter import DAEMON
from aiochronicle.spark.runtime.session import _place_for_sockets

ROUNDS = 50
ARRAYS, ARRAY_BYTES = 8, 512 << 10


def test_tasks_keep_their_memory_and_have_what_they_need(spark: SparkSession) -> None:
    def make_and_drop_arrays(batches: Iterator[Batch]) -> Iterator[Batch]:
        for _ in batches:
            faults: list[int] = []
            for _ in range(1 + ROUNDS):
                held = [np.ones(ARRAY_BYTES, np.uint8) for _ in range(ARRAYS)]
                del held
                faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
            # The first round has to fault its pages in.
            again = faults[-1] - faults[0]
            yield pa.record_batch({"faults": [again], "is_loaded": ["pandas" in sys.modules]})

    columns = "faults long, is_loaded boolean"
    (row,) = spark.range(1).mapInArrow(make_and_drop_arrays, columns).collect()
    assert row.is_loaded
    pages = ROUNDS * ARRAYS * ARRAY_BYTES // resource.getpagesize()
    assert row.faults < pages // 10


def test_planning_starts_with_what_it_needs_and_the_collector_is_spared_that(
    spark: SparkSession,
) -> None:
    class Planned(DataSource):
        """A source whose schema says in which process it was planned."""

        @classmethod
        def name(cls) -> str:
            return "planned"

        def schema(self) -> str:
            spec = sys.modules["__main__"].__spec__
            assert spec is not None
            spared = "spared" if gc.get_freeze_count() > len(gc.get_objects()) else "looked at"
            return f"`{spec.name}, {spared}` long"

    spark.dataSource.register(Planned)
    assert spark.read.format("planned").load().columns == [f"{DAEMON}, spared"]


def test_workers_are_not_spoken_to_by_tcp(spark: SparkSession) -> None:
    def how(batches: Iterator[Batch]) -> Iterator[Batch]:
        for _ in batches:
            yield pa.record_batch({"local": [os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED")]})

    assert spark.range(1).mapInArrow(how, "local string").collect() == [("True",)]


def test_a_worker_whose_spark_is_gone_ends_in_silence() -> None:
    code = (
        "import socket; from aiochronicle.spark.runtime import daemon; ours, sparks = socket.socketpair();"
        "sparks.close(); print(daemon.quiet_worker(ours, True))"
    )
    # Started the way Spark starts it.
    done = subprocess.run(
        [sys.executable, "-c", code, "pyspark.sql.worker.create_data_source"],
        env={**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


SESSION = """
import os
from aiochronicle.spark import session
options = {"spark.driver.extraJavaOptions": "-XX:InlineSmallCode=3000"}
spark = session(master="local[1]", config=options, ui=True)
print(spark.range(10).rdd.map(lambda row: row.id).sum(), os.listdir(os.environ["TMPDIR"]))
beans = spark._jvm.java.lang.management.ManagementFactory
given = beans.getRuntimeMXBean().getInputArguments()
print(*(text for text in given if "InlineSmallCode" in text))
print(spark.sparkContext.uiWebUrl)
"""


def test_a_session_that_nobody_stops_leaves_no_sockets_and_has_what_it_was_asked_for() -> None:
    with TemporaryDirectory() as name:
        done = subprocess.run(
            [sys.executable, "-c", SESSION],
            env={**os.environ, "TMPDIR": name},
            capture_output=True,
            text=True,
            check=True,
        )
        worked, java, page = done.stdout.splitlines()
        assert worked.startswith("45 ['aiochronicle-")
        assert java == "-XX:InlineSmallCode=5000 -XX:InlineSmallCode=3000", "ours, then the user's"
        assert page.startswith("http://127.0.0.1:")
        assert list(Path(name).iterdir()) == []


def test_spark_chooses_where_sockets_are_if_our_path_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / ("x" * 80)
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    assert _place_for_sockets() is None
    assert list(place.iterdir()) == []
