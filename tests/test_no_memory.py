"""An allocation that fails at any point of reading raises MemoryError and loses no message."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import aiochronicle
from aiochronicle import FanIn, Message, Reader

testcapi = pytest.importorskip("_testcapi", reason="fails allocations")

MESSAGES = 100
ALLOCATIONS = 12  # more than any of the calls below needs


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    with aiochronicle.open_writer(tmp_path / "queue", segment_size=1 << 20) as writer:
        writer.append_many([b"%d" % number for number in range(MESSAGES)])
    return tmp_path / "queue"


def without_memory(call: Callable[[], Any], failing: int) -> Any:
    """Call it with this allocation failing; None if that was noticed."""
    testcapi.set_nomemory(failing, failing + 1)
    try:
        return call()
    except MemoryError:
        return None
    finally:
        testcapi.remove_mem_hooks()


@pytest.mark.parametrize("failing", range(ALLOCATIONS))
@pytest.mark.parametrize("read_before", [0, 70])  # so many that none is left to be used again
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_nothing_is_lost(
    queue: Path, batch: bool, merged: bool, read_before: int, failing: int
) -> None:
    with (
        aiochronicle.open_reader(queue) as reader,
        FanIn([reader]) if merged else nullcontext(reader) as source,
    ):
        kept: list[Message] = source.read_batch(read_before) if read_before else []
        call = source.read_batch if batch else source.poll
        found = without_memory(call, failing)
        kept += found if isinstance(found, list) else [found] if found is not None else []
        kept += rest(source)
        assert [message.seq for message in kept] == list(range(MESSAGES))


def rest(source: Reader | FanIn) -> list[Message]:
    """Read on; an exception that was kept for this call is none of this test's business."""
    try:
        return source.read_batch(MESSAGES)
    except MemoryError:
        return source.read_batch(MESSAGES)
