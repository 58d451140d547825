"""R4: every system call of the engine fails once, with every error that matters."""

import errno
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from aiochronicle import errors

from .nth_fault import FAULTS, SHORT, Nth, calls_of_the_story, fail_every_call, run_story
from .system_calls import CALL_NAMES

TRANSFERS = ("read", "write")
TESTS = Path(__file__).parent.parent


def test_nth_fault_story_reaches_every_system_call() -> None:
    # In a fresh process, because the housekeeping threads are started once only.
    program = (
        "from faults.nth_fault import calls_of_the_story\n"
        "print(*sorted(calls_of_the_story()), sep='\\n')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=TESTS, text=True, capture_output=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()) == set(CALL_NAMES)


def _name(fault: int) -> str:
    return "short" if fault == SHORT else errno.errorcode[fault]


@pytest.mark.parametrize("fault", FAULTS, ids=_name)
def test_nth_fault_gives_a_documented_error_and_loses_nothing(fault: int) -> None:
    names = TRANSFERS if fault == SHORT else CALL_NAMES
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        counts = list(pool.map(fail_every_call, names, [fault] * len(names)))
    assert all(count > 0 for count in counts), dict(zip(names, counts, strict=True))


def test_nth_fault_is_not_swallowed_where_it_matters() -> None:
    """The loop itself: the first sync that fails has to come out as an error."""
    outcome = run_story(Nth("sync_map", 1, errno.EIO))
    assert isinstance(outcome.error, errors.StorageError)
    assert outcome.error.errno == errno.EIO


def test_nth_fault_story_is_long_enough() -> None:
    seen = calls_of_the_story()
    assert seen["open"] > 20
    assert seen["write"] > 20
    assert seen["sync_map"] > 5
