"""What a session gives its Java and its workers before they start."""

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
            # The first round has to get them from somewhere.
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
        """Tells in its schema where it was planned."""

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
    # As Spark starts it.
    done = subprocess.run(
        [sys.executable, "-c", code, "pyspark.sql.worker.create_data_source"],
        env={**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.parametrize("long", [False, True])
def test_a_session_that_nobody_stops_leaves_no_sockets(long: bool) -> None:
    code = (
        "import os; from aiochronicle.spark import session; spark = session(master='local[1]');"
        "print(spark.range(10).rdd.map(lambda row: row.id).sum(), os.listdir(os.environ['TMPDIR']))"
    )
    with TemporaryDirectory() as name:
        place = Path(name, "x" * 80 if long else "")  # too long for a socket in it
        place.mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "TMPDIR": str(place)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith("45 []" if long else "45 ['aiochronicle-")
        assert list(place.iterdir()) == []


def test_a_session_has_our_options_for_java_and_then_those_of_its_user() -> None:
    code = (
        "from aiochronicle.spark import session;"
        "spark = session(config={'spark.driver.extraJavaOptions': '-XX:InlineSmallCode=3000'});"
        "beans = spark._jvm.java.lang.management.ManagementFactory;"
        "options = beans.getRuntimeMXBean().getInputArguments();"
        "print(*(text for text in options if 'InlineSmallCode' in text)); spark.stop()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "-XX:InlineSmallCode=5000 -XX:InlineSmallCode=3000\n"
