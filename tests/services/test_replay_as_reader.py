"""Code written for a Reader runs over a Replay: the same calls give the same results."""

import asyncio
import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from asynchronous.both_loops import on_both_loops

import aiochronicle
from aiochronicle import Message, Reader, Replay, VirtualTimeLoop, replay, run_virtual
from aiochronicle.errors import (
    ClosedError,
    CorruptionError,
    DecodeError,
    InvalidArgument,
    TooManyKeys,
)

OPENING_NS = 1_700_000_000_000_000_000
MS = 1_000_000

Shape = list[list[int]]


class Tick(msgspec.Struct):
    price: int


def record(path: Path, times_ns: list[int], *, payload: Callable[[int], bytes] = bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with aiochronicle.open_writer(path, segment_size=1 << 16) as writer:
        for number, time_ns in enumerate(times_ns):
            writer.append(payload(number), type_id=number % 5, timestamp_ns=time_ns)


def some_times(rng: random.Random, count: int) -> list[int]:
    """Return timestamps in bursts and with gaps, some of them equal."""
    gaps_ns = [rng.choice([0, 0, 100_000, 1 * MS, 3 * MS, 20 * MS]) for _ in range(count)]
    return [OPENING_NS + sum(gaps_ns[:number]) for number in range(count)]


# ---- one production coroutine, live and over its recording ----


async def produce(path: Path, bursts: list[int], handled: asyncio.Semaphore) -> None:
    """Append each burst a moment after the previous one has been handled."""
    async with aiochronicle.open_writer(path, segment_size=1 << 16, codec=Tick) as writer:
        codec = aiochronicle.Codec(Tick)
        price = 0
        for size in bursts:
            ticks = [codec.encode(Tick(price + number)) for number in range(size)]
            price += size
            writer.append_many(ticks, type_id=1)
            for _ in range(size):
                await handled.acquire()
            await asyncio.sleep(0.003)
        writer.append_many([codec.encode(Tick(-1))], type_id=1)


async def strategy(ticks: "Reader[Tick] | Replay[Tick]", handled: asyncio.Semaphore) -> str:
    """Run as in production, with batches limited by count, bytes and time, unaware of replays."""
    digest = hashlib.sha256()
    async for batch in ticks.batches(max_messages=6, max_bytes=40, max_wait=0.002):
        prices = [message.decode().price for message in batch]
        digest.update(f"{prices}\n".encode())
        ticks.commit(batch[-1])
        if prices[-1] < 0:
            return digest.hexdigest()
        for _ in prices:
            handled.release()
    raise AssertionError("the last tick did not come")


def test_a_production_coroutine_has_the_same_digest_live_and_in_every_replay(
    tmp_path: Path, rng: random.Random
) -> None:
    feed = tmp_path / "feed"
    bursts = [rng.randrange(1, 20) for _ in range(15)]

    async def live() -> str:
        handled = asyncio.Semaphore(0)
        async with (
            aiochronicle.open_reader(feed, "live", codec=Tick, wait_for_queue=True) as ticks,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(produce(feed, bursts, handled))
            trading = tasks.create_task(strategy(ticks, handled))
        return trading.result()

    digests = [asyncio.run(live())]
    for _ in range(2):
        with replay(feed, codec=Tick) as history:
            digests.append(asyncio.run(strategy(history, asyncio.Semaphore(0))))
        with replay(feed, codec=Tick) as history:
            digests.append(run_virtual(strategy(history, asyncio.Semaphore(0)), history))
    assert digests == [digests[0]] * 5


# ---- batches ----


async def shape_of(history: Replay, **limits: float) -> Shape:
    return [[message.seq for message in batch] async for batch in history.batches(**limits)]  # type: ignore[arg-type]


def cut(times_ns: list[int], sizes: list[int], limit: int, max_bytes: int, wait_ns: int) -> Shape:
    """Return the expected batches for a consumer that takes no time."""
    shape: Shape = []
    seq = 0
    while seq < len(times_ns):
        batch: list[int] = []
        size, until_ns = 0, times_ns[seq] + wait_ns
        while seq < len(times_ns) and times_ns[seq] <= until_ns and len(batch) < limit:
            if batch and size + sizes[seq] > max_bytes:
                break
            batch.append(seq)
            size += sizes[seq]
            seq += 1
        shape.append(batch)
    return shape


def test_batches_are_the_same_however_fast_they_come(queue_path: Path, rng: random.Random) -> None:
    times = some_times(rng, 400)
    sizes = [rng.randrange(100) for _ in times]
    record(queue_path, times, payload=lambda number: bytes(sizes[number]))
    limits = {"max_messages": 7, "max_bytes": 200, "max_wait": 0.004}
    expected = cut(times, sizes, 7, 200, 4 * MS)
    assert len({len(batch) for batch in expected}) > 3
    with replay(queue_path) as history:
        assert asyncio.run(shape_of(history, **limits)) == expected
    with replay(queue_path) as history:
        assert run_virtual(shape_of(history, **limits), history) == expected
    with replay(queue_path, speed=20.0) as history:  # 0.2 ms per batch: sometimes too slow
        paced = asyncio.run(shape_of(history, **limits))
    assert [seq for batch in paced for seq in batch] == list(range(400))
    assert len(paced) <= len(expected)


def test_a_batch_is_handed_over_when_it_is_full_or_its_time_is_over(queue_path: Path) -> None:
    times = [0, 1, 2, 10, 11, 30]
    record(queue_path, [OPENING_NS + time * MS for time in times])

    async def main(history: Replay) -> list[tuple[float, list[int]]]:
        clock = asyncio.get_running_loop().time
        return [
            (round(clock() * 1000, 3), [message.seq for message in batch])
            async for batch in history.batches(max_messages=3, max_wait=0.005)
        ]

    with replay(queue_path) as history:
        assert run_virtual(main(history), history) == [
            (2.0, [0, 1, 2]),  # full
            (15.0, [3, 4]),  # 5 ms after the first of them
            (35.0, [5]),  # the end comes no earlier than in production
        ]


def test_a_slow_consumer_finds_all_that_is_due(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS + number * MS for number in range(100)])

    async def main(history: Replay) -> list[int]:
        sizes: list[int] = []
        async for batch in history.batches():
            sizes.append(len(batch))
            await asyncio.sleep(0.0305)
        return sizes

    with replay(queue_path) as history:
        assert run_virtual(main(history), history) == [1, 30, 31, 30, 8]


@on_both_loops
async def test_cancelled_batches_have_taken_nothing(queue_path: Path, rng: random.Random) -> None:
    record(queue_path, [OPENING_NS + number * 300_000 for number in range(300)])
    found: list[int] = []
    cancelled = 0

    async def consume(history: Replay) -> None:
        async for batch in history.batches(max_messages=10, max_wait=0.002):
            found.extend(message.seq for message in batch)

    async with replay(queue_path, speed=1.0) as history:
        while history.next_timestamp_ns is not None:
            tasks = [asyncio.create_task(consume(history)) for _ in range(2)]
            done, _ = await asyncio.wait(tasks, timeout=rng.random() * 0.01)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            cancelled += not done
    assert found == list(range(300))
    assert cancelled > 3


@on_both_loops
async def test_closing_wakes_whoever_waits(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS, OPENING_NS + 10**15])
    async with replay(queue_path, speed=1.0) as history:
        assert (await history.next()).seq == 0
        waiting = [
            asyncio.create_task(shape_of(history, max_wait=0.03)),
            asyncio.create_task(history.dispatch()),
        ]
        next_one = asyncio.create_task(history.next())
        await asyncio.sleep(0.001)
        history.close()
        assert await asyncio.gather(*waiting) == [[], 0]
        with pytest.raises(ClosedError):
            await next_one


def test_closing_outlives_the_loop_that_somebody_waited_in(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS, OPENING_NS + 10**15])
    loop = asyncio.new_event_loop()
    with replay(queue_path, speed=1.0) as history:
        waiting = history.next()
        loop.run_until_complete(history.next())
        task = loop.create_task(waiting)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        history.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    assert history.closed


# ---- other methods of a reader ----


def by_type(message: Message) -> int:
    return message.type_id


async def use_everything(ticks: "Reader[Tick] | Replay[Tick]", log: list[object]) -> None:
    """Call the reader's methods over messages that are already there."""
    log.append((await ticks.next(timeout=5)).seq)
    message = ticks.poll()
    assert message is not None
    log.append((message.seq, message.decode().price))
    ticks.commit(message)
    log.append([message.seq for message in ticks.read_batch(5)])
    log.append([message.seq for message in ticks.read_batch(max_bytes=20)])
    log.append(ticks.lag.messages)
    log.append(ticks.statistics().messages)
    async for message in ticks:
        log.append(message.seq)
        break
    snapshot = await ticks.snapshot(lambda tick: tick.decode().price % 3)
    log.append({key: message.seq for key, message in snapshot.items()})
    log.append((ticks.lag, ticks.poll(), list(ticks), ticks.read_batch()))


def test_every_call_has_the_outcome_that_a_reader_has(queue_path: Path) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 16, codec=Tick) as writer:
        for price in range(3000):
            writer.send(Tick(price))
    expected: list[object] = []
    with aiochronicle.open_reader(queue_path, "live", codec=Tick) as reader:
        asyncio.run(use_everything(reader, expected))
    assert expected[-2] == {0: 2997, 1: 2998, 2: 2999}
    for speed in (None, 1e12):
        found: list[object] = []
        with replay(queue_path, codec=Tick, speed=speed) as history:
            asyncio.run(use_everything(history, found))
        assert found == expected

    async def a_day_later(history: Replay[Tick], log: list[object]) -> None:
        await asyncio.sleep(86_400)
        await use_everything(history, log)

    found = []
    with replay(queue_path, codec=Tick) as history:
        run_virtual(a_day_later(history, found), history)
    assert found == expected


def test_in_virtual_time_nothing_of_the_future_is_seen(tmp_path: Path, rng: random.Random) -> None:
    """At a random time, every call returns and counts only messages recorded up to then."""
    times: list[int] = []
    for name in ("a", "b", "c"):
        own = some_times(rng, 700)
        record(tmp_path / name, own, payload=lambda number: bytes(number % 200))
        times += own
    times.sort()

    async def main(history: Replay) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        taken = 0
        while taken < len(times):
            await asyncio.sleep(rng.random() * 0.1)
            due = sum(time_ns <= loop.time_ns() for time_ns in times)
            lag = history.lag
            assert lag.messages == due - taken
            assert lag.bytes >= 64 * lag.messages
            if lag.messages:
                assert lag.seconds == (loop.time_ns() - times[taken]) / 1e9
            match rng.randrange(4):
                case 0:
                    got = len(list(history))
                    assert got == due - taken
                case 1:
                    got = history.poll() is not None
                    assert got == (due > taken)
                case 2:
                    got = len(history.read_batch(20))
                    assert got == min(due - taken, 20)
                case _:
                    got = history.dispatch_now()
                    assert got == due - taken
            taken += got
            assert history.statistics().messages == taken

    with replay(tmp_path) as history:
        run_virtual(main(history), history)
        assert history.lag == aiochronicle.Lag(0, 0, 0.0)


def test_a_conflation_in_virtual_time_skips_what_a_live_one_would(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS + number * MS for number in range(100)])

    async def main(history: Replay) -> list[tuple[int, int]]:
        conflation = history.conflate(lambda message: message.type_id % 2)
        found: list[tuple[int, int]] = []
        async for message in conflation:
            found.append((message.seq, conflation.skipped))
            conflation.commit()
            await asyncio.sleep(0.010_5)
        assert conflation.statistics().taken == 100
        return found

    with replay(queue_path) as history:
        found = run_virtual(main(history), history)
    with replay(queue_path) as history:
        assert run_virtual(main(history), history) == found
    # Types are 0 1 2 3 4: at 10.5 ms the odd ones (1, 3, 6, 8) come first, then the even.
    assert found[:3] == [(0, 0), (8, 3), (20, 11)]
    assert sum(skipped + 1 for _, skipped in found) == 100


@on_both_loops
async def test_a_snapshot_that_is_not_finished_has_taken_nothing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        record(tmp_path / name, [OPENING_NS + number for number in range(4000)])
    async with replay(tmp_path) as history:
        assert (await history.next()).seq == 0
        assert history.next_timestamp_ns is not None
        taking = asyncio.create_task(history.snapshot(by_type))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert history.statistics().messages > 1
        taking.cancel()
        await asyncio.wait([taking])
        with pytest.raises(TooManyKeys):
            history.snapshot_now(by_type, max_keys=2)
        assert history.statistics().messages == 1
        rest = [(message.source, message.seq) for message in history]
    assert rest == [("b", 0), *[(name, seq) for seq in range(1, 4000) for name in "ab"]]


@pytest.mark.parametrize("in_virtual_time", [False, True])
def test_handlers_are_called_by_type(queue_path: Path, in_virtual_time: bool) -> None:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 16, codec=Tick) as writer:
        writer.send(Tick(1))
        writer.append(b"\xff", type_id=1)
        writer.append(b"raw", type_id=9)
    seen: list[object] = []

    async def main(history: Replay[Tick]) -> int:
        @history.on(Tick)
        async def take(tick: Tick) -> None:
            await asyncio.sleep(0.001)
            seen.append(tick)

        history.on(Message)(lambda message: seen.append(message.payload))
        with pytest.raises(InvalidArgument, match="no message can have it"):
            history.on(int)
        return await history.dispatch(on_error=lambda error, _: seen.append(type(error)))

    with replay(queue_path, codec=Tick) as history:
        running = main(history)
        count = run_virtual(running, history) if in_virtual_time else asyncio.run(running)
    assert count == 3
    assert seen == [Tick(1), DecodeError, b"raw"]


def test_what_a_replay_cannot_do_is_said(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS, OPENING_NS + 10 * MS])
    with replay(queue_path) as history:
        seeking = (history.seek, history.seek_time, history.seek_first, history.seek_last)
        for seek in seeking:
            with pytest.raises(InvalidArgument, match="start="):
                seek(0)
        for limits in ({"max_messages": 0}, {"max_bytes": 0}):
            with pytest.raises(InvalidArgument, match="positive"):
                history.read_batch(**limits)
            with pytest.raises(InvalidArgument, match="positive"):
                history.batches(**limits)
        assert history.wait()

        async def main() -> None:
            assert (await history.next()).seq == 0
            with pytest.raises(InvalidArgument, match="await next"):
                history.wait(timeout=1)

        run_virtual(main(), history)
        assert history.wait()
        assert [message.seq for message in history] == [1]
        assert not history.wait()
    with pytest.raises(ClosedError):
        history.poll()


def test_a_corrupt_record_is_raised_behind_what_comes_before_it(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS + number for number in range(5)], payload=lambda _: bytes(8))
    with aiochronicle.open_reader(queue_path) as reader:
        segment, offset = list(reader)[3].position
    with (queue_path / f"{segment:09}.q").open("r+b") as file:
        file.seek(offset + 64)
        file.write(b"\xee")
    with replay(queue_path) as history:
        assert [message.seq for message in history.read_batch()] == [0, 1, 2]
        with pytest.raises(CorruptionError):
            history.read_batch()

    async def main(history: Replay) -> list[list[int]]:
        batches = history.batches(max_wait=0.001)
        first = [message.seq for message in await anext(batches)]
        with pytest.raises(CorruptionError):
            await anext(batches)
        return [first]

    with replay(queue_path) as history:
        assert run_virtual(main(history), history) == [[0, 1, 2]]
