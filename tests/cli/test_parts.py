"""Parts of the command line: amounts, times, and the error without cyclopts."""

import doctest
import errno
import importlib
import subprocess
import sys

import pytest

from aiochronicle.cli.exits import DISK_FULL, status_of
from aiochronicle.cli.units import parse_amount, parse_seconds
from aiochronicle.errors import ExportFailed

MODULES = ("advice", "units", "output")
WITHOUT = """
import sys
sys.modules[{!r}] = None
from aiochronicle.cli import main
sys.exit(main(["ls"]))
"""


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"aiochronicle.cli.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("text", ["", "much", "-1", "1X", "1 2", "nan"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="is no amount"):
        parse_amount(text)


@pytest.mark.parametrize("text", ["", "soon", "-1", "1y", "nan", "inf", "1h 30"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(ValueError, match="is no length of time"):
        parse_seconds(text)


@pytest.mark.parametrize("package", ["cyclopts", "rich"])
def test_a_missing_package_is_said(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(package)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert 'pip install "aiochronicle[cli]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_full_disk_has_a_status_of_its_own_whoever_meets_it() -> None:
    assert status_of(ExportFailed("no room", errno=errno.ENOSPC)) == DISK_FULL
    assert status_of(OSError(errno.ENOSPC, "no room")) == DISK_FULL
    assert status_of(ExportFailed("no", errno=errno.EPERM)) != DISK_FULL


def test_importing_the_package_imports_no_command_line() -> None:
    program = "import sys, aiochronicle; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    imported = done.stdout.split()
    assert "aiochronicle._core.writer" in imported
    assert not [name for name in imported if name.split(".")[0] in ("cyclopts", "rich")]
    assert not [name for name in imported if name.startswith("aiochronicle.cli")]
