"""A few seconds of R13: see tests/helpers/soaking.py."""

from pathlib import Path

from helpers.soaking import Soak


def test_what_is_closed_leaves_nothing_behind(tmp_path: Path) -> None:
    with Soak(tmp_path) as soak:
        while soak.cycles < 2_500:
            soak.step()
        print(soak.summary())
        soak.check_heaps()
