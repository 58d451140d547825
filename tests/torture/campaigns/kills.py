"""R1: SIGKILL at random instants."""

import msgspec
from faults.kill_group import kill_members
from faults.kill_loop import KillLoop, Tally
from faults.kill_python import PythonKillLoop
from faults.kill_python_group import kill_python_members

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


@campaign("kill-group", "R1: members of a group killed beside others", goal=100_000)
def kill_in_groups(run: Run) -> str:
    """Kill members of a group."""
    messages = redelivered = done = 0
    while done < run.goal and run.progress(done):
        shared = kill_members(run.seed + done, 1000)
        messages += shared.messages
        redelivered += shared.redelivered
        done += 1000
    run.progress(done)
    return f"{messages:,} messages, {redelivered:,} deliveries of messages that came again"


@campaign("kill-python-group", "R1: members of a group in Python killed beside others", goal=10_000)
def kill_python_groups(run: Run) -> str:
    """Kill members on event loops."""
    messages = done = 0
    while done < run.goal and run.progress(done):
        messages += kill_python_members(run.seed + done, 200).messages
        done += 200
    run.progress(done)
    return f"{messages:,} messages"
