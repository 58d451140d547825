"""If the kernel runs out of something or a signal interrupts a call, the result is an error or no
difference."""

import errno
import signal
from pathlib import Path

import pytest

from .actor import Actor, Failure
from .device_queues import SALT, fill, read

COUNT = 500
LIMIT = "resource.setrlimit(resource.RLIMIT_NOFILE, (used + {}, 4096))"
USED = "used = max(map(int, os.listdir('/proc/self/fd'))) + 1"


def test_limits_of_inotify_make_a_reader_poll_and_no_less(tmp_path: Path) -> None:
    """Without inotify on either side, the reader notices new messages by polling."""
    queue = tmp_path / "queue"
    with Actor(inotify_instances=0) as writing, Actor(inotify_instances=0) as reading:
        assert reading.do("__import__('ctypes').CDLL(None).inotify_init1(0)") == -1
        writing.do("writer = open_writer(path)", path=str(queue))
        reading.do("reader = open_reader(path, 'audit')", path=str(queue))
        for first in range(0, COUNT, 100):
            reading.start("reader.wait(20) and len(reader.read_batch(1))")
            fill(writing, first, 100)
            assert reading.result("wait") == 1
            reading.do("batch = reader.read_batch(1000); reader.commit()")
        writing.do("writer.close()")
    assert read(queue) == list(range(COUNT))


@pytest.mark.parametrize("room", [0, 2, 4, 6, 8])
def test_limits_of_descriptors_are_an_error_that_changes_nothing(tmp_path: Path, room: int) -> None:
    """Opening succeeds or raises, whatever the number of free descriptors; with more of them it succeeds."""
    queue = tmp_path / "queue"
    with Actor() as actor:
        actor.do("open_writer(path, segment_size=64 << 10).close()", path=str(queue))
    with Actor() as actor:
        actor.do(f"{USED}; {LIMIT.format(room)}")
        step = "writer = open_writer(path); writer.append(payload(salt, 0)); writer.close()"
        outcome = actor.attempt(step, path=str(queue), salt=SALT)
        assert room or isinstance(outcome, Failure)
        if isinstance(outcome, Failure):
            assert "ChronicleError" in outcome.kinds, outcome
            assert outcome.errno in (errno.EMFILE, errno.ENFILE), outcome
            assert str(queue) in outcome.text, outcome
            actor.do(LIMIT.format(200))
            actor.do(step)
    assert read(queue) == [0]


def test_limits_of_descriptors_do_not_stop_an_open_writer(tmp_path: Path) -> None:
    """The writer appends and flushes until its segment is full, then raises; nothing is lost."""
    queue = tmp_path / "queue"
    with Actor() as actor:
        actor.do("writer = open_writer(path, segment_size=64 << 10)", path=str(queue))
        actor.do(f"{USED}; {LIMIT.format(0)}")
        actor.do("acknowledged = 0")
        step = f"""
for seq in range(2000):
    assert writer.append(payload({SALT}, seq)) == seq
    acknowledged += 1
"""
        outcome = actor.attempt(step)
        acknowledged = actor.do("acknowledged")
        if isinstance(outcome, Failure):
            assert "ChronicleError" in outcome.kinds, outcome
            actor.do(LIMIT.format(200))
            fill(actor, acknowledged, 100)
            acknowledged += 100
        assert actor.do("writer.flush_now()") == acknowledged
        actor.do("writer.close()")
    assert read(queue) == list(range(acknowledged))


def test_limits_of_patience_signals_interrupt_no_wait(tmp_path: Path) -> None:
    """The handler runs, and the wait continues until a message comes."""
    queue = tmp_path / "queue"
    with Actor() as writing, Actor() as reading:
        writing.do("writer = open_writer(path)", path=str(queue))
        reading.do("reader = open_reader(path, 'audit')", path=str(queue))
        handler = "seen = []; signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))"
        reading.do(handler)
        flag = tmp_path / "flag"
        reading.start(f"Path({str(flag)!r}).touch() or reader.wait(30)")
        writing.do(f"while not Path({str(flag)!r}).exists(): time.sleep(0.001)")
        for _ in range(5):
            reading.signal(signal.SIGUSR1)
            writing.do("time.sleep(0.02)")
        fill(writing, 0, 1)
        assert reading.result("wait") is True
        assert reading.do("len(seen)") >= 1


def test_limits_of_patience_signals_during_syncs_cost_nothing(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    with Actor() as actor:
        actor.do("signal.signal(signal.SIGUSR1, lambda *_: None)")
        actor.do("writer = open_writer(path, segment_size=64 << 10, flush='sync')", path=str(queue))
        step = f"for seq in range({COUNT}): assert writer.append(payload({SALT}, seq)) == seq"
        actor.start(step)
        for _ in range(200):
            actor.signal(signal.SIGUSR1)
        assert actor.result(step) is None
        actor.do("writer.close()")
    assert read(queue) == list(range(COUNT))
