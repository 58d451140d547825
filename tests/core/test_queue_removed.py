"""A queue that is removed or replaced while readers and writers use it."""

import asyncio
import contextlib
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import Batch, FanIn, open_reader
from aiochronicle.errors import QueueGone

open_writer = functools.partial(aiochronicle.open_writer, segment_size=1 << 16)

WITHIN_S = 20.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.001)


def remove(path: Path, *, make_another: bool) -> None:
    shutil.rmtree(path)
    if make_another:
        with open_writer(path) as writer:
            writer.append(b"of another queue")


@pytest.mark.parametrize("make_another", [False, True])
@pytest.mark.parametrize("name", [None, "reader"])
def test_a_waiting_thread_is_told(tmp_path: Path, name: str | None, make_another: bool) -> None:
    with open_writer(tmp_path / "queue") as writer:
        writer.append(b"1")
    with open_reader(tmp_path / "queue", name) as reader:
        remove(tmp_path / "queue", make_another=make_another)
        assert [message.payload for message in reader] == [b"1"]  # still mapped
        assert reader.wait(WITHIN_S)
        with pytest.raises(QueueGone, match="queue"):
            reader.poll()


@pytest.mark.parametrize("make_another", [False, True])
@pytest.mark.parametrize("name", [None, "reader"])
async def test_a_parked_task_is_told(tmp_path: Path, name: str | None, make_another: bool) -> None:
    with open_writer(tmp_path / "queue") as writer, open_reader(tmp_path / "queue", name) as reader:
        writer.append(b"1")
        await reader.next(WITHIN_S)
        task = asyncio.ensure_future(reader.next())
        await until(lambda: reader.attended)
        writer.close()
        await until(lambda: not reader.attended)
        remove(tmp_path / "queue", make_another=make_another)
        with pytest.raises(QueueGone, match="queue"):
            await asyncio.wait_for(task, WITHIN_S)


async def test_a_fan_in_goes_on_with_the_others(tmp_path: Path) -> None:
    with (
        open_writer(tmp_path / "stays") as stays,
        open_writer(tmp_path / "goes") as goes,
        open_reader(tmp_path / "stays") as one,
        open_reader(tmp_path / "goes") as other,
        FanIn([one, other]) as fan_in,
    ):
        task = asyncio.ensure_future(fan_in.next())
        await until(lambda: one.attended and other.attended)
        goes.close()
        shutil.rmtree(tmp_path / "goes")
        with pytest.raises(QueueGone, match="goes"):
            await asyncio.wait_for(task, WITHIN_S)
        stays.append(b"1")
        assert (await fan_in.next(WITHIN_S)).payload == b"1"


def empty(path: Path) -> None:
    for file in path.iterdir():
        if file.is_file():
            file.unlink()


LOSSES: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "moved away": lambda path: path.rename(path.with_name("elsewhere")),
    "replaced": lambda path: remove(path, make_another=True),
    "emptied": empty,
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_writer_is_told_soon(tmp_path: Path, lose: Callable[[Path], object]) -> None:
    """It raises QueueGone long before it needs the next segment."""
    with open_writer(tmp_path / "queue", segment_size=1 << 24) as writer:
        writer.append(b"in the queue")
        lose(tmp_path / "queue")

        def told() -> bool:
            try:
                writer.append(b"in no queue")
            except QueueGone:
                return True
            return False

        eventually(told, WITHIN_S)
        assert writer.statistics().rolls == 0
        for call in (writer.flush_now, writer.heartbeat, lambda: writer.append_many([b"1"])):
            with pytest.raises(QueueGone, match=r"removed.*open the queue again") as told_again:
                call()
            assert told_again.value.path == str(tmp_path / "queue")


def test_a_flush_that_nobody_could_read_fails_at_once(tmp_path: Path) -> None:
    with open_writer(tmp_path / "queue") as writer:
        writer.append(b"1")
        writer.flush_now()
        shutil.rmtree(tmp_path / "queue")
        with pytest.raises(QueueGone, match="queue"):
            writer.flush_now()
        with pytest.raises(QueueGone, match="queue"):
            writer.append(b"2")


async def test_a_flush_says_so_though_the_one_before_it_left_nothing_to_do(tmp_path: Path) -> None:
    async with open_writer(tmp_path / "queue") as writer:
        writer.append(b"1")
        assert await writer.flush() == 1
        shutil.rmtree(tmp_path / "queue")
        with pytest.raises(QueueGone, match="queue"):
            await writer.flush()


@pytest.mark.parametrize("flush", ["sync", Batch(64, 3600.0)], ids=["sync", "batch"])
def test_an_append_that_has_to_be_durable_fails_at_once(
    tmp_path: Path, flush: Literal["sync"] | Batch
) -> None:
    with open_writer(tmp_path / "queue", flush=flush) as writer:
        writer.append(bytes(64))
        shutil.rmtree(tmp_path / "queue")
        with pytest.raises(QueueGone, match="queue"):
            writer.append(bytes(64))


@pytest.mark.parametrize(
    "lose", [LOSSES["removed"], LOSSES["moved away"]], ids=["removed", "moved"]
)
async def test_a_reader_asleep_is_told_though_its_writer_lives(
    tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    with open_writer(tmp_path / "queue"), open_reader(tmp_path / "queue") as reader:
        task = asyncio.ensure_future(reader.next())
        await until(lambda: reader.attended)
        lose(tmp_path / "queue")
        with pytest.raises(QueueGone, match="queue"):
            await asyncio.wait_for(task, WITHIN_S)


def test_heartbeats_of_the_others_go_on(tmp_path: Path) -> None:
    with (
        open_writer(tmp_path / "stays", heartbeat=0.01) as stays,
        open_writer(tmp_path / "goes", heartbeat=0.01) as goes,
    ):
        shutil.rmtree(tmp_path / "goes")
        with pytest.raises(QueueGone):
            goes.flush_now()
        for _ in range(10):
            before_ns = stays.statistics().last_timestamp_ns
            eventually(lambda: stays.statistics().last_timestamp_ns > before_ns, WITHIN_S)  # noqa: B023


@pytest.mark.parametrize("make_another", [False, True])
def test_batches_of_the_others_go_on(tmp_path: Path, make_another: bool) -> None:
    failed: list[tuple[int, Exception]] = []

    async def collect(fan_in: FanIn) -> list[bytes]:
        async for batch in fan_in.batches(max_messages=10, max_wait=0.01):
            return [message.payload for message in batch]
        raise AssertionError("it ended")

    with (
        open_writer(tmp_path / "gone") as gone,
        open_writer(tmp_path / "stays") as stays,
        open_reader(tmp_path / "gone") as first,
        open_reader(tmp_path / "stays") as second,
        FanIn([first, second], on_error=lambda *failure: failed.append(failure)) as fan_in,
    ):
        gone.append(b"read before")
        assert asyncio.run(collect(fan_in)) == [b"read before"]
        remove(tmp_path / "gone", make_another=make_another)
        with contextlib.suppress(QueueGone):  # unless it has already noticed
            gone.append(b"read although it is gone")  # the mapping is still there
        stays.append(b"1")
        assert fan_in.lag.messages in (1, 2)
        assert b"1" in asyncio.run(collect(fan_in))
        assert [(source, type(error)) for source, error in failed] in ([], [(0, QueueGone)])
