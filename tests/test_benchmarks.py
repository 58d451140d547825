"""The benchmarks run and produce every figure; the figures themselves are not checked here."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import figures, foreign, publish, rates, sustained
from benchmarks.__main__ import ON_REQUEST, QUESTIONS, main
from benchmarks.building import build_program
from benchmarks.contestants import missing
from benchmarks.measure import Best, Figure, Result, compare, percentile

# From a machine with all peers installed.
ROWS = {
    "append": 3,
    "read": 3,
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
        skipped["peers"] += 1  # twice, because "wake" needs it, too
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


def test_figures_keep_every_sample_and_the_machine(tmp_path: Path) -> None:
    report = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.figures", "--quick", "--json", str(report)]
    command += ["--only", "rates", "--only", "sleepers", "--directory", str(tmp_path)]
    run = subprocess.run(
        command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=110
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = msgspec.json.decode(report.read_bytes(), type=figures.Report)
    assert found.command == "python -m benchmarks.figures --quick --only rates --only sleepers"
    assert found.machine.cores > 0
    assert found.machine.versions["aiochronicle"]
    ages = [figure for figure in found.figures if figure.question == "age"]
    assert len(ages) == 2 * 3 * 4, "loops, rates, percentiles"
    assert sum(figure.question == "sleepers" for figure in found.figures) == 2 * 5
    assert all(min(figure.samples) > 0 for figure in found.figures)


def test_figures_by_number_of_queues_and_readers_and_next_to_peers(tmp_path: Path) -> None:
    found = [
        figure for name in ("fans", "peers") for figure in figures.MEASURED[name](tmp_path, True)
    ]
    cases = [figure.case for figure in found]
    assert len(set(cases)) == len(cases)
    assert sum(case.startswith("fan-in") for case in cases) == 4
    assert sum(case.startswith("fan-out") for case in cases) == 2 * 4
    peers = ["aiochronicle", "pyzmq", "asyncio streams", "asyncio.Queue"]
    if not missing("java"):
        peers.append("Java's Chronicle Queue")
    for peer in peers:
        assert sum(case.startswith(peer) for case in cases) == 2, f"{peer} on both loops"
    assert all(min(figure.samples) > 0 for figure in found)


def test_figures_of_reading_and_waking(tmp_path: Path) -> None:
    found = [
        figure
        for name in ("reading", "waking")
        for figure in figures.MEASURED[name](tmp_path, True)
    ]
    assert sum(figure.question == "reading" for figure in found) == 6 * 5, "sizes and ways"
    assert sum("eventfd" in figure.case for figure in found) == 2, "on both loops"
    assert all(min(figure.samples) > 0 for figure in found)


def test_every_figure_has_a_title() -> None:
    assert publish.TITLES.keys() == {publish.QUESTIONS.get(name, name) for name in figures.MEASURED}


def test_queues_of_another_program_are_made_read_and_taken_over(tmp_path: Path) -> None:
    program = build_program("foreign_bench", tmp_path)
    reading = foreign.measure_reading(tmp_path, program, True)
    following = foreign.measure_following(tmp_path, program, True)
    assert len(reading) == 2 * 2
    assert len(following) == 2 * 3
    assert all(min(samples) > 0 for samples in (*reading.values(), *following.values()))
    scanned, _ = foreign.measure_opening(tmp_path, program, True)
    assert scanned <= foreign.MESSAGES_QUICK


def test_sustained_load_is_measured_in_parts(tmp_path: Path) -> None:
    parts = sustained.append_parts(tmp_path / "queue", 100, 800, None)
    assert len(parts) == sustained.PARTS
    assert all(part > 0 for part in parts)
    assert not (tmp_path / "queue").exists()


def test_a_sender_that_is_late_makes_messages_older(tmp_path: Path) -> None:
    """Latency counts from when a message was due, even if it was sent late: no coordinated omission."""
    histogram = rates.collect(tmp_path / "queue", 10_000_000, 2_000, None)
    # 2,000 messages are due within 0.2 ms, and take far longer than that to send.
    assert histogram.get_total_count() == 2_000
    assert histogram.get_value_at_percentile(100) > 200_000


def test_published_figures_are_medians_with_range_and_count(tmp_path: Path) -> None:
    machine = figures.describe_machine(load_before=99.0)
    report = figures.Report(
        command="python -m benchmarks.figures",
        started="2026-01-01 00:00:00 UTC",
        machine=machine,
        figures=[
            Figure(question="age", case="a case", unit="us", samples=[3.0, 1.0, 250.0]),
            Figure(question="sleepers", case="another", unit="ns", samples=[1234.0]),
        ],
    )
    (tmp_path / "images").mkdir()
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{publish.BEGIN}\nold\n{publish.END}\nafter\n", encoding="utf-8")
    (tmp_path / "figures.json").write_bytes(msgspec.json.encode(report))
    for _ in range(2):  # again, over the first run's files
        assert publish.main([str(tmp_path / "figures.json"), "--docs", str(tmp_path)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "| a case | 3.0 us | 1.0–250 | 3 |" in text
    assert "| another | 1,234 ns | 1,234–1,234 | 1 |" in text
    assert "had other work to do" in text
    assert "\nold\n" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    for question in ("age", "sleepers"):
        image = tmp_path / "images" / f"figures-{question}.svg"
        assert "<svg" in image.read_text(encoding="utf-8")
        assert f"images/{image.name}" in text
