"""R1 for groups: members are killed at random instants while others go on (csrc/tests/kill_group.c)."""

import shutil
import subprocess

import msgspec

from .kill_loop import memory_directory
from .oracle import BrokenPromiseError
from .programs import program

__all__ = ["Shared", "kill_members"]

_LIMIT_S = 600


class Shared(msgspec.Struct, frozen=True):
    """Counts of what the members did."""

    messages: int
    acked: int
    redelivered: int


def kill_members(seed: int, kills: int) -> Shared:
    """Kill this many members; BrokenPromiseError if a message was lost, or with two at once."""
    root = memory_directory()
    command = [str(program("kill_group")), str(root), str(seed), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode != 0:
        raise BrokenPromiseError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    shutil.rmtree(root)
    found = dict(pair.split("=", 1) for pair in done.stdout.split())
    return Shared(**{name: int(found[name]) for name in Shared.__struct_fields__})
