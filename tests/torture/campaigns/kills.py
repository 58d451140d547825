"""R1: SIGKILL at random instants."""

import msgspec
from faults.kill_loop import KillLoop, Tally
from faults.kill_python import PythonKillLoop

from torture.portions import in_portions
from torture.registry import Run, campaign


def _remark(tally: Tally) -> str:
    return (
        f"{tally.in_a_call:,} inside a call, {tally.inside_recovery:,} more inside recovery,"
        f" {tally.messages:,} messages checked"
    )


@campaign("kill-c", "R1: writers in C killed at random instants", goal=1_000_000)
def kill_in_c(run: Run) -> str:
    """Kill C writers."""
    with KillLoop(run.seed) as loop:
        tally = loop.run(run.goal, lambda tally: run.progress(tally.cycles))
    run.progress(tally.cycles)
    return _remark(tally)


def _kill_python(seed: int, *, count: int) -> Tally:
    with PythonKillLoop(seed) as loop:
        return loop.run(count)


@campaign("kill-python", "R1: writers in Python killed at random instants", goal=10_000)
def kill_in_python(run: Run) -> str:
    """Kill Python writers."""
    tally = Tally()
    for portion in in_portions(run, 50, _kill_python):
        tally.add(msgspec.structs.asdict(portion))
    return _remark(tally)
