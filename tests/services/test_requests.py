"""Every request gets one answer, even if a process is killed, cancelled or late meanwhile."""

import asyncio
import contextlib
import errno
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from asynchronous.both_loops import on_both_loops
from faults.system_calls import injected
from helpers.power_cut import copy_as_original

import aiochronicle
from aiochronicle import Codec, Registry, Request, Requester, Responder, Retention
from aiochronicle.errors import (
    ClosedError,
    CorruptionError,
    EncodeError,
    InvalidArgument,
    LockedError,
    QueueGone,
    RequestFailed,
    RequestTimeout,
    SchemaMismatch,
)

SERVICE = Path(__file__).parents[1] / "helpers" / "responder.py"

Handler = Callable[[Request], Awaitable[bytes | None]]


def requester(root: Path, name: str = "desk") -> Requester:
    return Requester(root / "asked", root / "answered", name)


def responder(root: Path) -> Responder:
    return Responder(root / "asked", root / "answered", rescan_s=0.2)


async def double(request: Request) -> bytes:
    number = int(request.payload)
    if number < 0:
        raise ValueError("negative")
    await asyncio.sleep(0)
    return b"%d" % (2 * number)


@asynccontextmanager
async def serving(root: Path, handler: Handler = double) -> AsyncIterator[Responder]:
    async with responder(root) as service:
        task = asyncio.create_task(service.serve(handler))
        try:
            yield service
        finally:
            task.cancel()
            await asyncio.wait([task])


def start_service(root: Path) -> "subprocess.Popen[str]":
    service = subprocess.Popen(
        [sys.executable, "-W", "error", str(SERVICE), str(root)], stdout=subprocess.PIPE, text=True
    )
    assert service.stdout is not None
    assert service.stdout.readline() == "ready\n"
    return service


@on_both_loops
async def test_many_tasks_of_many_requesters_get_their_own_answers(tmp_path: Path) -> None:
    async def ask(desk: Requester, number: int) -> None:
        reply = await desk.request(b"%d" % number, timeout=60)
        assert int(reply.payload) == 2 * number

    async with serving(tmp_path) as service:
        desks = [requester(tmp_path, f"desk-{number}") for number in range(3)]
        async with asyncio.TaskGroup() as tasks:
            for number in range(300):
                tasks.create_task(ask(desks[number % 3], number))
        for desk in desks:
            statistics = desk.statistics()
            assert (statistics.sent, statistics.answered, statistics.dropped) == (100, 100, 0)
            await desk.aclose()
        assert service.statistics().answered == 300
        assert service.statistics().outstanding == 0


@on_both_loops
async def test_a_request_waits_for_a_responder_in_another_process(tmp_path: Path) -> None:
    async with requester(tmp_path) as desk:
        asking = asyncio.create_task(desk.request(b"21", timeout=60))
        await asyncio.sleep(0)
        service = await asyncio.to_thread(start_service, tmp_path)
        with service:
            reply = await asking
            assert (reply.payload, reply.cause) == (b"42", (desk.queue_id, 0))
            service.kill()


async def test_timeouts_and_late_answers_are_counted(tmp_path: Path) -> None:
    async with requester(tmp_path) as desk, responder(tmp_path) as service:
        with pytest.raises(RequestTimeout, match=r"request 0 within 0.01 s.*responder is running"):
            await desk.request(b"never taken", timeout=0.01)
        waiting = asyncio.create_task(desk.request(b"late", timeout=1))
        late = await anext(service)
        with pytest.raises(RequestTimeout):
            await waiting
        waiting = asyncio.create_task(desk.request(b"cancelled"))
        cancelled = await anext(service)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert desk.statistics().given_up == 3
        assert (late.expired, cancelled.expired, cancelled.deadline_ns) == (True, False, None)
        assert service.statistics().expired == 1
        asking = asyncio.create_task(desk.request(b"in time", timeout=60))
        in_time = await anext(service)
        assert [late.payload, cancelled.payload, in_time.payload] == [
            b"late",
            b"cancelled",
            b"in time",
        ]
        for request in (late, cancelled, in_time):
            request.reply(b"done: " + request.payload, type_id=5)
        reply = await asking
        assert (reply.payload, reply.type_id) == (b"done: in time", 5)
        statistics = desk.statistics()
        assert (statistics.dropped, statistics.answered, statistics.pending) == (2, 1, 0)


async def test_failures_are_raised_where_the_question_was_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR", "aiochronicle.requests")  # a page of the guide silences the logger
    async with requester(tmp_path) as desk, serving(tmp_path) as service:
        with pytest.raises(RequestFailed, match="ValueError: negative"):
            await desk.request(b"-1", timeout=60)
        assert (await desk.request(b"1", timeout=60)).payload == b"2"
        assert desk.statistics().failed == 1
        assert service.statistics().failed == 1
    assert caplog.messages == ["handling request 0 of 'desk' failed"]
    caplog.clear()  # the traceback in a log record holds the request, which holds its segment


async def test_a_handler_refuses_or_answers_by_itself_and_the_log_stays_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def market(request: Request) -> bytes | None:
        if request.payload == b"by exception":
            raise RequestFailed("closed today")
        if request.payload == b"by both":
            request.fail("closed today")
            raise RequestFailed("and tomorrow")
        if request.payload == b"by fail":
            request.fail("closed today")
        else:
            request.reply(b"101.5", type_id=7)
        return None

    caplog.set_level("ERROR", "aiochronicle.requests")
    async with requester(tmp_path) as desk, serving(tmp_path, market) as service:
        for question in (b"by exception", b"by fail", b"by both"):
            with pytest.raises(RequestFailed) as refused:
                await desk.request(question, timeout=60)
            assert str(refused.value) == "closed today"
        reply = await desk.request(b"typed", timeout=60)
        assert (reply.payload, reply.type_id) == (b"101.5", 7)
        assert (service.statistics().answered, service.statistics().failed) == (4, 3)
    assert caplog.messages == []


async def test_a_handler_with_an_impossible_answer_does_not_end_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def sloppy(request: Request) -> bytes | None:
        if request.payload == b"twice":
            request.reply(b"first")
            return b"second"
        return None if request.payload == b"none" else bytes(int(request.payload))

    caplog.set_level("ERROR", "aiochronicle.requests")
    async with requester(tmp_path) as desk, serving(tmp_path, sloppy):
        with pytest.raises(RequestFailed, match="payload must be bytes"):
            await desk.request(b"none", timeout=60)
        with pytest.raises(RequestFailed, match="MessageTooLarge"):
            await desk.request(b"%d" % (64 << 20), timeout=60)
        assert (await desk.request(b"twice", timeout=60)).payload == b"first"
        assert (await desk.request(b"3", timeout=60)).payload == bytes(3)
    assert caplog.messages == [f"handling request {seq} of 'desk' failed" for seq in range(3)]
    caplog.clear()


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def price(request: Request) -> bytes:
    """Answer with a price, as a typical handler does; errors name the request."""
    symbol = json.loads(request.payload)
    if symbol == "cancel":
        raise asyncio.CancelledError
    if symbol == "unspeakable":
        raise Unspeakable
    if symbol != "ALFA":
        raise ValueError(f"no such instrument {symbol}")
    return b"101.5"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'"\\ud800"', r"no such instrument \\ud800$"),
        (b'"%s"' % (b"x" * 1_000_000), "no such instrument x{2000}"),
        (b'"cancel"', "CancelledError"),
        (b'"unspeakable"', "^Unspeakable$"),
    ],
    ids=["not to be encoded", "too long", "cancelled", "without text"],
)
async def test_no_request_ends_the_service(
    tmp_path: Path, payload: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with requester(tmp_path, "good") as good, requester(tmp_path, "bad") as bad:
        service = Responder(tmp_path / "asked", tmp_path / "answered", segment_size=1 << 16)
        async with service, asyncio.TaskGroup() as tasks:
            task = tasks.create_task(service.serve(price))
            with pytest.raises(RequestFailed, match=reason):
                await bad.request(payload, timeout=20)
            assert (await good.request(b'"ALFA"', timeout=20)).payload == b"101.5"
            assert service.statistics().outstanding == 0
            task.cancel()
    caplog.clear()


async def test_answers_that_were_removed_are_no_matter_of_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as service, requester(tmp_path, "good") as good:
        async with requester(tmp_path, "bad") as bad:
            await bad.request(b"1", timeout=20)
            shutil.rmtree(tmp_path / "answered" / "bad")
            while service.statistics().gone == 0:
                with contextlib.suppress(RequestTimeout, QueueGone):
                    await bad.request(b"1", timeout=0.1)
        assert (await good.request(b"2", timeout=20)).payload == b"4"
        assert service.statistics().outstanding == 0


async def test_answers_that_cannot_be_written_are_tried_again(tmp_path: Path) -> None:
    """Meanwhile they block neither other requesters nor commits."""
    (tmp_path / "answered").mkdir()
    locked = tmp_path / "answered" / "bad"
    async with serving(tmp_path) as service, requester(tmp_path, "good") as good:
        async with requester(tmp_path, "bad") as bad:
            with aiochronicle.open_writer(locked, segment_size=1 << 16):
                asking = [
                    asyncio.create_task(bad.request(b"%d" % number, timeout=20))
                    for number in range(3)
                ]
                while not isinstance(
                    service.problems.get(str(tmp_path / "asked/bad")), LockedError
                ):
                    await asyncio.sleep(0.001)
                assert (await good.request(b"2", timeout=20)).payload == b"4"
            answers = await asyncio.gather(*asking)
            assert [answer.payload for answer in answers] == [b"0", b"2", b"4"]
        assert service.statistics().outstanding == 0


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0.001)


async def test_requests_are_committed_when_their_answers_are_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "asked" / "desk"

    def committed() -> int:
        (reader,) = aiochronicle.list_readers(path)
        return reader.committed.offset

    def end() -> int:
        return aiochronicle.inspect(path).write_offset

    async with serving(tmp_path) as service, requester(tmp_path) as desk:
        await desk.request(b"1", timeout=20)
        await until(lambda: committed() == end())
        before = committed()
        with injected("sync_map", errno.EIO):
            assert (await desk.request(b"2", timeout=20)).payload == b"4"  # before the sync
            await until(lambda: str(path) in service.problems)
            assert committed() == before
        await until(lambda: committed() == end())  # known by its answer, which is synced
        assert service.statistics().repeated == 1
        assert (await desk.request(b"3", timeout=20)).payload == b"6"
    assert committed() == end(), "what was answered last is committed at the end"


async def test_closing_while_answers_are_flushed_commits_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushing = threading.Event()
    flush_together = aiochronicle.Writer.flush_together

    def slowly(writers: list[aiochronicle.Writer]) -> object:
        flushing.set()
        time.sleep(0.2)  # as long as a busy disk may take
        return flush_together(writers)

    monkeypatch.setattr(aiochronicle.Writer, "flush_together", slowly)
    async with requester(tmp_path) as desk:
        async with serving(tmp_path):
            await desk.request(b"1", timeout=20)
            await until(flushing.is_set)
        (reader,) = aiochronicle.list_readers(tmp_path / "asked" / "desk")
        assert (
            reader.committed.offset
            == aiochronicle.inspect(tmp_path / "asked" / "desk").write_offset
        )


async def test_a_request_with_the_seq_of_one_that_a_power_cut_took_is_answered(
    tmp_path: Path,
) -> None:
    """The answer to the lost request is on disk, after a request that has none."""
    asked, answered = tmp_path / "asked" / "desk", tmp_path / "answered" / "desk"
    for path in (asked, answered):
        path.parent.mkdir()
    with aiochronicle.open_writer(asked, segment_size=1 << 16) as writer:
        writer.append(b"10")
        copy_as_original(asked, tmp_path / "left")
        writer.append(b"11")
    with aiochronicle.open_reader(asked) as reader:
        _, lost = reader
    with aiochronicle.open_writer(answered, segment_size=1 << 16) as writer:
        writer.append(b"22", cause=lost)
    shutil.rmtree(asked)
    (tmp_path / "left").rename(asked)
    async with serving(tmp_path) as service, requester(tmp_path) as desk:
        reply = await desk.request(b"50", timeout=20)
        assert reply.payload == b"100"
        assert (reply.cause_epoch or 0) > lost.epoch
        assert reply.cause == (lost.queue_id, lost.seq)
        assert service.statistics().repeated == 0


async def test_answers_are_kept_as_long_as_they_are_to_be(tmp_path: Path) -> None:
    keep = Retention(max_bytes=8192, check_interval_s=0.02)
    service = Responder(
        tmp_path / "asked", tmp_path / "answered", segment_size=4096, retention=keep
    )
    async with requester(tmp_path) as desk, service:
        for _ in range(20):
            asking = asyncio.create_task(desk.request(b"?", timeout=20))
            (await anext(service)).reply(bytes(2000))
            assert len((await asking).payload) == 2000
        while len(list((tmp_path / "answered" / "desk").glob("*.q"))) > 4:
            await asyncio.sleep(0.01)


async def test_a_request_is_answered_once(tmp_path: Path) -> None:
    async with requester(tmp_path) as desk, responder(tmp_path) as service:
        asking = asyncio.create_task(desk.request(b"?", type_id=9, timeout=60))
        request = await anext(service)
        assert (request.requester, request.type_id, request.answered) == ("desk", 9, False)
        with pytest.raises(InvalidArgument, match="reserved"):
            request.reply(b"", type_id=0xFFFE)
        request.reply(b"!")
        assert request.answered
        with pytest.raises(InvalidArgument, match="already"):
            request.fail("again")
        assert (await asking).payload == b"!"


async def test_a_restarted_responder_answers_what_has_no_answer(
    tmp_path: Path, rng: random.Random
) -> None:
    """Answers come in any order and the responder stops at any time; each request ends with one answer."""
    async with requester(tmp_path) as desk:
        asking = [asyncio.create_task(desk.request(b"%d" % n)) for n in range(200)]
        answered = repeated = 0
        while answered < 200:
            async with responder(tmp_path) as service:
                held: list[Request] = []
                for _ in range(rng.randrange(1, 40)):
                    if answered + len(held) >= 200:
                        break
                    held.append(await anext(service))
                rng.shuffle(held)
                for request in held[: rng.randrange(1, len(held) + 1)]:
                    request.reply(request.payload)
                    answered += 1
                repeated += service.statistics().repeated
        replies = await asyncio.gather(*asking)
        assert [reply.payload for reply in replies] == [b"%d" % n for n in range(200)]
        assert desk.statistics().dropped == 0
        assert repeated > 0
    with aiochronicle.open_reader(tmp_path / "answered" / "desk") as reader:
        causes = Counter(reply.cause for reply in reader)
    assert len(causes) == 200
    assert set(causes.values()) == {1}


async def test_a_responder_that_is_killed_again_and_again(
    tmp_path: Path, rng: random.Random
) -> None:
    async with requester(tmp_path) as desk:

        async def ask(number: int) -> None:
            reply = await desk.request(b"%d" % number, timeout=100)
            assert int(reply.payload) == 2 * number

        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(ask(number)) for number in range(2000)]
            for stop_at in sorted(rng.sample(range(1, 2000), 3)):
                with await asyncio.to_thread(start_service, tmp_path) as service:
                    while desk.statistics().answered < stop_at:
                        await asyncio.sleep(0)
                    service.kill()
            with await asyncio.to_thread(start_service, tmp_path) as service:
                await asyncio.wait(asking)
                service.kill()
        assert desk.statistics().dropped == 0
    with aiochronicle.open_reader(tmp_path / "answered" / "desk") as reader:
        causes = Counter(reply.cause for reply in reader)
    assert len(causes) == 2000
    assert set(causes.values()) == {1}


async def ask_and_leave(desk: Requester, payload: bytes) -> None:
    """Send a request without waiting for the answer."""
    asking = asyncio.create_task(desk.request(payload))
    await until(lambda: desk.statistics().pending == 1)
    asking.cancel()
    await asyncio.wait([asking])


async def test_a_restarted_requester_ignores_old_answers(tmp_path: Path) -> None:
    async with responder(tmp_path) as service:
        async with requester(tmp_path) as desk:
            await ask_and_leave(desk, b"answered while it was away")
            await ask_and_leave(desk, b"answered when it is back")
        (await anext(service)).reply(b"old")
        async with requester(tmp_path) as desk:
            asking = asyncio.create_task(desk.request(b"new", timeout=60))
            (await anext(service)).reply(b"old as well")
            (await anext(service)).reply(b"new")
            assert (await asking).payload == b"new"
            assert desk.statistics().dropped == 1


async def test_a_requester_that_went_away_for_good(tmp_path: Path) -> None:
    async with requester(tmp_path, "other") as other, responder(tmp_path) as service:
        async with requester(tmp_path, "gone") as gone:
            await ask_and_leave(gone, b"?")
        request = await anext(service)
        shutil.rmtree(tmp_path / "asked" / "gone")
        asking = asyncio.create_task(other.request(b"still there", timeout=60))
        (await anext(service)).reply(b"yes")
        assert (await asking).payload == b"yes"
        while service.requesters() != ["other"]:
            await asyncio.sleep(0.01)
        request.reply(b"too late")
        assert request.answered
        assert service.statistics().gone == 1


async def test_a_damaged_answer_is_raised_where_the_question_was_asked(tmp_path: Path) -> None:
    (tmp_path / "answered").mkdir()
    with aiochronicle.open_writer(tmp_path / "answered" / "desk") as answers:
        async with requester(tmp_path) as asking:
            waiting = asyncio.create_task(asking.request(b"1", timeout=60))
            await asyncio.sleep(0)
            answers.append(b"answer")
            with (tmp_path / "answered" / "desk" / "000000000.q").open("r+b") as segment:
                segment.seek(128)  # the responder has had no turn to read it yet
                segment.write(b"A")
            with pytest.raises(CorruptionError, match=r"000000000\.q"):
                await waiting
            assert asking.statistics().pending == 0


async def test_closing_ends_all_waiting(tmp_path: Path) -> None:
    desk = requester(tmp_path)
    asking = asyncio.create_task(desk.request(b"?"))
    await asyncio.sleep(0)
    await desk.aclose()
    with pytest.raises(ClosedError):
        await asking
    with pytest.raises(ClosedError):
        await desk.request(b"?")
    async with responder(tmp_path) as service:
        request = await anext(service)
        waiting = asyncio.create_task(anext(service))
        await asyncio.sleep(0)
        await service.aclose()
        with pytest.raises(StopAsyncIteration):
            await waiting
        with pytest.raises(ClosedError):
            request.reply(b"!")


async def test_cancelled_taking_loses_no_request(tmp_path: Path, rng: random.Random) -> None:
    async with requester(tmp_path) as desk, responder(tmp_path) as service:
        asking = [asyncio.create_task(desk.request(b"%d" % n, timeout=60)) for n in range(100)]
        served: list[bytes] = []
        while len(served) < 100:

            async def take() -> None:
                async for request in service:
                    served.append(request.payload)
                    request.reply(request.payload)
                    await asyncio.sleep(0)

            taking = asyncio.create_task(take())
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            taking.cancel()
            await asyncio.wait([taking])
        assert served == [b"%d" % n for n in range(100)]
        await asyncio.gather(*asking)


async def test_names_and_roots_are_used_once(tmp_path: Path) -> None:
    async with requester(tmp_path):
        with pytest.raises(LockedError):
            requester(tmp_path).__enter__()
        with pytest.raises(LockedError):
            await requester(tmp_path).__aenter__()
    for name in ("", "a/b", ".hidden", ".."):
        with pytest.raises(InvalidArgument, match="name"):
            requester(tmp_path, name)
    with pytest.raises(InvalidArgument, match="concurrency"):
        async with responder(tmp_path) as service:
            await service.serve(None, concurrency=0)  # type: ignore[arg-type]


class Ask(msgspec.Struct):
    symbol: str


class Price(msgspec.Struct):
    bid: float


class Nothing(msgspec.Struct):
    pass


@on_both_loops
async def test_objects_are_asked_and_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """This works across a restart and mixed with bytes; payloads that cannot be decoded raise."""
    roots = tmp_path / "asked", tmp_path / "answered"

    async def price(request: Request[Ask]) -> Price | Nothing | bytes:
        if request.type_id == 0:
            return b"raw " + request.payload
        symbol = request.decode().symbol
        return Nothing() if symbol == "?" else Price(float(len(symbol)))

    async with Requester(*roots, "desk", codec=Ask, reply_codec=Codec(Price, "json")) as desk:
        for bid in (3.0, 5.0):
            async with Responder(*roots, codec=Ask, reply_codec=Codec(Price, "json")) as service:
                serving = asyncio.create_task(service.serve(price))
                answer = await desk.request(Ask("X" * int(bid)), timeout=30)
                assert answer.decode() == Price(bid)
                assert (await desk.request(b"bytes", timeout=30)).payload == b"raw bytes"
                with pytest.raises(RequestFailed, match=r"DecodeError: .*cannot be decoded"):
                    await desk.request(b"\xff", type_id=1, timeout=30)
                with pytest.raises(RequestFailed, match="EncodeError: Nothing is not a type of"):
                    await desk.request(Ask("?"), timeout=30)
                serving.cancel()
                await asyncio.wait([serving])
        sent = desk.statistics().sent
        with pytest.raises(EncodeError, match="Price is not a type of"):
            await desk.request(Price(1.0))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="has the type_id of its type"):
            await desk.request(Ask("X"), type_id=3)
        assert desk.statistics().sent == sent
        assert desk.statistics().pending == 0
    caplog.clear()  # the traceback in a log record holds the request, which holds its segment
    names = [entry.name for entry in Registry.load(roots[0] / "desk")]
    assert names + [entry.name for entry in Registry.load(roots[1] / "desk")] == ["Ask", "Price"]


async def test_a_requester_of_other_types_is_a_problem_and_stops_nobody(tmp_path: Path) -> None:
    class Changed(msgspec.Struct):
        symbol: int

    roots = tmp_path / "asked", tmp_path / "answered"
    async with (
        Requester(*roots, "other", codec=Codec(Changed, name="Ask")),
        Requester(*roots, "desk", codec=Ask) as desk,
        Responder(*roots, codec=Ask) as service,
    ):
        assert [type(error) for error in service.problems.values()] == [SchemaMismatch]
        asking = asyncio.create_task(desk.request(Ask("ALFA"), timeout=30))
        request = await anext(service)
        assert request.decode() == Ask("ALFA")
        request.reply(b"yes")
        assert (await asking).payload == b"yes"
    with pytest.raises(InvalidArgument, match="reserved"):
        Responder(*roots, reply_codec=Registry({0xFFFE: Price}))
