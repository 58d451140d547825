"""The router: queues that come and go, replies, restarts, and failures."""

import asyncio
import functools
import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import (
    Capacity,
    FanIn,
    Message,
    Retention,
    Router,
    Writer,
    inspect,
    open_reader,
)
from aiochronicle.errors import ClosedError, QueueGone, SourceGone, StorageError, WrongType

# A segment is allocated when it is created: test queues of the default size would fill the disk.
open_writer = functools.partial(aiochronicle.open_writer, segment_size=1 << 20)

WITHIN_S = 20.0


class Order(msgspec.Struct):
    size: int


class Cancel(msgspec.Struct):
    order: int


class Ack(msgspec.Struct):
    accepted: bool


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.001)


async def take(fan_in: FanIn) -> Message:
    return await fan_in.next(timeout=WITHIN_S)


def in_use(root: Path) -> list[str]:
    """Return the files below a directory that this process has open or mapped, deleted ones too."""
    found = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(root) in line]
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
        except FileNotFoundError:
            continue
        if str(root) in target:
            found.append(target)
    return found


async def test_strategies_come_and_go_while_it_runs(tmp_path: Path) -> None:
    with open_writer(tmp_path / "early", ready=True) as early:
        early.append(b"early")
        async with Router(tmp_path, name="router", rescan_s=60) as router:
            assert [*router.paths().values()] == [str(tmp_path / "early")]
            assert (await take(router)).payload == b"early"
            for number in range(10):
                waiting = asyncio.ensure_future(take(router))
                await asyncio.sleep(0)
                with open_writer(tmp_path / f"{number}", segment_size=1 << 16) as writer:
                    writer.append(b"%d" % number)
                    writer.mark_ready()
                    message = await waiting
                    assert (message.source, message.payload) == (f"{number}", b"%d" % number)
                shutil.rmtree(tmp_path / f"{number}")
                await until(lambda: len(router.sources()) == 1)
                del message, waiting  # they keep their segment mapped
                await until(lambda: not in_use(tmp_path / f"{number}"))  # noqa: B023
            early.append(b"still there")
            assert (await take(router)).payload == b"still there"
    assert in_use(tmp_path) == []


async def test_a_restart_goes_on_behind_the_last_commit(tmp_path: Path) -> None:
    received: list[bytes] = []
    writers = [open_writer(tmp_path / f"{number}", ready=True) for number in range(4)]
    for number in range(400):
        writers[number % 4].append(b"%d" % number, timestamp_ns=number + 1)
    for writer in writers:
        writer.close()
    for _ in range(4):
        async with Router(tmp_path, name="router", order="strict") as router:
            received += [(await take(router)).payload for _ in range(100)]
            router.commit()
            for _ in range(min(50, 400 - len(received))):
                await take(router)  # not committed, so it comes again
    assert received == [b"%d" % number for number in range(400)]


async def test_strict_order_is_not_begun_without_some_of_the_queues(tmp_path: Path) -> None:
    """Queues that exist when the router starts are attached before it delivers the first message."""
    for number in range(50):
        with open_writer(tmp_path / f"{number:02}", segment_size=1 << 16, ready=True) as writer:
            writer.append(b"", timestamp_ns=1_000 - number)
    async with Router(tmp_path, name="router", order="strict") as router:
        times = [(await take(router)).timestamp_ns for _ in range(50)]
    assert times == sorted(times)


async def test_replies_go_to_the_sender(tmp_path: Path) -> None:
    root = tmp_path / "orders"
    order_of_a: Message | int = -1
    async with Router(root, name="router") as router:
        with (
            open_writer(root / "a", segment_size=1 << 16, ready=True) as a,
            open_writer(root / "b", segment_size=1 << 16, ready=True) as b,
        ):
            await until(lambda: len(router.sources()) == 2)
            for number in range(10):
                (a, b)[number % 2].append(b"%d" % number)
                order = await take(router)
                reply = await router.reply(order)
                reply.append(b"ack " + order.payload, cause=order)
                if order.source == "a":
                    order_of_a = order
            by_id = {path: source for source, path in router.paths().items()}
            assert (await router.reply(by_id[str(root / "a")])).path == str(
                tmp_path / "orders.replies" / "a"
            )
            with pytest.raises(SourceGone, match="99 is not attached"):
                await router.reply(99)
            for name, first in (("a", 0), ("b", 1)):
                with open_reader(tmp_path / "orders.replies" / name, "strategy") as reader:
                    answers = [message.payload for message in reader]
                assert answers == [b"ack %d" % number for number in range(first, 10, 2)]
            # The reply queue has a READY file, so a strategy can wait for it.
            assert (tmp_path / "orders.replies" / "a" / "READY").exists()
        shutil.rmtree(root / "a")
        await until(lambda: len(router.sources()) == 1)
        await until(lambda: not in_use(tmp_path / "orders.replies" / "a"))
        with pytest.raises(SourceGone, match=r"queue of <Message seq=4 .* is not attached\. "):
            await router.reply(order_of_a)
        router.commit(order_of_a)  # the queue to commit in is gone
        assert isinstance(order_of_a, Message)
        with pytest.raises(KeyError):
            router.commit(99)


async def test_a_reply_queue_that_could_not_be_made_is_tried_again(tmp_path: Path) -> None:
    root, in_the_way = tmp_path / "orders", tmp_path / "orders.replies"
    in_the_way.touch()
    root.mkdir()
    with open_writer(root / "a", ready=True) as orders:
        orders.append(b"buy")
        async with Router(root, name="router") as router:
            order = await take(router)
            with pytest.raises(
                StorageError, match=r"orders\.replies: cannot create .* File exists"
            ):
                await router.reply(order)
            in_the_way.unlink()
            assert (await router.reply(order)).path == str(in_the_way / "a")


async def test_a_reply_queue_that_alone_was_removed_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    with open_writer(tmp_path / "orders" / "a", ready=True) as strategy:
        strategy.append(b"buy")
        async with Router(tmp_path / "orders", name="router") as router:
            order = await take(router)
            reply = await router.reply(order)
            assert not reply.gone
            shutil.rmtree(tmp_path / "orders.replies" / "a")
            eventually(lambda: reply.gone)
            with pytest.raises(QueueGone):
                reply.append(b"to nobody")
            first, second = await asyncio.gather(router.reply(order), router.reply(order))
            assert first is second is not reply
            assert reply.closed
            assert first.append(b"sold", cause=order) == 0
            first.close()  # by the user, as the text of WriterPoisoned advises
            again = await router.reply(order)
            assert again.append(b"sold again", cause=order) == 1


async def test_all_who_saw_a_reply_queue_fail_share_the_next_try(tmp_path: Path) -> None:
    root, in_the_way = tmp_path / "orders", tmp_path / "orders.replies"
    in_the_way.touch()
    root.mkdir()

    async def reply_at_last() -> Writer:
        with pytest.raises(StorageError, match="File exists"):
            await router.reply(order)
        if in_the_way.is_file():
            in_the_way.unlink()
        return await router.reply(order)

    with open_writer(root / "a", ready=True) as orders:
        orders.append(b"buy")
        async with Router(root, name="router") as router:
            order = await take(router)
            one, other = await asyncio.gather(reply_at_last(), reply_at_last())
            assert one is other
        assert one.closed


async def test_a_reader_attached_by_hand_that_fails_stays_its_owners(tmp_path: Path) -> None:
    with (
        open_writer(tmp_path / "own") as own,
        open_reader(tmp_path / "own") as reader,
        open_writer(tmp_path / "gone") as gone,
        open_reader(tmp_path / "gone") as other,
    ):
        async with Router(tmp_path / "orders", name="router") as router:
            router.attach(reader)
            router.attach(other)
            gone.append(b"1")
            own.append(b"2")
            other.close()
            message = await take(router)
            assert message.payload == b"2"
            assert isinstance(router.problems[str(tmp_path / "gone")], ClosedError)
            assert [*router.sources().values()] == [reader]
        assert not reader.closed


async def test_reply_queues_keep_what_they_are_told_to(tmp_path: Path) -> None:
    with open_writer(tmp_path / "orders", ready=True) as orders:
        orders.append(b"buy")
        router = Router(
            tmp_path,
            name="router",
            reply_root=tmp_path / "replies",
            reply_segment_size=4096,
            reply_retention=Retention(max_bytes=8192, check_interval_s=3600),
        )
        async with router:
            reply = await router.reply(await take(router))
            for _ in range(20):
                reply.append(bytes(2000))

            def few_are_left() -> bool:
                reply.retain_now()  # only sealed segments can go, and a thread seals them
                return len(list((tmp_path / "replies" / "orders").glob("*.q"))) <= 4

            await until(few_are_left)
    with pytest.raises(WrongType, match="reply_retention must be a Retention or None"):
        Router(tmp_path, name="router", reply_retention=3600)  # type: ignore[arg-type]


async def test_orders_and_replies_are_typed(tmp_path: Path) -> None:
    root = tmp_path / "orders"
    root.mkdir()
    seen: list[tuple[str, object]] = []
    with (
        open_writer(root / "one", codec=Order, ready=True) as one,
        open_writer(root / "two", codec=[Cancel, Order], ready=True) as two,
        open_writer(root / "other", codec=Ack, ready=True),
    ):
        one.send(Order(10), timestamp_ns=1)
        two.send(Cancel(7), timestamp_ns=2)
        two.send(Order(20), timestamp_ns=3)
        async with Router(root, name="router", codec=[Order, Cancel], reply_codec=Ack) as router:
            assert len(router.paths()) == 2
            problem = router.problems[str(root / "other")]
            assert isinstance(problem, aiochronicle.errors.SchemaMismatch), problem

            @router.on(Order)
            async def acknowledge(order: Order, message: Message) -> None:
                seen.append((message.source, order))
                (await router.reply(message)).send(Ack(order.size < 15), cause=message)

            @router.on(Cancel)
            def cancel(cancel: Cancel, message: Message) -> None:
                seen.append((message.source, cancel))
                if cancel.order == 0:
                    router.close()

            two.send(Cancel(0), timestamp_ns=4)
            async with asyncio.timeout(WITHIN_S):
                assert await router.dispatch() == 4
    assert seen == [
        ("one", Order(10)),
        ("two", Cancel(7)),
        ("two", Order(20)),
        ("two", Cancel(0)),
    ]
    for name, accepted in (("one", True), ("two", False)):
        with open_reader(tmp_path / "orders.replies" / name, codec=Ack) as replies:
            assert [reply.decode() for reply in replies] == [Ack(accepted)]


async def test_a_handler_whose_messages_could_never_come_is_refused(tmp_path: Path) -> None:
    async with Router(tmp_path, name="router") as router:
        with pytest.raises(aiochronicle.errors.InvalidArgument, match="no message can have it"):
            router.on(Order)
        with (
            open_writer(tmp_path / "by hand", codec=Order) as writer,
            open_reader(tmp_path / "by hand", codec=Order) as reader,
        ):
            writer.send(Order(1))
            router.attach(reader)
            sizes: list[int] = []
            router.on(Order)(lambda order: sizes.append(order.size))
            assert router.dispatch_now() == 1
            assert sizes == [1]


async def test_coming_and_going_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiochronicle.router")
    with open_writer(tmp_path / "strategy", ready=True):
        async with Router(tmp_path, name="router") as router:
            shutil.rmtree(tmp_path / "strategy")
            await until(lambda: not router.sources())
            path = tmp_path / "strategy"
            told = [text for text in caplog.messages if "open files" not in text]
            assert told == [f"attached: {path}", f"removed: {path}"]


async def test_opening_a_reply_queue_does_not_block_the_loop(tmp_path: Path) -> None:
    """Many replies at once: the loop keeps turning, each queue is opened once."""
    root = tmp_path / "orders"
    root.mkdir()
    writers = [open_writer(root / f"{n}", segment_size=1 << 16, ready=True) for n in range(20)]
    async with Router(root, name="router", reply_root=tmp_path / "answers") as router:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        turning = asyncio.ensure_future(turn())
        ids = [*router.paths()]
        replies = await asyncio.gather(*(router.reply(source) for source in ids * 3))
        turning.cancel()
        assert turns > 20
        assert len(set(map(id, replies))) == 20
        first = asyncio.ensure_future(router.reply(ids[0]))
        first.cancel()
        assert not (await router.reply(ids[0])).closed
    assert all(writer.closed for writer in replies)
    for writer in writers:
        writer.close()


async def test_a_queue_that_cannot_be_attached_is_a_problem_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        open_writer(tmp_path / "good", ready=True) as good,
        open_writer(tmp_path / "busy", ready=True) as busy,
        caplog.at_level(logging.WARNING),
    ):
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "READY").write_text('{"version": 1}')
        with open_reader(tmp_path / "busy", "router"):  # the router to be replaced
            async with Router(tmp_path, name="router", rescan_s=0.05) as router:
                assert [*router.paths().values()] == [str(tmp_path / "good")]
                problems = router.problems
                assert set(problems) == {str(tmp_path / "busy"), str(tmp_path / "empty")}
                busy_problem = problems[str(tmp_path / "busy")]
                assert isinstance(busy_problem, aiochronicle.errors.ReaderBusy)
                good.append(b"1")
                assert (await take(router)).payload == b"1"
                await asyncio.sleep(0.2)
                assert len(caplog.records) == 2  # once each, despite many attempts
        async with Router(tmp_path, name="router", rescan_s=0.05) as router:
            with open_reader(tmp_path / "busy", "other"):
                await until(lambda: len(router.sources()) == 2)
            assert set(router.problems) == {str(tmp_path / "empty")}
            busy.append(b"2")
            assert (await take(router)).source in ("busy", "good")


async def test_a_queue_that_was_busy_is_attached_when_it_is_free(tmp_path: Path) -> None:
    with open_writer(tmp_path / "busy", ready=True) as writer:
        writer.append(b"1")
        holder = open_reader(tmp_path / "busy", "router")
        async with Router(tmp_path, name="router", rescan_s=0.05) as router:
            assert set(router.problems) == {str(tmp_path / "busy")}
            holder.close()
            assert (await take(router)).payload == b"1"
            assert router.problems == {}


async def test_a_queue_that_fails_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_writer(tmp_path / "bad", segment_size=1 << 16, ready=True) as bad:
        bad.append_many([b"1", b"2", b"3"], timestamps_ns=[1, 2, 3])
    segment = tmp_path / "bad" / "000000000.q"
    content = bytearray(segment.read_bytes())
    content[64 + 128 + 64] ^= 1
    segment.write_bytes(content)
    with open_writer(tmp_path / "good", ready=True) as good, caplog.at_level(logging.WARNING):
        good.append_many([b"a", b"b", b"c"], timestamps_ns=[1, 2, 3])
        async with Router(tmp_path, name="router") as router:
            received = [(await take(router)).payload for _ in range(4)]
            assert received == [b"1", b"a", b"b", b"c"]
            assert isinstance(
                router.problems[str(tmp_path / "bad")], aiochronicle.errors.CorruptionError
            )
            assert [*router.paths().values()] == [str(tmp_path / "good")]
            assert "set aside: " in caplog.text
            router.commit()
            await until(lambda: not in_use(tmp_path / "bad"))
            shutil.rmtree(tmp_path / "bad")
            await until(lambda: not router.problems)


async def test_two_routers_keep_positions_of_their_own(tmp_path: Path) -> None:
    with open_writer(tmp_path / "queue", ready=True) as writer:
        writer.append_many([b"1", b"2"])
        async with Router(tmp_path, name="one") as one, Router(tmp_path, name="two") as two:
            assert (await take(one)).payload == b"1"
            assert (await take(two)).payload == b"1"
            assert (await take(one)).payload == b"2"
            one.commit()
        async with Router(tmp_path, name="two") as two:
            assert (await take(two)).payload == b"1"
        async with Router(tmp_path, name="late", start="last") as late:
            writer.append(b"3")
            assert (await take(late)).payload == b"3"


async def test_entering_a_router_without_a_root_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(aiochronicle.errors.StorageError, match="Not a directory"):
        async with Router(tmp_path / "file" / "root", name="router"):
            pass
    with pytest.raises(aiochronicle.errors.InvalidArgument):
        Router(tmp_path, name="")


async def test_closing_in_the_middle_of_attaching_leaves_nothing(tmp_path: Path) -> None:
    for number in range(50):
        open_writer(tmp_path / f"{number}", segment_size=4096, ready=True).close()
    for pause_ms in range(50):
        router = Router(tmp_path, name="router")
        waiting = asyncio.ensure_future(router.next())
        await asyncio.sleep(pause_ms / 1000)
        await router.aclose()
        with pytest.raises(aiochronicle.errors.ClosedError):
            await waiting
        assert in_use(tmp_path) == []


async def test_the_handshake_is_quick(tmp_path: Path) -> None:
    """The median time from READY to the delivery of the first message is short."""
    latencies_ms: list[float] = []
    async with Router(tmp_path, name="router", rescan_s=60) as router:
        for number in range(40):
            with open_writer(tmp_path / f"{number}", segment_size=1 << 16) as writer:
                writer.append(b"")
                started_ns = time.monotonic_ns()
                writer.mark_ready()
                await take(router)
                latencies_ms.append((time.monotonic_ns() - started_ns) / 1e6)
    median_ms = sorted(latencies_ms)[20]
    print(f"median {median_ms:.1f} ms")
    assert median_ms < 50


def test_a_writer_that_beats_lets_strict_order_go_on(tmp_path: Path) -> None:
    with (
        open_writer(tmp_path / "idle", heartbeat=0.01) as idle,
        open_writer(tmp_path / "busy") as busy,
        open_reader(tmp_path / "idle") as idle_reader,
        open_reader(tmp_path / "busy") as busy_reader,
        FanIn([idle_reader, busy_reader], order="strict") as fan_in,
    ):
        for number in range(20):
            busy.append(b"%d" % number)
            assert fan_in.wait(timeout=WITHIN_S)
            message = fan_in.poll()
            assert message is not None
            assert message.payload == b"%d" % number
        # The watermark never exceeds the time of a later message.
        newest_ns = 0
        for number in range(20_000):
            seq = idle.append(b"")
            watermark_ns = fan_in.source_statistics(0).watermark_ns if number % 100 == 0 else 0
            newest_ns = max(newest_ns, watermark_ns)
            assert seq == number
        assert all(not message.late for message in fan_in)
        assert newest_ns > 0


def test_a_writer_that_waits_for_room_does_not_stop_the_heartbeats_of_others(
    tmp_path: Path,
) -> None:
    room = Capacity(4096, policy="block", timeout_s=30)

    def watermark_ns() -> int:
        return inspect(tmp_path / "idle").watermark_ns

    with (
        open_writer(tmp_path / "full", heartbeat=0.005, capacity=room) as full,
        open_writer(tmp_path / "idle", heartbeat=0.005),
        open_reader(tmp_path / "full", "slow") as slow,
        ThreadPoolExecutor(1) as thread,
    ):
        full.append(bytes(3000))
        waiting = thread.submit(full.append, bytes(3000))
        try:
            eventually(lambda: full.statistics().capacity_waits > 0)
            for _ in range(3):  # the first heartbeat may be from before
                before_ns = watermark_ns()
                eventually(lambda: watermark_ns() > before_ns, 5.0)  # noqa: B023
            assert not waiting.done()
        finally:
            list(slow)
            slow.commit()
        assert waiting.result() == 1


def test_the_heartbeat_ends_with_the_writer(tmp_path: Path) -> None:
    writers = [open_writer(tmp_path / f"{n}", heartbeat=0.005) for n in range(3)]
    watermarks = [aiochronicle.inspect(writer.path).watermark_ns for writer in writers]
    deadline_s = time.monotonic() + WITHIN_S
    while any(
        aiochronicle.inspect(writer.path).watermark_ns <= before
        for writer, before in zip(writers, watermarks, strict=True)
    ):
        assert time.monotonic() < deadline_s
    for writer in writers:
        writer.close()
    while any(thread.name == "heartbeats" for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    with open_writer(tmp_path / "0", heartbeat=0.005) as again:  # it restarts on demand
        before_ns = aiochronicle.inspect(again.path).watermark_ns
        while aiochronicle.inspect(again.path).watermark_ns <= before_ns:
            assert time.monotonic() < deadline_s
    for wrong in (0, -1):
        with pytest.raises(aiochronicle.errors.InvalidArgument):
            open_writer(tmp_path / "0", heartbeat=wrong)
    with pytest.raises(aiochronicle.errors.InvalidArgument, match="clock"):
        open_writer(tmp_path / "0", heartbeat=1, clock=lambda: 1)


async def test_closing_a_router_closes_what_it_opened(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with open_writer(tmp_path / "root" / "0", ready=True) as writer:
        writer.append(b"1")
        router = Router(tmp_path / "root", name="router")
        message = await take(router)
        (await router.reply(message)).append(b"2")
        assert repr(router).startswith("<Router ")
        router.close()
        with open_reader(tmp_path / "root" / "0", "router") as reader:
            assert [again.payload for again in reader] == [b"1"]
        await until(lambda: not in_use(tmp_path / "root.replies"))


async def test_a_router_closes_what_it_opened_after_every_task_was_cancelled(
    tmp_path: Path,
) -> None:
    (tmp_path / "root").mkdir()
    with open_writer(tmp_path / "root" / "0", ready=True) as writer:
        writer.append(b"1")
        router = Router(tmp_path / "root", name="router")
        message = await take(router)
        asking = asyncio.create_task(router.reply(message))
        await asyncio.sleep(0)  # the router has asked a thread to open the queue
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait([asking])
        await router.aclose()
        assert router.closed
        assert (tmp_path / "root.replies" / "0" / "READY").exists()
        assert not in_use(tmp_path / "root.replies")


def test_a_name_that_no_reader_can_have_is_refused_at_once(tmp_path: Path) -> None:
    for name in ("", "a/b", "x" * 65):
        with pytest.raises(aiochronicle.errors.InvalidName):
            Router(tmp_path, name=name)


def test_a_successor_keeps_the_promises_of_a_killed_writer(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        writer = open_writer(tmp_path / "queue")
        writer.append(b"1", timestamp_ns=1_000)
        writer.heartbeat(5_000)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    with open_writer(tmp_path / "queue") as writer:
        with pytest.raises(aiochronicle.errors.TimestampOrder):
            writer.append(b"2", timestamp_ns=4_999)
        writer.append(b"2", timestamp_ns=5_000)


def test_last_causes_are_those_of_each_source(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    newest: dict[int, int] = {}
    with open_writer(tmp_path / "out", segment_size=1 << 14) as writer:
        assert writer.last_causes() == {}
        for number in range(3_000):
            source, cause_seq = chance.randrange(1, 200), chance.randrange(1_000)
            if chance.random() < 0.2:
                writer.append(b"no cause", timestamp_ns=number)
                continue
            writer.append(b"", cause=(source, cause_seq), timestamp_ns=number)
            newest[source] = cause_seq
        assert writer.last_causes() == newest
        assert all(writer.last_cause(source) == seq for source, seq in newest.items())
        recent = writer.last_causes(since_ns=2_900)
        assert recent.items() <= newest.items()
        assert 0 < len(recent) < len(newest)


async def test_a_source_is_gone_when_its_replies_are_closed(tmp_path: Path) -> None:
    """Otherwise an answer in between would go to a queue without a reader."""
    root = tmp_path / "orders"
    async with Router(root, name="router") as router:
        with open_writer(root / "a", ready=True) as writer:
            writer.append(b"order")
            reply = await router.reply(await take(router))
        shutil.rmtree(root / "a")
        async with asyncio.timeout(WITHIN_S):
            while router.sources():
                await asyncio.sleep(0)
        assert reply.closed


async def test_copies_of_one_queue_are_told_apart(tmp_path: Path) -> None:
    """Even if the copies have the same name, because a queue is identified by its directory."""
    root = tmp_path / "orders"
    (root / "a").mkdir(parents=True)
    with open_writer(root / "a" / "queue", ready=True) as writer:
        writer.append(b"order")
    shutil.copytree(root / "a", root / "b")
    async with Router(root, name="router", depth=2) as router:
        orders = [await take(router), await take(router)]
        readers = [router.reader_of(order) for order in orders]
        names = [reader.path.removeprefix(f"{root}/") for reader in readers]
        assert sorted(names) == ["a/queue", "b/queue"]
        for order, name, reader in zip(orders, names, readers, strict=True):
            (other,) = {*readers} - {reader}
            assert (await router.reply(order)).path == f"{root}.replies/{name}"
            before = other.committed
            router.commit(order)
            assert reader.committed == reader.position
            assert other.committed == before
