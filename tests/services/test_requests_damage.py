"""Requesters and responders after damage, removals, deadlines, closing and a change of loops."""

import asyncio
import contextlib
import errno
import functools
import gc
import logging
import os
import random
import shutil
import stat
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faults.system_calls import injected

import aiochronicle
import aiochronicle._columns.column_reader
import aiochronicle._services.answers
import aiochronicle._services.attaching
import aiochronicle._services.requester
import aiochronicle._services.router
import aiochronicle._services.trusted
from aiochronicle import Request, Requester, Responder, Retention, list_readers, open_reader
from aiochronicle.errors import (
    ChronicleError,
    ClosedError,
    CorruptionError,
    DiskFull,
    InvalidArgument,
    InvalidName,
    PositionLost,
    QueueGone,
    RequestTimeout,
)

WITHIN_S = 20.0
SEGMENT_BYTES = 4096

open_writer = functools.partial(aiochronicle.open_writer, segment_size=SEGMENT_BYTES)

Handler = Callable[[Request], Awaitable[bytes | None]]


def requester(root: Path, name: str = "desk", **options: Any) -> Requester:
    return Requester(root / "asked", root / "answered", name, segment_size=1 << 16, **options)


def responder(root: Path, **options: Any) -> Responder:
    options = {"rescan_s": 0.1, "segment_size": 1 << 16, **options}
    return Responder(root / "asked", root / "answered", **options)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.001)


async def echo(request: Request) -> bytes:
    return request.payload


@asynccontextmanager
async def serving(root: Path, handler: Handler = echo, **options: Any) -> AsyncIterator[Responder]:
    async with responder(root, **options) as service:
        task = asyncio.create_task(service.serve(handler))
        try:
            yield service
        finally:
            task.cancel()
            await asyncio.wait([task])


def damage(path: Path, seq: int) -> None:
    """Flip a bit in the payload of a stored message."""
    with open_reader(path, start=seq) as reader:
        place = reader.position
    with (path / f"{place.segment:09}.q").open("r+b") as segment:
        segment.seek(place.offset + 64)
        byte = segment.read(1)[0]
        segment.seek(-1, os.SEEK_CUR)
        segment.write(bytes([byte ^ 1]))


# ---- the requester ----


@pytest.mark.parametrize("policy", ["raise", "skip", "returns", "raises"])
async def test_requests_work_after_a_damaged_answer(tmp_path: Path, policy: str) -> None:
    asked: list[Exception] = []

    def decide(error: Exception) -> None:
        asked.append(error)
        if policy == "raises":
            raise ZeroDivisionError("enough")

    on_corrupt: Any = policy if policy in ("raise", "skip") else decide
    (tmp_path / "answered").mkdir()
    path = tmp_path / "answered" / "desk"
    with open_writer(path) as answers:
        async with requester(tmp_path, on_corrupt=on_corrupt) as desk:
            waiting = [asyncio.create_task(desk.request(b"?", timeout=60)) for _ in range(3)]
            await until(lambda: desk.statistics().pending == 3)
            answers.append(b"damaged", cause=(desk.queue_id, 0))
            damage(path, 0)  # the requester has had no turn to read it yet
            if policy in ("raise", "raises"):
                kind = CorruptionError if policy == "raise" else ZeroDivisionError
                for one in waiting:
                    with pytest.raises(kind):
                        await one
                waiting = []
            else:
                await until(lambda: desk.statistics().skipped == 1)
                assert desk.statistics().pending == 3
                for seq in (1, 2):
                    answers.append(b"%d" % seq, cause=(desk.queue_id, seq))
                    assert (await waiting[seq]).payload == b"%d" % seq
            later = asyncio.create_task(desk.request(b"later", timeout=60))
            await until(lambda: desk.statistics().sent == 4)
            answers.append(b"fine", cause=(desk.queue_id, 3))
            assert (await later).payload == b"fine"
            assert desk.statistics().skipped == 1
            assert len(asked) == (policy in ("returns", "raises"))
            for one in waiting:
                one.cancel()


@pytest.mark.parametrize("policy", ["raise", "skip"])
async def test_requests_work_after_answers_were_lost(tmp_path: Path, policy: Any) -> None:
    (tmp_path / "answered").mkdir()
    path = tmp_path / "answered" / "desk"
    with open_writer(path) as answers:
        answers.append(b"old")
        async with requester(tmp_path, on_lost=policy) as desk:
            waiting = [asyncio.create_task(desk.request(b"?", timeout=60)) for _ in range(100)]
            await until(lambda: desk.statistics().pending == 100)
            for seq in range(100):  # several segments, before the requester had a turn
                answers.append(bytes(60), cause=(desk.queue_id, seq))
            (path / "000000001.q").unlink()
            if policy == "raise":
                done = await asyncio.gather(*waiting, return_exceptions=True)
                lost = [error for error in done if isinstance(error, PositionLost)]
                assert 0 < len(lost) < 100
            else:
                await until(lambda: desk.statistics().lost > 0)
                await until(lambda: desk.statistics().answered + desk.statistics().lost == 100)
            assert desk.statistics().lost > 0
            later = asyncio.create_task(desk.request(b"later", timeout=60))
            await until(lambda: desk.statistics().sent == 101)
            answers.append(b"fine", cause=(desk.queue_id, 100))
            assert (await later).payload == b"fine"
            for one in waiting:
                one.cancel()


async def test_retention_keeps_answers_that_were_not_read(tmp_path: Path) -> None:
    """It keeps none for a closed requester."""
    (tmp_path / "answered").mkdir()
    path = tmp_path / "answered" / "desk"
    keep = Retention(max_bytes=SEGMENT_BYTES, check_interval_s=0.01)
    with open_writer(path, retention=keep) as answers:
        async with requester(tmp_path) as desk:
            waiting = [asyncio.create_task(desk.request(b"?", timeout=60)) for _ in range(200)]
            await until(lambda: desk.statistics().pending == 200)
            (reader,) = list_readers(path)
            assert reader.name == "requester"
            for seq in range(200):
                answers.append(bytes(60), cause=(desk.queue_id, seq))
            for _ in range(20):
                answers.retain_now()  # before the requester had a turn
            assert (path / "000000000.q").exists()
            replies = await asyncio.gather(*waiting)
            assert len(replies) == 200
            del replies, waiting
            await until(lambda: not _is_there(answers, path / "000000000.q"))
            assert desk.statistics().lost == 0
        assert list_readers(path) == []


def _is_there(answers: aiochronicle.Writer, segment: Path) -> bool:
    answers.retain_now()
    return segment.exists()


async def test_a_killed_requester_holds_nothing_once_its_successor_is_there(tmp_path: Path) -> None:
    (tmp_path / "answered").mkdir()
    path = tmp_path / "answered" / "desk"
    with open_writer(path) as answers:
        open_reader(path, "requester").close()  # the reader that a killed requester leaves
        for _ in range(100):
            answers.append(bytes(60))
        async with requester(tmp_path):
            (reader,) = list_readers(path)
            assert reader.committed.segment == answers.position.segment


async def test_answers_in_a_queue_that_took_the_place_of_another(tmp_path: Path) -> None:
    async with requester(tmp_path) as desk, serving(tmp_path):
        assert (await desk.request(b"1", timeout=WITHIN_S)).payload == b"1"
        wakers = shutil.ignore_patterns("wake")  # backup programs do not copy fifos either
        shutil.copytree(tmp_path / "answered" / "desk", tmp_path / "backup", ignore=wakers)
        shutil.rmtree(tmp_path / "answered" / "desk")
        await _works_again(desk)
        shutil.rmtree(tmp_path / "answered" / "desk")
        shutil.move(tmp_path / "backup", tmp_path / "answered" / "desk")
        await _works_again(desk)


async def _works_again(desk: Requester) -> None:
    """Wait until three requests in a row are answered. Earlier ones may fail; none may hang."""
    in_a_row = 0
    async with asyncio.timeout(2 * WITHIN_S):
        while in_a_row < 3:
            try:
                reply = await desk.request(b"again", timeout=0.5)
            except (RequestTimeout, ChronicleError):
                in_a_row = 0
            else:
                assert reply.payload == b"again"
                in_a_row += 1


async def test_a_queue_of_requests_that_was_removed_is_made_again(tmp_path: Path) -> None:
    async with requester(tmp_path) as desk, serving(tmp_path):
        assert (await desk.request(b"1", timeout=WITHIN_S)).payload == b"1"
        before = desk.queue_id
        shutil.rmtree(tmp_path / "asked" / "desk")
        async with asyncio.timeout(WITHIN_S):
            while desk.queue_id == before:  # noticed within a second or two
                with contextlib.suppress(RequestTimeout):
                    await desk.request(b"?", timeout=0.05)
        await _works_again(desk)


async def test_whoever_waits_for_ever_is_told_that_the_queue_was_removed(tmp_path: Path) -> None:
    async with requester(tmp_path) as desk:
        waiting = asyncio.create_task(desk.request(b"?"))
        await until(lambda: desk.statistics().pending == 1)
        shutil.rmtree(tmp_path / "asked" / "desk")
        async with asyncio.timeout(WITHIN_S):
            with pytest.raises(QueueGone):
                await waiting


async def test_opening_and_closing_do_not_block_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_thread = threading.get_ident()
    in_loop: list[str] = []

    def watched(module: Any, name: str) -> None:
        real = getattr(module, name)

        def wrapper(*args: Any, **keywords: Any) -> Any:
            if threading.get_ident() == loop_thread:
                in_loop.append(f"{module.__name__}.{name}")
            return real(*args, **keywords)

        monkeypatch.setattr(module, name, wrapper)

    watched(aiochronicle._services.requester, "open_writer")
    watched(aiochronicle._services.trusted, "open_writer")
    for module in ("answers", "attaching", "responder_client"):
        watched(getattr(aiochronicle._services, module), "open_reader")
    watched(aiochronicle._services.answers, "forget_reader")
    watched(Path, "mkdir")
    watched(aiochronicle.Reader, "close")
    watched(aiochronicle.Writer, "close")
    async with serving(tmp_path) as service:
        async with requester(tmp_path) as desk:
            assert (await desk.request(b"1", timeout=WITHIN_S)).payload == b"1"
        shutil.rmtree(tmp_path / "asked" / "desk")
        await until(lambda: service.requesters() == [])
    assert in_loop == []


async def test_entering_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    for pause_ms in range(10):
        entering = asyncio.create_task(requester(tmp_path).__aenter__())
        await asyncio.sleep(pause_ms / 2000)
        entering.cancel()
        await asyncio.wait([entering])
        if not entering.cancelled():
            await entering.result().aclose()

        def is_free() -> bool:
            try:
                open_writer(tmp_path / "asked" / "desk").close()
            except (aiochronicle.errors.LockedError, aiochronicle.errors.QueueNotFound):
                return not (tmp_path / "asked").exists()
            return True

        await until(is_free)


def test_the_first_use_opens_it(tmp_path: Path) -> None:
    desk = requester(tmp_path)
    assert not (tmp_path / "asked").exists()
    assert desk.queue_id != 0
    assert stat.S_IMODE((tmp_path / "asked").stat().st_mode) == 0o700
    desk.close()
    with pytest.raises(ClosedError):
        desk.__enter__()
    with requester(tmp_path) as desk:
        assert (tmp_path / "asked" / "desk").exists()


def test_names_of_requesters_are_those_of_readers(tmp_path: Path) -> None:
    for name in ("", "a/b", ".hidden", "..", "new\nline", "\x1b[2J", "\udcff", "x" * 65):
        with pytest.raises(InvalidName):
            requester(tmp_path, name)
    requester(tmp_path, "Desk_1.a-b")


# ---- the responder ----


async def test_a_damaged_request_holds_up_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with requester(tmp_path, "good") as good, requester(tmp_path, "bad") as bad:
        early = [asyncio.create_task(bad.request(b"%d" % n, timeout=60)) for n in range(5)]
        await until(lambda: bad.statistics().pending == 5)
        damage(tmp_path / "asked" / "bad", 2)
        async with serving(tmp_path) as service:
            assert [(await one).payload for one in early[:2]] == [b"0", b"1"]
            assert (await good.request(b"good", timeout=WITHIN_S)).payload == b"good"
            await until(lambda: service.problems)
            assert isinstance(service.problems[str(tmp_path / "asked" / "bad")], CorruptionError)
            damage(tmp_path / "asked" / "bad", 2)  # a second flip repairs the payload
            assert [(await one).payload for one in early[2:]] == [b"2", b"3", b"4"]
            assert service.statistics().repeated == 0
            assert service.problems == {}


async def test_a_damaged_request_is_stepped_over_and_counted(tmp_path: Path) -> None:
    async with requester(tmp_path) as desk:
        early = [asyncio.create_task(desk.request(b"%d" % n, timeout=60)) for n in range(5)]
        await until(lambda: desk.statistics().pending == 5)
        damage(tmp_path / "asked" / "desk", 2)
        async with serving(tmp_path, on_corrupt="skip") as service:
            for number in (0, 1, 3, 4):
                assert (await early[number]).payload == b"%d" % number
            assert service.statistics().skipped == 1
            assert not early[2].done()
            early[2].cancel()


async def test_a_damaged_request_is_raised_out_of_the_iteration(tmp_path: Path) -> None:
    async with requester(tmp_path, "bad") as bad, requester(tmp_path, "good") as good:
        early = asyncio.create_task(bad.request(b"?", timeout=60))
        await until(lambda: bad.statistics().pending == 1)
        damage(tmp_path / "asked" / "bad", 0)
        async with responder(tmp_path, on_corrupt="raise") as service:
            with pytest.raises(CorruptionError):
                await service.serve(echo)
            serving = asyncio.create_task(service.serve(echo))
            assert (await good.request(b"1", timeout=WITHIN_S)).payload == b"1"
            damage(tmp_path / "asked" / "bad", 0)
            assert (await early).payload == b"?"
            serving.cancel()
            await asyncio.wait([serving])


@pytest.mark.parametrize("policy", ["set_aside", "raise", "skip", "function"])
@pytest.mark.parametrize("where", ["payload", "header"])
async def test_a_damaged_answer_to_what_was_not_committed(
    tmp_path: Path, policy: str, where: str
) -> None:
    begun: list[bytes] = []

    async def hold_first(request: Request) -> bytes:
        if request.payload == b"hold":
            await asyncio.Event().wait()
        return request.payload

    async def handle(request: Request) -> bytes:
        begun.append(request.payload)
        return request.payload

    answers = tmp_path / "answered" / "desk"

    def flip_answer() -> None:
        if where == "payload":
            damage(answers, 2)
        else:
            with (answers / "000000000.q").open("r+b") as segment:
                byte = segment.read(1)[0]
                segment.seek(0)
                segment.write(bytes([byte ^ 1]))

    asked: list[Exception] = []
    on_corrupt: Any = asked.append if policy == "function" else policy
    async with requester(tmp_path) as desk:
        async with serving(tmp_path, hold_first, grace_s=0):
            held = asyncio.create_task(desk.request(b"hold"))
            await until(lambda: desk.statistics().pending)
            for number in range(5):
                await desk.request(b"%d" % number, timeout=WITHIN_S)
        if where == "header":  # one segment must still be readable
            with aiochronicle.open_writer(answers) as writer:
                for _ in range(30):
                    writer.append(bytes(3000))
        flip_answer()
        async with responder(tmp_path, on_corrupt=on_corrupt) as service:
            raised = await served_until(service, handle, held, flip_answer, policy)
        expected = {"payload": [b"hold", b"2"], "header": [b"hold", *b"0 1 2 3 4".split()]}[where]
        assert begun == (expected if policy in ("skip", "function") else [b"hold"])
        assert len(asked) == (policy == "function")
        assert len(raised) == (policy == "raise")
        assert service.statistics().skipped == (policy in ("skip", "function"))


async def served_until(
    service: Responder,
    handler: Handler,
    answered: "asyncio.Task[Any]",
    repair: Callable[[], None],
    policy: str,
) -> list[Exception]:
    """Serve until the request is answered, with a repair if necessary. Return the exceptions raised."""
    raised: list[Exception] = []

    async def serve() -> None:
        while True:
            try:
                await service.serve(handler)
                return
            except CorruptionError as error:
                raised.append(error)

    serving = asyncio.create_task(serve())
    if policy in ("set_aside", "raise"):
        for _ in range(2):  # the responder tries again
            await until(lambda: service.problems)
            await until(lambda: not service.problems)
        repair()
    async with asyncio.timeout(WITHIN_S):
        await answered
    await until(lambda: service.statistics().outstanding == 0 and not service._answers.due)
    serving.cancel()
    await asyncio.wait([serving])
    return raised


async def test_what_is_being_handled_is_not_begun_twice_when_its_queue_comes_back(
    tmp_path: Path,
) -> None:
    begun: list[bytes] = []
    go_on = asyncio.Event()

    async def slow(request: Request) -> bytes:
        begun.append(request.payload)
        await go_on.wait()
        return request.payload

    async with requester(tmp_path) as desk:
        early = [asyncio.create_task(desk.request(b"%d" % n, timeout=60)) for n in range(4)]
        await until(lambda: desk.statistics().pending == 4)
        damage(tmp_path / "asked" / "desk", 2)
        async with serving(tmp_path, slow) as service:
            await until(lambda: service.problems)
            damage(tmp_path / "asked" / "desk", 2)
            await until(lambda: len(begun) == 4)
            (reader,) = list_readers(tmp_path / "asked" / "desk")
            go_on.set()
            replies = await asyncio.gather(*early)
            assert [reply.payload for reply in replies] == [b"0", b"1", b"2", b"3"]
            assert begun == [b"0", b"1", b"2", b"3"]
    assert reader.committed.offset == 64, "nothing is committed before it is answered"


async def test_closing_answers_what_handlers_return(tmp_path: Path) -> None:
    """Handlers that end within the grace period are answered; the other requests come again."""
    release = asyncio.Event()

    async def handle(request: Request) -> bytes:
        if request.payload == b"endless":
            await asyncio.Event().wait()
        await release.wait()
        return request.payload

    async with requester(tmp_path) as desk:
        service = await responder(tmp_path, grace_s=2.0).__aenter__()
        serving = asyncio.create_task(service.serve(handle))
        asking = [asyncio.create_task(desk.request(b"%d" % n, timeout=60)) for n in range(10)]
        await until(lambda: service.statistics().outstanding == 10)
        asyncio.get_running_loop().call_later(0.05, release.set)
        await service.aclose()
        assert service.statistics().answered == 10
        replies = await asyncio.gather(*asking)
        assert [reply.payload for reply in replies] == [b"%d" % n for n in range(10)]
        await serving
        (reader,) = list_readers(tmp_path / "asked" / "desk")
        end = aiochronicle.inspect(tmp_path / "asked" / "desk").write_offset
        assert reader.committed.offset == end, "it is committed, too"

        service = await responder(tmp_path, grace_s=0.05).__aenter__()
        serving = asyncio.create_task(service.serve(handle))
        endless = asyncio.create_task(desk.request(b"endless", timeout=60))
        await until(lambda: service.statistics().outstanding == 1)
        late = asyncio.create_task(desk.request(b"while closing", timeout=60))
        await until(lambda: desk.statistics().sent == 12)
        await service.aclose()
        await serving
        assert service.statistics().answered <= 1
        async with _serving_again(tmp_path) as again:
            assert (await endless).payload == b"endless"
            assert (await late).payload == b"while closing"
            assert again.statistics().gone == 0


_serving_again = serving


async def test_a_handler_may_close_its_responder(tmp_path: Path) -> None:
    async def last(request: Request) -> None:
        request.reply(b"goodbye")
        await service.aclose()

    async with requester(tmp_path) as desk, responder(tmp_path) as service:
        asking = asyncio.create_task(desk.request(b"?", timeout=WITHIN_S))
        async with asyncio.timeout(WITHIN_S):
            await service.serve(last)
        assert (await asking).payload == b"goodbye"


async def test_cancelled_serving_answers_what_handlers_return_all_the_same(tmp_path: Path) -> None:
    async def stubborn(request: Request) -> bytes:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return b"in the last moment"

    async with requester(tmp_path) as desk:
        asking = asyncio.create_task(desk.request(b"?", timeout=WITHIN_S))
        async with serving(tmp_path, stubborn) as service:
            await until(lambda: service.statistics().outstanding == 1)
        assert (await asking).payload == b"in the last moment"


# ---- deadlines ----


class Ask(msgspec.Struct):
    symbol: str


async def test_a_request_is_not_executed_after_its_deadline(tmp_path: Path) -> None:
    handled: list[bytes] = []

    async def handle(request: Request) -> bytes:
        handled.append(request.payload)
        assert not request.expired
        assert (request.deadline_ns is None) == (request.payload == b"forever")
        return request.payload

    async with requester(tmp_path, codec=Ask) as desk:
        with pytest.raises(RequestTimeout):
            await desk.request(b"too late", timeout=0.01)
        with pytest.raises(RequestTimeout):
            await desk.request(Ask("too late"), timeout=0.01)
        patient = asyncio.create_task(desk.request(b"forever"))
        in_time = asyncio.create_task(desk.request(b"in time", timeout=60))
        await until(lambda: desk.statistics().pending == 2)
        async with serving(tmp_path, handle) as service:
            assert (await patient).payload == b"forever"
            assert (await in_time).payload == b"in time"
            assert handled == [b"forever", b"in time"]
            statistics = service.statistics()
            assert (statistics.expired, statistics.received, statistics.answered) == (2, 2, 2)
        # Expired requests are committed and not read again.
        async with serving(tmp_path) as service:
            assert (await desk.request(b"later", timeout=WITHIN_S)).payload == b"later"
            assert service.statistics().expired == 0


async def test_requests_that_expire_while_all_handlers_are_busy(tmp_path: Path) -> None:
    release = asyncio.Event()
    handled: list[bytes] = []

    async def handle(request: Request) -> bytes:
        handled.append(request.payload)
        await release.wait()
        return request.payload

    async with requester(tmp_path) as desk, responder(tmp_path) as service:
        serving = asyncio.create_task(service.serve(handle, concurrency=1))
        first = asyncio.create_task(desk.request(b"first", timeout=60))
        await until(lambda: handled)
        with pytest.raises(RequestTimeout):
            await desk.request(b"second", timeout=0.05)
        release.set()
        assert (await first).payload == b"first"
        assert (await desk.request(b"third", timeout=WITHIN_S)).payload == b"third"
        assert handled == [b"first", b"third"]
        assert service.statistics().expired == 1
        serving.cancel()
        await asyncio.wait([serving])


async def test_answers_that_the_disk_has_no_room_for_are_given_when_it_has(tmp_path: Path) -> None:
    begun: list[int] = []

    async def large(request: Request) -> bytes:
        begun.append(request.message.seq)
        return b"x" * 3000

    async with serving(tmp_path, large) as service, requester(tmp_path) as desk:
        await desk.request(b"first", timeout=WITHIN_S)
        with injected("allocate", errno.ENOSPC):
            asking = [asyncio.create_task(desk.request(b"%d" % n)) for n in range(60)]
            asked = str(tmp_path / "asked" / "desk")
            await until(lambda: isinstance(service.problems.get(asked), DiskFull))
            await until(lambda: asked not in service.problems)  # the responder tries again
            await until(lambda: asked in service.problems)
            assert not all(one.done() for one in asking)
        async with asyncio.timeout(WITHIN_S):
            answers = await asyncio.gather(*asking)
        assert {len(answer) for answer in answers} == {3000}
        statistics = service.statistics()
        assert (statistics.answered, statistics.failed, statistics.outstanding) == (61, 0, 0)
        assert desk.statistics().dropped == 0  # each request was answered once
        assert set(begun) == set(range(61))


async def test_an_answer_without_room_can_be_given_again(tmp_path: Path) -> None:
    count = 600  # more than one turn of the event loop reads again
    async with responder(tmp_path) as service, requester(tmp_path) as desk:
        asking = [asyncio.create_task(desk.request(b"?")) for _ in range(count)]
        async with asyncio.timeout(WITHIN_S):
            requests = [await anext(service) for _ in range(count)]
        with injected("allocate", errno.ENOSPC), pytest.raises(DiskFull):
            for request in requests:
                request.reply(b"x" * 3000)
        left = [request for request in requests if not request.answered]
        taking = asyncio.create_task(anext(service))
        while left:
            try:
                left[0].reply(b"x" * 3000)
            except DiskFull:
                await asyncio.sleep(0)
            else:
                left.pop(0)
        async with asyncio.timeout(WITHIN_S):
            answers = await asyncio.gather(*asking)
        assert {len(answer) for answer in answers} == {3000}
        assert not taking.done()  # none of these requests comes again
        taking.cancel()


async def test_requests_of_cancelled_handlers_come_first_to_whoever_serves_next(
    tmp_path: Path,
) -> None:
    begun: list[bytes] = []

    async def wait(request: Request) -> None:
        begun.append(request.payload)
        await asyncio.Event().wait()

    async def handle(request: Request) -> bytes:
        begun.append(request.payload)
        return request.payload

    async with responder(tmp_path) as service, requester(tmp_path) as desk:
        asking = [asyncio.create_task(desk.request(b"%d" % n)) for n in range(8)]
        asking.append(asyncio.create_task(desk.request(b"expires", timeout=0.3)))
        serving = asyncio.create_task(service.serve(wait))
        await until(lambda: len(begun) == 9)
        serving.cancel()
        await asyncio.wait([serving])
        await asyncio.wait([asking.pop()])
        later = asyncio.create_task(desk.request(b"later"))
        begun.clear()
        serving = asyncio.create_task(service.serve(handle, concurrency=1))
        async with asyncio.timeout(WITHIN_S):
            answers = await asyncio.gather(*asking, later)
        expected = [b"%d" % n for n in range(8)] + [b"later"]
        assert [answer.payload for answer in answers] == begun == expected
        statistics = service.statistics()
        assert (statistics.received, statistics.answered, statistics.expired) == (9, 9, 1)
        serving.cancel()
        await asyncio.wait([serving])


async def test_what_is_closed_keeps_nothing_mapped(tmp_path: Path) -> None:
    async with responder(tmp_path) as service, requester(tmp_path) as desk:
        serving = asyncio.create_task(service.serve(echo))
        for _ in range(3):
            await desk.request(b"?", timeout=WITHIN_S)
        late = asyncio.create_task(desk.request(b"?"))
        await until(lambda: service.statistics().received == 4)
        serving.cancel()
        await asyncio.wait([serving])
    await asyncio.wait([late])
    del late

    def is_mapped() -> bool:
        gc.collect()
        return str(tmp_path) in Path("/proc/self/maps").read_text()

    await until(lambda: not is_mapped())
    assert service.statistics().received == 4
    assert desk.statistics().sent == 4
    assert serving.cancelled()


def test_an_expiring_message_is_an_ordinary_one_for_everybody_else(tmp_path: Path) -> None:
    with open_writer(tmp_path / "queue") as writer:
        writer.append(b"plain")
        assert writer.append_expiring(b"expiring", 123_456_789, type_id=7) == 1
        writer.append(b"caused", cause=(5, 6))
        with pytest.raises(InvalidArgument, match="expires_ns"):
            writer.append_expiring(b"", -1)
        with pytest.raises(TypeError):
            writer.append_expiring(b"", 1, cause=(5, 6))  # type: ignore[call-arg]
    with (
        open_writer(tmp_path / "typed", codec=Ask) as writer,
        pytest.raises(InvalidArgument, match="expires_ns or a cause, but not both"),
    ):
        writer.send(Ask("?"), expires_ns=1, cause=(5, 6))
    with open_writer(tmp_path / "queue") as writer:
        assert writer.last_causes() == {5: 6}
        assert writer.last_cause(123_456_789) is None
    with open_reader(tmp_path / "queue") as reader:
        plain, expiring, caused = reader
        assert (plain.expires_ns, plain.cause) == (None, None)
        assert (expiring.expires_ns, expiring.cause, expiring.cause_epoch) == (
            123_456_789,
            None,
            None,
        )
        assert (expiring.payload, expiring.type_id) == (b"expiring", 7)
        assert (caused.expires_ns, caused.cause) == (None, (5, 6))
    with open_reader(tmp_path / "queue") as reader:
        batch = aiochronicle._columns.column_reader.ColumnReader(reader, [*reader_columns()]).read(
            10
        )
        assert batch.column("cause").to_pylist() == [None, None, {"queue_id": 5, "seq": 6}]
    assert aiochronicle.verify(tmp_path / "queue").corrupt == 0
    with (
        open_writer(tmp_path / "copy") as copy,
        aiochronicle.replay(tmp_path / "queue") as recorded,
    ):
        recorded.into_now(copy)
    with open_reader(tmp_path / "copy") as reader:
        copies = [(message.expires_ns, message.cause, message.type_id) for message in reader]
    assert copies == [(None, None, 0), (123_456_789, None, 7), (None, (5, 6), 0)]


def reader_columns() -> tuple[str, ...]:
    return ("seq", "payload", "cause")


# ---- event loops ----


def test_requesters_and_responders_in_one_loop_after_the_other(tmp_path: Path) -> None:
    desk, service = requester(tmp_path), responder(tmp_path)

    async def ask(payload: bytes) -> bytes:
        serving = asyncio.create_task(service.serve(echo))
        try:
            return (await desk.request(payload, timeout=WITHIN_S)).payload
        finally:
            serving.cancel()
            await asyncio.wait([serving])

    for number in range(3):
        assert asyncio.run(ask(b"%d" % number)) == b"%d" % number
    asyncio.run(service.aclose())
    asyncio.run(desk.aclose())


async def test_requesters_and_responders_in_two_loops_at_once_say_so(tmp_path: Path) -> None:
    async def elsewhere() -> None:
        with pytest.raises(
            InvalidArgument, match="requester 'desk' is in use in another event loop"
        ):
            await desk.request(b"?", timeout=1)
        with pytest.raises(InvalidArgument, match=r"responder of .* another event loop"):
            await anext(service)

    async with serving(tmp_path) as service, requester(tmp_path) as desk:
        assert (await desk.request(b"1", timeout=WITHIN_S)).payload == b"1"
        await asyncio.to_thread(asyncio.run, elsewhere())
        assert (await desk.request(b"2", timeout=WITHIN_S)).payload == b"2"


# ---- users ----


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run as another user")
def test_a_requester_that_may_only_read_its_answers(tmp_path: Path) -> None:
    """The queue of answers is another user's: the requester reads it anonymously."""
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(directory.stat().st_mode | 0o055)
    (tmp_path / "asked").mkdir()
    (tmp_path / "asked").chmod(0o777)
    (tmp_path / "answered").mkdir(mode=0o755)
    ends = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgid(65534)
            os.setuid(65534)

            async def ask() -> bytes:
                async with requester(tmp_path) as desk:
                    asking = asyncio.create_task(desk.request(b"?", timeout=WITHIN_S))
                    await until(lambda: desk.statistics().pending == 1)
                    os.write(ends[1], b"1")
                    return (await asking).payload

            status = 0 if asyncio.run(ask()) == b"!" else 2
        finally:
            os._exit(status)
    os.read(ends[0], 1)
    with open_reader(tmp_path / "asked" / "desk") as reader:
        (request,) = reader
    with open_writer(tmp_path / "answered" / "desk", mode=0o644) as answers:
        (tmp_path / "answered" / "desk").chmod(0o755)
        answers.append(b"!", cause=request)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- everything at once ----


async def test_whatever_happens_every_request_ends_and_later_ones_work(
    tmp_path: Path, rng: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    """With random damage, removals and restarts, no request hangs or starts after its deadline."""
    caplog.set_level(logging.CRITICAL)
    too_late: list[float] = []
    outcomes: dict[str, int] = {}
    names = ["one", "two", "three"]
    stop = asyncio.Event()

    async def handle(request: Request) -> bytes:
        assert request.deadline_ns is not None
        over_s = (time.time_ns() - request.deadline_ns) / 1e9
        if over_s > 0.001:  # some time passes before the first line of a handler
            too_late.append(over_s)
        await asyncio.sleep(rng.random() * 0.01)
        return request.payload

    async def ask_some(desk: Requester) -> None:
        for _ in range(rng.randrange(1, 100)):
            payload = rng.randbytes(rng.randrange(200))
            try:
                async with asyncio.timeout(WITHIN_S):  # longer means a hang
                    reply = await desk.request(payload, timeout=rng.choice([0.003, 0.05, 0.5]))
                assert len(reply) == len(payload)  # its bytes may have been damaged since the check
                outcome = "answered"
            except ChronicleError as error:
                outcome = type(error).__name__
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if stop.is_set():
                return

    async def ask(name: str) -> None:
        while not stop.is_set():
            with contextlib.suppress(ChronicleError):  # the queue was removed during opening
                async with requester(
                    tmp_path, name, on_corrupt=rng.choice(["raise", "skip"])
                ) as desk:
                    await ask_some(desk)
            await asyncio.sleep(0)

    async def serve() -> None:
        while not stop.is_set():
            try:
                async with responder(tmp_path, on_corrupt=rng.choice(["set_aside", "skip"])) as one:
                    task = asyncio.create_task(one.serve(handle))
                    await asyncio.wait([task], timeout=rng.random() * 0.5)
                    task.cancel()
                    await asyncio.wait([task])
            except ChronicleError:
                await asyncio.sleep(0.01)

    def ruin() -> None:
        path = tmp_path / rng.choice(["asked", "answered"]) / rng.choice(names)
        if rng.random() < 0.2:
            shutil.rmtree(path, ignore_errors=True)
            return
        with contextlib.suppress(OSError, ChronicleError, IndexError):
            segment = rng.choice(sorted(path.glob("*.q")))
            with segment.open("r+b") as file:
                file.seek(64 * rng.randrange(1, 200) + 64)
                byte = file.read(1)[0]
                if byte:  # not in space still to be written
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte ^ (1 << rng.randrange(8))]))

    asking = [asyncio.create_task(ask(name)) for name in names]
    serving = asyncio.create_task(serve())
    for _ in range(60):
        await asyncio.sleep(0.05)
        ruin()
        failed = [task for task in asking if task.done()]
        assert not failed, failed
    stop.set()
    async with asyncio.timeout(3 * WITHIN_S):
        await asyncio.gather(*asking, serving)
    assert too_late == []
    assert outcomes["answered"] > 10, outcomes
    # Permanent damage affects only existing queues: a new name always works.
    async with serving_quietly(tmp_path), requester(tmp_path, "new") as desk:
        assert (await desk.request(b"1", timeout=WITHIN_S)).payload == b"1"


serving_quietly = serving
