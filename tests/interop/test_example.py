"""examples/java_ticks: a JVM and an asyncio service that answer each other."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .building import build, environment, missing

EXAMPLE = Path(__file__).parents[2] / "examples" / "java_ticks"
TICKS = 3000
ALERTS = 100 * 2 + 100 * 1  # a third per symbol: 108 and 109 exceed 107, 109 exceeds 108


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compile the example with the libraries of the judge; return the class path."""
    reason = missing()
    if reason is not None:
        pytest.skip(f"no Java Chronicle Queue to run with: {reason}")
    compiled = tmp_path_factory.mktemp("java_ticks")
    libraries = f"{build() / 'lib'}/*"
    sources = map(str, sorted((EXAMPLE / "src").rglob("*.java")))
    command = ["javac", "-proc:none", "-d", str(compiled), "-cp", libraries, *sources]
    subprocess.run(command, check=True, env=environment(), timeout=60)
    return f"{compiled}:{libraries}"


def start_service(root: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, str(EXAMPLE / "tick_service.py"), str(root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def start_feed(root: Path, classes: str) -> "subprocess.Popen[str]":
    command = ["java", f"@{EXAMPLE / 'java.args'}", "-cp", classes, "ticks.Feed", str(root)]
    command.insert(1, "-XX:TieredStopAtLevel=1")
    return subprocess.Popen(
        [*command, str(TICKS)], stdout=subprocess.PIPE, text=True, env=environment()
    )


@pytest.mark.parametrize("first", ["service", "feed"])
def test_both_sides_answer_each_other(tmp_path: Path, classes: str, first: str) -> None:
    root = tmp_path / "ticks"
    root.mkdir()
    processes: list[subprocess.Popen[str]] = []
    for side in ("service", "feed") if first == "service" else ("feed", "service"):
        started = start_service(root) if side == "service" else start_feed(root, classes)
        processes.append(started)
    try:
        said = [process.communicate(timeout=90)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0]
    assert [re.search(r"(\d+) alerts", text)[1] for text in said] == [str(ALERTS)] * 2  # type: ignore[index]
