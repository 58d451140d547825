"""Members of a group in one process: deliveries, leases, order, refused calls."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import (
    Group,
    Message,
    Writer,
    errors,
    inspect_group,
    open_group,
)
from aiochronicle._core.group import QueueGroup

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run_it(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(main, 30))

    return run_it


@pytest.fixture
def writer(queue_path: Path) -> Iterator[Writer]:
    with aiochronicle.open_writer(queue_path, segment_size=1 << 16) as writer:
        yield writer


def fill(writer: Writer, count: int) -> None:
    for i in range(count):
        writer.append(str(i).encode())


def store_position(group: aiochronicle.Group[Any]) -> None:
    """Store the position now, as the group does from time to time."""
    assert isinstance(group, QueueGroup)
    group._commit_due()


def test_members_share_the_messages(run: Run, writer: Writer, queue_path: Path) -> None:
    fill(writer, 2000)
    seen: list[int] = []

    async def member(group: Group[Any]) -> int:
        count = 0
        async for delivery in group:
            assert delivery.attempt == 1
            assert delivery.message.payload == str(delivery.seq).encode()
            seen.append(delivery.seq)
            delivery.ack()
            count += 1
            await asyncio.sleep(0)
            if len(seen) == 2000:
                await asyncio.gather(*(each.aclose() for each in groups))
        return count

    groups = [open_group(queue_path, "workers") for _ in range(3)]

    async def main() -> list[int]:
        return await asyncio.gather(*(member(group) for group in groups))

    counts = run(main())
    assert sorted(seen) == list(range(2000))
    assert all(counts)
    assert inspect_group(queue_path, "workers").pending == 0
    (reader,) = aiochronicle.list_readers(queue_path)
    assert (reader.name, reader.committed_seq, reader.live) == ("workers", 2000, False)


def test_a_new_message_wakes_a_sleeping_member(run: Run, writer: Writer, queue_path: Path) -> None:
    async def main() -> None:
        async with aiochronicle.aopen_group(queue_path, "workers") as group:
            for i in range(20):
                waiting = asyncio.ensure_future(group.next())
                await asyncio.sleep(0.01)
                assert not waiting.done()
                writer.append(str(i).encode())
                with await asyncio.wait_for(waiting, 5) as delivery:
                    assert delivery.message.payload == str(i).encode()

    run(main())


def test_a_block_acknowledges_or_gives_back(run: Run, writer: Writer, queue_path: Path) -> None:
    fill(writer, 1)

    async def main() -> list[int]:
        attempts: list[int] = []
        async with aiochronicle.aopen_group(queue_path, "workers", retry_s=0.01) as group:
            async for delivery in group:
                try:
                    async with delivery:
                        attempts.append(delivery.attempt)
                        if delivery.attempt < 3:
                            raise RuntimeError("not yet")
                        break
                except RuntimeError:
                    assert delivery.settled
            assert group.info().pending == 0
        return attempts

    assert run(main()) == [1, 2, 3]


def test_what_a_cancelled_task_had_comes_again_and_counts_no_attempt(
    run: Run, writer: Writer, queue_path: Path
) -> None:
    fill(writer, 3)

    async def handle(group: Group[Any], started: asyncio.Event) -> None:
        async for delivery in group:
            async with delivery:
                started.set()
                await asyncio.sleep(100)

    async def main() -> None:
        async with aiochronicle.aopen_group(queue_path, "workers") as group:
            for _ in range(5):
                started = asyncio.Event()
                task = asyncio.create_task(handle(group, started))
                await started.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert group.in_flight == 0
            delivery = await group.next()
            assert (delivery.seq, delivery.attempt) == (0, 1)
            delivery.ack()
            # A member that is cancelled while it waits has claimed nothing.
            for expected in (1, 2):
                (await group.next()).ack()
                assert inspect_group(queue_path, "workers").low_seq == expected + 1
            waiting = asyncio.create_task(group.next())
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert group.in_flight == 0
            with pytest.raises(TimeoutError):
                await group.next(timeout=0.01)

    run(main())


def test_batches(run: Run, writer: Writer, queue_path: Path) -> None:
    fill(writer, 25)

    async def main() -> list[int]:
        sizes: list[int] = []
        async with aiochronicle.aopen_group(queue_path, "workers") as group:
            async for batch in group.batches(10):
                sizes.append(len(batch))
                for delivery in batch:
                    delivery.ack()
                if sum(sizes) == 25:
                    await group.aclose()
        return sizes

    assert run(main()) == [10, 10, 5]


def test_a_member_that_is_closed_ends_the_loops_of_its_tasks(
    run: Run, writer: Writer, queue_path: Path
) -> None:
    async def consume(group: Group[Any]) -> str:
        async for delivery in group:
            delivery.ack()
        return "ended"

    async def main() -> None:
        group = await aiochronicle.aopen_group(queue_path, "workers")
        tasks = [asyncio.create_task(consume(group)) for _ in range(3)]
        await asyncio.sleep(0.02)
        await group.aclose()
        assert await asyncio.gather(*tasks) == ["ended"] * 3
        with pytest.raises(errors.ClosedError):
            await group.next()

    run(main())


def test_a_lease_that_ends_goes_to_another_member(writer: Writer, queue_path: Path) -> None:
    fill(writer, 1)
    with (
        open_group(queue_path, "w", lease_s=0.1) as slow,
        open_group(queue_path, "w", lease_s=0.1) as b,
    ):
        late = slow.poll()
        assert late is not None
        assert b.poll() is None
        late.extend(0.3)
        assert b.wait(timeout=5)
        again = b.poll()
        assert again is not None
        assert again.attempt == 2
        for settle in (late.ack, late.nack, late.extend):
            with pytest.raises(errors.LeaseLost, match="message 0"):
                settle()
        again.ack()
        assert inspect_group(queue_path, "w").pending == 0
        assert [member.refused for member in slow.info().members] == [1, 0]


def test_settling_twice_is_refused(writer: Writer, queue_path: Path) -> None:
    fill(writer, 2)
    with open_group(queue_path, "w") as group:
        first, second = group.take_batch()
        first.ack()
        second.nack()
        for delivery in (first, second):
            for settle in (delivery.ack, delivery.nack, delivery.extend):
                with pytest.raises(errors.AlreadySettled):
                    settle()
        third = group.poll()
        assert third is not None
        assert (third.seq, third.attempt) == (1, 2)
    with pytest.raises(errors.ClosedError):
        third.ack()
    with open_group(queue_path, "w") as group:
        fourth = group.poll()
        assert fourth is not None
        assert (fourth.seq, fourth.attempt) == (1, 3)
        fourth.ack()


def test_a_delivery_that_is_dropped_is_given_back(writer: Writer, queue_path: Path) -> None:
    fill(writer, 1)
    with open_group(queue_path, "w", retry_s=0.01) as group:
        assert group.poll() is not None
        assert inspect_group(queue_path, "w").delayed == 1
        assert group.wait(timeout=5)
        delivery = group.poll()
        assert delivery is not None
        assert delivery.attempt == 2
        delivery.ack()


def test_delays_are_kept(writer: Writer, queue_path: Path) -> None:
    fill(writer, 2)
    with open_group(queue_path, "w") as group:
        first = group.poll()
        assert first is not None
        started = time.monotonic()
        first.nack(delay_s=0.2)
        second = group.poll()
        assert second is not None
        assert second.seq == 1
        second.ack()
        assert group.poll() is None
        assert group.wait(timeout=5)
        assert time.monotonic() - started >= 0.19
        again = group.poll()
        assert again is not None
        assert again.seq == 0
        again.ack()


def test_order_by_key(run: Run, writer: Writer, queue_path: Path) -> None:
    """Tasks of two members process each key's messages one at a time and in order, even after failures."""
    keys = 7
    for i in range(400):
        writer.append(b"%d:%d" % (i * i % keys, i))

    def key(message: Message[Any]) -> bytes:
        return message.payload.split(b":")[0]

    done: dict[bytes, list[int]] = {}
    busy: set[bytes] = set()

    async def work(group: Group[Any]) -> None:
        async for delivery in group:
            mine = key(delivery.message)
            assert mine not in busy
            busy.add(mine)
            await asyncio.sleep(0)
            busy.remove(mine)
            if (delivery.seq + delivery.attempt) % 5 == 0:
                delivery.nack()
                continue
            done.setdefault(mine, []).append(delivery.seq)
            delivery.ack()
            if sum(map(len, done.values())) == 400:
                for each in groups:
                    await each.aclose()

    groups = [open_group(queue_path, "w", order="key", key=key, max_in_flight=50) for _ in range(2)]

    async def main() -> None:
        await asyncio.gather(*(work(group) for group in groups for _ in range(3)))

    run(main())
    for mine, seqs in done.items():
        assert seqs == sorted(seqs), mine
    assert sum(map(len, done.values())) == 400


def test_a_key_that_hangs_does_not_slow_down_the_others(writer: Writer, queue_path: Path) -> None:
    """The next message of a key is found without scanning all messages done since."""
    count = 20_000
    for i in range(count):
        writer.append(b"", key=b"%d" % (i % 100))

    def rate(name: str, hanging: bool) -> float:
        with open_group(
            queue_path, name, order="key", key=lambda message: message.key, max_in_flight=count
        ) as group:
            first = group.poll()
            assert first is not None
            if not hanging:
                first.ack()
            done, started = 0, time.perf_counter()
            for delivery in group:
                delivery.ack()
                done += 1
            rate = done / (time.perf_counter() - started)
            assert done == (count - count // 100 if hanging else count - 1)
            if hanging:
                first.ack()
        return rate

    slower = [rate(f"free{i}", False) / rate(f"hanging{i}", True) for i in range(3)]
    assert min(slower) < 8, slower  # about 50 if every search starts at the oldest message


def test_what_others_and_leases_free_is_found_beside_busy_keys(
    writer: Writer, queue_path: Path
) -> None:
    """A search continues where the last one ended, and restarts at the oldest every few milliseconds."""
    for i in range(3000):
        writer.append(b"", key=b"hot" if i < 2 else b"%d" % i)
    options: dict[str, Any] = {"order": "key", "key": lambda message: message.key, "lease_s": 0.05}
    with (
        open_group(queue_path, "w", max_in_flight=4096, **options) as one,
        open_group(queue_path, "w", max_in_flight=4096, **options) as two,
    ):
        first = one.poll()
        assert first is not None
        seen: list[int] = []
        for delivery in two:
            seen.append(delivery.seq)
            time.sleep(0.001)
            delivery.ack()
            if delivery.seq == 0:
                break
        assert len(seen) < 1000
        assert seen[-1] == 0
        again = two.poll()
        assert again is not None
        assert again.seq == 1
        again.ack()


def test_a_key_function_that_fails_loses_nothing(writer: Writer, queue_path: Path) -> None:
    fill(writer, 3)
    answers = [0, ZeroDivisionError, 0, 1]

    def key(message: Message[Any]) -> int:
        answer = answers.pop(0)
        if answer is ZeroDivisionError:
            raise ZeroDivisionError
        return answer  # type: ignore[return-value]

    with open_group(queue_path, "w", order="key", key=key) as group:
        with pytest.raises(ZeroDivisionError):
            group.poll()
        first, third = group.take_batch()
        assert (first.seq, third.seq) == (0, 2)
        first.ack()
        third.ack()
        second = group.poll()
        assert second is not None
        assert second.seq == 1
        second.ack()


def test_threads_share_a_member_by_key(writer: Writer, queue_path: Path) -> None:
    """A key function lets other threads run in the middle of a step; no thread skips a message."""
    for i in range(1000):
        writer.append(b"%d" % (i % 50))

    def key(message: Message[Any]) -> bytes:
        time.sleep(0)
        return message.payload

    done: list[int] = []
    with open_group(queue_path, "w", order="key", key=key) as group:

        def work() -> None:
            while group.info().pending:
                for delivery in group:
                    done.append(delivery.seq)
                    delivery.ack()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(done) == list(range(1000))
    for first in range(50):
        seqs = [seq for seq in done if seq % 50 == first]
        assert seqs == sorted(seqs)


def test_a_key_function_that_uses_its_group_is_refused(writer: Writer, queue_path: Path) -> None:
    fill(writer, 2)
    uses: list[Callable[[], object]] = []

    def key(message: Message[Any]) -> int:
        if uses:
            uses.pop()()
        return 0

    with open_group(queue_path, "w", order="key", key=key) as group:
        for use in (group.poll, group.take_batch, group.close):
            uses.append(use)
            with pytest.raises(RuntimeError, match="uses the group"):
                group.poll()
        delivery = group.poll()
        assert delivery is not None
        delivery.ack()
        assert delivery.seq == 0


def test_a_member_is_closed_while_another_thread_is_in_its_key_function(
    writer: Writer, queue_path: Path
) -> None:
    fill(writer, 1)
    inside, closing = threading.Event(), threading.Event()

    def key(message: Message[Any]) -> int:
        inside.set()
        assert closing.wait(30)
        time.sleep(0.01)
        return 0

    group = open_group(queue_path, "w", order="key", key=key)
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(group.poll()))
    thread.start()
    assert inside.wait(30)
    closing.set()
    group.close()
    thread.join(30)
    assert len(got) == 1
    assert inspect_group(queue_path, "w").pending == 1


def test_a_message_wakes_one_of_the_members_that_sleep(
    run: Run, writer: Writer, queue_path: Path
) -> None:
    """A batch wakes as many members as it has messages, however many members sleep."""
    groups = [open_group(queue_path, "w") for _ in range(40)]

    async def asleep() -> None:
        """Wait until all members have registered as sleeping."""
        while bin(parked(queue_path)).count("1") < len(groups):
            await asyncio.sleep(0.001)

    async def work(group: Group[Any], done: list[int]) -> None:
        async for delivery in group:
            done.append(delivery.seq)
            delivery.ack()

    async def main() -> None:
        done: list[int] = []
        tasks = [asyncio.create_task(work(group, done)) for group in groups]
        for i in range(20):
            await asleep()
            before = writer.statistics().wakeups
            writer.append(b"")
            assert writer.statistics().wakeups == before + 1
            while len(done) <= i:
                await asyncio.sleep(0)
        await asleep()
        before = writer.statistics().wakeups
        writer.append_many([b""] * 3)
        assert writer.statistics().wakeups == before + 3
        while len(done) < 23:
            await asyncio.sleep(0)
        assert sum(1 for member in groups[0].info().members if member.acked) > 1
        for group in groups:
            await group.aclose()
        await asyncio.gather(*tasks)

    run(main())


def parked(queue: Path) -> int:
    """Return the bits of sleeping members from control.meta."""
    return int.from_bytes((queue / "control.meta").read_bytes()[400:464], "little")


def test_all_that_came_back_is_there_at_once(writer: Writer, queue_path: Path) -> None:
    """Messages that were returned in the same millisecond come in one batch."""
    fill(writer, 100)
    with open_group(queue_path, "w") as group:
        for attempt in (1, 2, 3):
            batch = group.take_batch()
            assert [delivery.seq for delivery in batch] == list(range(100))
            assert {delivery.attempt for delivery in batch} == {attempt}
            for delivery in batch:
                delivery.nack()
        for delivery in group:
            delivery.ack()
        assert group.info().pending == 0


def test_a_message_that_is_damaged_between_two_deliveries_is_passed_over(
    writer: Writer, queue_path: Path
) -> None:
    for text in (b"first", b"second", b"third"):
        writer.append(text)
    with open_group(queue_path, "w", on_corrupt="skip") as group:
        for delivery in group.take_batch():
            delivery.nack()
        segment = queue_path / "000000000.q"
        at = segment.read_bytes().index(b"second")
        fd = os.open(segment, os.O_WRONLY)
        os.pwrite(fd, b"S", at)
        os.close(fd)
        assert group.wait(30)
        batch = group.take_batch()
        assert [again.message.payload for again in batch] == [b"first", b"third"]
        for again in batch:
            again.ack()
        assert group.info().pending == 0


def test_the_window_is_a_limit(writer: Writer, queue_path: Path) -> None:
    fill(writer, 30)
    with open_group(queue_path, "w", max_in_flight=10) as group:
        batch = group.take_batch()
        assert len(batch) == 10
        for delivery in batch[1:]:
            delivery.ack()
        assert group.poll() is None
        assert not group.wait(timeout=0.02)
        batch[0].ack()
        assert len(group.take_batch()) == 10


def test_retention_and_capacity_wait_for_the_group(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(
            queue_path,
            segment_size=1 << 16,
            retention=aiochronicle.Retention(),
            capacity=1 << 18,
        ) as writer,
        open_group(queue_path, "w", max_in_flight=100_000) as group,
    ):
        with pytest.raises(errors.QueueFull):
            for _ in range(10_000):
                writer.append(bytes(200))
        batch = group.take_batch(100_000)
        for delivery in batch[1:]:
            delivery.ack()
        with pytest.raises(errors.QueueFull):
            writer.append(bytes(200))
        batch[0].ack()
        del batch
        assert group.poll() is None
        assert isinstance(group, Group)
        store_position(group)
        eventually(lambda: _can_append(writer))


def test_a_member_that_retention_has_overtaken_goes_on(queue_path: Path) -> None:
    """Retention removed segments that the busy member had not read yet."""
    with (
        aiochronicle.open_writer(
            queue_path, segment_size=1 << 16, retention=aiochronicle.Retention()
        ) as writer,
        open_group(queue_path, "w") as slow,
        open_group(queue_path, "w") as quick,
    ):
        writer.append(b"first")
        busy = slow.poll()
        assert busy is not None
        busy.ack()
        for _ in range(5):
            for _ in range(400):
                writer.append(bytes(200))
            for delivery in quick:
                delivery.ack()
        assert isinstance(quick, Group)
        store_position(quick)
        eventually(lambda: _retained(writer) and not (queue_path / "000000001.q").exists())
        writer.append(b"last")
        assert slow.wait(30)
        last = slow.poll()
        assert last is not None
        assert last.message.payload == b"last"
        last.ack()
        # A member that joins now also works.
        with open_group(queue_path, "w") as late:
            assert late.poll() is None
        assert slow.info().pending == 0


def _retained(writer: Writer) -> bool:
    writer.retain_now()
    return True


def _can_append(writer: Writer) -> bool:
    try:
        writer.append(b"")
    except errors.QueueFull:
        return False
    return True


def test_a_group_follows_the_roll_of_segments(writer: Writer, queue_path: Path) -> None:
    with open_group(queue_path, "w", max_in_flight=64) as group:
        count = 0
        for _ in range(50):
            fill(writer, 100)
            for delivery in group:
                assert delivery.seq == count
                delivery.ack()
                count += 1
        assert count == 5000
    assert aiochronicle.inspect(queue_path).segments > 3


def test_start_of_a_new_group(writer: Writer, queue_path: Path) -> None:
    fill(writer, 10)
    with open_group(queue_path, "late", start="last") as group:
        assert group.poll() is None
        writer.append(b"new")
        delivery = group.poll()
        assert delivery is not None
        assert delivery.message.payload == b"new"
        delivery.ack()
    with open_group(queue_path, "middle", start=5) as group:
        delivery = group.poll()
        assert delivery is not None
        assert delivery.seq == 5
        delivery.nack()
    with open_group(queue_path, "middle", start="last") as group:  # not new: start is ignored
        assert group.wait(5)
        delivery = group.poll()
        assert delivery is not None
        assert delivery.seq == 5
        delivery.ack()


def test_a_copy_begins_at_the_position(writer: Writer, queue_path: Path, tmp_path: Path) -> None:
    import shutil

    fill(writer, 20)
    with open_group(queue_path, "w") as group:
        batch = group.take_batch()
        for delivery in (*batch[:5], batch[9]):
            delivery.ack()
        assert isinstance(group, Group)
        store_position(group)
        shutil.copytree(
            queue_path, tmp_path / "copy", ignore=shutil.ignore_patterns("*.efd", "wake")
        )
        info = inspect_group(tmp_path / "copy", "w")
        assert not info.current
        assert info.low_seq <= 5
        with open_group(tmp_path / "copy", "w") as copied:
            again = copied.take_batch()
            assert again[0].seq <= 5
            assert again[-1].seq == 19
            assert {delivery.attempt for delivery in again} == {1}


def test_settings_of_members_have_to_agree(writer: Writer, queue_path: Path) -> None:
    fill(writer, 1)
    others: list[dict[str, Any]] = [
        {"lease_s": 5},
        {"max_in_flight": 7},
        {"order": "key", "key": len},
        {"max_deliver": 3, "dead_letter": queue_path.with_name("dead")},
    ]
    with open_group(queue_path, "w"):
        for other in others:
            with pytest.raises(errors.GroupInUse):
                open_group(queue_path, "w", **other)
    with open_group(queue_path, "w", lease_s=5, max_in_flight=7) as group:
        assert group.info().max_in_flight == 7


def test_names_of_readers_are_refused(writer: Writer, queue_path: Path) -> None:
    fill(writer, 3)
    with aiochronicle.open_reader(queue_path, "risk") as reader:
        reader.poll()
        reader.commit()
        with pytest.raises(errors.ReaderBusy):
            open_group(queue_path, "risk")
    with pytest.raises(errors.ReaderBusy, match="name of a reader"):
        open_group(queue_path, "risk")
    with open_group(queue_path, "risk", adopt=True) as group:
        delivery = group.poll()
        assert delivery is not None
        assert delivery.seq == 1
        delivery.ack()
        with pytest.raises(errors.ReaderBusy):
            aiochronicle.open_reader(queue_path, "risk")
        with pytest.raises(errors.ReaderBusy):
            aiochronicle.forget_reader(queue_path, "risk")
        (info,) = aiochronicle.list_readers(queue_path)
        assert info.live
        assert info.pid == os.getpid()
    aiochronicle.forget_reader(queue_path, "risk")
    with pytest.raises(errors.ReaderNotFound):
        inspect_group(queue_path, "risk")
    assert aiochronicle.list_groups(queue_path) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_s": 0},
        {"lease_s": 1e6},
        {"lease_s": "long"},
        {"max_in_flight": 0},
        {"max_in_flight": 1 << 21},
        {"max_deliver": 3},
        {"dead_letter": "somewhere"},
        {"order": "key"},
        {"key": len},
        {"order": "time"},
        {"order": "key", "key": 7},
        {"retry_s": -1},
        {"adopt": 1},
        {"wait": "sleep"},
    ],
    ids=str,
)
def test_arguments_that_cannot_be(queue: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgument):
        open_group(queue, "w", **wrong)
    assert aiochronicle.list_groups(queue) == []


def test_arguments_of_deliveries_that_cannot_be(queue: Path) -> None:
    with open_group(queue, "w") as group:
        delivery = group.poll()
        assert delivery is not None
        for delay in (-1, 1e9, float("nan")):
            with pytest.raises(errors.InvalidArgument):
                delivery.nack(delay)
        with pytest.raises(errors.WrongType):
            delivery.nack("soon")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument):
            delivery.extend(0)
        delivery.ack()


def test_names_that_cannot_be(queue: Path) -> None:
    for name in ("", "a/b", "../x", "x" * 65, "_x", "a\0b"):
        with pytest.raises(errors.ChronicleError):
            open_group(queue, name)
    with pytest.raises(errors.QueueNotFound):
        open_group(queue / "nothing", "w")
    with pytest.raises(errors.ReaderNotFound):
        inspect_group(queue, "w")


def test_queues_of_java_are_refused(tmp_path: Path) -> None:
    with aiochronicle.open_writer(tmp_path / "java", format="cq4") as writer:
        writer.append(b"hello")
        with pytest.raises(errors.NotSupported):
            open_group(tmp_path / "java", "w")


def test_threads_share_a_member(writer: Writer, queue_path: Path) -> None:
    fill(writer, 5000)
    seen: list[int] = []
    with open_group(queue_path, "w") as group:

        def work() -> None:
            for delivery in group:
                seen.append(delivery.seq)
                delivery.ack()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == list(range(5000))


def test_a_member_goes_from_loop_to_loop(writer: Writer, queue_path: Path) -> None:
    with open_group(queue_path, "w") as group:
        for i in range(3):

            async def main() -> int:
                waiting = asyncio.ensure_future(group.next(timeout=10))
                await asyncio.sleep(0.01)
                writer.append(b"")
                delivery = await waiting
                delivery.ack()
                return delivery.seq

            assert asyncio.run(main()) == i


def test_a_forked_child_has_a_closed_member(queue: Path) -> None:
    with open_group(queue, "w") as group:
        delivery = group.poll()
        assert delivery is not None
        pid = os.fork()
        if pid == 0:
            try:
                delivery.ack()
            except errors.ForkedError:
                os._exit(0 if group.closed else 2)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        delivery.ack()
        assert inspect_group(queue, "w").pending == 0


def test_statistics(writer: Writer, queue_path: Path) -> None:
    fill(writer, 10)
    with open_group(queue_path, "w") as a, open_group(queue_path, "w") as b:
        mine = a.take_batch(4)
        theirs = b.take_batch(2)
        mine[0].ack()
        mine[1].nack(delay_s=50)
        info = inspect_group(queue_path, "w")
        assert (info.pending, info.in_flight, info.delayed, info.low_seq) == (9, 4, 1, 1)
        assert [member.in_flight for member in info.members] == [2, 2]
        assert [member.claimed for member in info.members] == [4, 2]
        assert (a.statistics(), b.statistics()) == info.members
        assert info.oldest_ns is not None
        for delivery in (*mine[2:], *theirs):
            delivery.ack()
        assert aiochronicle.list_groups(queue_path)[0].in_flight == 0
        assert (a.statistics().acked, a.statistics().nacked, b.statistics().in_flight) == (3, 1, 0)
    with pytest.raises(errors.ClosedError):
        a.statistics()
