"""A short run of R10: see tests/helpers/delivery.py."""

from pathlib import Path

import pytest
from helpers.delivery import Delivery

MESSAGES = 1_000_000
KILLS = 3  # a fast machine may deliver all messages before the first kill


@pytest.mark.timeout(300)
def test_every_reader_gets_every_message_whoever_dies(tmp_path: Path, seed: int) -> None:
    with Delivery(tmp_path, seed) as delivery:
        assert delivery.run(MESSAGES, kills=KILLS) >= MESSAGES
        assert delivery.kills >= KILLS
