"""R4: every system call of the engine fails once, with every error that matters."""

import errno
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from aiochronicle import errors

from .nth_fault import FAULTS, SHORT, calls_of_the_story, fail_every_call, run_story
from .system_calls import CALL_NAMES
from .test_nth_fault_waking import WAKING_CALLS

TRANSFERS = ("read", "write")
# In test_nth_fault_waking.py, and in test_bus_flush.py.
ELSEWHERE = {*WAKING_CALLS, "wait", "ring", "start_writing"}


def test_nth_fault_story_reaches_every_system_call() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        calls = pool.submit(calls_of_the_story).result()
    assert {name for name, count in calls.items() if count > 0} | ELSEWHERE == set(CALL_NAMES)
    assert calls["open"] > 20
    assert calls["write"] > 20
    assert calls["sync_map"] > 5


def _name(fault: int) -> str:
    return "short" if fault == SHORT else errno.errorcode[fault]


@pytest.mark.parametrize("fault", FAULTS, ids=_name)
def test_nth_fault_gives_a_documented_error_and_loses_nothing(fault: int) -> None:
    names = TRANSFERS if fault == SHORT else [n for n in CALL_NAMES if n not in ELSEWHERE]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        counts = list(pool.map(fail_every_call, names, [fault] * len(names)))
    assert all(count > 0 for count in counts), dict(zip(names, counts, strict=True))


def test_nth_fault_is_not_swallowed_where_it_matters() -> None:
    """The loop itself works: the first failing sync causes an error."""
    outcome = run_story("sync_map", errno.EIO)
    assert isinstance(outcome.error, errors.StorageError)
    assert outcome.error.errno == errno.EIO
