"""In virtual time, timers and messages happen in time order, without waiting."""

import asyncio
import hashlib
import random
import socket
import time
from pathlib import Path

import pytest

import aiochronicle
from aiochronicle import Reader, Replay, VirtualTimeLoop, replay, run_virtual
from aiochronicle.errors import InvalidArgument, VirtualTimeDeadlock

OPENING_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000


def record(path: Path, times_ns: list[int]) -> None:
    with aiochronicle.open_writer(path, segment_size=1 << 20) as writer:
        for number, time_ns in enumerate(times_ns):
            writer.append(b"%d" % number, timestamp_ns=time_ns)


def virtual_loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


def test_the_clock_follows_the_messages_to_the_nanosecond(
    queue_path: Path, rng: random.Random
) -> None:
    """Over three years, where a float of seconds is no longer exact."""
    times = sorted(OPENING_NS + rng.randrange(10**17) for _ in range(500))
    record(queue_path, times)

    async def main(history: Replay) -> list[tuple[int, int, float]]:
        loop = virtual_loop()
        return [(m.timestamp_ns, loop.time_ns(), loop.time()) async for m in history]

    with replay(queue_path) as history:
        seen = run_virtual(main(history), history)
    assert [stamp for stamp, _, _ in seen] == times
    assert all(stamp == now_ns for stamp, now_ns, _ in seen)
    assert [now for _, _, now in seen] == [(stamp - times[0]) / 1e9 for stamp in times]


def test_a_year_passes_without_waiting() -> None:
    async def main() -> tuple[float, int]:
        await asyncio.sleep(365 * 24 * 3600)
        return virtual_loop().time(), virtual_loop().time_ns()

    began = time.monotonic()
    assert run_virtual(main(), start=OPENING_NS) == (
        365 * 24 * 3600.0,
        OPENING_NS + 365 * 24 * 3600 * SECOND_NS,
    )
    assert time.monotonic() - began < 10


def test_what_is_due_runs_before_the_next_message(queue_path: Path) -> None:
    """Timers due at or before a message's time run before it, and so do the callbacks they schedule."""
    record(queue_path, [OPENING_NS + number * SECOND_NS for number in range(4)])
    log: list[str] = []

    def due(name: str, further: int) -> None:
        log.append(name)
        if further:
            asyncio.get_running_loop().call_soon(due, name + "+", further - 1)

    async def main(history: Replay) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(1.0, due, "at 1", 3)
        loop.call_at(1.5, due, "at 1.5", 0)
        loop.call_at(2.000000001, due, "behind 2", 0)
        async for message in history:
            log.append(f"message {message.seq}")
            loop.call_soon(due, f"after {message.seq}", 1)

    with replay(queue_path) as history:
        run_virtual(main(history), history)
    assert log == [
        *("message 0", "after 0", "after 0+"),
        *("at 1", "at 1+", "at 1++", "at 1+++"),
        *("message 1", "after 1", "after 1+"),
        "at 1.5",
        *("message 2", "after 2", "after 2+", "behind 2"),
        *("message 3", "after 3", "after 3+"),  # the loop ends when it has nothing left to do
    ]


def test_a_busy_consumer_is_as_late_as_it_would_have_been(
    queue_path: Path, rng: random.Random
) -> None:
    """Compared with a single-server queue: service starts when the server is free and a message is there."""
    times = sorted(OPENING_NS + rng.randrange(10_000) * 1_000_000 for _ in range(1000))
    service_ms = [rng.randrange(30) for _ in times]
    record(queue_path, times)
    expected: list[int] = []
    free_ns = 0
    for time_ns, busy_ms in zip(times, service_ms, strict=True):
        begin_ns = max(time_ns, free_ns)
        expected.append(begin_ns)
        free_ns = begin_ns + busy_ms * 1_000_000

    async def main(history: Replay) -> list[int]:
        begun: list[int] = []
        async for message in history:
            begun.append(virtual_loop().time_ns())
            await asyncio.sleep(service_ms[message.seq] / 1000)
        return begun

    with replay(queue_path) as history:
        begun = run_virtual(main(history), history)
    assert begun == expected


def test_timeouts_end_at_their_time(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS, OPENING_NS + 10 * SECOND_NS])

    async def main(history: Replay) -> list[object]:
        loop = virtual_loop()
        found: list[object] = []
        while True:
            try:
                found.append((await history.next(timeout=3)).seq)
            except TimeoutError:
                found.append(round(loop.time(), 6))
            except aiochronicle.errors.ClosedError:
                return found

    with replay(queue_path) as history:
        assert run_virtual(main(history), history) == [0, 3.0, 6.0, 9.0, 1]


def test_several_replays_share_the_clock(tmp_path: Path) -> None:
    record(tmp_path / "quotes", [OPENING_NS + number * 30 for number in range(100)])
    record(tmp_path / "trades", [OPENING_NS + 15 + number * 70 for number in range(40)])
    log: list[int] = []

    async def follow(history: Replay) -> None:
        async for message in history:
            assert virtual_loop().time_ns() == message.timestamp_ns
            log.append(message.timestamp_ns)

    async def main(*histories: Replay) -> None:
        async with asyncio.TaskGroup() as tasks:
            for history in histories:
                tasks.create_task(follow(history))

    with replay(tmp_path / "trades") as trades, replay(tmp_path / "quotes") as quotes:
        run_virtual(main(trades, quotes), trades, quotes)
    assert len(log) == 140
    assert log == sorted(log)


async def strategy(ticks: "Replay | Reader", orders: aiochronicle.Writer, count: int) -> None:
    """A strategy written for production, unaware of replays."""
    pending: set[asyncio.Task[None]] = set()

    async def cancel_later(number: int) -> None:
        await asyncio.sleep(0.004)
        orders.append(b"cancel %d" % number)

    async def heartbeat() -> None:
        while True:
            await asyncio.sleep(0.025)
            orders.append(b"heartbeat")
            await orders.flush()

    beating = asyncio.create_task(heartbeat())
    async for tick in ticks:
        if tick.seq % 3 == 0:
            orders.append(b"order " + tick.payload, cause=tick)
            task = asyncio.create_task(cancel_later(tick.seq))
            pending.add(task)
            task.add_done_callback(pending.discard)
        if tick.seq == count - 1:
            break
        try:
            async with asyncio.timeout(0.002):
                await asyncio.sleep((tick.seq % 4) / 1000)
        except TimeoutError:
            orders.append(b"slow")
        ticks.commit()
    beating.cancel()
    await asyncio.gather(*pending)


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with aiochronicle.open_reader(path) as reader:
        for message in reader:
            digest.update(b"%d %b\n" % (message.timestamp_ns, message.payload))
    return digest.hexdigest()


def test_a_production_coroutine_does_the_same_in_every_run(
    tmp_path: Path, rng: random.Random
) -> None:
    """Run it live, then twice over the recording; the two replays agree to the nanosecond."""
    feed, count = tmp_path / "feed", 200

    async def produce() -> None:
        async with aiochronicle.open_writer(feed) as writer:
            for number in range(count):
                writer.append(b"%d" % number)
                await asyncio.sleep(rng.random() * 0.004)

    async def live() -> None:
        async with (
            aiochronicle.open_writer(tmp_path / "live") as orders,
            aiochronicle.open_reader(feed, "strategy", wait_for_queue=True) as ticks,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(produce())
            tasks.create_task(strategy(ticks, orders, count))

    async def over_history(history: Replay, name: str) -> None:
        clock = virtual_loop().time_ns
        async with aiochronicle.open_writer(tmp_path / name, clock=clock) as orders:
            await strategy(history, orders, count)

    asyncio.run(live())
    for name in ("first", "second"):
        with replay(feed) as history:
            run_virtual(over_history(history, name), history)
    assert digest_of(tmp_path / "first") == digest_of(tmp_path / "second")

    def orders_of(name: str) -> list[bytes]:
        with aiochronicle.open_reader(tmp_path / name) as reader:
            return [m.payload for m in reader if m.payload.startswith((b"order", b"cancel"))]

    assert sorted(orders_of("first")) == sorted(orders_of("live"))


def test_threads_are_waited_for_while_the_clock_stands(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS, OPENING_NS + 1])

    def work() -> int:
        time.sleep(0.02)
        return -1

    async def main(history: Replay) -> list[int]:
        seen: list[int] = []

        async def ask_a_thread() -> None:
            seen.append(await asyncio.to_thread(work))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask_a_thread())
            async for message in history:
                seen.append(message.seq)
        return seen

    with replay(queue_path) as history:
        # The thread gets the messages due now, and its answer belongs to the same time.
        assert run_virtual(main(history), history) == [-1, 0, 1]


def test_data_that_is_there_is_read_before_time_goes_on() -> None:
    async def main() -> tuple[bytes, float]:
        here, there = await asyncio.open_connection(sock=left)
        right.send(b"ping")
        data = await here.readexactly(4)
        there.close()
        await there.wait_closed()
        return data, virtual_loop().time()

    left, right = socket.socketpair()
    left.setblocking(False)
    with right:
        assert run_virtual(main()) == (b"ping", 0.0)


def test_a_deadlock_says_who_waits_where(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS, OPENING_NS + SECOND_NS])

    async def forgotten() -> None:
        await asyncio.Event().wait()

    async def main(history: Replay) -> None:
        async for _ in history:
            pass
        async with asyncio.TaskGroup() as tasks:
            for number in range(7):
                tasks.create_task(forgotten(), name=f"forgotten-{number}")

    with replay(queue_path) as history:
        with pytest.raises(VirtualTimeDeadlock) as caught:
            run_virtual(main(history), history)
        text = str(caught.value)
        assert "at 1.000000000 s of virtual time" in text
        assert f"in forgotten, {__file__}:" in text
        assert "and 3 more" in text
        assert "End these tasks with the replay" in text


def test_cancelled_waiting_does_not_move_the_clock(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS, OPENING_NS + 100 * SECOND_NS])

    async def main(history: Replay) -> list[float]:
        loop = virtual_loop()
        times: list[float] = []
        await anext(history)
        waiting = asyncio.create_task(history.next())
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        times.append(loop.time())
        await asyncio.sleep(200)
        times.append(loop.time())
        assert (await anext(history)).seq == 1  # late, but not lost
        times.append(loop.time())
        return times

    with replay(queue_path) as history:
        assert run_virtual(main(history), history) == pytest.approx([1, 201, 201])


def test_the_start_may_be_given(queue_path: Path) -> None:
    record(queue_path, [OPENING_NS + SECOND_NS])

    async def main(history: Replay) -> list[float]:
        loop = virtual_loop()
        return [loop.time(), *[loop.time() async for _ in history]]

    with replay(queue_path) as history:
        assert run_virtual(main(history), history, start=OPENING_NS) == [0.0, 1.0]
    wrong = main(history)
    with pytest.raises(InvalidArgument):
        run_virtual(wrong, history, start=-1)
    wrong.close()
