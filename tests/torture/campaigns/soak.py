"""R13: hours of opening and closing."""

import tempfile
from pathlib import Path

from helpers.soaking import Soak

from torture.registry import Run, campaign


@campaign("soak", "R13: everything opened and closed, nothing left behind", goal=100_000)
def soak(run: Run) -> str:
    """Run for the given time, or up to the goal; a case is one opening and closing."""
    with tempfile.TemporaryDirectory() as root, Soak(Path(root)) as soaking:
        while run.progress(soaking.cycles) and (run.has_limit or soaking.cycles < run.goal):
            soaking.step()
        print(soaking.summary(), flush=True)
        soaking.check_heaps()
        run.progress(soaking.cycles)
        grown = max(watched.heap_growth()[0] for watched in soaking.watched)
    return f"descriptors and mappings the same throughout, heaps grew by {grown:.2f} MiB at most"
