"""Timers in virtual time are exact to the nanosecond; the reference counts in integers only."""

import asyncio
import concurrent.futures
import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import aiochronicle
from aiochronicle import Replay, VirtualTimeLoop, replay, run_virtual
from aiochronicle._services.virtual_timers import ns_between

OPENING_NS = 1_700_000_000_000_000_000
DAY_NS = 86_400 * 10**9


def virtual_loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


def record(path: Path, times_ns: list[int]) -> None:
    with aiochronicle.open_writer(path, segment_size=1 << 20) as writer:
        for time_ns in times_ns:
            writer.append(b"", timestamp_ns=OPENING_NS + time_ns)


def times_around(rng: random.Random, messages: list[int]) -> list[int]:
    """Return times for timers, most of them at a message or 1 ns before or after it."""
    near = [max(0, rng.choice(messages) + rng.choice((-1, -1, 0, 0, 1, 1))) for _ in range(300)]
    return near + [rng.randrange(messages[-1]) for _ in range(100)]


@pytest.mark.parametrize("way", ["call_later", "call_at", "sleep", "timeout", "mixed"])
@pytest.mark.parametrize("span_ns", [1000, 10**9, 3600 * 10**9, DAY_NS, 40 * DAY_NS])
def test_timers_up_to_a_message_run_before_it(
    queue_path: Path, rng: random.Random, way: str, span_ns: int
) -> None:
    """All timers are set at the start; timers of one time run in the order in which they were set."""
    messages = [0, *sorted(rng.randrange(span_ns) for _ in range(200))]
    timers = times_around(rng, messages)
    record(queue_path, messages)
    # A task sets its timer one turn later than a callback, so their relative order is not compared.
    ways = ["call_later", "call_at"] if way == "mixed" else [way]
    expected = sorted(
        [(time_ns, 0, number) for number, time_ns in enumerate(timers)]
        + [(time_ns, 1, seq) for seq, time_ns in enumerate(messages)]
    )
    seen: list[tuple[int, int, int]] = []

    def note(number: int) -> None:
        seen.append((virtual_loop().time_ns() - OPENING_NS, 0, number))

    async def wait(how: str, number: int, delay: float) -> None:
        if how == "sleep":
            await asyncio.sleep(delay)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await asyncio.Event().wait()
        note(number)

    async def main(history: Replay) -> None:
        loop = virtual_loop()
        async with asyncio.TaskGroup() as tasks:
            for number, time_ns in enumerate(timers):
                how = rng.choice(ways)
                if how == "call_later":
                    loop.call_later(time_ns / 1e9, note, number)
                elif how == "call_at":
                    loop.call_at(time_ns / 1e9, note, number)
                else:
                    tasks.create_task(wait(how, number, time_ns / 1e9))
            await asyncio.sleep(0)
            async for message in history:
                seen.append((loop.time_ns() - OPENING_NS, 1, message.seq))
            await asyncio.sleep(2)  # timers 1 ns after the last message

    with replay(queue_path) as history:
        run_virtual(main(history), history, start=OPENING_NS)
    if way == "timeout":  # a delay of 0 is a timeout at once, before tasks are given a turn
        assert sorted(seen) == expected
    else:
        assert seen == expected


@pytest.mark.parametrize("age_ns", [0, DAY_NS + 1, 40 * DAY_NS + 7, 4000 * DAY_NS + 3])
def test_delays_are_exact_at_any_age_of_the_clock(rng: random.Random, age_ns: int) -> None:
    """Chains of sleeps and of timers set by timers; call_at(time() + delay) for 48 days."""

    async def main() -> None:
        loop = virtual_loop()
        await loop.arrival(OPENING_NS + age_ns)
        expected_ns = OPENING_NS + age_ns
        assert loop.time_ns() == expected_ns
        for _ in range(500):
            delay_ns = rng.choice((1, 2, rng.randrange(10**6), rng.randrange(1, 10**12)))
            way = rng.randrange(3 if age_ns < 41 * DAY_NS else 2)
            if way == 0:
                await asyncio.sleep(delay_ns / 1e9)
            else:
                done = loop.create_future()
                if way == 1:
                    loop.call_later(delay_ns / 1e9, done.set_result, None)
                else:
                    loop.call_at(loop.time() + delay_ns / 1e9, done.set_result, None)
                await done
            # sleep(0) does not wait at all
            expected_ns += delay_ns
            assert loop.time_ns() == expected_ns, (way, delay_ns)

    run_virtual(main(), start=OPENING_NS)


def test_a_deadline_that_is_asked_for_again_and_again_is_reached(rng: random.Random) -> None:
    """Rounding must not leave a program waiting for less than a nanosecond, forever."""

    async def main() -> None:
        loop = virtual_loop()
        for days in (0, 1, 100, 4000):
            await loop.arrival(OPENING_NS + days * DAY_NS + rng.randrange(1000))
            for _ in range(100):
                deadline = loop.time() + rng.random() * 1e-6
                turns = 0
                while loop.time() < deadline:
                    await asyncio.sleep(deadline - loop.time())
                    turns += 1
                    assert turns < 5
                deadline = loop.time() + rng.random() * 1e-6
                done = loop.create_future()

                def look(deadline: float, done: "asyncio.Future[None]") -> None:
                    if loop.time() < deadline:
                        loop.call_at(deadline, look, deadline, done)
                    else:
                        done.set_result(None)

                loop.call_at(deadline, look, deadline, done)
                await done

    run_virtual(main(), start=OPENING_NS)


def test_the_nearest_nanosecond_in_integers(rng: random.Random) -> None:
    for _ in range(2000):
        delay_ns = rng.randrange(1 << rng.randrange(1, 53)) if rng.random() < 0.9 else 2**52
        assert ns_between(0.0, min(delay_ns, 2**23 * 10**9 - 1) / 1e9) == min(
            delay_ns, 2**23 * 10**9 - 1
        )
        now_ns = rng.randrange(2**22 * 10**9 - 10**13)
        step_ns = rng.randrange(1, 10**13)
        assert ns_between(now_ns / 1e9, now_ns / 1e9 + step_ns / 1e9) == step_ns
        assert ns_between(now_ns / 1e9, (now_ns + step_ns) / 1e9) == step_ns
    assert ns_between(0.0, -1.0) == 0
    assert ns_between(0.0, 1e-12) == 1
    assert ns_between(0.0, float("inf")) is None
    with pytest.raises(ValueError, match="NaN"):
        ns_between(0.0, float("nan"))


def test_cancelled_timers_do_not_run_and_are_dropped(rng: random.Random) -> None:
    async def main() -> tuple[list[int], int]:
        loop = virtual_loop()
        ran: list[int] = []
        kept: list[tuple[int, int]] = []
        most = 0
        for number in range(5000):
            delay_ns = rng.randrange(1, 10**6)
            timer = loop.call_later(delay_ns / 1e9, ran.append, number)
            if rng.random() < 0.9:
                timer.cancel()
                timer.cancel()
            else:
                kept.append((delay_ns, number))
            most = max(most, len(loop._timers))
        never = loop.call_later(float("inf"), ran.append, -1)
        await asyncio.sleep(1)
        never.cancel()
        assert ran == [number for _, number in sorted(kept)]
        return ran, most

    ran, most = run_virtual(main(), start=OPENING_NS)
    assert 300 < len(ran) < 700
    assert most < 2 * len(ran) + 300


def in_thread(loop: VirtualTimeLoop, delay: float, timeout: float | None = None) -> int:
    """Run a sleep in the loop from another thread; return the virtual time after it."""

    async def work() -> int:
        await asyncio.sleep(delay)
        return loop.time_ns()

    future = asyncio.run_coroutine_threadsafe(work(), loop)
    try:
        return future.result(timeout)
    except TimeoutError:
        future.cancel()
        raise


def test_a_thread_may_wait_for_a_coroutine_that_sleeps() -> None:
    async def main() -> list[int]:
        loop = virtual_loop()
        times = [await asyncio.to_thread(in_thread, loop, 5) for _ in range(3)]
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(in_thread, loop, float("inf"), 0.01)
        times.append(loop.time_ns())
        return times

    assert run_virtual(main()) == [5 * 10**9, 10 * 10**9, 15 * 10**9, 15 * 10**9]


def test_a_thread_that_does_not_wait_takes_no_time() -> None:
    """It submits work and keeps computing; the clock does not advance until it waits or polls in vain."""

    def work(loop: VirtualTimeLoop) -> tuple[int, bool, int]:
        future = asyncio.run_coroutine_threadsafe(asyncio.sleep(5, 17), loop)
        time.sleep(0.1)
        before_ns = loop.time_ns()
        with contextlib.suppress(TimeoutError):
            future.result(0)
        return before_ns, future.done(), future.result()

    async def main() -> tuple[int, bool, int]:
        return await asyncio.to_thread(work, virtual_loop())

    assert run_virtual(main()) == (0, False, 17)


def test_a_thread_that_polls_is_not_left_alone() -> None:
    def work(loop: VirtualTimeLoop) -> int:
        future = asyncio.run_coroutine_threadsafe(asyncio.sleep(5, 17), loop)
        while not future.done():
            time.sleep(0.001)
        return future.result()

    async def main() -> int:
        return await asyncio.to_thread(work, virtual_loop())

    assert run_virtual(main()) == 17


def test_a_thread_may_wait_for_a_timer_that_it_set() -> None:
    def work(loop: VirtualTimeLoop) -> bool:
        rung = threading.Event()
        loop.call_soon_threadsafe(loop.call_later, 3600, rung.set)
        return rung.wait(30)

    async def main() -> tuple[bool, float]:
        loop = virtual_loop()
        return await asyncio.to_thread(work, loop), loop.time()

    assert run_virtual(main()) == (True, 3600.0)


def test_the_clock_stands_while_another_thread_works() -> None:
    """One thread waits for a sleeping coroutine, another works: no time passes until the work is done."""
    release = threading.Event()

    async def main() -> tuple[int, int, int]:
        loop = virtual_loop()

        async def see() -> int:
            await asyncio.sleep(1)
            return loop.time_ns()

        working = loop.run_in_executor(None, release.wait, 30)
        sleeping = loop.run_in_executor(None, in_thread, loop, 1)
        seeing = asyncio.create_task(see())
        # A plain thread: virtual time does not know it and does not wait for it.
        threading.Timer(0.2, release.set).start()
        await working
        return loop.time_ns(), await sleeping, await seeing

    assert run_virtual(main()) == (0, 10**9, 10**9)


def test_more_threads_that_wait_than_the_pool_has() -> None:
    async def main() -> list[int]:
        loop = virtual_loop()
        with ThreadPoolExecutor(2) as pool:
            jobs = [loop.run_in_executor(pool, in_thread, loop, 1 + number) for number in range(7)]
            return await asyncio.gather(*jobs)

    async def twice() -> tuple[list[int], list[int]]:
        return await main(), []

    first, second = run_virtual(main()), run_virtual(twice())[0]
    assert first == second
    assert first[:2] == [10**9, 2 * 10**9]


def test_a_thread_that_waits_when_the_loop_ends() -> None:
    """Its result is no longer needed, but ``asyncio.run`` still joins the loop's threads."""
    loops: list[VirtualTimeLoop] = []
    outcome: list[object] = []

    def work() -> None:
        with contextlib.suppress(concurrent.futures.CancelledError):
            in_thread(loops[0], 10)
        outcome.append(in_thread(loops[0], 20))

    async def main() -> None:
        loops.append(virtual_loop())
        waiting = asyncio.create_task(asyncio.to_thread(work))
        await asyncio.sleep(1)
        waiting.cancel()

    run_virtual(main())
    assert len(outcome) == 1
