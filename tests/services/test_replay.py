"""Replays deliver recorded queues complete, in one order, at the requested pace, and into new queues."""

import asyncio
import random
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from asynchronous.both_loops import on_both_loops
from asynchronous.turns import counted_turns

import aiochronicle
from aiochronicle import Codec, Message, Registry, Replay, replay
from aiochronicle.errors import (
    ClosedError,
    CorruptionError,
    InvalidArgument,
    QueueNotFound,
    SchemaError,
    SchemaMismatch,
    TimestampOrder,
)

OPENING = datetime(2024, 3, 1, 9, 0, tzinfo=UTC)
OPENING_NS = int(OPENING.timestamp()) * 1_000_000_000
SEGMENT = 1 << 16

Key = tuple[int, str, int]


def key_of(message: Message) -> Key:
    return message.timestamp_ns, message.source, message.seq


def record(path: Path, times_ns: list[int]) -> list[Key]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with aiochronicle.open_writer(path, segment_size=SEGMENT) as writer:
        for number, time_ns in enumerate(times_ns):
            writer.append(
                f"{path.name} {number}".encode(), type_id=number % 7, timestamp_ns=time_ns
            )
    return [(time_ns, path.name, number) for number, time_ns in enumerate(times_ns)]


def record_some(root: Path, rng: random.Random, queues: int = 5, messages: int = 3000) -> list[Key]:
    """Many equal timestamps, also across queues, and several segments in each."""
    recorded: list[Key] = []
    for number in range(queues):
        times = sorted(OPENING_NS + rng.randrange(messages) * 1000 for _ in range(messages))
        recorded += record(root / f"queue-{number}", times)
    return sorted(recorded)


def test_the_order_is_that_of_times_then_paths(tmp_path: Path, rng: random.Random) -> None:
    expected = record_some(tmp_path, rng)
    with replay(tmp_path) as history:
        assert [key_of(message) for message in history] == expected
        assert [Path(path).name for path in history.paths] == [f"queue-{n}" for n in range(5)]
        assert list(history) == []
    paths = [tmp_path / f"queue-{number}" for number in range(5)]
    rng.shuffle(paths)
    with replay(paths) as history:
        assert [key_of(message) for message in history] == expected


@on_both_loops
async def test_async_for_gives_the_same_and_ends(tmp_path: Path, rng: random.Random) -> None:
    expected = record_some(tmp_path, rng)
    async with replay(tmp_path) as history:
        assert [key_of(message) async for message in history] == expected
        with pytest.raises(ClosedError, match="ended"):
            await history.next()


@on_both_loops
async def test_full_speed_leaves_the_loop_its_turns(tmp_path: Path) -> None:
    record(tmp_path / "queue", [OPENING_NS] * 2000)
    async with replay(tmp_path) as history, counted_turns() as turns:
        assert len([message async for message in history]) == 2000
    assert len(turns) >= 5


def test_start_and_end_cut_out_a_range(tmp_path: Path, rng: random.Random) -> None:
    recorded = record_some(tmp_path, rng, queues=3)
    moments = [0, 400, 1000, 2999, 5000, *(rng.randrange(3000) for _ in range(3))]
    for start_us in moments:
        start, first_ns = OPENING + timedelta(microseconds=start_us), OPENING_NS + start_us * 1000
        with replay(tmp_path, start=start) as history:
            expected = [key for key in recorded if first_ns <= key[0]]
            assert [key_of(message) for message in history] == expected
        for end_us in moments:
            end, behind_ns = OPENING + timedelta(microseconds=end_us), OPENING_NS + end_us * 1000
            if end < start:
                with pytest.raises(InvalidArgument, match="before start"):
                    replay(tmp_path, start=start, end=end)
                continue
            expected = [key for key in recorded if first_ns <= key[0] < behind_ns]
            with replay(tmp_path, start=start, end=end) as history:
                assert [key_of(message) for message in history] == expected
            with replay(tmp_path, start=first_ns, end=behind_ns) as history:
                assert [key_of(message) for message in history] == expected


def test_what_is_written_meanwhile_is_not_replayed(tmp_path: Path, rng: random.Random) -> None:
    expected = record_some(tmp_path, rng, queues=3, messages=1500)
    with (
        aiochronicle.open_writer(tmp_path / "queue-0") as first,
        aiochronicle.open_writer(tmp_path / "queue-1") as second,
        replay(tmp_path) as history,
    ):
        found: list[Key] = []
        for message in history:
            found.append(key_of(message))
            if rng.random() < 0.5:  # several segments of it, older than the messages still to come
                rng.choice([first, second]).append(bytes(200), timestamp_ns=OPENING_NS + 2_000_000)
        assert found == expected


def test_a_killed_writer_does_not_hold_the_replay_up(tmp_path: Path) -> None:
    script = """
import os, sys, aiochronicle
writer = aiochronicle.open_writer(sys.argv[1])
writer.append(b"last words", timestamp_ns=1000)
print("written", flush=True)
sys.stdin.read()
"""
    killed = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "a")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"written\n"
        record(tmp_path / "b", [2000, 3000])
        with replay(tmp_path) as history:  # while the writer lives …
            assert [message.timestamp_ns for message in history] == [1000, 2000, 3000]
        killed.send_signal(signal.SIGKILL)
    with replay(tmp_path) as history:  # … and after it has died
        assert [message.timestamp_ns for message in history] == [1000, 2000, 3000]


def test_a_reader_stands_for_its_queue_from_its_position_on(queue_path: Path) -> None:
    record(queue_path, list(range(1000, 1010)))
    with aiochronicle.open_reader(queue_path, "strategy") as reader:
        assert len(reader.read_batch(4)) == 4
        with replay(reader) as history:
            assert [message.seq for message in history] == [4, 5, 6, 7, 8, 9]
        with replay([reader], start=1002) as history:
            assert [message.seq for message in history] == [2, 3, 4, 5, 6, 7, 8, 9]
        assert [message.seq for message in reader] == [4, 5, 6, 7, 8, 9]


def test_empty_queues_and_ranges_are_empty_replays(tmp_path: Path) -> None:
    record(tmp_path / "empty", [])
    with replay(tmp_path / "empty") as history:
        assert list(history) == []
        assert history.next_timestamp_ns is None
    record(tmp_path / "full", [5, 6])
    with replay(tmp_path) as history:
        assert history.next_timestamp_ns == 5
        assert [message.timestamp_ns for message in history] == [5, 6]


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    record(tmp_path / "queue", [5])
    with pytest.raises(QueueNotFound, match="missing"):
        replay(tmp_path / "missing")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(QueueNotFound, match="no queue here or below"):
        replay(tmp_path / "nothing")
    for speed in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidArgument, match="speed"):
            replay(tmp_path / "queue", speed=speed)
    with pytest.raises(InvalidArgument, match="time zone"):
        replay(tmp_path / "queue", start=datetime(2024, 1, 1))
    with pytest.raises(InvalidArgument, match="attached already"):
        replay([tmp_path / "queue", tmp_path / "queue"])


def test_a_corrupt_record_is_raised_also_where_the_recording_ends(queue_path: Path) -> None:
    record(queue_path, [1000, 1001, 1002])
    with aiochronicle.open_reader(queue_path) as reader:
        segment, offset = list(reader)[-1].position
    path = queue_path / f"{segment:09}.q"
    with path.open("r+b") as file:
        file.seek(offset + 8)
        file.write(b"\xee\xee")
    with replay(queue_path) as history:
        messages = iter(history)
        assert [next(messages).seq, next(messages).seq] == [0, 1]
        with pytest.raises(CorruptionError):
            next(messages)


@on_both_loops
async def test_the_loop_runs_while_the_rest_of_a_recording_is_waited_for(queue_path: Path) -> None:
    """The messages were there when the replay was opened and are gone when it reaches them."""
    with aiochronicle.open_writer(queue_path, segment_size=1 << 16) as writer:
        writer.append_many([b"x"] * 20)
        with replay(queue_path) as history:
            segment, offset = (await anext(history)).position
            with (queue_path / f"{segment:09}.q").open("r+b") as file:
                file.seek(offset + 10 * 128)
                file.write(bytes(10 * 128))
            with (queue_path / "control.meta").open("r+b") as file:
                file.seek(296)  # the newest record, which other programs do not store
                file.write(bytes(8))
            assert [(await anext(history)).seq for _ in range(9)] == [*range(1, 10)]
            async with counted_turns() as turns:
                with pytest.raises(CorruptionError, match="ends too early"):
                    await anext(history)
            assert len(turns) > 50


def test_looking_ahead_and_iterating_may_be_mixed(tmp_path: Path, rng: random.Random) -> None:
    expected = record_some(tmp_path, rng, queues=2, messages=200)

    async def one(history: Replay) -> Message:
        return await anext(history)

    with replay(tmp_path) as history, asyncio.Runner() as runner:
        messages = iter(history)
        found: list[Key] = []
        while history.next_timestamp_ns is not None or len(found) < len(expected):
            way = rng.randrange(3)
            if way == 0:
                assert history.next_timestamp_ns == expected[len(found)][0]
            found.append(key_of(next(messages) if way == 1 else runner.run(one(history))))
        assert found == expected


@on_both_loops
async def test_the_pace_is_kept_without_drift(queue_path: Path) -> None:
    """A hundred gaps of 20 ms at tenfold speed, with a consumer that uses half of each gap."""
    record(queue_path, [OPENING_NS + number * 20_000_000 for number in range(101)])
    loop = asyncio.get_running_loop()
    async with replay(queue_path, speed=10.0) as history:
        await history.next()
        began = loop.time()
        due = 0.0
        async for message in history:
            due = (message.timestamp_ns - OPENING_NS) / 1e9 / 10
            assert loop.time() - began >= due - 0.002  # a loop's timers are exact to a millisecond
            await asyncio.sleep(0.001)
        assert due == 0.2
        assert loop.time() - began < 0.2 + 2.0  # the machine may be busy


@on_both_loops
async def test_cancelling_loses_nothing(queue_path: Path, rng: random.Random) -> None:
    record(queue_path, [OPENING_NS + number * 300_000 for number in range(500)])
    found: list[int] = []
    cancelled = 0

    async def consume(history: Replay) -> None:
        async for message in history:
            found.append(message.seq)

    async with replay(queue_path, speed=1.0) as history:
        while history.next_timestamp_ns is not None:
            task = asyncio.create_task(consume(history))
            done, _ = await asyncio.wait([task], timeout=rng.random() * 0.01)
            task.cancel()
            await asyncio.wait([task])
            cancelled += not done
    assert found == list(range(500))
    assert cancelled > 3


@on_both_loops
async def test_a_long_gap_times_out_and_is_not_lost(queue_path: Path) -> None:
    day_ns = 24 * 3600 * 1_000_000_000
    record(queue_path, [OPENING_NS, OPENING_NS + 400 * day_ns])
    async with replay(queue_path, speed=1.0) as history:
        assert (await history.next(timeout=30)).seq == 0
        with pytest.raises(TimeoutError):
            await history.next(timeout=0.01)
        assert [message.seq for message in history] == []  # it is not due for a year …
        assert history.next_timestamp_ns == OPENING_NS + 400 * day_ns
        rest = await asyncio.to_thread(list, history)  # … unless there is no loop's clock
        assert [message.seq for message in rest] == [1]


@on_both_loops
async def test_several_tasks_share_a_replay(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS + number * 10_000 for number in range(1000)])
    found: list[int] = []

    async def consume(history: Replay) -> None:
        async for message in history:
            found.append(message.seq)
            await asyncio.sleep(0)

    async with replay(queue_path, speed=1.0) as history, asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(consume(history))
    assert sorted(found) == list(range(1000))


async def test_closing_ends_the_iteration(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS, OPENING_NS + 10**15])
    history = replay(queue_path, speed=1.0)
    found: list[int] = []
    async for message in history:
        found.append(message.seq)
        history.close()
    assert found == [0]
    assert history.closed
    assert "closed" in repr(history)


class Tick(msgspec.Struct):
    price: int


def test_typed_messages_are_decoded(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with aiochronicle.open_writer(tmp_path / name, segment_size=SEGMENT, codec=Tick) as writer:
            writer.send(Tick(price=7))
    with replay(tmp_path, codec=Tick) as history:
        assert [message.decode() for message in history] == [Tick(price=7)] * 2
    with replay(tmp_path) as history:
        assert [message.decode(Tick) for message in history] == [Tick(price=7)] * 2


def copy_of(path: Path) -> list[tuple[object, ...]]:
    with aiochronicle.open_reader(path) as reader:
        return [(m.timestamp_ns, m.type_id, m.payload, m.cause) for m in reader]


def test_into_now_writes_equal_queues(tmp_path: Path, rng: random.Random) -> None:
    recorded = record_some(tmp_path / "recorded", rng, queues=3, messages=500)
    with aiochronicle.open_writer(tmp_path / "recorded" / "queue-1") as writer:
        writer.append(b"caused", timestamp_ns=OPENING_NS + 10**9, cause=(77, 5))
    with replay(tmp_path / "recorded") as history:
        assert history.into_now(tmp_path / "new" / "copies") == len(recorded) + 1
    for number in range(3):
        copied = copy_of(tmp_path / "new" / "copies" / f"queue-{number}")
        assert copied == copy_of(tmp_path / "recorded" / f"queue-{number}")
        assert copied[0][3] is None
    assert copy_of(tmp_path / "new" / "copies" / "queue-1")[-1][3] == (77, 5)


async def test_into_writes_one_merged_queue_at_the_pace(tmp_path: Path, rng: random.Random) -> None:
    recorded = record_some(tmp_path / "recorded", rng, queues=3, messages=300)
    async with (
        aiochronicle.open_writer(tmp_path / "merged", segment_size=SEGMENT) as writer,
        replay(tmp_path / "recorded", speed=1.0) as history,
    ):
        assert await history.into(writer, cause=None) == len(recorded)
        assert not writer.closed
    merged = copy_of(tmp_path / "merged")
    assert [copy[0] for copy in merged] == [key[0] for key in recorded]
    assert [copy[2] for copy in merged] == [f"{name} {seq}".encode() for _, name, seq in recorded]


class Quote(msgspec.Struct):
    bid: float
    ask: float = 0.0


class OlderQuote(msgspec.Struct):
    bid: float


class OtherQuote(msgspec.Struct):
    bid: str


def as_quote(quote: type[msgspec.Struct]) -> Codec[msgspec.Struct]:
    return Codec(quote, "json", name="Quote")


def test_copies_have_the_schema_of_their_sources(tmp_path: Path) -> None:
    types = Registry({3: Tick, 9: as_quote(Quote)})
    with aiochronicle.open_writer(tmp_path / "typed", segment_size=SEGMENT, codec=types) as writer:
        writer.send(Tick(price=7))
        writer.send(Quote(bid=1.5))
    record(tmp_path / "untyped", [OPENING_NS])
    for _ in range(2):  # the second time, all messages are already there
        with replay([tmp_path / "typed", tmp_path / "untyped"]) as history:
            history.into_now(tmp_path / "copies", cause="message")
    copied = Registry.load(tmp_path / "copies" / "typed")
    original = Registry.load(tmp_path / "typed")
    assert [(e.type_id, e.name, e.fingerprint) for e in copied] == [
        (e.type_id, e.name, e.fingerprint) for e in original
    ]
    with aiochronicle.open_reader(tmp_path / "copies" / "typed", codec=types) as reader:
        assert [message.decode() for message in reader] == [Tick(price=7), Quote(bid=1.5)]
    assert not (tmp_path / "copies" / "untyped" / "schema.json").exists()


def test_a_copy_takes_added_fields_and_refuses_other_types(tmp_path: Path) -> None:
    for name, quote in (
        ("source", Quote),
        ("older/source", OlderQuote),
        ("other/source", OtherQuote),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        codec = as_quote(quote)
        aiochronicle.open_writer(tmp_path / name, segment_size=SEGMENT, codec=codec).close()
    with replay(tmp_path / "source") as history:
        history.into_now(tmp_path / "older")
        with pytest.raises(SchemaMismatch, match="bid: was str, is float"):
            history.into_now(tmp_path / "other")
    fields = Registry.load(tmp_path / "older" / "source").named("Quote").fields
    assert [field.name for field in fields] == ["bid", "ask"]
    (tmp_path / "source" / "schema.json").write_text("{")
    with replay(tmp_path / "source") as history, pytest.raises(SchemaError, match="source"):
        history.into_now(tmp_path / "new")


@pytest.mark.parametrize("one_queue", [False, True])
def test_an_interrupted_copy_goes_on_where_it_was(
    tmp_path: Path, rng: random.Random, one_queue: bool
) -> None:
    recorded = record_some(tmp_path / "recorded", rng, queues=3, messages=100)

    def copy(end: int | None) -> int:
        with replay(tmp_path / "recorded", end=end) as history:
            if not one_queue:
                return history.into_now(tmp_path / "copies", cause="message")
            with aiochronicle.open_writer(tmp_path / "one", segment_size=SEGMENT) as writer:
                return history.into_now(writer, cause="message")

    middle = recorded[140][0]
    first = copy(middle)
    assert 0 < first < len(recorded)
    assert copy(None) == len(recorded) - first
    assert copy(None) == 0
    if one_queue:
        assert [c[0] for c in copy_of(tmp_path / "one")] == [key[0] for key in recorded]


def test_two_backups_of_one_queue_are_refused_before_anything_is_created(tmp_path: Path) -> None:
    queue, backups, target = tmp_path / "q", tmp_path / "backups", tmp_path / "target"
    record(queue, [1, 2, 3])
    aiochronicle.backup(queue, backups)
    newest = aiochronicle.backup(queue, backups).path
    beside: list[Path | str] = [queue, newest]
    for sources in ([backups], beside, [tmp_path]):
        with pytest.raises(InvalidArgument, match="they are copies or backups") as error:
            replay(sources)
        assert "Give one of them, such as /" in str(error.value)
    with replay(newest) as history:
        assert history.into_now(target, cause="message") == 3
    shutil.copytree(queue, tmp_path / "copies" / "a")
    shutil.copytree(queue, tmp_path / "copies" / "b")
    with (
        replay(tmp_path / "copies") as history,
        pytest.raises(InvalidArgument, match="copies or backups"),
    ):
        history.into_now(tmp_path / "none", cause="message")
    assert not (tmp_path / "none").exists()
    with replay(tmp_path / "copies") as history:  # deliberate copies, without causes
        assert history.into_now(tmp_path / "both", cause=None) == 6


def test_a_queue_that_got_a_new_identity_is_copied_and_continued(tmp_path: Path) -> None:
    """In a copy that its own writer has continued, messages have two queue ids."""
    record(tmp_path / "q", [1, 2, 3])
    shutil.copytree(tmp_path / "q", tmp_path / "again")
    for number in range(2):
        with aiochronicle.open_writer(tmp_path / "again") as writer:
            writer.append(b"own %d" % number)
        with replay(tmp_path / "again") as history:
            assert history.into_now(tmp_path / "target", cause="message") == (4, 1)[number]
    assert aiochronicle.inspect(tmp_path / "target" / "again").next_seq == 5


def test_into_refuses_what_cannot_be_told_apart(tmp_path: Path) -> None:
    for name, time_ns in (("x", 1), ("y", 2)):
        record(tmp_path / name / "same", [time_ns])
    with replay([tmp_path / "x", tmp_path / "y"]) as history:
        with pytest.raises(InvalidArgument, match="same name"):
            history.into_now(tmp_path / "z")
        with pytest.raises(InvalidArgument, match="cause"):
            history.into_now(tmp_path / "z", cause="whatever")  # type: ignore[arg-type]
        with aiochronicle.open_writer(tmp_path / "one", segment_size=SEGMENT) as writer:
            writer.append(b"newer", timestamp_ns=100)
            with pytest.raises(TimestampOrder):
                history.into_now(writer)
