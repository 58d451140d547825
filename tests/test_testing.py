"""The test helpers for users work as documented."""

import asyncio
import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import aiochronicle
from aiochronicle import Bus, errors
from aiochronicle.testing import (
    ManualClock,
    aeventually,
    copy_killed,
    copy_powered_off,
    eventually,
    fault_plan,
    files_in_use,
    kill_writer,
    run_virtual,
    start_victim,
)


def payloads(queue: Path) -> list[bytes]:
    with aiochronicle.open_reader(queue) as reader:
        return [message.payload for message in reader]


def test_a_killed_writer_leaves_what_it_appended(queue_path: Path) -> None:
    kill_writer(queue_path, [b"one", b"two"], unfinished=b"three")
    kill_writer(queue_path, [b"three"])
    assert payloads(queue_path) == [b"one", b"two", b"three"]
    with aiochronicle.open_writer(queue_path) as writer:
        assert writer.next_seq == 3
    with (
        aiochronicle.open_writer(queue_path),
        pytest.raises(RuntimeError, match="LockedError"),
    ):
        kill_writer(queue_path, [b"never"])


def test_a_victim_is_waited_for_stopped_and_killed(queue_path: Path) -> None:
    program = """
import sys, aiochronicle
with aiochronicle.open_writer(sys.argv[1]) as writer:
    print("open", flush=True)
    while True:
        writer.append(b"")
"""
    with start_victim(program, queue_path) as victim:
        assert victim.read_line() == "open"
        with pytest.raises(errors.LockedError):
            aiochronicle.open_writer(queue_path)
        victim.stop()
        stat = Path(f"/proc/{victim.pid}/stat")
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        victim.go_on()
        victim.kill()
        assert not victim.is_alive
        aiochronicle.open_writer(queue_path).close()
    with start_victim("import sys; sys.exit(3)") as victim:
        assert victim.read_line() == ""


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_images_of_a_crash(tmp_path: Path, queue_path: Path, flush: str) -> None:
    with aiochronicle.open_writer(
        queue_path,
        segment_size=1 << 16,
        flush=flush,  # type: ignore[arg-type]
    ) as writer:
        for i in range(1000):
            writer.append(b"%d" % i + bytes(100))
        writer.flush_now()
        for i in range(1000, 2000):
            writer.append(b"%d" % i + bytes(100))
        copy_killed(queue_path, tmp_path / "killed")
        copy_powered_off(queue_path, tmp_path / "off")
        queue_id = writer.statistics().queue_id
    kept = {"async": 1000, "sync": 2000}[flush]
    for image, count in (("killed", 2000), ("off", kept)):
        with aiochronicle.open_writer(tmp_path / image) as writer:
            if image == "killed" or flush == "sync":
                assert writer.next_seq == count
            else:  # a segment may have been synced after the roll
                assert 1000 <= writer.next_seq < 2000
            assert writer.statistics().queue_id == queue_id
            expected = [b"%d" % i + bytes(100) for i in range(writer.next_seq)]
        assert payloads(tmp_path / image) == expected


def test_a_fault_plan_fails_the_calls_it_names(queue_path: Path) -> None:
    writer = aiochronicle.open_writer(queue_path)
    writer.append(b"x")
    with fault_plan("sync_map", errno.EIO, times=1) as plan:
        with pytest.raises(errors.StorageError):
            writer.flush_now()
        assert plan.seen >= 1
    with pytest.raises(errors.WriterPoisoned):
        writer.append(b"y")
    with pytest.raises(errors.WriterPoisoned):
        writer.close()
    with aiochronicle.open_writer(queue_path) as writer:
        assert writer.append(b"y") == 1
    with pytest.raises(errors.InvalidArgument), fault_plan("no such call", errno.EIO):
        pass
    with pytest.raises(errors.InvalidArgument), fault_plan("sync", errno.EIO, first=0):
        pass


def test_a_clock_that_goes_when_it_is_moved(queue_path: Path) -> None:
    clock = ManualClock(5_000_000_000)
    with aiochronicle.open_writer(queue_path, clock=clock) as writer:
        for step in (0, 1.5, -3, 10):
            clock.advance(step)
            writer.append(b"")
        clock.set(20_000_000_000)
        writer.append(b"")
    with aiochronicle.open_reader(queue_path) as reader:
        seconds = [message.timestamp_ns / 1e9 for message in reader]
    assert seconds == [5.0, 6.5, 6.5, 13.5, 20.0]


def test_waiting_has_a_limit() -> None:
    with pytest.raises(AssertionError, match="did not happen"):
        eventually(lambda: False, 0.01)
    with pytest.raises(AssertionError, match="did not happen"):
        asyncio.run(aeventually(lambda: False, 0.01))
    done: list[int] = []

    async def main() -> None:
        asyncio.get_running_loop().call_later(3, done.append, 1)
        await aeventually(lambda: bool(done), 5)

    run_virtual(main())
    assert done


def test_files_in_use(queue: Path, tmp_path: Path) -> None:
    assert not files_in_use(tmp_path)
    with aiochronicle.open_reader(queue) as reader:
        assert reader.poll()
        assert files_in_use(tmp_path)
    assert not files_in_use(tmp_path)


def test_the_bus_is_temporary(bus: Bus, clock: ManualClock, tmp_path: Path) -> None:
    bus.append("orders", b"buy", timestamp_ns=clock())
    assert Path(bus.root).is_relative_to(tmp_path)
    (message,) = bus.reader("orders", "risk").read_batch()
    assert message.timestamp_ns == clock()


def test_the_fixtures_work_in_a_project_of_a_user(tmp_path: Path) -> None:
    """With the leak check, a test that leaves an object open fails."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["aiochronicle.testing.fixtures"]\n')
    (tmp_path / "test_service.py").write_text(
        """
import aiochronicle, pytest

def test_good(bus, clock, queue_path, nothing_left_open):
    bus.append("orders", b"buy")
    assert not queue_path.exists()

LEFT = []

def test_bad(queue_path, nothing_left_open):
    LEFT.append(aiochronicle.open_writer(queue_path))
"""
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 passed, 1 error" in done.stdout
    assert "leaves files behind" in done.stdout
    assert done.returncode != -signal.SIGSEGV
