"""R5: failing disks, and copies of queues in use."""

import random
from collections import Counter

from faults.device_campaign import run_case, wait_for_write_back
from faults.devices import Disk, missing

from torture.registry import Run, campaign

_CASES_PER_DISK = 50
_WRITE_BACK_S = 60.0


def _require_disks() -> None:
    reason = missing()
    if reason is not None:
        raise RuntimeError(f"no disk can be made here: {reason}")


@campaign("devices", "R5: bad pages, failed write-back, power cuts on a real disk", goal=2_000)
def devices(run: Run) -> str:
    """Run random cases; a failure names the seed of its case."""
    _require_disks()
    dice = random.Random(run.seed)
    kinds: Counter[str] = Counter()
    while kinds.total() < run.goal:
        with Disk.make() as disk:
            for _ in range(min(_CASES_PER_DISK, run.goal - kinds.total())):
                kinds[run_case(disk, dice.getrandbits(48))] += 1
                if not run.progress(kinds.total()):
                    break
            else:
                continue
        break
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))


@campaign("write-back", "R3: what nobody flushes is durable within a minute", goal=1)
def write_back(run: Run) -> str:
    """Wait until it is durable, and compare with what a power cut leaves."""
    _require_disks()
    longest_s = 0.0
    for number in range(run.goal):
        with Disk.make() as disk:
            longest_s = max(longest_s, wait_for_write_back(disk, 500, _WRITE_BACK_S))
        if not run.progress(number + 1):
            break
    return f"after {longest_s:.1f} s at most"
