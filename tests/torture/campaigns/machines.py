"""R9: random programs against a list."""

from faults.state_machine import run_machines

from torture.portions import in_portions
from torture.registry import Run, campaign


def _machines(seed: int, *, count: int) -> None:
    run_machines(count, seed)


@campaign("machine", "R9: random programs, a queue against a list", goal=50_000)
def machines(run: Run) -> None:
    """Run programs in portions, each from its own seed."""
    for _ in in_portions(run, 50, _machines):
        pass
