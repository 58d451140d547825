"""Runs one module of CPython's own tests of asyncio with VirtualTimeLoop as the loop.

``python -m asynchronous.cpython_suite test_queues`` prints what a test run prints, and a last line
of JSON: how many tests there were, which failed, and how many virtual loops were made.
"""

import asyncio
import importlib
import io
import json
import sys
import unittest
from collections.abc import Iterator
from typing import Any

from aiochronicle import VirtualTimeLoop

__all__ = ["CANNOT_APPLY", "MODULES"]

MODULES = (
    "test_queues",
    "test_locks",
    "test_taskgroups",
    "test_timeouts",
    "test_waitfor",
    "test_tasks",
    "test_runners",
)

# Test, as module.class.method without the leading test_asyncio, and why virtual time cannot pass it.
CANNOT_APPLY = {
    "test_runners.RunnerTests.test_interrupt_call_soon": "spins with sleep(0) until a timer is due:"
    " virtual time goes on only when nothing is ready",
}


class CountedLoop(VirtualTimeLoop):
    """Counts the loops, so that a run shows that it used them."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        CountedLoop.made += 1


def use_virtual_loops() -> None:
    """Let asyncio make virtual loops, also after a test has put the default policy back."""
    events: Any = asyncio.events
    get_policy = getattr(events, "_get_event_loop_policy", None) or events.get_event_loop_policy
    type(get_policy())._loop_factory = CountedLoop


def loop_for_runners(_: unittest.TestCase) -> VirtualTimeLoop:
    """Make a loop as test_runners wants it: one that says whether generators were shut down.

    That module would make a BaseEventLoop with a mock of a selector.
    """
    loop: Any = CountedLoop()
    loop.shutdown_ag_run = False

    async def shutdown_asyncgens() -> None:
        loop.shutdown_ag_run = True

    loop.shutdown_asyncgens = shutdown_asyncgens
    return loop  # type: ignore[no-any-return]


def cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """Flatten a suite."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from cases(test)
        else:
            yield test


def main(module: str) -> None:
    """Run the tests of one module."""
    use_virtual_loops()
    tests = importlib.import_module(f"test.test_asyncio.{module}")
    if module == "test_runners":
        tests.BaseTest.new_loop = loop_for_runners
    chosen = unittest.TestSuite()
    left_out: list[str] = []
    for test in cases(unittest.defaultTestLoader.loadTestsFromModule(tests)):
        name = test.id().removeprefix("test.test_asyncio.")
        if name in CANNOT_APPLY:
            left_out.append(name)
        else:
            chosen.addTest(test)
    report = io.StringIO()
    result = unittest.TextTestRunner(report, verbosity=1).run(chosen)
    print(report.getvalue())
    failed = [test.id() for test, _ in result.failures + result.errors]
    summary = {"ran": result.testsRun, "failed": failed, "left_out": left_out}
    print(json.dumps({**summary, "loops": CountedLoop.made}))


if __name__ == "__main__":
    main(sys.argv[1])
