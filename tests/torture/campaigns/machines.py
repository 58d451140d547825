"""R9: random programs against a list."""

from faults.state_machine import run_machines

from torture.registry import Run, campaign

_PORTION = 50


@campaign("machine", "R9: random programs, a queue against a list", goal=50_000)
def machines(run: Run) -> None:
    """Run them in portions, each from its own seed."""
    done = 0
    while done < run.goal and run.progress(done):
        runs = min(_PORTION, run.goal - done)
        run_machines(runs, run.seed + done)
        done += runs
    run.progress(done)
