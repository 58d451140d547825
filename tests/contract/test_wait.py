"""Blocking until there is a message to read, across threads and processes."""

import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from helpers.waiting import eventually

from aiochronicle import Reader, SpinThenPark
from aiochronicle.errors import ClosedError, InvalidArgument
from contract.backend import Backend


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Call the function in a thread. The returned list receives its result or exception."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:  # noqa: BLE001
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def asleep(reader: Reader) -> Callable[[], bool]:
    return lambda: reader.statistics().waits > 0


def test_wait_times_out(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 0)
    with backend.open_reader(queue_path) as reader:
        started = time.monotonic()
        assert reader.wait(0.05) is False
        assert 0.05 <= time.monotonic() - started < 5
        assert reader.wait(0) is False
        with pytest.raises(InvalidArgument):
            reader.wait(-1)


def test_waiting_commits_what_was_dealt_with(backend: Backend, queue_path: Path) -> None:
    """A writer may be waiting for that commit to get room for its next message."""
    backend.fill(queue_path, 3)
    with backend.open_reader(queue_path, "auto", commit="auto") as reader:
        first = reader.committed
        assert len(reader.read_batch()) == 3
        assert reader.wait(0) is False
        assert reader.committed == first, "that was only a look"
        assert reader.wait(0.001) is False
        assert reader.committed == reader.position


def test_wait_returns_at_once_when_there_is_something(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 1)
    with backend.open_reader(queue_path) as reader:
        assert reader.wait() is True
        assert reader.wait(0) is True
        assert reader.poll() is not None
        assert reader.wait(0) is False


@pytest.mark.parametrize("strategy", ["park", SpinThenPark(50.0)], ids=str)
def test_append_wakes_a_sleeping_thread(
    backend: Backend, queue_path: Path, strategy: object
) -> None:
    with (
        backend.open_writer(queue_path) as writer,
        backend.open_reader(queue_path, wait=strategy) as reader,
    ):
        thread, outcome = in_thread(lambda: reader.wait(60))
        eventually(asleep(reader))
        assert outcome == []
        writer.append(b"x")
        thread.join(30)
        assert outcome == [True]


def test_spinning_reader_sees_an_append(backend: Backend, queue_path: Path) -> None:
    with (
        backend.open_writer(queue_path) as writer,
        backend.open_reader(queue_path, wait="spin") as reader,
    ):
        thread, outcome = in_thread(lambda: reader.wait(60))
        writer.append(b"x")
        thread.join(30)
        assert outcome == [True]


def test_one_append_wakes_all_sleepers(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        readers = [backend.open_reader(queue_path, f"r{number}") for number in range(5)]
        sleepers = [in_thread(partial(reader.wait, 60)) for reader in readers]
        for reader in readers:
            eventually(asleep(reader))
        writer.append(b"x")
        for (thread, outcome), reader in zip(sleepers, readers, strict=True):
            thread.join(30)
            assert outcome == [True]
            reader.close()


def test_closing_a_reader_ends_its_wait(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 0)
    reader = backend.open_reader(queue_path)
    thread, outcome = in_thread(lambda: reader.wait(60))
    eventually(asleep(reader))
    reader.close()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(outcome[0], ClosedError)


def test_signals_are_seen_while_waiting(backend: Backend, queue_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    backend.fill(queue_path, 0)
    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with backend.open_reader(queue_path) as reader:
            main = threading.main_thread().ident
            assert main is not None
            known = main

            def send() -> None:
                eventually(asleep(reader))
                signal.pthread_kill(known, signal.SIGUSR1)

            thread, _ = in_thread(send)
            with pytest.raises(Interrupted):
                reader.wait(60)
            thread.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_ping_pong_between_processes(backend: Backend, tmp_path: Path) -> None:
    """No fallback hides a lost wake-up: each side sleeps until the other has written."""
    rounds = 300
    code = f"""
with backend.open_writer(sys.argv[2]) as writer, backend.open_reader(sys.argv[1]) as reader:
    print("ready", flush=True)
    for number in range({rounds}):
        assert reader.wait(30)
        message = reader.poll()
        writer.append(b"pong " + message.payload)
"""
    with (
        backend.open_writer(tmp_path / "there") as writer,
        backend.start(code, tmp_path / "there", tmp_path / "back") as child,
    ):
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with backend.open_reader(tmp_path / "back") as reader:
            for number in range(rounds):
                writer.append(b"%d" % number)
                assert reader.wait(30)
                message = reader.poll()
                assert message is not None
                assert message.payload == b"pong %d" % number
        assert child.wait(30) == 0


def test_reader_that_was_there_before_the_writer(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 0)
    with backend.open_reader(queue_path) as reader:
        thread, outcome = in_thread(lambda: reader.wait(60))
        eventually(asleep(reader))
        backend.fill(queue_path, 1)
        thread.join(30)
        assert outcome == [True]
