"""Groups over a topic with many writers."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import (
    Retention,
    TopicGroup,
    TopicReader,
    errors,
    inspect_group,
    list_dead_letters,
    list_groups,
    open_group,
    open_writer,
    retry_dead_letters,
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run_it(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(main, 60))

    return run_it


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def test_members_share_what_all_writers_append(topic: Path) -> None:
    writers = [open_writer(topic, shared=True) for _ in range(3)]
    for i in range(300):
        writers[i % 3].append(b"%d" % i)
    seen: list[int] = []
    with TopicGroup(topic, "w") as one, TopicGroup(topic, "w") as two:
        while inspect_group(topic, "w").pending:
            for group in (one, two):
                for delivery in group.take_batch(7):
                    assert delivery.attempt == 1
                    seen.append(int(delivery.message.payload))
                    delivery.ack()
        assert sorted(seen) == list(range(300))
        info = one.info()
        assert (info.pending, info.next_seq, len(info.members)) == (0, 300, 1)
        assert info.members[0].acked == 300
        assert one.statistics().acked + two.statistics().acked == 300
        assert one.statistics().in_flight == 0
        assert [group.name for group in list_groups(topic)] == ["w"]
    for writer in writers:
        writer.close()


def test_in_a_loop_writers_come_and_go(run: Run, topic: Path) -> None:
    async def main() -> list[bytes]:
        seen: list[bytes] = []

        async def work(group: TopicGroup[Any]) -> None:
            async for delivery in group:
                async with delivery:
                    seen.append(delivery.message.payload)
                    await asyncio.sleep(0)

        groups = [await TopicGroup.aopen(topic, "w", wait_for_queue=True) for _ in range(2)]
        assert groups[0].statistics().claimed == 0
        tasks = [asyncio.create_task(work(group)) for group in groups for _ in range(2)]
        for i in range(5):
            writer = await aiochronicle.aopen_writer(topic, shared=f"writer-{i % 3}")
            for j in range(10):
                writer.append(b"%d-%d" % (i, j))
            await writer.aclose()
            while len(seen) < (i + 1) * 10:
                await asyncio.sleep(0.001)
        for group in groups:
            await group.aclose()
        await asyncio.gather(*tasks)
        return seen

    seen = run(main())
    assert sorted(seen) == sorted(b"%d-%d" % (i, j) for i in range(5) for j in range(10))


def test_batches_next_and_cancelling(run: Run, topic: Path) -> None:
    async def main() -> None:
        with open_writer(topic, shared=True) as one, open_writer(topic, shared=True) as two:
            async with await TopicGroup.aopen(topic, "w") as group:
                with pytest.raises(TimeoutError):
                    await group.next(timeout=0.01)
                waiting = asyncio.create_task(group.next())
                await asyncio.sleep(0.01)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                one.append(b"a")
                two.append(b"b")
                got = [await group.next(timeout=30) for _ in range(2)]
                assert {delivery.message.payload for delivery in got} == {b"a", b"b"}
                got[0].ack()
                got[1].nack()
                async for batch in group.batches():
                    assert [delivery.attempt for delivery in batch] == [2]
                    batch[0].ack()
                    break
                assert group.in_flight == 0
                assert group.info().pending == 0

    run(main())


def test_open_group_of_a_topic_is_a_topic_group(run: Run, topic: Path, tmp_path: Path) -> None:
    with open_writer(topic, shared=True) as one, open_writer(topic, shared=True) as two:
        one.append(b"a")
        two.append(b"b")
        options: dict[str, Any] = {"lease_s": 9, "max_in_flight": 7, "start": "last"}
        opened: Any = open_group(topic, "late", **options)
        with opened as group:
            assert isinstance(group, TopicGroup)
            assert group.poll() is None
            info = group.info()
            assert (info.lease_s, info.max_in_flight, info.max_deliver) == (9, 7, None)

        async def main() -> set[bytes]:
            async with aiochronicle.aopen_group(
                topic, "w", max_deliver=1, dead_letter=tmp_path / "dead"
            ) as group:
                return {(await group.next(timeout=30)).message.payload for _ in range(2)}

        assert run(main()) == {b"a", b"b"}


@pytest.mark.parametrize("way", ["async for", "next", "batches"])
def test_other_tasks_have_their_turn_however_much_there_is(run: Run, topic: Path, way: str) -> None:
    """A member that always finds messages yields to other tasks and can be cancelled."""
    with open_writer(topic, shared=True) as writer:
        writer.append_many([b""] * 5000)

    async def work(group: TopicGroup[Any], done: list[int]) -> None:
        if way == "batches":
            async for batch in group.batches(10):
                done.extend(delivery.seq for delivery in batch)
        elif way == "next":
            while True:
                done.append((await group.next()).seq)
        else:
            async for delivery in group:
                done.append(delivery.seq)

    async def main() -> int:
        async with await TopicGroup.aopen(topic, "w", max_in_flight=10_000) as group:
            done: list[int] = []
            task = asyncio.create_task(work(group, done))
            while not done:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return len(done)

    assert run(main()) <= 256


def test_a_killed_member_loses_nothing_of_any_writer(topic: Path) -> None:
    with open_writer(topic, shared=True) as one, open_writer(topic, shared=True) as two:
        for i in range(10):
            (one, two)[i % 2].append(b"%d" % i)
        program = f"""
import os, signal
from aiochronicle import TopicGroup
group = TopicGroup({str(topic)!r}, "w")
held = group.take_batch()
assert len(held) == 10
os.kill(os.getpid(), signal.SIGKILL)
"""
        assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode
        with TopicGroup(topic, "w") as group:
            assert group.wait(30)
            again = {int(delivery.message.payload): delivery for delivery in group}
            assert sorted(again) == list(range(10))
            assert {delivery.attempt for delivery in again.values()} == {2}


def test_what_a_group_has_not_done_is_kept_and_what_it_has_is_folded_away(topic: Path) -> None:
    """This includes messages of a writer that came and went while no member was open."""
    TopicGroup(topic, "w", wait_for_queue=True).close()
    for _ in range(3):
        with open_writer(topic, shared=True, retention=Retention()) as writer:
            writer.append(b"precious")
    with TopicGroup(topic, "w") as group:
        for delivery in group:
            delivery.ack()
        assert group.info().low_seq == 3
    queues = topic / "queue"
    before = set(queues.iterdir())
    open_writer(topic, shared=True, retention=Retention()).close()
    assert set(queues.iterdir()) != before
    aiochronicle.forget_reader(topic, "w")
    with pytest.raises(errors.ReaderNotFound):
        inspect_group(topic, "w")


def test_dead_letters_of_a_topic_go_back_to_it_though_its_writers_are_open(
    topic: Path, tmp_path: Path
) -> None:
    dead = tmp_path / "dead"
    with open_writer(topic, shared=True) as writer:
        writer.append(b"poison", type_id=3)
        with TopicGroup(topic, "w", max_deliver=1, dead_letter=dead) as group:
            (delivery,) = group.take_batch()
            delivery.nack(error="bad")
            eventually(lambda: group.info().pending == 0)
            assert [letter.error for _, letter in list_dead_letters(dead)] == ["bad"]
            assert retry_dead_letters(dead) == [0]
            assert group.wait(30)
            (again,) = group.take_batch()
            assert (again.message.payload, again.message.type_id) == (b"poison", 3)
            again.ack()


def test_a_queue_whose_members_have_other_settings_is_reported(run: Run, topic: Path) -> None:
    """No queue existed when the members opened, so the conflict shows up later."""

    async def main() -> None:
        options: dict[str, Any] = {"wait_for_queue": True}
        async with (
            await TopicGroup.aopen(topic, "w", lease_s=5, **options) as one,
            await TopicGroup.aopen(topic, "w", lease_s=6, **options) as two,
        ):
            waiting = [asyncio.create_task(group.next(30)) for group in (one, two)]
            await asyncio.sleep(0.05)
            async with aiochronicle.aopen_writer(topic, shared=True) as writer:
                writer.append(b"x")
                results = await asyncio.gather(*waiting, return_exceptions=True)
                assert {type(result) for result in results} == {
                    aiochronicle.Delivery,
                    errors.GroupInUse,
                }
                assert [len(group.problems) for group in (one, two)].count(1) == 1
                for result in results:
                    if isinstance(result, aiochronicle.Delivery):
                        result.ack()

    run(main())


def test_without_a_loop_other_settings_are_reported_once(topic: Path) -> None:
    with (
        TopicGroup(topic, "w", lease_s=5, wait_for_queue=True) as one,
        TopicGroup(topic, "w", lease_s=6, wait_for_queue=True) as two,
        open_writer(topic, shared=True) as writer,
    ):
        writer.append(b"x")
        assert one.wait(30)
        with pytest.raises(errors.GroupInUse, match="lease"):
            two.wait(30)
        assert not two.wait(0.2)
        assert len(two.problems) == 1
        (delivery,) = one.take_batch()
        delivery.ack()


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_s": -1},
        {"max_in_flight": 0},
        {"max_deliver": 1},
        {"dead_letter": "there"},
        {"retry_s": -1},
        {"max_deliver": 1, "dead_letter": "missing/there"},
        {"burst": 0},
        {"on_corrupt": "ignore"},
        {"start": "middle"},
        {"codec": 5},
        {"verify": 3},
        {"mode": "rw"},
    ],
    ids=str,
)
def test_bad_arguments_are_refused_before_there_is_a_queue(
    topic: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises((errors.InvalidArgument, TypeError, ValueError)):
        TopicGroup(topic, "w", wait_for_queue=True, **wrong)
    assert not topic.exists()


def test_bad_arguments(topic: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.QueueNotFound):
        TopicGroup(topic, "w")
    with open_writer(topic, shared=True):
        with pytest.raises(errors.NotSupported, match="many writers"):
            open_group(topic, "w", wait="spin")
        wrongs: list[dict[str, Any]] = [
            {"start": 5},
            {"max_deliver": 1, "dead_letter": topic / "queue" / "dead"},
        ]
        for wrong in wrongs:
            with pytest.raises(errors.InvalidArgument):
                TopicGroup(topic, "w", **wrong)
        with TopicReader(topic, "reader"):
            pass
        with pytest.raises(errors.ReaderBusy, match="name of a reader"):
            TopicGroup(topic, "reader")
        with TopicGroup(topic, "reader", adopt=True) as group:
            assert group.poll() is None
        with TopicGroup(topic, "w"), pytest.raises(errors.GroupInUse):
            TopicGroup(topic, "w", lease_s=5)
        for use in (group.poll, group.statistics):
            with pytest.raises(errors.ClosedError):
                use()
