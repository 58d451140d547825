"""Damage in one queue: how the router handles it without affecting the others."""

import asyncio
import functools
import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiochronicle
import aiochronicle._services.attaching
import aiochronicle._services.discovery
from aiochronicle import Message, Retention, Router, forget_reader, open_reader
from aiochronicle.errors import (
    ChronicleError,
    CorruptionError,
    InvalidArgument,
    PositionLost,
    QueueNotFound,
)

WITHIN_S = 20.0
SEGMENT_BYTES = 4096
RECORD_BYTES = 128  # of a payload of up to 64 bytes
PER_SEGMENT = (SEGMENT_BYTES - 64) // RECORD_BYTES

open_writer = functools.partial(aiochronicle.open_writer, segment_size=SEGMENT_BYTES)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.001)


async def take(router: Router, count: int) -> list[bytes]:
    return [(await router.next(timeout=WITHIN_S)).payload for _ in range(count)]


def make(path: Path, count: int, first: int = 0) -> None:
    """Append this many messages to a queue; each takes RECORD_BYTES."""
    with open_writer(path, ready=True) as writer:
        for number in range(first, first + count):
            writer.append(b"%s %d" % (path.name.encode(), number), timestamp_ns=number + 1)


def payloads(name: str, numbers: Any) -> list[bytes]:
    return [b"%s %d" % (name.encode(), number) for number in numbers]


def flip(path: Path, number: int, bit: int = 1) -> None:
    """Flip a bit in the payload of a message; a second call repairs it."""
    segment, place = divmod(number, PER_SEGMENT)
    with (path / f"{segment:09}.q").open("r+b") as file:
        file.seek(64 + place * RECORD_BYTES + 64)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ bit]))


async def test_a_damaged_queue_comes_back_when_it_is_repaired_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    make(tmp_path / "bad", 10)
    make(tmp_path / "good", 10)
    flip(tmp_path / "bad", 4)
    async with Router(tmp_path, name="router", rescan_s=0.2) as router:
        received = await take(router, 14)
        assert sorted(received) == sorted(payloads("bad", range(4)) + payloads("good", range(10)))
        problem = router.problems[str(tmp_path / "bad")]
        assert isinstance(problem, CorruptionError)
        assert router.statistics().set_aside == 1
        with pytest.raises(TimeoutError):  # the router tries again, and repeats no message
            await router.next(timeout=0.5)
        make(tmp_path / "good", 1, 10)
        assert await take(router, 1) == payloads("good", [10])
        flip(tmp_path / "bad", 4)
        assert await take(router, 6) == payloads("bad", range(4, 10))
        assert router.problems == {}
        assert router.statistics().set_aside == 0
        router.commit()
    async with Router(tmp_path, name="router") as router:
        with pytest.raises(TimeoutError):
            await router.next(timeout=0.1)


async def test_damage_is_raised_once_and_the_others_go_on(tmp_path: Path) -> None:
    make(tmp_path / "bad", 3)
    make(tmp_path / "good", 3)
    flip(tmp_path / "bad", 1)
    async with Router(tmp_path, name="router", rescan_s=0.05, on_corrupt="raise") as router:
        received: list[bytes] = []
        raised: list[CorruptionError] = []
        while len(received) < 4:
            try:
                received += await take(router, 1)
            except CorruptionError as error:
                raised.append(error)
        assert len(raised) == 1
        assert str(tmp_path / "bad") in str(raised[0].path)
        assert router.problems == {str(tmp_path / "bad"): raised[0]}
        with pytest.raises(TimeoutError):  # the router has tried again many times by now
            await router.next(timeout=0.3)
        flip(tmp_path / "bad", 1)
        assert await take(router, 2) == payloads("bad", [1, 2])


async def test_each_damaged_place_is_stepped_over_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / "bad", 40)
    make(tmp_path / "good", 5)
    for number in (0, 7, 8, PER_SEGMENT - 1, 39):
        flip(tmp_path / "bad", number)
    whole = [n for n in range(40) if n not in (0, 7, 8, PER_SEGMENT - 1, 39)]
    with caplog.at_level(logging.WARNING, "aiochronicle.router"):
        async with Router(tmp_path, name="router", on_corrupt="skip") as router:
            received = await take(router, 40)
            assert [text for text in received if text.startswith(b"bad")] == payloads("bad", whole)
            await until(lambda: router.poll() is None and router.statistics().skipped == 5)
            by_path = {path: source for source, path in router.paths().items()}
            statistics = router.source_statistics(by_path[str(tmp_path / "bad")])
            assert (statistics.skipped, statistics.lost) == (5, 0)
            assert router.source_statistics(by_path[str(tmp_path / "good")]).skipped == 0
            assert router.problems == {}
            make(tmp_path / "bad", 1, 40)
            assert await take(router, 1) == payloads("bad", [40])
    assert sum("skipped: " in text for text in caplog.messages) == 5


async def test_a_function_is_asked_about_each_damage(tmp_path: Path) -> None:
    make(tmp_path / "bad", 10)
    make(tmp_path / "good", 3)
    for number in (2, 5):
        flip(tmp_path / "bad", number)
    asked: list[CorruptionError] = []

    def decide(error: CorruptionError) -> None:
        asked.append(error)
        if len(asked) == 2:
            raise ZeroDivisionError("enough")

    async with Router(tmp_path, name="router", on_corrupt=decide, rescan_s=0.05) as router:
        received = []
        with pytest.raises(ZeroDivisionError) as raised:
            while True:
                received += await take(router, 1)
        while len(received) < 7:
            received += await take(router, 1)
        assert sorted(received) == sorted(
            payloads("bad", [0, 1, 3, 4]) + payloads("good", range(3))
        )
        places = [(error.path, error.offset) for error in asked]
        segment = str(tmp_path / "bad" / "000000000.q")
        assert places == [(segment, 64 + number * RECORD_BYTES) for number in (2, 5)]
        assert router.problems == {str(tmp_path / "bad"): raised.value}
        assert router.statistics().skipped == 1
        flip(tmp_path / "bad", 5)
        assert await take(router, 5) == payloads("bad", range(5, 10))
        assert len(asked) == 2  # not at every attempt


@pytest.mark.parametrize("policy", ["set_aside", "raise", "skip", "function"])
async def test_messages_that_were_removed_before_they_were_read(
    tmp_path: Path, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While the router reads the first segment, the next ones are removed."""
    path = tmp_path / "bad"
    make(path, 1)
    make(tmp_path / "good", 2)
    asked: list[PositionLost] = []
    on_lost: Any = asked.append if policy == "function" else policy
    caplog.set_level(logging.WARNING, "aiochronicle.router")
    async with Router(tmp_path, name="router", rescan_s=0.1, on_lost=on_lost) as router:
        assert len(await take(router, 3)) == 3
        with open_writer(path) as writer:
            for number in range(1, 3 * PER_SEGMENT + 1):
                writer.append(b"bad %d" % number)
            (path / "000000001.q").unlink()
            read: list[bytes] = []
            error: PositionLost | None = None
            left = 3 * PER_SEGMENT + 1 - 2 * PER_SEGMENT
            while len(read) < PER_SEGMENT - 1 + left:
                try:
                    message = await router.next(timeout=0.5)
                except PositionLost as raised:
                    error = raised
                except TimeoutError:
                    break
                else:
                    read.append(message.payload)
            behind = payloads("bad", range(2 * PER_SEGMENT, 3 * PER_SEGMENT + 1))
            before = payloads("bad", range(1, PER_SEGMENT))
            if policy in ("skip", "function"):
                assert read == before + behind
                assert router.statistics().lost == PER_SEGMENT
                assert router.problems == {}
                assert len(asked) == (policy == "function")
                assert sum("after a loss" in text for text in caplog.messages) == 1
                return
            assert read == before
            assert isinstance(router.problems[str(path)], PositionLost)
            assert (error is not None) == (policy == "raise")
            # An operator decides where to continue.
            await until(lambda: _commit_at(path, 3 * PER_SEGMENT - 2))
            assert await take(router, 3) == behind[-3:]
            assert router.problems == {}


def _commit_at(path: Path, seq: int) -> bool:
    try:
        with open_reader(path, "router", start=seq) as reader:
            reader.commit()
    except aiochronicle.errors.ReaderBusy:  # the router is checking it
        return False
    return True


@pytest.mark.parametrize("policy", ["set_aside", "raise", "skip", "function"])
async def test_a_committed_position_that_is_lost_at_the_start(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "bad"
    make(path, 4 * PER_SEGMENT)
    make(tmp_path / "good", 2)
    with open_reader(path, "router") as reader:
        reader.poll()
        reader.commit()
    for segment in sorted(path.glob("*.q"))[:2]:
        segment.unlink()
    asked: list[PositionLost] = []
    on_lost: Any = asked.append if policy == "function" else policy
    rest = payloads("bad", range(2 * PER_SEGMENT, 4 * PER_SEGMENT))
    async with Router(tmp_path, name="router", rescan_s=0.1, on_lost=on_lost) as router:
        if policy == "raise":
            with pytest.raises(PositionLost):
                await take(router, 3)
        if policy in ("set_aside", "raise"):
            good = await take(router, 2) if policy == "set_aside" else []
            assert good in ([], payloads("good", range(2)))
            assert isinstance(router.problems[str(path)], PositionLost)
            await until(lambda: _forget(path))
        received: list[bytes] = []
        while len([text for text in received if text in rest]) < len(rest):
            received += await take(router, 1)
        assert [text for text in received if text.startswith(b"bad")] == rest
        assert router.problems == {}
        assert len(asked) == (policy == "function")
        assert (router.statistics().lost > 0) == (policy in ("skip", "function"))


def _forget(path: Path) -> bool:
    try:
        forget_reader(path, "router")
    except aiochronicle.errors.ReaderBusy:
        return False
    return True


async def test_retention_overtakes_the_router(tmp_path: Path) -> None:
    keep = Retention(max_bytes=3 * SEGMENT_BYTES, max_reader_lag=2 * SEGMENT_BYTES)
    async with Router(tmp_path, name="router", on_lost="skip", rescan_s=0.1) as router:
        with open_writer(tmp_path / "fast", retention=keep, ready=True) as writer:
            writer.append(b"fast 0")
            assert await take(router, 1) == [b"fast 0"]
            for number in range(1, 20 * PER_SEGMENT):
                writer.append(b"fast %d" % number)
                if number % PER_SEGMENT == 0:
                    writer.retain_now()
            await until(lambda: _retained(writer, tmp_path / "fast"))
            read: list[int] = []
            while not read or read[-1] < 20 * PER_SEGMENT - 1:
                read.append(int((await router.next(timeout=WITHIN_S)).payload.split()[1]))
            assert read == sorted(set(read))
            missing = 20 * PER_SEGMENT - 1 - len(read)
            assert missing > 0
            assert router.statistics().lost == missing


def _retained(writer: aiochronicle.Writer, path: Path) -> bool:
    writer.retain_now()
    return not (path / "000000001.q").exists()


async def test_damage_that_cannot_be_stepped_over_is_set_aside(tmp_path: Path) -> None:
    """The newest segment is truncated, so the router cannot know whether more messages follow."""
    path = tmp_path / "bad"
    make(path, 5)
    os.truncate(path / "000000000.q", 64 + 3 * RECORD_BYTES)
    make(tmp_path / "good", 2)
    async with Router(tmp_path, name="router", on_corrupt="skip", rescan_s=0.1) as router:
        received = await take(router, 5)
        assert sorted(received) == sorted(payloads("bad", range(3)) + payloads("good", range(2)))
        await until(lambda: router.poll() is None and str(path) in router.problems)
        make(tmp_path / "good", 1, 2)
        assert await take(router, 1) == payloads("good", [2])


def flip_header(path: Path, segment: int) -> None:
    """Damage the header of a segment, so that it cannot be opened."""
    with (path / f"{segment:09}.q").open("r+b") as file:
        byte = file.read(1)[0]
        file.seek(0)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("policy", ["skip", "function"])
@pytest.mark.parametrize("broken", [(1,), (1, 2), (0, 1, 3), (1, 5)])
async def test_damage_behind_the_one_that_opening_met_is_judged_and_counted(
    tmp_path: Path, policy: str, broken: tuple[int, ...]
) -> None:
    path = tmp_path / "bad"
    make(path, 6 * PER_SEGMENT)
    with open_reader(path, "router", start=PER_SEGMENT + 3) as reader:
        reader.commit()
    for segment in broken:
        flip_header(path, segment)
    flipped = (4 * PER_SEGMENT + 1, 4 * PER_SEGMENT + 7)
    for number in flipped:
        flip(path, number)
    asked: list[Exception] = []
    on_corrupt: Any = "skip" if policy == "skip" else asked.append
    expected = [
        number
        for number in range(PER_SEGMENT, 6 * PER_SEGMENT)
        if number // PER_SEGMENT not in broken and number not in flipped
    ]
    damages = sum(segment >= 1 for segment in broken) + len(flipped)
    async with Router(tmp_path, name="router", on_corrupt=on_corrupt, rescan_s=0.2) as router:
        assert await take(router, len(expected)) == payloads("bad", expected)
        assert router.poll() is None
        if 5 not in broken:  # no message follows the last one yet
            assert router.statistics().skipped == damages
            assert router.problems == {}
            assert len(asked) == (damages if policy == "function" else 0)


async def test_a_queue_that_was_removed_and_made_again(tmp_path: Path) -> None:
    make(tmp_path / "bad", 3)
    flip(tmp_path / "bad", 0)
    async with Router(tmp_path, name="router", rescan_s=0.1) as router:
        await until(lambda: router.poll() is None and router.problems)
        shutil.rmtree(tmp_path / "bad")
        make(tmp_path / "bad", 2)
        assert await take(router, 2) == payloads("bad", range(2))
        await until(lambda: not router.problems)


async def test_a_writer_that_opens_a_damaged_queue_repairs_it(tmp_path: Path) -> None:
    """The next writer repairs a torn end."""
    path = tmp_path / "bad"
    make(path, 3)
    control = path / "control.meta"
    held = control.read_bytes()
    control.write_bytes(bytes(len(held)))
    async with Router(tmp_path, name="router", rescan_s=0.1) as router:
        assert isinstance(router.problems[str(path)], ChronicleError)
        control.write_bytes(held)
        assert await take(router, 3) == payloads("bad", range(3))


def make_strange(root: Path) -> Path:
    """Announce a directory that is not a queue, with a name that logs must escape."""
    strange = Path(os.fsdecode(os.fsencode(root) + b"/\xff\n\x1b[2J"))
    strange.mkdir()
    (strange / "READY").write_text('{"version": 1}')
    return strange


async def test_strange_directories_are_problems_of_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strange = make_strange(tmp_path)
    make(tmp_path / "good", 1)
    async with Router(tmp_path, name="router", rescan_s=0.05) as router:
        assert await take(router, 1) == payloads("good", [0])
        assert isinstance(router.problems[str(strange)], QueueNotFound)
        make(tmp_path / "late", 1)
        assert await take(router, 1) == payloads("late", [0])
    assert any(r"\xff\n\x1b[2J" in text for text in caplog.messages)
    assert all(text.isprintable() for text in caplog.messages)


async def test_whatever_opening_raises_is_that_queues_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "bad", 1)
    make(tmp_path / "good", 1)
    real = open_reader
    wrong: list[BaseException] = [MemoryError(), OSError(5, "no"), UnicodeError("x"), KeyError(1)]

    def sometimes(path: str, *args: Any, **keywords: Any) -> Any:
        if path.endswith("bad") and wrong:
            raise wrong.pop()
        return real(path, *args, **keywords)

    monkeypatch.setattr(aiochronicle._services.attaching, "open_reader", sometimes)
    async with Router(tmp_path, name="router", rescan_s=0.05) as router:
        assert sorted(await take(router, 2)) == [b"bad 0", b"good 0"]
        assert not wrong
        assert router.problems == {}


async def test_discovery_that_fails_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / "one", 1)
    make(tmp_path / "two", 1)
    async with Router(tmp_path, name="router", rescan_s=0.05) as router:
        assert len(await take(router, 2)) == 2
        with monkeypatch.context() as broken:

            async def fail(*_: object) -> None:
                raise MemoryError("no room to look around")

            broken.setattr(aiochronicle._services.discovery.Discovery, "_examine", fail)
            await until(lambda: str(tmp_path) in router.problems)
            shutil.rmtree(tmp_path / "two")
            make(tmp_path / "three", 1)
        assert await take(router, 1) == payloads("three", [0])
        await until(
            lambda: (
                sorted(router.paths().values())
                == [
                    str(tmp_path / "one"),
                    str(tmp_path / "three"),
                ]
            )
        )
        await until(lambda: not router.problems)
    assert sum("discovery failed" in text for text in caplog.messages) == 1


def test_what_to_do_about_damage_is_checked(tmp_path: Path) -> None:
    async def later(_: object) -> None: ...

    for wrong in ("ignore", None, 1, later):
        with pytest.raises(InvalidArgument, match="on_corrupt must be"):
            Router(tmp_path, name="router", on_corrupt=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="on_lost must be"):
            Router(tmp_path, name="router", on_lost=wrong)  # type: ignore[arg-type]


async def test_cancelled_anywhere_it_loses_and_repeats_nothing(
    tmp_path: Path, rng: random.Random
) -> None:
    """Readers of a damaged queue are cancelled at random moments, while it is repaired."""
    count = 200
    make(tmp_path / "bad", count)
    broken = sorted(rng.sample(range(count), 5))
    for number in broken:
        flip(tmp_path / "bad", number)
    received: list[bytes] = []

    async def read() -> None:
        while True:
            try:
                received.append((await router.next()).payload)
            except CorruptionError:
                flip(tmp_path / "bad", broken.pop(0))

    async with Router(tmp_path, name="router", on_corrupt="raise", rescan_s=0.02) as router:
        async with asyncio.timeout(60):
            while len(received) < count:
                reading = asyncio.create_task(read())
                await asyncio.sleep(rng.random() * 0.01)
                reading.cancel()
                await asyncio.wait([reading])
    assert received == payloads("bad", range(count))


def test_a_router_in_one_loop_after_the_other(tmp_path: Path) -> None:
    make(tmp_path / "queue", 1)
    router: Router = Router(tmp_path, name="router", rescan_s=0.1)

    async def read(count: int) -> list[bytes]:
        return await take(router, count)

    async def answer(number: int) -> None:
        message: Message = await router.next(timeout=WITHIN_S)
        (await router.reply(message)).append(b"%d" % number)

    assert asyncio.run(read(1)) == payloads("queue", [0])
    make(tmp_path / "queue", 1, 1)
    make(tmp_path / "other", 1)
    assert sorted(asyncio.run(read(2))) == [b"other 0", b"queue 1"]
    for number in (2, 3):
        make(tmp_path / "queue", 1, number)
        asyncio.run(answer(number))
    asyncio.run(router.aclose())
    with open_reader(f"{tmp_path}.replies/queue") as replies:
        assert [reply.payload for reply in replies] == [b"2", b"3"]


async def test_a_router_in_two_loops_at_once_says_so(tmp_path: Path) -> None:
    async def elsewhere() -> None:
        with pytest.raises(InvalidArgument, match=r"router of .* another event loop"):
            await router.next(timeout=1)

    async with Router(tmp_path, name="router") as router:
        await asyncio.to_thread(asyncio.run, elsewhere())
