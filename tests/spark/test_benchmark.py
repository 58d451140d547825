"""The benchmarks of the pipeline run and answer; how fast it is is not judged here."""

import subprocess
import sys
from pathlib import Path

import msgspec

from benchmarks.measure import Result


def test_quick_run_answers(tmp_path: Path) -> None:
    report = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--only", "spark", "--quick"]
    run = subprocess.run(
        [*command, "--json", str(report), "--directory", str(tmp_path)],
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    results = msgspec.json.decode(report.read_bytes(), type=list[Result])
    assert len(results) == 14
    assert all(0 < result.measured < float("inf") for result in results)
