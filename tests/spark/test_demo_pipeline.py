"""The last part of the demo: bars, or the reason why there are none."""

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "aiochronicle.demo", "--venues", "1", "--strategies", "1"]
COMMAND += ["--seconds", "1.2", "--rate", "2000", "--kill", "none"]


def run_demo(plot: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "--plot", str(plot)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, **environment},
    )


def test_demo_ends_with_bars_and_a_picture(tmp_path: Path) -> None:
    done = run_demo(tmp_path / "plots" / "bars.png")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "ALFA nasdaq" in done.stdout
    assert "bars of 1s out of" in done.stdout.splitlines()[-1]
    assert (tmp_path / "plots" / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_demo_ends_well_without_java(tmp_path: Path) -> None:
    done = run_demo(tmp_path / "bars.png", JAVA_HOME=str(tmp_path / "nowhere"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "exactly once" in done.stdout
    assert "the pipeline could not run here" in done.stdout.splitlines()[-1]
    assert "nowhere: $JAVA_HOME has no java that runs" in done.stdout
    assert not (tmp_path / "bars.png").exists()
