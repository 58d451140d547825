"""CPython's own tests of asyncio pass with VirtualTimeLoop as the loop."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from asynchronous.cpython_suite import CANNOT_APPLY, MODULES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("test") is None
    or importlib.util.find_spec("test.test_asyncio") is None,
    reason="this Python has no test package: use one built from source, by pyenv for instance,"
    " or install libpython3.x-testsuite",
)

TIMEOUT_S = 110  # they take seconds, or hang if the virtual clock does not advance


@pytest.mark.parametrize("module", MODULES)
def test_asyncio_works_in_virtual_time(module: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "asynchronous.cpython_suite", module],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(run.stdout, run.stderr)
    assert run.returncode == 0
    summary = json.loads(run.stdout.splitlines()[-1])
    assert summary["failed"] == []
    assert summary["ran"] >= 10
    assert summary["loops"] >= 10
    assert set(summary["left_out"]) == {
        name for name in CANNOT_APPLY if name.startswith(f"{module}.")
    }
