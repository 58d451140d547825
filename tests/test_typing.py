"""Type checkers know the decoded types of messages and find errors: mypy and pyright, both strict.

``tests/typing`` has a user's program without errors, and one with errors, each of which must be found.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "tests" / "typing"

# Our own modules are checked with typings/pyarrow; here, with pyarrow-stubs, as users have it.
MYPY_INI = """
[mypy]
strict = true
warn_unreachable = true
[mypy-aiochronicle.*]
follow_imports = silent
"""

Complaints = dict[int, str]  # by line


def mypy(program: Path, tmp_path: Path) -> Complaints:
    settings = tmp_path / "mypy.ini"
    settings.write_text(MYPY_INI)
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--show-error-codes"]
    command += ["--cache-dir", str(ROOT / ".mypy_cache"), str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^\S*?([\w.]+):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return {int(line): text for name, line, text in found if name == program.name}


def pyright(program: Path, tmp_path: Path) -> Complaints:
    (tmp_path / program.name).write_bytes(program.read_bytes())  # out of reach of our settings
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(ROOT)]}
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, "-p", str(project)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, report
    found = report["generalDiagnostics"]
    return {entry["range"]["start"]["line"] + 1: entry["message"] for entry in found}


checkers = pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda one: one.__name__)
Checker = Callable[[Path, Path], Complaints]


@checkers
@pytest.mark.timeout(300)
def test_a_users_program_is_clean(checker: Checker, tmp_path: Path) -> None:
    assert checker(PROGRAMS / "user_program.py", tmp_path) == {}


@checkers
@pytest.mark.timeout(300)
def test_every_mistake_is_found(checker: Checker, tmp_path: Path) -> None:
    program = PROGRAMS / "wrong_uses.py"
    lines = enumerate(program.read_text(encoding="utf-8").splitlines(), start=1)
    wrong = {number for number, line in lines if "# wrong:" in line}
    found = checker(program, tmp_path)
    assert {line: found[line] for line in set(found) - wrong} == {}
    assert wrong - set(found) == set()
