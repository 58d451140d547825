"""R1: a killed writer loses nothing that it acknowledged."""

import pytest

from .kill_group import kill_members
from .kill_loop import KillLoop
from .kill_python import PythonKillLoop
from .kill_python_group import kill_python_members
from .seeds import chosen_seed

CYCLES = 5000
PYTHON_CYCLES = 100
MEMBERS_KILLED = 300
PYTHON_MEMBERS_KILLED = 60


@pytest.mark.timeout(600)  # allows for a busy machine
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


@pytest.mark.timeout(600)
def test_killed_members_of_a_group_lose_nothing() -> None:
    shared = kill_members(chosen_seed(), MEMBERS_KILLED)
    print(shared)
    assert shared.messages > MEMBERS_KILLED
    assert shared.redelivered > MEMBERS_KILLED


@pytest.mark.timeout(600)
def test_killed_members_in_python_lose_nothing() -> None:
    shared = kill_python_members(chosen_seed(), PYTHON_MEMBERS_KILLED)
    print(shared)
    assert shared.messages > PYTHON_MEMBERS_KILLED
    assert shared.redelivered > 0
