"""No awaitable waits for the disk in the loop's thread.

A preloaded library (disk_calls.c) records which thread makes the calls that may wait, so the result does not
depend on the load of the machine. It cannot see a call in another thread that holds the interpreter's lock.
So every operation also runs on a slow disk, where a loop that waits for the disk pauses for longer than a
busy machine would make it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from asynchronous.disk_work import WORK
from asynchronous.loops import LOOPS

HERE = Path(__file__).parent
PYTHONS_OWN = ("/usr/", "/lib/", "/etc/", sys.prefix, sys.base_prefix)  # modules, for instance
DELAY_S = 0.2

Report = dict[str, tuple[list[str], float]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile disk_calls.c."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("a sanitizer has to be the first library that is preloaded")
    target = tmp_path_factory.mktemp("library") / "disk_calls.so"
    compiler = os.environ.get("CC", "cc").split()
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(target)]
    subprocess.run([*compiler, *options, str(HERE / "disk_calls.c"), "-ldl"], check=True)
    return target


def report_of(library: Path, root: Path, loop_name: str, delay_s: float) -> Report:
    """Run all operations in a process with the library preloaded; return its report."""
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-W", "error", "-m", "asynchronous.disk_work"]
    done = subprocess.run(
        [*command, str(root), loop_name, str(delay_s)],
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answers = map(json.loads, done.stdout.splitlines())
    return {name: (calls, pause_s) for name, calls, pause_s in answers}


@pytest.mark.parametrize("loop_name", list(LOOPS))
def test_no_call_that_may_wait_for_the_disk_is_made_by_the_loop(
    library: Path, tmp_path: Path, loop_name: str
) -> None:
    report = report_of(library, tmp_path, loop_name, 0)
    assert list(report) == list(WORK)
    by_loop = {name: without_pythons_own(calls) for name, (calls, _) in report.items()}
    assert {name: calls for name, calls in by_loop.items() if calls} == {}


def test_the_loop_runs_on_while_the_disk_is_slow(library: Path, tmp_path: Path) -> None:
    """The best of several rounds counts: waiting for the disk recurs, a busy processor seldom does."""
    pauses_s: dict[str, float] = {}
    for attempt in range(4):
        root = tmp_path / str(attempt)
        root.mkdir()
        report = report_of(library, root, "asyncio", DELAY_S)
        for name, (_, pause_s) in report.items():
            pauses_s[name] = min(pause_s, pauses_s.get(name, pause_s))
        if all(pause_s < DELAY_S for pause_s in pauses_s.values()):
            break
    assert {name: pause_s for name, pause_s in pauses_s.items() if pause_s >= DELAY_S} == {}


def without_pythons_own(calls: list[str]) -> list[str]:
    return [line for line in calls if not line.partition(" ")[2].startswith(PYTHONS_OWN)]


def test_a_call_by_the_loop_is_noticed(library: Path) -> None:
    program = (
        "import ctypes, os; library = ctypes.PyDLL(None);"
        "library.disk_calls_of_this_thread.restype = ctypes.c_char_p;"
        "library.disk_calls_of_this_thread(); os.fsync(os.open('.', os.O_RDONLY));"
        "print(library.disk_calls_of_this_thread().decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LD_PRELOAD": str(library)},
        check=True,
        capture_output=True,
        text=True,
    )
    calls = [line.split()[0] for line in done.stdout.splitlines() if line]
    assert calls[-2:] in (["open", "fsync"], ["open64", "fsync"], ["openat", "fsync"])
