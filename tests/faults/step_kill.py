"""R2: the engine killed at every instruction of a call.

csrc/tests/step_kill.c steps through the calls and checks each state that a kill could leave. This module
checks some of the recovered states again, with the decoder that shares no code with the engine.
"""

import shutil
import subprocess
from pathlib import Path

import msgspec

from .kill_loop import memory_directory
from .oracle import BrokenPromiseError, check_queue, require
from .programs import program

__all__ = ["SCENARIOS", "Steps", "kill_at", "known_scenarios", "step_through"]

SCENARIOS = (
    "append",
    "batch",
    "reserve",
    "abort",
    "roll",
    "flush",
    "commit",
    "register",
    "create",
    "open",
    "close",
    "recover",
    "recover-unsealed",
    "recover-torn",
    "recover-segments",
    "retain",
    "group-found",
    "group-join",
    "group-resize",
    "group-take",
    "group-ack",
    "group-nack",
    "group-extend",
    "group-take-back",
    "group-leave",
)
_TORN = frozenset({"recover-torn", "recover-segments"})
_LIMIT_S = 300


class Steps(msgspec.Struct, frozen=True):
    """The result of stepping through one scenario."""

    instructions: int
    states: int
    checked: int
    judged: int  # by the decoder


def known_scenarios() -> tuple[str, ...]:
    """Return the calls that the program can step through."""
    command = [str(program("step_kill")), "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True)
    return tuple(listed.stdout.split())


def _run(mode: str, scenario: str, root: Path, *numbers: int) -> list[dict[str, str]]:
    command = [str(program("step_kill")), mode, scenario, str(root), *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode != 0:
        raise BrokenPromiseError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    lines = [line.split() for line in done.stdout.splitlines()]
    return [dict(pair.split("=", 1) for pair in words[1:]) for words in lines]


def _judge(kept: dict[str, str], salt: int, *, torn: bool) -> None:
    first_seq, next_seq, dump = check_queue(Path(kept["path"]), salt, torn=torn)
    promised = int(kept["acknowledged"]), int(kept["attempted"])
    require(next_seq in promised, "{}: ends at {}, promised were {}", kept, next_seq, promised)
    require(len(dump.records) == next_seq - first_seq, "{}: messages are missing", kept)


def step_through(scenario: str, salt: int, *, keep: int = 20) -> Steps:
    """Check the state after every instruction, and every ``keep``-th state twice."""
    root = memory_directory()
    *kept, summary = _run("steps", scenario, root, salt, 1, 0, keep)
    for state in kept:
        _judge(state, salt, torn=scenario in _TORN)
    shutil.rmtree(root)
    numbers = {name: int(summary[name]) for name in ("instructions", "states", "checked")}
    return Steps(**numbers, judged=len(kept))


def kill_at(scenario: str, salt: int, instruction: int) -> None:
    """Kill for real after this many instructions; recover in place and check."""
    root = memory_directory()
    (killed,) = _run("kill", scenario, root, salt, instruction)
    live = root / "live"
    if any(live.iterdir()):
        _judge(killed | {"path": str(live)}, salt, torn=scenario in _TORN)
    shutil.rmtree(root)
