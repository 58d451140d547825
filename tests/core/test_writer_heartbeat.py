"""A writer always updates its heartbeat in the control block, whatever else it does."""

import logging
import struct
import time
from pathlib import Path
from typing import Literal

import pytest
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import Batch

HEARTBEAT_OFFSET = 264
LIMIT_S = 10.0


@pytest.mark.parametrize("flush", ["async", Batch(1 << 20, 0.05)], ids=["async", "batch"])
def test_idle_writer_should_go_on_giving_signs_of_life(
    tmp_path: Path, flush: Literal["async"] | Batch
) -> None:
    path = tmp_path / "queue"
    control = path / "control.meta"
    with aiochronicle.open_writer(path, segment_size=4096, flush=flush):

        def heartbeat_ns() -> int:
            value: int = struct.unpack_from("<Q", control.read_bytes(), HEARTBEAT_OFFSET)[0]
            return value

        first_ns = heartbeat_ns()
        deadline_s = time.monotonic() + LIMIT_S
        seen = {first_ns}
        while len(seen) < 3:  # opening may account for one change
            assert time.monotonic() < deadline_s, "the heartbeat stands still"
            time.sleep(0.02)
            seen.add(heartbeat_ns())
        assert abs(heartbeat_ns() - time.time_ns()) < LIMIT_S * 1e9


def test_automatic_heartbeats_that_end_should_be_in_the_log(
    queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An application that relies on automatic heartbeats is idle, so no call of its own would raise."""
    with (
        caplog.at_level(logging.WARNING, "aiochronicle"),
        aiochronicle.open_writer(queue_path, segment_size=4096, heartbeat=0.005) as writer,
    ):
        queue_path.rename(queue_path.with_name("elsewhere"))
        eventually(lambda: any(found.name == "aiochronicle.writer" for found in caplog.records))
        assert writer.gone
        last_error = writer.statistics().last_error
        assert last_error == f"{queue_path}: the queue's directory was removed or moved away"
    (record,) = [found for found in caplog.records if found.name == "aiochronicle.writer"]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("automatic heartbeats end: ")
    assert str(queue_path) in record.getMessage()


def test_a_writer_that_is_closed_should_not_be_in_the_log(
    queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        aiochronicle.open_writer(queue_path, segment_size=4096, heartbeat=0.0001).close()
    assert caplog.records == []
