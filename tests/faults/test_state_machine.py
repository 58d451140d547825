"""R9: a queue behaves like a list, whatever is done to it in whatever order."""

import pytest

from .seeds import chosen_seed
from .state_machine import run_machines

RUNS = 300


@pytest.mark.timeout(600)  # allows for a busy machine
def test_queue_behaves_like_a_list() -> None:
    run_machines(RUNS, chosen_seed())
