"""R1: a killed writer loses nothing that it acknowledged."""

import pytest

from .kill_loop import KillLoop
from .kill_python import PythonKillLoop
from .seeds import chosen_seed

CYCLES = 5000
PYTHON_CYCLES = 100


@pytest.mark.timeout(600)  # of a machine that is busy with other things
def test_killed_writer_in_c_loses_nothing() -> None:
    with KillLoop(chosen_seed()) as loop:
        tally = loop.run(CYCLES)
    print(tally)
    assert tally.cycles >= CYCLES
    assert tally.judged_twice > 0
    # Kills that hit nothing would prove nothing.
    assert tally.in_a_call > 0
    assert tally.inside_recovery > CYCLES // 10
    assert tally.messages > CYCLES


@pytest.mark.timeout(300)
def test_killed_writer_in_python_loses_nothing() -> None:
    with PythonKillLoop(chosen_seed()) as loop:
        tally = loop.run(PYTHON_CYCLES)
    print(tally)
    assert tally.cycles == PYTHON_CYCLES
    assert tally.messages > PYTHON_CYCLES
