"""A queue that is removed, or another made in its place, under those who use it."""

import asyncio
import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import aiochronicle
from aiochronicle import FanIn, open_reader
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
        assert [message.payload for message in reader] == [b"1"]  # what it has, it can give
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


def test_a_writer_without_its_directory_says_so_when_it_needs_it(tmp_path: Path) -> None:
    with open_writer(tmp_path / "queue") as writer:
        shutil.rmtree(tmp_path / "queue")
        with pytest.raises(QueueGone, match="queue"):
            for _ in range(10_000):
                writer.append(bytes(100))
