"""The help texts are compared with files, so that every change is reviewed.

AIOC_WRITE_HELP=1 rewrites the files.
"""

import os
from pathlib import Path

import pytest

from aiochronicle.cli.application import command_names
from cli.running import aioc

KEPT = Path(__file__).parent / "help"
OWN = ("demo",)  # prints its own help
BELOW = [("readers", name) for name in ("list", "forget", "reset", "seek")] + [("config", "check")]
BELOW += [("dead", name) for name in ("list", "retry", "drop")]
BELOW += [
    ("spark", job) for job in ("bars", "archive", "audit", "asof", "quality", "replay", "pack")
]
COMMANDS = [(), *((name,) for name in command_names() if name not in OWN), *BELOW]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: "-".join(words) or "aioc")
def test_help_is_as_it_was(command: tuple[str, ...]) -> None:
    done = aioc(*command, "--help")
    assert done.status == 0
    assert all(len(line) <= 80 for line in done.out.splitlines())
    if command:
        assert "Example: " in done.out
    shown = "\n".join(line.rstrip() for line in done.out.splitlines()) + "\n"
    file = KEPT / f"{'-'.join(command) or 'aioc'}.txt"
    if os.environ.get("AIOC_WRITE_HELP"):
        KEPT.mkdir(exist_ok=True)
        file.write_text(shown)
    assert shown == file.read_text()


def test_every_kept_text_is_of_a_command() -> None:
    names = {"-".join(command) or "aioc" for command in COMMANDS}
    assert {file.stem for file in KEPT.iterdir()} == names
