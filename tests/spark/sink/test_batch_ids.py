"""The record of which batches a writer has written."""

import random

import pytest

from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.sink import batch_ids as written
from aiochronicle.spark.sink.batch_ids import BatchIds


def test_any_ids_in_any_order_are_known(rng: random.Random) -> None:
    known = BatchIds()
    added: set[int] = set()
    for _ in range(300):
        batch_id = rng.randrange(400)
        known = known.adding(batch_id)
        added.add(batch_id)
        assert {number for number in range(400) if known.has(number)} == added
        firsts_and_lasts = [number for ids in known.ranges for number in ids]
        assert firsts_and_lasts == sorted(firsts_and_lasts)
        gaps = zip(known.ranges, known.ranges[1:], strict=False)
        assert all(behind[0] - before[1] > 1 for before, behind in gaps)


def test_what_is_forgotten_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "RANGES_MAX", 3)
    known = BatchIds()
    for batch_id in (10, 11, 20, 30, 40):
        known = known.adding(batch_id)
    assert known.ranges == ((20, 20), (30, 30), (40, 40))
    for batch_id in (0, 10, 11):
        with pytest.raises(InvalidArgument, match=f"whether batch {batch_id} was written is not"):
            known.has(batch_id)
    assert not known.has(12)
    assert known.has(20)
