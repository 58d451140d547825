"""If one of many queues that are flushed together fails, only its writer is poisoned, and the error names
it.

With io_uring, with threads where io_uring is refused, and one by one without threads.
"""

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import aiochronicle
from aiochronicle import Bus
from aiochronicle.errors import FlushFailed, StorageError, WriterPoisoned

from .system_calls import Call, observed

TOPICS = [f"topic-{number:02}" for number in range(20)]
FAILING = "topic-07"
WAYS = {"io_uring": (), "threads": ("ring",), "one by one": ("ring", "thread")}


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    (tmp_path / "config.toml").write_text("[defaults]\nsegment_size = 65_536\n")
    bus = Bus(tmp_path)
    for topic in TOPICS:
        bus.append(topic, b"x")
    yield bus
    if not bus.closed:
        bus.close()


@contextmanager
def failing(way: str, name: str, topic: str | None) -> Iterator[list[str]]:
    """Fail calls of this name on segments of this topic (None: all topics); collect all calls."""
    made: list[str] = []

    def answer(call: Call) -> int:
        made.append(call.name)
        if call.name in WAYS[way]:
            return errno.EPERM
        if call.name != name or call.fd < 0:  # a control block: the hook gets no file for it
            return 0
        segment = str(Path(f"/proc/self/fd/{call.fd}").readlink())
        return errno.EIO if topic is None or f"/{topic}/" in segment else 0

    with observed(answer):
        yield made


@pytest.mark.parametrize("call", ["sync_map", "start_writing"])
@pytest.mark.parametrize("way", WAYS)
def test_flush_failure_of_one_queue_poisons_only_its_writer(bus: Bus, way: str, call: str) -> None:
    with failing(way, call, FAILING) as made, pytest.raises(FlushFailed) as caught:
        bus.flush_now()
    assert "ring" in made
    assert ("thread" in made) == (way != "io_uring")
    assert list(caught.value.failures) == [FAILING]
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == errno.EIO
    assert caught.value.path == str(Path(bus.path(FAILING)) / "000000000.q")
    assert f"cannot flush {FAILING}: cannot sync" in str(caught.value)
    assert type(caught.value.failures[FAILING]) is StorageError
    for topic in TOPICS:
        writer = bus.writer(topic)
        if topic == FAILING:
            assert writer.statistics().sync_errors == 1
            with pytest.raises(WriterPoisoned):
                bus.append(topic, b"y")
            with pytest.raises(WriterPoisoned):
                writer.flush_now()
        else:
            assert writer.statistics().durable_seq == 1
            assert bus.append(topic, b"y") == 1
    with pytest.raises(FlushFailed) as again:
        bus.flush_now()
    assert isinstance(again.value.failures[FAILING], WriterPoisoned)
    with pytest.raises(WriterPoisoned):
        bus.writer(FAILING).close()
    assert bus.append(FAILING, b"open again") == 1
    assert bus.flush_now() == dict.fromkeys(TOPICS, 2)


@pytest.mark.parametrize("way", WAYS)
def test_flush_failure_of_all_queues_names_all(bus: Bus, way: str) -> None:
    with failing(way, "sync_map", None), pytest.raises(FlushFailed) as caught:
        bus.flush_now()
    assert list(caught.value.failures) == TOPICS
    assert all(f"{topic}: " in str(caught.value) for topic in TOPICS)
    with pytest.raises(FlushFailed) as closing:
        bus.close()
    assert list(closing.value.failures) == TOPICS


async def test_flush_failure_reaches_every_task_that_waits(bus: Bus) -> None:
    with failing("io_uring", "sync_map", FAILING):
        results = await asyncio.gather(*(bus.flush() for _ in range(5)), return_exceptions=True)
    assert {type(result) for result in results} == {FlushFailed}
    with pytest.raises(FlushFailed):
        await bus.aclose()


def test_flush_failure_while_closing_closes_all_the_same(bus: Bus) -> None:
    writers = [bus.writer(topic) for topic in TOPICS]
    with failing("io_uring", "sync_map", FAILING), pytest.raises(FlushFailed) as caught:
        bus.close()
    assert list(caught.value.failures) == [FAILING]
    assert all(writer.closed for writer in writers)
    assert bus.closed
    assert aiochronicle.verify(bus.path(TOPICS[0])).records == 1


@pytest.mark.parametrize("way", WAYS)
def test_interrupted_syncs_are_made_again(bus: Bus, way: str) -> None:
    interruptions = 0

    def answer(call: Call) -> int:
        nonlocal interruptions
        if call.name in WAYS[way]:
            return errno.EPERM
        if call.name in ("sync_map", "start_writing") and interruptions < 50:
            interruptions += 1
            return errno.EINTR
        return 0

    with observed(answer):
        assert bus.flush_now() == dict.fromkeys(TOPICS, 1)
    assert interruptions == 50
