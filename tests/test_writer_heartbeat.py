"""The sign of life that a writer gives in the control block, whatever else it does."""

import struct
import time
from pathlib import Path
from typing import Literal

import pytest

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
        while len(seen) < 3:  # one more could be that of opening
            assert time.monotonic() < deadline_s, "the heartbeat stands still"
            time.sleep(0.02)
            seen.add(heartbeat_ns())
        assert abs(heartbeat_ns() - time.time_ns()) < LIMIT_S * 1e9
