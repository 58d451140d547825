"""Tests beside real JVMs: the checks of `tests/interop`, for any length of time. Needs Java and Maven."""

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from interop import chronicle_tests
from interop.building import missing
from interop.judge import Judge
from interop.kills import kill_jvms, kill_ours
from interop.together import Load, append_together

from torture.registry import Run, campaign

_CLASSES_AT_A_TIME = 10


def _needs_java(function: Callable[[Run], str]) -> Callable[[Run], str]:
    """Make a campaign that returns why it did not run if Java or Maven is missing."""

    @wraps(function)
    def run_if_possible(run: Run) -> str:
        reason = missing()
        return function(run) if reason is None else f"not run: {reason}"

    return run_if_possible


_LOADS = (
    Load(roll_cycle="TEST_SECONDLY", messages=50_000, rate_hz=10_000),
    Load(roll_cycle="TEST_SECONDLY", messages=100_000, java_first=False),
    Load(roll_cycle="TEST4_SECONDLY", messages=10_000, rate_hz=800, java_first=False),
    Load(roll_cycle="FAST_HOURLY", messages=50_000, rate_hz=10_000, speed=3600),
    Load(roll_cycle="FAST_HOURLY", messages=50_000, jvms=1, ours=4, speed=1800, java_first=False),
)


@campaign(
    "java-append", "JVMs and our processes append to one queue over many rolls", goal=1_000_000
)
@_needs_java
def append(run: Run) -> str:
    """Run all loads in turn; a case is a message."""
    done = rounds = cycles = 0
    while done < run.goal:
        load = _LOADS[rounds % len(_LOADS)]
        path = Path(tempfile.mkdtemp()) / "queue"
        found = append_together(path, load)
        shutil.rmtree(path.parent)
        done += found.messages
        cycles += found.cycles
        rounds += 1
        if not run.progress(done):
            break
    return f"{rounds} queues, {cycles:,} cycles"


def _kill(run: Run, portion: int, kill: Callable[[Path, int, int], object]) -> None:
    dice = random.Random(run.seed)
    done = 0
    while done < run.goal:
        path = Path(tempfile.mkdtemp()) / "queue"
        kill(path, min(portion, run.goal - done), dice.getrandbits(48))
        shutil.rmtree(path.parent)
        done += portion
        if not run.progress(done):
            return


@campaign("java-kill-ours", "our appenders killed at random beside JVMs", goal=1000)
@_needs_java
def kill_our_appenders(run: Run) -> str:
    """Kill our appenders."""
    _kill(run, 50, kill_ours)
    return "none lost"


@campaign("java-kill-jvms", "JVMs killed at random while they append beside ours", goal=100)
@_needs_java
def kill_java_appenders(run: Run) -> str:
    """Kill JVMs."""
    _kill(run, 5, kill_jvms)
    return "none lost"


@campaign("java-tests", "queues of Chronicle's own tests are listed as Java lists them", goal=161)
@_needs_java
def read_what_tests_leave(run: Run) -> str:
    """Run Chronicle's test classes, all of them if the goal is high enough."""
    names = chronicle_tests.classes()[: run.goal]
    counts: Counter[str] = Counter()
    different: list[str] = []
    for at in range(0, len(names), _CLASSES_AT_A_TIME):
        work = Path(tempfile.mkdtemp())
        chronicle_tests.leave_queues(names[at : at + _CLASSES_AT_A_TIME], work)
        if at == 0:
            chronicle_tests.unpack_queues(work / "resources")
        with Judge() as judge:
            queues = sorted(chronicle_tests.find_queues(work))
            for verdict in chronicle_tests.compare(judge, queues, work):
                counts[verdict.outcome] += 1
                if verdict.outcome == "different":
                    different.append(f"{verdict.queue.relative_to(work)}: {verdict.reason}")
        shutil.rmtree(work)
        if not run.progress(min(at + _CLASSES_AT_A_TIME, len(names))):
            break
    assert not different, "\n".join(different)
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
