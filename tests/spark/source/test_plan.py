"""Ranges are split into parts for tasks; nothing is left out, and planning waits for nobody."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

import aiochronicle
from aiochronicle.spark.options import read_options
from aiochronicle.spark.source.plan import Range, plan
from aiochronicle.spark.source.snapshot import Snapshot
from spark.filling import FIRST_NS

SEGMENT_BYTES = 1 << 20
PAYLOAD = bytes(100)


def fill(path: Path, rows: int) -> None:
    with aiochronicle.open_writer(path, segment_size=SEGMENT_BYTES) as writer:
        for first in range(0, rows, 1000):
            times_ns = list(range(FIRST_NS + first, FIRST_NS + min(first + 1000, rows)))
            writer.append_many([PAYLOAD] * len(times_ns), timestamps_ns=times_ns)


def parts_of(root: Path, partitions_min: int | None = None) -> list[Range]:
    snapshot = Snapshot(read_options({"path": str(root)}))
    parts = plan(snapshot.sources, snapshot.start, snapshot.end, partitions_min=partitions_min)
    for name in snapshot.sources:
        own = [part for part in parts if part.source.name == name]
        assert (own[0].start, own[-1].end) == (snapshot.start[name], snapshot.end[name])
        assert all(before.end == after.start for before, after in pairwise(own))
    return parts


def lengths(parts: list[Range]) -> list[int]:
    return [part.end - part.start for part in parts]


def test_few_parts_are_of_the_same_length(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(root / "a", 150_000)
    monkeypatch.setattr("aiochronicle.spark.source.plan.TASK_BYTES", 16 * SEGMENT_BYTES)
    found = lengths(parts_of(root))
    assert len(found) % len(os.sched_getaffinity(0)) == 0
    assert max(found) - min(found) <= 1


def test_many_parts_are_cut_where_segments_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(root / "a", 150_000)
    monkeypatch.setattr("aiochronicle.spark.source.plan.TASK_BYTES", SEGMENT_BYTES)
    monkeypatch.setattr("aiochronicle.spark.source.plan.FEW_PER_PROCESSOR", 0)
    *full, last = lengths(parts_of(root))
    assert len(full) > 8
    assert len(set(full)) == 1
    assert 0 < last <= full[0]  # the active segment


def test_as_many_parts_as_asked_for(root: Path) -> None:
    for name in "abcde":
        fill(root / name, 1000)
    assert len(parts_of(root)) == 5
    assert len(parts_of(root, 3)) == 5
    assert len(parts_of(root, 6)) >= 6
    assert len(parts_of(root / "a", 7)) == 7
    assert len(parts_of(root / "a", 10**12)) == 1000
