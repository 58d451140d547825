"""The example of the jobs prints what it documents."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "spark_jobs.py"


def test_example_archives_analyses_and_replays() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("40000 messages archived and verified, of 40000\n")
    assert done.stdout.endswith("replayed from the archive: the same stream\n")
