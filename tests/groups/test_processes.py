"""Members in separate processes that are killed, stopped and started."""

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import inspect_group

WORKER = Path(__file__).with_name("worker.py")


class Workers:
    """Worker processes on one queue."""

    def __init__(self, queue: Path, notes: Path, handler_ms: float) -> None:
        self.notes = notes
        self._command = [sys.executable, str(WORKER), str(queue), str(notes), str(handler_ms)]
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        worker = subprocess.Popen(self._command)
        self.running.append(worker)
        return worker

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.wait()
        self.running.remove(worker)

    def lines(self, word: str) -> list[list[int]]:
        text = self.notes.read_text(encoding="utf-8") if self.notes.exists() else ""
        return [
            [int(part) for part in line.split()[1:]]
            for line in text.splitlines()
            if line.startswith(word)
        ]

    def wait_for_joined(self, count: int) -> None:
        eventually(lambda: len(self.lines("joined")) >= count, 60)


@pytest.fixture
def workers(queue_path: Path, tmp_path: Path) -> Iterator[Workers]:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 16):
        pass
    started = Workers(queue_path, tmp_path / "notes", 2)
    yield started
    for worker in list(started.running):
        worker.send_signal(signal.SIGCONT)
        started.kill(worker)


def test_killed_members_lose_nothing(
    workers: Workers, queue_path: Path, rng: random.Random
) -> None:
    messages = 300
    for _ in range(3):
        workers.start()
    workers.wait_for_joined(3)
    with aiochronicle.open_writer(queue_path, segment_size=1 << 16) as writer:
        for i in range(messages):
            writer.append(b"%d" % i)
            time.sleep(0.001)
            if i % 60 == 30:
                workers.kill(rng.choice(workers.running))
                workers.start()
        eventually(lambda: inspect_group(queue_path, "workers").pending == 0, 60)
    done = [seq for seq, _ in workers.lines("done")]
    assert set(done) == set(range(messages))
    # Only messages noted but not yet acknowledged at a kill appear twice.
    assert len(done) - messages <= 5
    assert len({pid for _, pid in workers.lines("done")}) > 1


def test_a_killed_member_frees_its_claims_at_once(workers: Workers, queue_path: Path) -> None:
    slow = Workers(queue_path, workers.notes, 60_000)
    victim = slow.start()
    slow.wait_for_joined(1)
    with aiochronicle.open_writer(queue_path, segment_size=1 << 16) as writer:
        writer.append(b"precious")
        eventually(lambda: len(slow.lines("got")) == 1)
        workers.start()
        workers.wait_for_joined(2)
        time.sleep(0.05)
        assert not workers.lines("done")
        killed = time.monotonic()
        slow.kill(victim)
        eventually(lambda: len(workers.lines("done")) == 1)
        assert time.monotonic() - killed < 5  # the lease is 60 s
    assert inspect_group(queue_path, "workers").pending == 0


def test_a_stopped_member_does_not_keep_a_new_message_to_itself(
    workers: Workers, queue_path: Path
) -> None:
    """A stopped member cannot react to its wake-up, so another member takes the message."""
    stopped = workers.start()
    workers.wait_for_joined(1)
    workers.start()
    workers.wait_for_joined(2)
    stopped.send_signal(signal.SIGSTOP)
    with aiochronicle.open_writer(queue_path, segment_size=1 << 16) as writer:
        for i in range(5):
            writer.append(b"")
            eventually(lambda done=i + 1: len(workers.lines("done")) >= done, 10)  # type: ignore[misc]


def test_a_member_with_another_clock_is_refused(queue: Path) -> None:
    """The member runs in a time namespace whose monotonic clock is three years ahead of ours."""
    program = f"""
import aiochronicle
from aiochronicle import errors
try:
    aiochronicle.open_group({str(queue)!r}, "w")
except errors.GroupInUse as error:
    assert "another clock" in str(error), error
else:
    raise SystemExit("joined")
"""
    ahead = ["unshare", "--time", "--monotonic", "100000000", "--fork", sys.executable, "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*ahead, "pass"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs root and time namespaces")
    with aiochronicle.open_group(queue, "w") as group:
        delivery = group.poll()
        assert delivery is not None
        done = subprocess.run([*ahead, program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        delivery.ack()
