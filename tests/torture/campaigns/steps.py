"""R2: a kill at every instruction."""

import random

from faults.step_kill import SCENARIOS, kill_at, step_through

from torture.registry import Run, campaign


@campaign("step", "R2: calls stepped through, every state recovered", goal=500)
def step(run: Run) -> str:
    """Step through all calls again and again, with other payloads each time."""
    dice = random.Random(run.seed)
    done = instructions = states = 0
    while done < run.goal and run.progress(done):
        steps = step_through(SCENARIOS[done % len(SCENARIOS)], dice.getrandbits(63), keep=5)
        instructions += steps.instructions
        states += steps.checked
        done += 1
    run.progress(done)
    return f"{instructions:,} instructions, {states:,} states recovered"


@campaign("step-kill", "R2: calls killed for real at a random instruction", goal=5_000)
def step_kill(run: Run) -> None:
    """Step to an instruction and kill there."""
    dice = random.Random(run.seed)
    done = 0
    while done < run.goal and run.progress(done):
        kill_at(dice.choice(SCENARIOS), dice.getrandbits(63), round(10 ** dice.uniform(0, 5)))
        done += 1
    run.progress(done)
