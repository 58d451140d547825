"""The benchmarks run and answer every question; how fast they find things is not judged here."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.__main__ import ON_REQUEST, QUESTIONS, main
from benchmarks.measure import Best, Result, compare, percentile

# Of a machine that has everything to compare with.
ROWS = {
    "append": 3,
    "read": 2,
    "typed": 3,
    "columns": 3,
    "loop": 2,
    "peers": 12,
    "wake": 8,
    "durable": 1,
    "together": 1,
    "merge": 9,
    "engine": 2,
    "roll": 2,
    "opening": 2,
    "seek": 2,
}


def test_quick_run_answers_every_question(tmp_path: Path) -> None:
    report = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", str(report)]
    run = subprocess.run(
        [*command, "--directory", str(tmp_path)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""
    results = msgspec.json.decode(report.read_bytes(), type=list[Result])
    counts = {name: sum(result.question == name for result in results) for name in QUESTIONS}
    skipped = dict.fromkeys(QUESTIONS, 0)
    for peer in re.findall(r"(pyzmq|redis) was not compared: needs", run.stdout):
        assert peer != "pyzmq", "the development tools include it"
        skipped["peers"] += 1  # twice, for it is missed by "wake", too
        skipped["wake"] += 1
    if "libchronicle was not compared: needs" in run.stdout:
        skipped["peers"] += 2  # on each loop
    assert {name: counts[name] + skipped[name] for name in counts if name not in ON_REQUEST} == ROWS
    for result in results:
        may_be_none = result.what.startswith("wake-ups per message")
        assert 0 < result.measured < float("inf") or (may_be_none and result.measured == 0), result
        assert result.passed == (result.measured <= result.bar), result
        assert result.what in run.stdout
    assert run.stdout.count("pass") + run.stdout.count("FAIL") == len(results)
    assert list(tmp_path.iterdir()) == [report], "the queues were not removed"


def test_only_the_named_question_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--only", "append", "--directory", str(tmp_path)]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["append"] * 3
    assert lines[-1].endswith("of 3 within their bars")


def test_missed_bar_fails_a_full_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(directory: Path, quick: bool) -> list[Result]:
        assert directory.is_dir()
        return [Result.at_most("append", "too slow", 2.0, 1.0, "x")]

    monkeypatch.setitem(QUESTIONS, "append", ("made up", answer))
    arguments = ["--only", "append", "--directory", str(tmp_path)]
    assert main(arguments) == 1
    assert main([*arguments, "--quick"]) == 0
    assert capsys.readouterr().out.count("FAIL") == 2


def test_list_names_every_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(QUESTIONS)
    assert all(line.endswith("?") for line in lines)


def test_best_round_of_each_counts() -> None:
    turns: list[str] = []

    def slow_once() -> int:
        turns.append("a")
        return 1 if len(turns) == 1 else 10**12

    def steady() -> int:
        turns.append("b")
        return 10**6

    best = compare({"a": slow_once, "b": steady}, rounds=2)
    assert turns == ["a", "b", "a", "b"]
    assert best.ns["a"] < best.ns["b"]


def test_ratio_and_percentile() -> None:
    assert Best({"a": 30.0, "b": 10.0}).ratio("a", "b") == 3
    values = [float(value) for value in range(1000)]
    assert percentile(values, 0.5) == 500
    assert percentile(values, 0.999) == 999
    assert percentile([7.0], 0.999) == 7
