"""Queues for the tests of commands."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiochronicle import Roll, open_reader, open_writer
from cli.running import Quote, Trade


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create two queues: trades (typed, four segments, two readers) and plain."""
    path = tmp_path_factory.mktemp("root")
    with open_writer(
        path / "trades", segment_size=1 << 16, codec=[Trade, Quote], roll=Roll(messages=100)
    ) as writer:
        for number in range(350):
            if number % 5:
                writer.send(Trade(("ALFA", "BRAVO")[number % 2], 100 + number / 100, number))
            else:
                writer.send(Quote(99.0, 100.0))
    with open_reader(path / "trades", "audit") as reader:
        reader.read_batch(120)
        reader.commit()
    open_reader(path / "trades", "risk").close()
    with open_writer(path / "plain", segment_size=1 << 16) as writer:
        for number in range(20):
            writer.append(b"tick %d" % number)
        writer.append(b"\x00\xff\x1b[2J")
        writer.append("käse \x1b[31m".encode())
    return path


LIVE = """
import sys, time, aiochronicle
from aiochronicle import Retention
with (
    aiochronicle.open_writer(sys.argv[1], segment_size=1 << 16, retention=Retention()) as writer,
    aiochronicle.open_reader(sys.argv[1], "risk") as reader,
):
    print("ready", flush=True)
    while True:
        writer.append(b"x" * 50)
        time.sleep(0.001)
"""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A queue with a writer and a reader in another process; also yields that process's pid."""
    path = tmp_path / "live"
    command = [sys.executable, "-c", LIVE, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield path, process.pid
        finally:
            process.kill()
