"""Run one module of CPython's own asyncio tests with VirtualTimeLoop as the loop.

``python -m asynchronous.cpython_suite test_queues`` prints the output of the test run, then a line of JSON:
the number of tests, the failed ones, and the number of virtual loops created.
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

# Test (module.class.method, without the leading test_asyncio): why it cannot pass in virtual time.
CANNOT_APPLY = {
    "test_runners.RunnerTests.test_interrupt_call_soon": "spins with sleep(0) until a timer is due:"
    " virtual time goes on only when nothing is ready",
}


class CountedLoop(VirtualTimeLoop):
    """Count the loops created, which proves that a run used them."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        CountedLoop.made += 1


def use_virtual_loops() -> None:
    """Make asyncio create virtual loops, even after a test has restored the default policy."""
    events: Any = asyncio.events
    get_policy = getattr(events, "_get_event_loop_policy", None) or events.get_event_loop_policy
    type(get_policy())._loop_factory = CountedLoop


def loop_for_runners(_: unittest.TestCase) -> VirtualTimeLoop:
    """Return a loop for test_runners, which checks whether the loop shut down its generators.

    By default, that module creates a BaseEventLoop with a mock selector.
    """
    loop: Any = CountedLoop()
    loop.shutdown_ag_run = False

    async def shutdown_asyncgens() -> None:
        loop.shutdown_ag_run = True

    loop.shutdown_asyncgens = shutdown_asyncgens
    return loop  # type: ignore[no-any-return]


def cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """Yield the test cases of a suite and of its nested suites."""
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
