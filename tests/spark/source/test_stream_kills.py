"""A queue-to-queue stream neither loses nor duplicates messages when its driver is killed repeatedly."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from helpers.waiting import eventually
from pyspark.sql import SparkSession

import aiochronicle
from spark.filling import fill
from spark.source.stream_copy import start_copying

COPY = Path(__file__).parent / "stream_copy.py"
DOORS = ("format", "scan")  # both give the same rows and share the checkpoint
KILLS = int(os.environ.get("AIOCHRONICLE_SPARK_KILLS", "2"))
ROWS = 1500


def content(path: Path) -> list[tuple[int, int, bytes]]:
    with aiochronicle.open_reader(path) as reader:
        return [(m.timestamp_ns, m.type_id, m.payload) for m in reader]


def count(path: Path) -> int:
    return aiochronicle.inspect(path).next_seq if (path / "control.meta").exists() else 0


class Driver:
    """A driver process and its JVM in a separate process group."""

    def __init__(self, root: Path, door: str) -> None:
        self.log = (root / "driver.log").open("ab")
        arguments = [root / "bus", root / "copy", root / "checkpoint", door]
        self.process = subprocess.Popen(
            [sys.executable, str(COPY), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=self.log,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"started\n", (root / "driver.log").read_text()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


def grow(bus: Path, number: int) -> None:
    """Append messages while a driver runs, and create a new queue."""
    fill(bus / "a", ROWS // 2, first=ROWS + number * (ROWS // 2), types=(1, 2))
    fill(bus / f"q{number}", 500, ready=True)


def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, rng: random.Random
) -> None:
    bus, copy = tmp_path / "bus", tmp_path / "copy"
    bus.mkdir()
    fill(bus / "a", ROWS, types=(1, 2))
    for kill in range(KILLS):
        driver = Driver(tmp_path, DOORS[kill % 2])
        try:
            grow(bus, kill)
            wanted = rng.randrange(1, ROWS)
            reached = min(count(copy / "a") + wanted, count(bus / "a"))
            eventually(lambda: count(copy / "a") >= reached, timeout_s=100)  # noqa: B023
        finally:
            driver.kill()
    query = start_copying(
        spark, str(bus), str(copy), str(tmp_path / "checkpoint"), DOORS[KILLS % 2]
    )
    try:
        grow(bus, KILLS)
        eventually(
            lambda: all(count(copy / q.name) >= count(q) for q in bus.iterdir()), timeout_s=100
        )
    finally:
        query.stop()
    for path in bus.iterdir():
        assert content(copy / path.name) == content(path), path.name
