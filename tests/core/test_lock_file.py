"""The writer's lock: its holder, and the removal of its file while it is held."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from asynchronous.peers import Peer
from helpers.waiting import eventually
from reference import format as fmt

import aiochronicle
from aiochronicle import open_reader
from aiochronicle.errors import InvalidArgument, LockedError, QueueGone

SIZE = 1 << 20
WITHIN_S = 20.0


def open_writer(path: Path) -> aiochronicle.Writer:
    return aiochronicle.open_writer(path, segment_size=SIZE)


def payloads(path: Path) -> list[bytes]:
    with open_reader(path) as reader:
        return [message.payload for message in reader]


def remove(lock: Path) -> None:
    lock.unlink()


def replace(lock: Path) -> None:
    copy = lock.with_name("copy")
    shutil.copy(lock, copy)
    copy.rename(lock)


def empty(lock: Path) -> None:
    lock.unlink()
    lock.touch()


LOSSES: dict[str, Callable[[Path], None]] = {"removed": remove, "replaced": replace, "empty": empty}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_second_writer_is_refused_though_the_lock_file_is_gone(
    queue_path: Path, lose: Callable[[Path], None]
) -> None:
    with Peer("writer", queue_path) as first:
        for number in range(10):
            assert first.ask(f"append {number}") == str(number)
        lose(queue_path / "writer.lock")
        for number in range(10, 30):
            with pytest.raises(LockedError, match=rf"pid {first.pid}\b") as caught:
                open_writer(queue_path)
            assert caught.value.pid == first.pid
            assert first.ask(f"append {number}") == str(number)
        assert first.finish() == 0
    with open_writer(queue_path) as successor:
        assert successor.recovery.clean
        assert successor.append(b"30") == 30
    assert payloads(queue_path) == [b"%d" % number for number in range(31)]


def test_the_refusal_says_that_the_lock_file_is_missing(queue_path: Path) -> None:
    # In this process: nothing checks for the file before the error is created.
    with aiochronicle.open_writer(queue_path, segment_size=SIZE, _inline_housekeeping=1):
        (queue_path / "writer.lock").unlink()
        with pytest.raises(LockedError, match=r"writer\.lock.*control\.meta.*this process"):
            open_writer(queue_path)
        assert not (queue_path / "writer.lock").exists()


def is_locked(lock: Path) -> bool:
    """Check without opening the queue, which would count as taking it over."""
    try:
        fd = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_flush_makes_the_lock_file_again(queue_path: Path, lose: Callable[[Path], None]) -> None:
    """That keeps out other programs again, which know no other lock."""
    lock = queue_path / "writer.lock"
    # Nothing but the flush checks the file.
    with aiochronicle.open_writer(queue_path, segment_size=SIZE, _inline_housekeeping=1) as writer:
        writer.append(b"1")
        lose(lock)
        assert not is_locked(lock)
        writer.flush_now()
        assert is_locked(lock)


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_the_writer_makes_its_lock_file_again(
    queue_path: Path, lose: Callable[[Path], None]
) -> None:
    """Without a flush, the writer checks every second."""
    lock = queue_path / "writer.lock"
    with open_writer(queue_path) as writer, lock.open() as original:
        writer.append(b"1")
        text = lock.read_text()
        lose(lock)
        # The writer may have made it again by now, so the files are compared.
        assert not lock.exists() or not os.path.samestat(os.fstat(original.fileno()), lock.stat())
        eventually(lambda: is_locked(lock), WITHIN_S)
        eventually(lambda: lock.read_text() == text, WITHIN_S)
        with pytest.raises(BlockingIOError):
            fmt.ForeignWriter(queue_path, SIZE)
        assert writer.append(b"2") == 1
        writer.flush_now()
    assert payloads(queue_path) == [b"1", b"2"]
    with open_writer(queue_path) as writer:
        assert writer.recovery.clean


@pytest.mark.parametrize("look", ["flush", "wait"])
def test_a_writer_that_lost_its_queue_to_another_program_stops(queue_path: Path, look: str) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=SIZE) as writer:
        writer.append(b"ours")
        writer.flush_now()
        (queue_path / "writer.lock").unlink()
        with fmt.ForeignWriter(queue_path, SIZE) as foreign:
            foreign.append(b"theirs", 0, 10**18)

            def is_told() -> bool:
                if look == "wait":
                    return "writer.lock" in writer.statistics().last_error
                with pytest.raises(QueueGone):
                    writer.flush_now()
                return True

            eventually(is_told, WITHIN_S)
            with pytest.raises(QueueGone, match=r"writer\.lock.*another"):
                writer.append(b"nowhere")
            foreign.append(b"theirs too", 0, 10**18)
            before = sorted(path.name for path in queue_path.glob("*.q"))
            writer.close()
            # Not even its prepared segment: by now, that file may belong to the other writer.
            assert sorted(path.name for path in queue_path.glob("*.q")) == before
    assert payloads(queue_path) == [b"ours", b"theirs", b"theirs too"]


def test_another_program_that_came_and_went_is_noticed(queue_path: Path) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=SIZE) as writer:
        writer.append(b"ours")
        writer.flush_now()
        (queue_path / "writer.lock").unlink()
        with fmt.ForeignWriter(queue_path, SIZE) as foreign:
            foreign.append(b"theirs", 0, 10**18)
        with pytest.raises(QueueGone, match="another"):
            writer.flush_now()
    assert payloads(queue_path) == [b"ours", b"theirs"]


def test_a_replaced_control_block_is_noticed(queue_path: Path) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=SIZE) as writer:
        writer.append(b"1")
        writer.flush_now()
        replace(queue_path / "control.meta")
        with pytest.raises(LockedError, match=rf"\b{os.getpid()}\b"):
            open_writer(queue_path)
        with pytest.raises(QueueGone, match=r"control\.meta was replaced"):
            writer.flush_now()
        with pytest.raises(QueueGone, match=r"control\.meta was replaced"):
            writer.append(b"2")
    with open_writer(queue_path) as writer:
        assert writer.append(b"2") == 1


def test_the_holder_is_named_with_its_command_and_date(queue_path: Path) -> None:
    with Peer("writer", queue_path) as holder:
        with pytest.raises(LockedError) as caught:
            open_writer(queue_path)
        error = caught.value
        assert error.pid == holder.pid
        assert "asynchronous.peer writer" in (error.command or "")
        assert error.since is not None
        assert re.search(rf"pid {holder.pid} \(.*asynchronous\.peer.*\) since \d{{4}}-", str(error))
        assert error.since.strftime("%Y-%m-%d %H:%M:%S") in str(error)


def test_a_successor_of_a_killed_writer_need_not_try_twice(queue_path: Path) -> None:
    """A killed process holds its locks until its last thread has left the kernel; opening waits for that."""
    for number in range(10):
        with Peer("writer", queue_path) as first:
            assert first.ask("append x") == str(2 * number)
            os.kill(first.pid, signal.SIGKILL)
            with open_writer(queue_path) as successor:
                assert successor.append(b"y") == 2 * number + 1


def test_the_locks_of_a_killed_writer_go_before_its_watches(queue_path: Path) -> None:
    """The kernel takes 10 ms or more to close inotify; a successor does not wait for that."""
    early = 0
    for _ in range(9):
        with Peer("writer", queue_path) as writer:
            fd = os.open(queue_path / "writer.lock", os.O_RDWR)
            os.kill(writer.pid, signal.SIGKILL)
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.0001)
            ended = os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            early += ended is None
            os.close(fd)
    assert early >= 5


def test_lock_timeout_bounds_the_wait(queue_path: Path) -> None:
    with Peer("writer", queue_path) as holder:
        for timeout_s in (0, 0.3):
            started = time.monotonic()
            with pytest.raises(LockedError, match=rf"pid {holder.pid}\b"):
                aiochronicle.open_writer(queue_path, lock_timeout=timeout_s)
            assert timeout_s <= time.monotonic() - started < timeout_s + 2
        ending = threading.Timer(0.3, holder.finish)
        ending.start()
        with aiochronicle.open_writer(queue_path, lock_timeout=30) as writer:
            writer.append(b"mine")
        ending.join()
    for wrong in (-1, float("nan")):
        with pytest.raises(InvalidArgument, match="lock_timeout"):
            aiochronicle.open_writer(queue_path, lock_timeout=wrong)


def test_waiting_for_the_lock_can_be_interrupted(queue_path: Path) -> None:
    program = (
        "import sys, aiochronicle\n"
        "print('waits', flush=True)\n"
        "try:\n"
        "    aiochronicle.open_writer(sys.argv[1], lock_timeout=300)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(queue_path)]
    with (
        open_writer(queue_path),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting,
    ):
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
        time.sleep(0.3)
        waiting.send_signal(signal.SIGINT)
        assert waiting.stdout.readline() == "interrupted\n"
        assert waiting.wait(10) == 0


def test_a_topic_may_wait_for_its_lock(tmp_path: Path) -> None:
    with aiochronicle.Bus(tmp_path) as bus, Peer("writer", bus.path("topic")):
        started = time.monotonic()
        with pytest.raises(LockedError):
            bus.writer("topic", lock_timeout=0.2)
        assert time.monotonic() - started >= 0.2
