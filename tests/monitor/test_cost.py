"""The cost of monitoring: CPU time with many queues, and instructions for a writer."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import instructions
from monitor.processes import program, until
from monitor.serving import ask, monitor, stream

QUEUES = 200
READERS = 5  # per queue
CPU_MAX = 0.05
INTERVALS = 3  # 5 s each
SCRAPE_S = 15  # as in Prometheus's example configuration

MANY = """
import select, sys, aiochronicle
root, queues, readers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
writers, opened = [], []
for number in range(queues):
    path = f"{root}/q{number:03}"
    writers.append(aiochronicle.open_writer(path, segment_size=1 << 16))
    opened += [aiochronicle.open_reader(path, f"r{one}") for one in range(readers)]
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.5)[0]:
    for writer in writers:
        writer.append(b"x" * 50)
    for reader in opened[:: readers]:
        reader.read_batch(10)
        reader.commit()
"""


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process and its children have used."""
    total = 0.0
    for one in [pid, *_children(pid)]:
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def test_200_queues_with_1000_readers_cost_less_than_a_twentieth_of_a_core(tmp_path: Path) -> None:
    shares: list[float] = []
    with (
        program(MANY, tmp_path, QUEUES, READERS),
        monitor(tmp_path) as url,
    ):
        (pid,) = [one for one in _children(os.getpid()) if b"monitor" in _command(one)]
        frames = stream(url)  # a viewer of the page
        until(
            lambda: ask(url, "/metrics").text.count("reader_lag_messages{") == 1000, "not all", 60
        )
        for _ in range(INTERVALS):
            before_s, began_s = cpu_s(pid), time.monotonic()
            while time.monotonic() - began_s < 5:
                next(frames)
            share = (cpu_s(pid) - before_s) / (time.monotonic() - began_s)
            before_s = cpu_s(pid)
            ask(url, "/metrics")
            shares.append(share + (cpu_s(pid) - before_s) / SCRAPE_S)
        frames.close()
    print(f"cores: {shares}")
    assert statistics.median(shares) < CPU_MAX, shares


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


PACED = """
import gc, sys, time
from benchmarks.instructions import Counter
from aiochronicle import open_writer
payload = bytes(100)
with open_writer(sys.argv[1]) as writer:
    counter = Counter()
    gc.disable()
    append = writer.append
    least = int(sys.argv[2])
    until_s = time.monotonic() + 120
    while writer.statistics().wakeups < least and time.monotonic() < until_s:
        append(payload)  # until the monitor has found it, and its probe sleeps
        time.sleep(0.002)
    for _ in range(1500):
        append(payload)
    for number in range(20):  # the probe comes now and then
        before = writer.statistics().wakeups
        with counter.counted(f"append-{number}"):
            for _ in range(2500):
                append(payload)
                time.sleep(0.001)
        woken = writer.statistics().wakeups - before
        if woken >= least:
            break
    print(number, woken)
"""


def count(directory: Path, library: Path, wakeups: int) -> tuple[int, int]:
    """Return the instructions of 2,500 appends over some seconds, and how many readers they woke.

    Counting repeats until that many readers were woken.
    """
    dumps = directory / "dumps"
    dumps.mkdir(parents=True)
    valgrind = ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no"]
    valgrind += ["--collect-atstart=no", f"--callgrind-out-file={dumps}/out"]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "LD_PRELOAD": str(library)}
    done = subprocess.run(
        [*valgrind, sys.executable, "-c", PACED, str(directory / "queue"), str(wakeups)],
        env=environment,
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = dict(filter(None, (instructions.read_dump(dump) for dump in dumps.iterdir())))
    number, woken = done.stdout.split()
    return found[f"append-{number}"], int(woken)


def test_a_monitored_writer_takes_as_many_instructions(tmp_path: Path) -> None:
    """A monitored writer pays only for the probe's wake-ups, which are bounded."""
    if reason := instructions.explain_missing():
        pytest.skip(f"instructions cannot be counted: {reason}")
    library = tmp_path / "instructions.so"
    instructions.build(library)
    alone, _ = count(tmp_path / "alone", library, 0)
    root = tmp_path / "root"
    root.mkdir()
    with monitor(root):
        watched, wakeups = count(root / "watched", library, 1)
    print(f"{alone:,} and {watched:,} instructions, {wakeups} wake-ups")
    assert watched < alone * 1.02
    assert wakeups > 0, "nobody watched"
