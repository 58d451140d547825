"""JVMs and our processes append to one queue at once: see `together`. Long runs: torture java-append."""

from pathlib import Path

import pytest

from .building import missing
from .kills import kill_jvms, kill_ours
from .sharing import share_alike
from .together import Load, append_together

reason = missing()
pytestmark = pytest.mark.skipif(reason is not None, reason=f"no Java Chronicle Queue: {reason}")


@pytest.mark.parametrize(
    "load",
    [
        Load(roll_cycle="TEST_SECONDLY", messages=10_000, rate_hz=3000),
        Load(roll_cycle="TEST4_SECONDLY", messages=2000, rate_hz=700, java_first=False),
        Load(roll_cycle="FAST_HOURLY", messages=5000, rate_hz=2000, speed=3600),
    ],
    ids=lambda load: load.roll_cycle,
)
def test_all_see_one_sequence(tmp_path: Path, load: Load) -> None:
    found = append_together(tmp_path / "queue", load)
    assert found.messages == load.total
    assert found.cycles >= 3


def test_ours_are_killed_beside_a_jvm(tmp_path: Path, seed: int) -> None:
    assert kill_ours(tmp_path / "queue", kills=20, seed=seed).messages > 100


def test_jvms_are_killed_beside_ours(tmp_path: Path, seed: int) -> None:
    assert kill_jvms(tmp_path / "queue", kills=2, seed=seed).messages > 100


@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
def test_jvms_and_ours_share_the_queue(tmp_path: Path, is_warm: bool) -> None:
    # Scheduling and disk stalls are beyond our control: one good run is enough.
    seen = []
    for attempt in range(5):
        seen.append(share_alike(tmp_path / f"queue{attempt}", 2.0, is_warm=is_warm))
        if min(seen[-1].values()) >= 0.1:
            return
    raise AssertionError(seen)
