"""An allocation that fails at any point of reading raises MemoryError and loses no message.

Allocations fail for the whole interpreter, and CPython aborts if a thread starts at that moment. So each
case runs in a process of its own.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import aiochronicle
from aiochronicle import FanIn, Message, Reader

MESSAGES = 100
ALLOCATIONS = 12  # more than any call below makes


@pytest.mark.skipif(find_spec("_testcapi") is None, reason="needs _testcapi to fail allocations")
@pytest.mark.parametrize("read_before", [0, 70])  # 70: so many that no recycled message is left
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_nothing_is_lost(tmp_path: Path, batch: bool, merged: bool, read_before: int) -> None:
    with aiochronicle.open_writer(tmp_path / "queue", segment_size=1 << 20) as writer:
        writer.append_many([b"%d" % number for number in range(MESSAGES)])
    case = [str(tmp_path / "queue"), str(int(batch)), str(int(merged)), str(read_before)]
    child = subprocess.run(
        [sys.executable, __file__, *case], capture_output=True, text=True, timeout=60
    )
    assert (child.returncode, child.stderr) == (0, "")
    failed = int(child.stdout)
    assert 0 < failed < ALLOCATIONS, "some allocations, and all that there are"


def fail_each(queue: str, batch: bool, merged: bool, read_before: int) -> int:
    """Read the queue once per allocation that fails; return how often that raised MemoryError."""
    noticed = 0
    for failing in range(ALLOCATIONS):
        with (
            aiochronicle.open_reader(queue) as reader,
            FanIn([reader]) if merged else nullcontext(reader) as source,
        ):
            kept: list[Message] = source.read_batch(read_before) if read_before else []
            call = source.read_batch if batch else source.poll
            try:
                found = without_memory(call, failing)
            except MemoryError:
                noticed += 1
                found = None
            kept += found if isinstance(found, list) else [found] if found is not None else []
            kept += rest(source)
            assert [message.seq for message in kept] == list(range(MESSAGES)), failing
    return noticed


def without_memory(call: Callable[[], Any], failing: int) -> Any:
    testcapi = import_module("_testcapi")
    testcapi.set_nomemory(failing, failing + 1)
    try:
        return call()
    finally:
        testcapi.remove_mem_hooks()


def rest(source: Reader | FanIn) -> list[Message]:
    """Read the rest. Ignore an exception that an earlier call deferred to this one."""
    try:
        return source.read_batch(MESSAGES)
    except MemoryError:
        return source.read_batch(MESSAGES)


if __name__ == "__main__":
    path, *flags = sys.argv[1:]
    batch, merged, read_before = map(int, flags)
    print(fail_each(path, bool(batch), bool(merged), read_before))
