"""R2: there is no instruction at which a kill loses or invents anything."""

import random

import pytest

from .seeds import chosen_seed
from .step_kill import SCENARIOS, kill_at, known_scenarios, step_through

REAL_KILLS = 1


def test_no_scenario_is_left_out() -> None:
    assert known_scenarios() == SCENARIOS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_instruction_is_a_bad_moment_to_die(scenario: str) -> None:
    dice = random.Random(chosen_seed())
    salt = dice.getrandbits(63)
    steps = step_through(scenario, salt, keep=10)
    print(steps)
    assert steps.checked == steps.states > 1
    # The copy made between two instructions equals what a kill leaves there.
    for _ in range(REAL_KILLS):
        kill_at(scenario, salt, dice.randint(1, steps.instructions))
