"""The number of instructions per message does not grow unnoticed."""

from pathlib import Path

import pytest

from benchmarks import instructions
from benchmarks.instructions import Kept, compare

OPERATIONS = {"append", "append_many", "poll", "__anext__", "merge", "columns"}


def test_no_operation_takes_more_instructions_than_are_kept() -> None:
    if reason := instructions.explain_missing():
        pytest.skip(f"instructions cannot be counted: {reason}")
    here, kept = instructions.name_platform(), Kept.load()
    expected = kept.find(here)
    if expected is None:
        pytest.skip(
            f"benchmarks/instructions.json has no counts for {here};"
            " `python -m benchmarks.instructions --update` adds them"
        )
    found = instructions.measure()
    assert found.keys() >= OPERATIONS
    if here not in kept.platforms:  # another interpreter: the C loops are the same
        found = {name: found[name] for name in expected}
    assert not compare(expected, found)


def test_another_interpreter_has_the_counts_of_the_loops_in_c() -> None:
    counts = {"append": 777, "c.append": 302, "c.poll": 265}
    kept = Kept({"x86_64, cc 12.2.0, glibc 2.36, CPython 3.11.7, -O3": counts})
    assert kept.find("x86_64, cc 12.2.0, glibc 2.36, CPython 3.11.7, -O3") == counts
    in_c = {"c.append": 302, "c.poll": 265}
    assert kept.find("x86_64, cc 12.2.0, glibc 2.36, CPython 3.12.1, -O3") == in_c
    assert kept.find("x86_64, cc 12.2.0, glibc 2.36, CPython 3.11.7, -O2") is None
    assert kept.find("x86_64, cc 14.2.0, glibc 2.36, CPython 3.11.7, -O3") is None


def test_growth_is_told_with_its_name_and_amount() -> None:
    assert compare({"append": 100, "poll": 100}, {"append": 105, "poll": 90}) == []
    assert compare({"append": 100}, {"append": 106}) == [
        "append takes 106 instructions per message, 6.0% more than the 100 in instructions.json"
    ]


def test_a_count_that_is_missing_on_either_side_is_told() -> None:
    assert compare({"append": 100}, {}) == ["append was not counted"]
    assert compare({}, {"append": 100}) == ["append is not in instructions.json"]


def test_kept_counts_are_read_as_they_were_saved(tmp_path: Path) -> None:
    kept = Kept({"a machine": {"append": 100}})
    kept.save(tmp_path / "counts.json")
    assert Kept.load(tmp_path / "counts.json") == kept
    assert Kept.load(tmp_path / "none.json") == Kept({})
