"""A few random cases of the campaign ``devices``; ``make torture`` runs more."""

import random

from .device_campaign import run_case
from .devices import Disk

CASES = 12


def test_random_faults_of_a_disk_cost_nothing_that_was_acknowledged(disk: Disk, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(CASES):
        run_case(disk, dice.getrandbits(48))
