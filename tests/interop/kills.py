"""Appenders, ours and Java's, are killed at random instants beside others that keep running.

Every message whose append returned is in the queue, plus at most one more per victim, and both sides read
the same.
"""

import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from faults.victim import Ledger, Word

from .judge import Digest, Judge
from .ours import Ours, digest

__all__ = ["kill_jvms", "kill_ours"]

_ROLL_CYCLES = ("TEST_SECONDLY", "TEST4_SECONDLY")
_JAVA_TIMEOUT_MS = 1000  # of the lock, instead of 10 s; Java waits 1.5 times as long
_BESIDE_HZ = 300
_VICTIMS_HZ = 1000  # a cycle of TEST4_SECONDLY has room for 4096
_PATIENCE_S = 20.0


def kill_ours(path: Path, kills: int, seed: int) -> Digest:
    """Kill this many of our writers, two at a time, while one JVM appends and another follows."""
    dice = random.Random(seed)
    roll_cycle = dice.choice(_ROLL_CYCLES)
    promised: dict[str, range] = {}
    with ExitStack() as stack:
        beside = stack.enter_context(Judge())
        following = stack.enter_context(Judge())
        server = stack.enter_context(Ours())
        if dice.random() < 0.5:  # otherwise the first victims create the queue
            queue = beside.open(path, roll_cycle=roll_cycle, timeout_ms=_JAVA_TIMEOUT_MS)
            queue.start_append(prefix="beside", rate_hz=_BESIDE_HZ)
        else:
            queue = None
        for number in range(0, kills, 2):
            names = [f"victim{number}", f"victim{number + 1}"][: kills - number]
            promised |= _kill_some(server, path, roll_cycle, names, dice)
            if queue is None and (path / "metadata.cq4t").exists():
                queue = beside.open(path, timeout_ms=_JAVA_TIMEOUT_MS)
                queue.start_append(prefix="beside", rate_hz=_BESIDE_HZ)
        assert queue is not None, "no victim came as far as to make a queue"
        with Ours() as last:
            last.start_flood(path, "last", count=100)
            last.finish_flood()
        written = queue.stop_append()
        assert written.thrown is None, written
        promised |= {"beside": range(written.written, written.written + 1), "last": range(100, 101)}
        return _check(following, path, promised)


def _kill_some(
    server: Ours, path: Path, roll_cycle: str, names: list[str], dice: random.Random
) -> dict[str, range]:
    """Start these writers and kill them; return how many messages each may have appended."""
    pids = []
    for name in names:
        ledger = path.with_name(f"{path.name}.{name}")
        options = {"roll_cycle": roll_cycle, "rate_hz": _VICTIMS_HZ, "ledger": str(ledger)}
        pids.append(server.fork(path, name, **options))
    time.sleep(dice.uniform(0, 0.1) ** 2 / 0.05)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        status = server.reap(pid)
        assert status == signal.SIGKILL, f"a writer ended with status {status}"
    return {name: _promise(path.with_name(f"{path.name}.{name}")) for name in names}


def _promise(path: Path) -> range:
    ledger = Ledger(str(path))
    found = range(ledger[Word.ACKNOWLEDGED], ledger[Word.ATTEMPTED] + 1)
    ledger.close()
    path.unlink()
    return found


def kill_jvms(path: Path, kills: int, seed: int) -> Digest:
    """Kill this many JVMs while they append; two of our writers keep running."""
    dice = random.Random(seed)
    promised: dict[str, range] = {}
    with ExitStack() as stack:
        following = stack.enter_context(Judge())
        ours = [stack.enter_context(Ours()) for _ in range(2)]
        for number, process in enumerate(ours):
            options = {"roll_cycle": "TEST_SECONDLY", "rate_hz": _BESIDE_HZ}
            process.start_flood(path, f"ours{number}", seconds=2.0 * kills + 2, **options)
        for number in range(kills):
            with Judge() as victim:
                ledger = path.with_name(f"{path.name}.jvm{number}")
                queue = victim.open(path, roll_cycle="TEST_SECONDLY", timeout_ms=_JAVA_TIMEOUT_MS)
                queue.start_append(prefix=f"jvm{number}", ledger=ledger)
                time.sleep(dice.uniform(0, 0.5))
                victim.kill()
            count = int.from_bytes(ledger.read_bytes()[:8], "little")
            promised[f"jvm{number}"] = range(count, count + 2)
            ledger.unlink()
        for number, process in enumerate(ours):
            count = process.finish_flood(4.0 * kills + 60)["written"]
            promised[f"ours{number}"] = range(count, count + 1)
        return _check(following, path, promised)


def _check(judge: Judge, path: Path, promised: dict[str, range]) -> Digest:
    found, counts = digest(path)
    assert found.gap is None, found
    broken = {
        name: (counts.get(name, 0), allowed)
        for name, allowed in promised.items()
        if counts.get(name, 0) not in allowed
    }
    assert not broken, f"found and promised: {broken}"
    assert counts.keys() <= promised.keys(), counts.keys() - promised.keys()
    with judge.open(path) as queue, queue.tailer(start="start") as tailer:
        assert tailer.digest(wait_s=1.0) == found
        assert queue.info().entry_count == found.messages
    return found
