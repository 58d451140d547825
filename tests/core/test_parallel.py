"""Objects shared by threads, with the interpreter lock and without (free-threaded builds).

Every operation must be atomic for other threads: a message is visible or not, it goes to exactly one of the
threads that ask for it, and an object that another thread has closed raises ClosedError.
"""

import asyncio
import contextlib
import functools
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import Capacity, FanIn, Message, Reader, Roll, Writer
from aiochronicle.errors import ClosedError, InvalidArgument, ReservationOpen

THREADS = 4
MESSAGES = 2000
SEGMENT_SIZE = 16384  # so small that most appends take the slow path
ROUNDS = 30


def together(*functions: Callable[[], object]) -> None:
    """Run the functions at the same time, each in a thread; raise the exception of the first that failed."""
    start = threading.Barrier(len(functions))
    errors: list[Exception] = []

    def run(function: Callable[[], object]) -> None:
        start.wait()
        try:
            function()
        except Exception as error:  # noqa: BLE001 - raised below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def until_closed(work: Callable[[], object]) -> Callable[[], None]:
    """Return a function that repeats the work until the object it uses is closed."""

    def run() -> None:
        try:
            while True:
                work()
        except ClosedError:
            return

    return run


# ---- writers ----


def payload(thread: int, number: int) -> bytes:
    return b"%d %d " % (thread, number) + bytes([(thread + number) & 255]) * (number % 300)


def append_some(writer: Writer, chance: random.Random, thread: int, number: int) -> int:
    """Append messages from this number on, with a random call; return how many."""
    match chance.randrange(6):
        case 0:
            batch = [payload(thread, number + i) for i in range(chance.randrange(1, 9))]
            assert len(writer.append_many(batch)) == len(batch)
            return len(batch)
        case 1:
            content = payload(thread, number)
            with writer.reserve(len(content)) as room:
                room[:] = content
        case 2:
            with pytest.raises(KeyError), writer.reserve(4000) as room:
                room[:] = b"\xff" * 4000
                raise KeyError
            return 0
        case _:
            writer.append(payload(thread, number))
    return 1


def append_all(writer: Writer, seed: int, thread: int) -> None:
    chance = random.Random(seed + thread)
    number = 0
    while number < MESSAGES:
        try:
            number += append_some(writer, chance, thread, number)
        except ReservationOpen:  # another thread's message
            continue


def check_all_there(queue_path: Path) -> None:
    """Check that each thread's messages are in the queue once, in order, unchanged."""
    next_number = [0] * THREADS
    with aiochronicle.open_reader(queue_path) as reader:
        for seq, message in enumerate(reader):
            assert message.seq == seq
            thread, number, _ = message.payload.split(b" ", 2)
            assert message.payload == payload(int(thread), int(number))
            assert int(number) == next_number[int(thread)]
            next_number[int(thread)] += 1
    assert all(count >= MESSAGES for count in next_number)


def test_threads_append_by_every_call(queue_path: Path, seed: int) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=SEGMENT_SIZE) as writer:
        together(*(functools.partial(append_all, writer, seed, n) for n in range(THREADS)))
    check_all_there(queue_path)


def test_threads_may_share_a_clock_of_their_own(queue_path: Path) -> None:
    """A time that was read before another thread's append is not earlier than that message."""
    ticks = iter(range(1, 10**9))
    lock = threading.Lock()

    def clock() -> int:
        with lock:
            return next(ticks)

    def append(thread: int) -> None:
        for number in range(MESSAGES):
            match number % 16:
                case 0:
                    writer.heartbeat()
                    writer.append(payload(thread, number))
                case 1:
                    writer.append_many([payload(thread, number)])
                case _:
                    writer.append(payload(thread, number))

    with aiochronicle.open_writer(queue_path, segment_size=SEGMENT_SIZE, clock=clock) as writer:
        together(*(functools.partial(append, thread) for thread in range(THREADS)))
    check_all_there(queue_path)


def test_batch_is_what_it_was_when_it_was_given(queue_path: Path) -> None:
    """Another thread may change the list while the batch waits for room."""
    with (
        aiochronicle.open_writer(
            queue_path, segment_size=1 << 20, capacity=Capacity(8192, policy="block", timeout_s=30)
        ) as writer,
        aiochronicle.open_reader(queue_path, "slow") as reader,
    ):
        writer.append(bytes(7000))
        batch = [b"message %d" % number * 50 for number in range(5)]
        expected = [b"message %d" % number * 50 for number in range(5)]

        def meddle() -> None:
            eventually(lambda: writer.statistics().capacity_waits > 0)
            batch.clear()
            others = [b"another %d" % number * 50 for number in range(1000)]
            reader.read_batch()
            reader.commit()
            del others

        together(lambda: writer.append_many(batch), meddle)
        assert [message.payload for message in reader] == expected


def test_reservation_given_up_leaves_the_messages_of_others_alone(queue_path: Path) -> None:
    """An abandoned reservation is zeroed; the next append of another thread uses its place."""
    reserving = threading.Event()
    reserving.set()

    def reserve() -> None:
        try:
            for _ in range(500):
                with pytest.raises(KeyError), writer.reserve(1 << 20):
                    raise KeyError
        finally:
            reserving.clear()

    def append(thread: int) -> None:
        number = 0
        while reserving.is_set() or number < MESSAGES:
            try:
                writer.append(payload(thread, number))
            except ReservationOpen:
                continue
            number += 1

    with aiochronicle.open_writer(queue_path, segment_size=4 << 20) as writer:
        together(reserve, *(functools.partial(append, thread) for thread in range(THREADS)))
    check_all_there(queue_path)


@pytest.mark.parametrize("_", range(ROUNDS))
def test_writer_closed_under_the_hands_of_others(queue_path: Path, _: int) -> None:
    writer = aiochronicle.open_writer(queue_path, segment_size=SEGMENT_SIZE)
    appended = [0] * THREADS

    def append(thread: int) -> None:
        writer.append(payload(thread, appended[thread]))
        appended[thread] += 1

    def close() -> None:
        eventually(lambda: min(appended) > 20)
        writer.close()

    together(*(until_closed(functools.partial(append, n)) for n in range(THREADS)), close)
    with aiochronicle.open_reader(queue_path) as reader:
        assert len(list(reader)) == sum(appended)


# ---- readers ----


def fill(path: Path, messages: int, *, segment_size: int = SEGMENT_SIZE) -> None:
    with aiochronicle.open_writer(path, segment_size=segment_size) as writer:
        for number in range(messages):
            writer.append(b"%d" % number)


def poll(source: Reader | FanIn) -> list[Message]:
    message = source.poll()
    return [] if message is None else [message]


WAYS: list[Callable[[Reader | FanIn], list[Message]]] = [
    poll,
    list,
    lambda source: source.read_batch(7),
    lambda source: [message for message in source if message.payload],
]


def test_each_message_goes_to_one_of_the_threads(queue_path: Path) -> None:
    fill(queue_path, 10_000, segment_size=1 << 20)
    with aiochronicle.open_reader(queue_path, "shared", commit=10) as reader:
        taken: list[list[Message]] = [[] for _ in range(THREADS)]

        def take(thread: int) -> None:
            while messages := WAYS[thread](reader):
                taken[thread] += messages
                assert all(message.payload == b"%d" % message.seq for message in messages)

        together(*(functools.partial(take, thread) for thread in range(THREADS)))
        for messages in taken:  # each thread sees its messages in order
            seqs = [message.seq for message in messages]
            assert seqs == sorted(seqs)
        assert sorted(message.seq for part in taken for message in part) == list(range(10_000))
        assert reader.statistics().messages == 10_000


def test_reader_closed_under_the_hands_of_others(queue_path: Path) -> None:
    fill(queue_path, 10_000)
    for _ in range(ROUNDS):
        close_reader_in_use(aiochronicle.open_reader(queue_path, "r", start="first", commit="auto"))


def close_reader_in_use(reader: Reader) -> None:
    kept: list[Message] = []

    def keep(way: Callable[[Reader], list[Message]]) -> None:
        kept.extend(way(reader))
        reader.commit()
        reader.wait(0)

    def close() -> None:
        eventually(lambda: len(kept) > 50)
        reader.close()

    together(*(until_closed(functools.partial(keep, way)) for way in WAYS), close)
    assert all(message.payload == b"%d" % message.seq for message in kept)  # still mapped


def test_threads_look_at_one_message(queue_path: Path) -> None:
    fill(queue_path, 2000)
    with aiochronicle.open_reader(queue_path) as reader:
        messages = list(reader)
    payloads: list[list[bytes]] = [[] for _ in range(THREADS)]

    def look(thread: int) -> None:
        for message in messages:
            payloads[thread].append(message.payload)
            assert bytes(message.view) == payloads[thread][-1]

    together(*(functools.partial(look, thread) for thread in range(THREADS)))
    for number, of_one in enumerate(zip(*payloads, strict=True)):
        assert of_one[0] == b"%d" % number
        assert all(other is of_one[0] for other in of_one)  # made once, for all


@pytest.mark.parametrize("_", range(ROUNDS))
def test_reader_closed_while_a_loop_waits_for_it(queue_path: Path, _: int) -> None:
    """A thread takes some of the messages and closes the reader: the loop's tasks end by themselves."""
    taken: list[int] = []
    with aiochronicle.open_writer(queue_path, segment_size=SEGMENT_SIZE) as writer:
        reader = aiochronicle.open_reader(queue_path)

        async def read() -> None:
            async for message in reader:
                taken.append(message.seq)

        async def read_twice() -> None:
            await asyncio.gather(read(), read())

        def write() -> None:
            for number in range(300):
                writer.append(b"%d" % number)
                taken.extend(message.seq for message in reader.read_batch(2))
            eventually(lambda: len(taken) == 300)
            reader.close()

        together(lambda: asyncio.run(read_twice()), write)
    assert sorted(taken) == list(range(300))


@pytest.mark.parametrize("_", range(ROUNDS))
def test_reader_closed_when_a_loop_meets_it_first(queue: Path, _: int) -> None:
    """The loop registers the reader's descriptor while another thread closes it."""
    reader = aiochronicle.open_reader(queue, start="last")
    start = threading.Barrier(2)

    async def read() -> list[Message]:
        start.wait()
        return [message async for message in reader]

    def close() -> None:
        start.wait()
        reader.close()

    together(lambda: asyncio.run(read()), close)


# ---- fan-ins ----


@pytest.mark.parametrize("order", ["available", "strict"])
def test_threads_share_a_fan_in(tmp_path: Path, order: str) -> None:
    """Some threads take messages, one attaches and detaches: each message is delivered once."""
    paths = [tmp_path / f"queue{number}" for number in range(4)]
    for path in paths:
        fill(path, 2000)
    readers = [aiochronicle.open_reader(path) for path in paths]
    fan_in = FanIn(readers[1:], order="strict" if order == "strict" else "available")
    taken: list[list[Message]] = [[] for _ in range(len(WAYS))]

    def take(way: int) -> None:
        while sum(map(len, taken)) < 8000:
            taken[way] += WAYS[way](fan_in)

    def come_and_go() -> None:
        for _ in range(200):
            source = fan_in.attach(readers[0])
            assert source in fan_in.sources()
            taken[0] += fan_in.read_batch(3)
            assert fan_in.detach(source) is readers[0]
        fan_in.attach(readers[0])

    together(*(functools.partial(take, way) for way in range(len(WAYS))), come_and_go)
    found = sorted((message.source, message.seq) for part in taken for message in part)
    assert found == [(path.name, seq) for path in paths for seq in range(2000)]
    fan_in.close()
    for reader in readers:
        reader.close()


def test_fan_in_and_readers_closed_under_the_hands_of_others(tmp_path: Path) -> None:
    paths = [tmp_path / f"queue{number}" for number in range(3)]
    for path in paths:
        fill(path, 3000)
    for number in range(ROUNDS):
        readers = [aiochronicle.open_reader(path) for path in paths]
        close_fan_in_in_use(readers, open_at_the_end=number % len(readers))


def close_fan_in_in_use(readers: list[Reader], *, open_at_the_end: int) -> None:
    failed: list[Exception] = []
    fan_in = FanIn(readers, on_error=lambda _, error: failed.append(error))
    kept: list[Message] = []

    def keep(way: Callable[[FanIn], list[Message]]) -> None:
        kept.extend(way(fan_in))
        fan_in.wait(0)

    def close() -> None:
        eventually(lambda: len(kept) > 20)
        for reader in readers[open_at_the_end:]:
            reader.close()
        fan_in.close()

    together(*(until_closed(functools.partial(keep, way)) for way in WAYS), close)
    for reader in readers:
        reader.close()
    assert all(isinstance(error, ClosedError) for error in failed)
    assert all(message.payload == b"%d" % message.seq for message in kept)


def test_reader_is_attached_to_one_of_two_fan_ins(queue_path: Path) -> None:
    fill(queue_path, 500)
    for _ in range(ROUNDS):
        with aiochronicle.open_reader(queue_path) as reader, FanIn() as one, FanIn() as other:
            attach_twice(reader, one, other)
            assert len(list(one)) + len(list(other)) == 500


def attach_twice(reader: Reader, *fan_ins: FanIn) -> None:
    refused: list[InvalidArgument] = []

    def attach(fan_in: FanIn) -> None:
        try:
            fan_in.attach(reader)
        except InvalidArgument as error:
            refused.append(error)

    together(*(functools.partial(attach, fan_in) for fan_in in fan_ins))
    assert len(refused) == 1
    assert "attached to" in str(refused[0])


# ---- questions ----


def ask_reader(reader: Reader) -> None:
    assert reader.lag.messages <= MESSAGES
    assert reader.statistics().messages <= MESSAGES
    reader.commit_position(reader.position)
    committed, position = reader.committed, reader.position
    assert (committed.segment, committed.offset) <= (position.segment, position.offset)
    assert not reader.ended
    assert not reader.attended


def ask_fan_in(fan_in: FanIn) -> None:
    """Query everything. A source may be gone when its turn comes."""
    assert fan_in.lag.messages <= 3 * MESSAGES
    assert fan_in.statistics().delivered <= 3 * MESSAGES
    for source in fan_in.sources():
        with contextlib.suppress(KeyError, ClosedError):
            assert fan_in.source_statistics(source).delivered <= MESSAGES
    fan_in._check()
    if fan_in.closed:
        raise ClosedError("the fan-in is closed")


def test_reader_is_asked_while_others_read_and_close(queue_path: Path) -> None:
    fill(queue_path, MESSAGES)
    for _ in range(ROUNDS):
        reader = aiochronicle.open_reader(queue_path, "r", start="first")
        read = until_closed(functools.partial(poll, reader))
        ask = until_closed(functools.partial(ask_reader, reader))
        close = functools.partial(close_after, reader, reader)
        together(read, ask, ask, close)


def test_fan_in_is_asked_while_others_read_and_close(tmp_path: Path) -> None:
    paths = [tmp_path / f"queue{number}" for number in range(3)]
    for path in paths:
        fill(path, MESSAGES)
    for _ in range(ROUNDS):
        readers = [aiochronicle.open_reader(path) for path in paths]
        fan_in: FanIn = FanIn(readers, on_error=lambda _, __: None)
        read = until_closed(functools.partial(poll, fan_in))
        ask = until_closed(functools.partial(ask_fan_in, fan_in))
        close = functools.partial(close_after, fan_in, *readers[:2], fan_in, readers[2])
        together(read, ask, ask, close)


def close_after(source: Reader | FanIn, *several: Reader | FanIn) -> None:
    """Close these after some messages of the source have been taken."""

    def taken() -> int:
        if isinstance(source, FanIn):
            return source.statistics().delivered
        return source.statistics().messages

    eventually(lambda: taken() > 0)
    for one in several:
        one.close()


@pytest.mark.parametrize(
    "use",
    [
        lambda reader: reader.seek(500),
        lambda reader: reader.seek_time(1),
        lambda reader: reader.seek_first() or reader.seek_last(),
        lambda reader: reader.seek_first() or reader.to_arrow(),
    ],
)
def test_reader_closed_while_another_thread_moves_it(
    queue_path: Path, use: Callable[[Reader], object]
) -> None:
    fill(queue_path, 600)
    for _ in range(ROUNDS):
        reader = aiochronicle.open_reader(queue_path)
        used = threading.Event()

        def move(reader: Reader = reader, used: threading.Event = used) -> None:
            use(reader)
            used.set()

        def close(reader: Reader = reader, used: threading.Event = used) -> None:
            used.wait(20)
            reader.close()

        together(until_closed(move), close)


def test_queue_closed_while_another_thread_asks(queue_path: Path) -> None:
    fill(queue_path, 600)
    for _ in range(ROUNDS):
        queue = aiochronicle.Queue(queue_path)
        asked = threading.Event()

        def ask(queue: aiochronicle.Queue = queue, asked: threading.Event = asked) -> None:
            assert queue.slice(100, 500).count == 400
            asked.set()

        def close(queue: aiochronicle.Queue = queue, asked: threading.Event = asked) -> None:
            asked.wait(20)
            queue.close()

        together(until_closed(ask), until_closed(ask), close)


def close_before(call: str, source: Reader | FanIn) -> None:
    """Make another thread close the source at the moment when this thread makes the call."""

    def look(frame: FrameType, event: str, what: object) -> None:
        called = frame.f_code.co_name if event == "call" else getattr(what, "__name__", None)
        if event in {"call", "c_call"} and called == call:
            sys.setprofile(None)
            together(source.close)

    sys.setprofile(look)


@pytest.mark.parametrize("call", ["lag", "read_batch"])
@pytest.mark.parametrize("merged", [False, True], ids=["reader", "fan-in"])
async def test_batches_end_when_another_thread_closes(
    queue: Path, call: str, *, merged: bool
) -> None:
    with aiochronicle.open_reader(queue) as reader, FanIn() as fan_in:
        source: Reader | FanIn = reader
        if merged:
            fan_in.attach(reader)
            source = fan_in
        close_before(call, source)
        assert [batch async for batch in source.batches(max_wait=0.001)] == []
        assert source.closed


@pytest.mark.parametrize("merged", [False, True])
def test_the_lag_of_a_reader_far_behind_lets_other_threads_run(
    queue_path: Path, *, merged: bool
) -> None:
    """It reads every segment in between, and releases the interpreter lock meanwhile."""
    turns = 0
    over = False

    def count() -> None:
        nonlocal turns
        while not over:
            turns += 1
            time.sleep(0)

    def meanwhile() -> bool:
        before = turns
        _ = source.lag
        return turns > before

    with (
        aiochronicle.open_writer(queue_path, segment_size=4096, roll=Roll(messages=1)) as writer,
        aiochronicle.open_reader(queue_path) as reader,
        FanIn([reader] if merged else []) as fan_in,
    ):
        source = fan_in if merged else reader
        for _ in range(200):
            writer.append(b"x")
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(60)  # threads are not forced to release the interpreter lock
        counting = threading.Thread(target=count)
        counting.start()
        try:
            assert any(meanwhile() for _ in range(300))
        finally:
            over = True
            sys.setswitchinterval(interval_s)
            counting.join()
        assert (source.lag.messages, source.lag.bytes) == (200, 200 * 128)
