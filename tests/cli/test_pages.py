"""The commands of the operations guide work in its order; all pages name only commands that exist."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from aiochronicle import Retention, Roll, open_reader, open_writer
from aiochronicle.cli.application import command_names
from cli.running import aioc

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "docs" / "guide"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_commands_of_the_operations_guide(tmp_path: Path) -> None:
    (tmp_path / "feeds").mkdir()
    retention = Retention(check_interval_s=1000.0)
    with open_writer(
        tmp_path / "feeds" / "trades",
        segment_size=1 << 16,
        roll=Roll(messages=50),
        retention=retention,
    ) as writer:
        for number in range(200):
            writer.append(b"trade %d" % number)
    for name in ("risk", "last-year"):
        open_reader(tmp_path / "feeds" / "trades", name).close()
    lines = [
        line
        for block in BLOCK.findall((GUIDE / "operations.md").read_text())
        for line in block.splitlines()
    ]
    assert len(lines) > 20
    for line in lines:
        program, *arguments = shlex.split(line)
        if program == "aioc":
            done = aioc(*arguments, cwd=tmp_path)
            assert done.status == 0, (line, done)
        else:
            subprocess.run([program, *arguments], cwd=tmp_path, check=True)


@pytest.mark.parametrize("page", ["commands.md", "operations.md", "errors.md"])
def test_pages_name_commands_that_exist(page: str) -> None:
    named = re.findall(r"\baioc ([a-z][a-z-]+)", (GUIDE / page).read_text())
    assert named
    assert set(named) <= {*command_names(), "on"}


def test_every_command_is_in_the_reference() -> None:
    text = (GUIDE / "commands.md").read_text()
    assert all(f"`aioc {name}" in text for name in command_names())
