"""One call reports every problem of a service, and no false alarms."""

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
from faults.system_calls import injected
from helpers.waiting import eventually

from aiochronicle import (
    Bus,
    FanIn,
    Health,
    Requester,
    Responder,
    Retention,
    Router,
    health,
    open_reader,
    open_writer,
)
from aiochronicle.errors import (
    ChronicleError,
    CorruptionError,
    InvalidArgument,
    PositionLost,
    StorageError,
)

SEGMENT = 1 << 16
WAIT_S = 30.0


def damage(queue: Path, offset: int, name: str = "000000000.q") -> None:
    with (queue / name).open("r+b") as segment:
        segment.seek(offset)
        segment.write(b"\xff\xff\xff")


def reason(found: Health) -> str:
    assert not found.ok
    (text,) = found.reasons
    return text


def test_a_reader_that_has_something_or_nothing_to_read_is_healthy(queue: Path) -> None:
    with open_reader(queue, "audit") as reader:
        assert reader.healthy == Health(ok=True, reasons=())
        reader.poll()
        assert reader.healthy
    assert reason(reader.healthy) == f"reader 'audit' of {queue}: is closed"


def test_a_reader_that_waits_for_its_queue_is_healthy(queue_path: Path) -> None:
    with open_reader(queue_path, wait_for_queue=True) as reader:
        assert reader.healthy
        assert not queue_path.exists()


def test_a_removed_queue_is_no_healthy_end_of_it(queue: Path) -> None:
    with open_reader(queue) as reader:
        reader.poll()
        shutil.rmtree(queue)
        text = reason(reader.healthy)
    assert text.startswith(f"reader of {queue}: the queue's directory was removed")


@pytest.mark.parametrize("field", [4, 8, 16, 60])
def test_damage_at_the_next_record_is_seen_before_it_is_read(queue: Path, field: int) -> None:
    with open_reader(queue) as reader:
        damage(queue, 64 + field)
        assert "the next record is damaged" in reason(reader.healthy)
        with pytest.raises(CorruptionError):
            reader.poll()
        assert not reader.healthy
        reader.step_over()
        assert reader.healthy


def test_a_position_that_retention_took_is_a_reason(queue_path: Path) -> None:
    retention = Retention(max_bytes=1, check_interval_s=3600)
    with (
        open_writer(queue_path, segment_size=SEGMENT, retention=retention) as writer,
        open_reader(queue_path) as reader,
    ):
        while writer.position.segment < 5:
            writer.append(bytes(1000))
        eventually(lambda: writer.statistics().seals == 5)
        writer.retain_now()
        assert reader.healthy  # in the segment that it has mapped
        with pytest.raises(PositionLost):
            while reader.poll() is not None:
                pass
        assert "damaged or was removed" in reason(reader.healthy)
        reader.seek_first()
        assert reader.healthy


def test_another_thread_that_reads_is_no_damage(queue_path: Path) -> None:
    """A message that has just disappeared was read by another thread, if the position has moved."""
    with open_writer(queue_path, segment_size=1 << 20) as writer, open_reader(queue_path) as reader:
        ended = threading.Event()

        def read() -> None:
            while not ended.is_set():
                reader.poll()

        thread = threading.Thread(target=read)
        thread.start()
        try:
            for _ in range(3000):
                writer.append(b"x")
                assert reader.healthy
        finally:
            ended.set()
            thread.join()


def test_a_writer_is_healthy_until_it_is_closed_poisoned_or_gone(tmp_path: Path) -> None:
    with open_writer(tmp_path / "closed") as writer:
        assert writer.healthy
    assert reason(writer.healthy) == f"writer of {tmp_path / 'closed'}: is closed"
    poisoned = open_writer(tmp_path / "poisoned")
    poisoned.append(b"order")
    with injected("sync_map", errno.EIO), pytest.raises(StorageError):
        poisoned.flush_now()
    assert "has stopped: " in reason(poisoned.healthy)
    assert "Input/output error" in reason(poisoned.healthy)
    with pytest.raises(ChronicleError):
        poisoned.close()
    with open_writer(tmp_path / "gone") as gone:
        shutil.rmtree(tmp_path / "gone")
        eventually(lambda: not gone.healthy)
        assert "removed" in reason(gone.healthy)


def test_a_fan_in_names_the_source_that_failed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with open_writer(tmp_path / name) as writer:
            writer.append_many([b"1", b"2"])
    with open_reader(tmp_path / "a") as a, open_reader(tmp_path / "b") as b:
        with FanIn([a, b]) as fan_in:
            assert fan_in.healthy
            damage(tmp_path / "b", 64 + 128 + 8)
            with pytest.raises(CorruptionError):
                list(fan_in)
            assert f"source 1 of {tmp_path / 'b'}: has failed" in reason(fan_in.healthy)
        assert reason(fan_in.healthy) == "FanIn: is closed"


async def test_a_router_says_its_problems(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name in ("good", "evil\nname"):
        with open_writer(root / name, ready=True) as writer:
            writer.append(b"x")
    damage(root / "evil\nname", 64 + 8)
    async with Router(root, name="router") as router:
        assert (await router.next(WAIT_S)).payload == b"x"
        async with asyncio.timeout(WAIT_S):
            while router.healthy:
                router.poll()
                await asyncio.sleep(0.01)
        text = reason(router.healthy)
        assert "\n" not in text
        assert "router of " in text
        assert "evil\\nname" in text


async def test_requester_and_responder(tmp_path: Path) -> None:
    roots = tmp_path / "asked", tmp_path / "answered"
    async with Requester(*roots, "desk") as requester, Responder(*roots) as responder:
        assert health(requester, responder, max_lag_s=1)
        shutil.rmtree(tmp_path / "asked" / "desk")
        async with asyncio.timeout(WAIT_S):
            while requester.healthy:
                await asyncio.sleep(0.01)
    assert reason(requester.healthy).endswith(": is closed")
    assert reason(responder.healthy).endswith(": is closed")


def test_a_bus_says_what_is_wrong_with_each_topic(tmp_path: Path) -> None:
    with Bus(tmp_path) as bus:
        bus.append("orders", b"1")
        bus.append("fills", b"1")
        bus.read_batch("orders", "audit")
        assert bus.healthy
        shutil.rmtree(tmp_path / "orders")
        assert all("orders" in text for text in bus.healthy.reasons)
        assert not bus.healthy
    assert not bus.healthy


def test_health_of_a_service_has_the_reasons_of_all_its_parts(tmp_path: Path, queue: Path) -> None:
    with open_writer(tmp_path / "fills") as fills, open_reader(queue) as orders:
        assert health(fills, orders) == Health(ok=True)
        assert health(fills, orders, max_lag_s=1000)
        late = health(fills, orders, max_lag_s=1e-9)
        assert "oldest unread message" in reason(late)
        assert "1 messages wait" in reason(late)
        orders.poll()
        assert health(fills, orders, max_lag_s=1e-9)
    assert len(health(fills, orders, max_lag_s=1).reasons) == 2


def test_a_queue_of_java(queue_path: Path) -> None:
    with (
        open_writer(queue_path, format="cq4") as writer,
        open_reader(queue_path, "audit") as reader,
    ):
        assert health(writer, reader)
        writer.append(b"x")
        assert health(writer, reader)
        reader.poll()
        assert health(writer, reader, max_lag_s=1e-9)
        shutil.rmtree(queue_path)
        assert "removed" in reason(reader.healthy)


def test_health_of_nothing_is_a_mistake() -> None:
    with pytest.raises(InvalidArgument):
        health()


def test_in_a_forked_child_everything_is_closed(queue: Path) -> None:
    with open_reader(queue) as reader:
        child = os.fork()
        if child == 0:
            os._exit(0 if "is closed" in reader.healthy.reasons[0] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert reader.healthy
