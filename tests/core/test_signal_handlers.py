"""Signal handlers that use the object whose call they interrupt.

Each case runs in a process of its own with a timeout, because a failure would hang.
"""

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 30

PROLOGUE = """
import os, signal, sys, threading, time
import aiochronicle
from aiochronicle import Capacity, FanIn, errors, open_reader, open_writer

path = sys.argv[1]
RECORD = 128  # what a message of 64 bytes takes


def on_signal(handler, when):
    \"\"\"Run the handler when a signal comes, which another thread sends once it is time.\"\"\"
    signal.signal(signal.SIGUSR1, lambda number, frame: handler())

    def send():
        while not when():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=send, daemon=True).start()


def full_writer(**options):
    \"\"\"A writer whose next append waits for room, and the reader for which it does.\"\"\"
    writer = open_writer(path, capacity=Capacity(RECORD, policy="block"), **options)
    reader = open_reader(path, "slow")
    writer.append(bytes(64))
    return writer, reader


def is_waiting(writer):
    return lambda: writer.statistics().capacity_waits > 0


def outcome(call):
    try:
        return call()
    except errors.ChronicleError as error:
        return type(error).__name__


def reserve(writer):
    with writer.reserve(64) as room:
        room[:] = bytes(64)
"""

CALLS = {
    "append": "writer.append(bytes(64))",
    "append_many": "writer.append_many([bytes(64)])",
    "reserve": "reserve(writer)",
}


def run(program: str, path: Path) -> list[str]:
    """Return the lines that the program prints."""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + program, path],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("blocked", CALLS)
def test_close_in_a_handler_ends_the_wait_for_room(queue_path: Path, blocked: str) -> None:
    program = f"""
writer, reader = full_writer()
on_signal(writer.close, is_waiting(writer))
print(outcome(lambda: {CALLS[blocked]}))
print(writer.closed, len(list(reader)))
with open_writer(path) as successor:  # closed means that the lock is free, and all was left clean
    print(successor.recovery.clean, successor.next_seq)
reader.close()
"""
    assert run(program, queue_path) == ["ClosedError", "True", "1", "True", "1"]


@pytest.mark.parametrize("blocked", CALLS)
@pytest.mark.parametrize("nested", [*CALLS, "heartbeat"])
def test_appending_in_a_handler_is_refused(queue_path: Path, blocked: str, nested: str) -> None:
    calls = {**CALLS, "heartbeat": "writer.heartbeat()"}
    program = f"""
writer, reader = full_writer()


def handler():
    print(outcome(lambda: {calls[nested]}))
    reader.read_batch()
    reader.commit()  # which lets the outer call go on


on_signal(handler, is_waiting(writer))
outcome(lambda: {CALLS[blocked]})
print(writer.next_seq, len(list(reader)))
reader.commit()
print(writer.append(bytes(64)))  # and nothing is left behind
writer.close()
reader.close()
"""
    assert run(program, queue_path) == ["ReentrantCall", "2", "1", "2"]


def test_questions_and_flushes_in_a_handler_are_answered(queue_path: Path) -> None:
    program = """
writer, reader = full_writer()


def handler():
    print(writer.flush_now(), writer.statistics().next_seq, writer.position.segment)
    print(*writer.reader_lag(), writer.closed, writer.gone, sep="_")
    writer.mark_ready()
    writer.retain_now()
    reader.read_batch()
    reader.commit()


on_signal(handler, is_waiting(writer))
print(writer.append(bytes(64)))
writer.close()
reader.close()
"""
    assert run(program, queue_path) == ["1", "1", "0", "128_1_False_False", "1"]


def test_sync_writer_in_a_handler(queue_path: Path) -> None:
    program = """
writer, reader = full_writer(flush="sync")
on_signal(lambda: (print(writer.flush_now()), writer.close()), is_waiting(writer))
print(outcome(lambda: writer.append(bytes(64))))
reader.close()
"""
    assert run(program, queue_path) == ["1", "ClosedError"]


def test_what_a_handler_raises_comes_out_of_the_blocked_call(queue_path: Path) -> None:
    program = """
writer, reader = full_writer()


def handler():
    writer.close()
    raise KeyboardInterrupt


on_signal(handler, is_waiting(writer))
try:
    writer.append(bytes(64))
except KeyboardInterrupt:
    print(writer.closed)
reader.close()
"""
    assert run(program, queue_path) == ["True"]


def test_handlers_run_while_another_thread_has_the_turn(queue_path: Path) -> None:
    program = """
writer, reader = full_writer()
threading.Thread(target=lambda: print(outcome(lambda: writer.append(bytes(64))))).start()
while not is_waiting(writer)():
    time.sleep(0.001)
waiting = threading.Event()
started = time.monotonic()
on_signal(writer.close, lambda: time.monotonic() > started + 0.1)
print(outcome(lambda: writer.append(bytes(64))))
reader.close()
"""
    assert run(program, queue_path) == ["ClosedError", "ClosedError"]


def test_fork_while_another_thread_has_the_turn(queue_path: Path) -> None:
    """The child does not have the thread that holds the turn and could pass it on."""
    program = """
writer, reader = full_writer()
blocked = threading.Thread(target=lambda: outcome(lambda: writer.append(bytes(64))))
blocked.start()
while not is_waiting(writer)():
    time.sleep(0.001)
child = os.fork()
if child == 0:
    print(outcome(lambda: writer.append(bytes(64))), outcome(writer.heartbeat), flush=True)
    writer.close()
    os._exit(0)
os.waitpid(child, 0)
writer.close()
blocked.join()
reader.close()
"""
    assert run(program, queue_path) == ["ForkedError", "ForkedError"]


def test_fork_in_a_handler(queue_path: Path) -> None:
    program = """
writer, reader = full_writer()


def handler():
    global child
    child = os.fork()
    if child:
        writer.close()


on_signal(handler, is_waiting(writer))
said = outcome(lambda: writer.append(bytes(64)))
if child:
    os.waitpid(child, 0)
print(said, flush=True)
if child == 0:
    os._exit(0)
reader.close()
"""
    assert run(program, queue_path) == ["ForkedError", "ClosedError"]


@pytest.mark.parametrize("wait", ["'park'", "'spin'"])
def test_close_in_a_handler_ends_the_wait_of_a_reader(queue_path: Path, wait: str) -> None:
    program = f"""
with open_writer(path):
    reader = open_reader(path, "waiting", wait={wait})
    started = time.monotonic()
    on_signal(reader.close, lambda: time.monotonic() > started + 0.1)
    print(outcome(reader.wait), reader.closed)
"""
    assert run(program, queue_path) == ["ClosedError", "True"]


def test_a_reader_is_used_in_a_handler_of_its_own_wait(queue_path: Path) -> None:
    program = """
writer = open_writer(path)
reader = open_reader(path, "waiting")


def handler():
    print(reader.wait(0), reader.read_batch(), reader.poll(), reader.lag.messages)
    reader.seek_first()
    reader.commit()
    writer.append(b"x")


started = time.monotonic()
on_signal(handler, lambda: time.monotonic() > started + 0.1)
print(reader.wait(), reader.poll().payload)
reader.close()
writer.close()
"""
    assert run(program, queue_path) == ["False", "[]", "None", "0", "True", "b'x'"]


@pytest.mark.parametrize("order", ["'available'", "'strict'"])
def test_close_in_a_handler_ends_the_wait_of_a_fan_in(queue_path: Path, order: str) -> None:
    program = f"""
with open_writer(path), open_reader(path, "waiting") as reader:
    fan_in = FanIn([reader], order={order})
    started = time.monotonic()
    on_signal(fan_in.close, lambda: time.monotonic() > started + 0.1)
    print(outcome(fan_in.wait), fan_in.closed)
"""
    assert run(program, queue_path) == ["ClosedError", "True"]


def test_a_fan_in_is_used_in_a_handler_of_its_own_wait(queue_path: Path) -> None:
    program = """
writer = open_writer(path)
reader = open_reader(path, "waiting")
fan_in = FanIn([reader])


def handler():
    print(fan_in.wait(0), fan_in.read_batch(), fan_in.statistics().sources)
    fan_in.commit()
    source = fan_in.attach(fan_in.detach(0))
    writer.append(b"x")


started = time.monotonic()
on_signal(handler, lambda: time.monotonic() > started + 0.1)
print(fan_in.wait(), fan_in.poll().payload)
fan_in.close()
reader.close()
writer.close()
"""
    assert run(program, queue_path) == ["False", "[]", "1", "True", "b'x'"]


def test_a_reader_closed_in_a_handler_leaves_the_fan_in_usable(queue_path: Path) -> None:
    program = """
writer = open_writer(path)
reader = open_reader(path, "waiting")
fan_in = FanIn([reader])
started = time.monotonic()
on_signal(reader.close, lambda: time.monotonic() > started + 0.1)
print(fan_in.wait(), outcome(fan_in.poll), fan_in.wait(0))
fan_in.close()
writer.close()
"""
    assert run(program, queue_path) == ["True", "ClosedError", "False"]


def test_a_bus_is_used_in_a_handler(tmp_path: Path) -> None:
    """The interrupted call may be anywhere; its locks belong to this same thread."""
    program = """
os.mkdir(path)
bus = aiochronicle.Bus(path)
bus.writer("one", segment_size=1 << 16).close()
handled = 0


def use(topic):
    outcome(lambda: bus.writer(topic).append(b"x"))
    outcome(lambda: bus.writer(topic).close())


def handler(number, frame):
    global handled
    bus.topics()
    use("one")
    outcome(bus.flush_now)
    handled += 1


signal.signal(signal.SIGALRM, handler)
turns = 0
while turns < 400:
    turns += 1
    signal.setitimer(signal.ITIMER_REAL, 0.00005 + turns % 40 * 0.00002)
    use("one")
signal.setitimer(signal.ITIMER_REAL, 0)
assert handled > 100
bus.close()
print("done")
"""
    assert run(program, tmp_path / "bus") == ["done"]
