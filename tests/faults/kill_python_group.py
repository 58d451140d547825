"""R1 for groups through Python: members on event loops are killed at random instants while others go on."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from aiochronicle import Retention, Writer, inspect_group, open_writer

from .group_member import ACKED, GROUP, Notes
from .kill_loop import memory_directory
from .oracle import BrokenPromiseError, require

__all__ = ["PythonShared", "kill_python_members"]

_MEMBERS = 3
_AHEAD = 500
_PATIENCE_S = 60.0


class PythonShared(msgspec.Struct, frozen=True):
    """Counts of what happened to the members and their messages."""

    kills: int
    messages: int
    redelivered: int  # to the members that were alive at the end


class _Server:
    """The parent's side of group_member."""

    def __init__(self, queue: Path, notes: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.group_member", str(queue), str(notes)],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, life: int, seed: int) -> int:
        return self._ask(f"start {life} {seed}")

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        status = self._ask(f"wait {pid}")
        require(status == -signal.SIGKILL, "a member ended with {}: see its traceback", status)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


class _Appender(threading.Thread):
    """Appends messages, staying more than one window ahead of the acknowledged ones."""

    def __init__(self, writer: Writer, queue: Path) -> None:
        super().__init__()
        self.stopped = threading.Event()
        self._writer = writer
        self._queue = queue

    def run(self) -> None:
        low = 0
        while not self.stopped.wait(0.002):
            if self._writer.next_seq >= low + _AHEAD:
                low = inspect_group(self._queue, GROUP).low_seq
                continue
            self._writer.append_many([b"%d" % (self._writer.next_seq + i) for i in range(20)])


def _finish(queue: Path, notes: Notes, messages: int) -> int:
    """Wait until everything is acknowledged; return how many messages the present members got again."""
    limit_s = time.monotonic() + _PATIENCE_S
    while inspect_group(queue, GROUP).pending:
        require(time.monotonic() < limit_s, "pending: {}", inspect_group(queue, GROUP))
        time.sleep(0.01)
    # A member that was killed between the acknowledgement and its note has still acknowledged.
    unknown = [seq for seq in range(messages) if not notes.states[seq]]
    require(not unknown, "nobody acknowledged {}", unknown)
    require(any(notes.states[seq] == ACKED for seq in range(messages)), "nothing was noted")
    return sum(member.redelivered for member in inspect_group(queue, GROUP).members)


def kill_python_members(seed: int, kills: int) -> PythonShared:
    """Kill this many members; BrokenPromiseError if a message was lost, or with two at once."""
    dice = random.Random(seed)
    root = memory_directory()
    queue = root / "queue"
    notes = Notes(root / "notes")
    writer = open_writer(queue, segment_size=1 << 16, retention=Retention(check_interval_s=0.005))
    writer.append(b"0")
    server = _Server(queue, root / "notes")
    appender = _Appender(writer, queue)
    try:
        lives = list(range(_MEMBERS))
        pids = [server.start(life, dice.getrandbits(62)) for life in lives]
        while not (queue / "readers" / f"{GROUP}.group").exists():
            time.sleep(0.005)
        time.sleep(0.1)
        appender.start()
        for life in range(_MEMBERS, _MEMBERS + kills):
            which = dice.randrange(_MEMBERS)
            time.sleep(dice.choice((dice.uniform(0, 0.01), dice.uniform(0, 0.08))))
            notes.doomed[lives[which]] = 1
            server.kill(pids[which])
            lives[which] = life
            pids[which] = server.start(life, dice.getrandbits(62))
        appender.stopped.set()
        appender.join()
        redelivered = _finish(queue, notes, writer.next_seq)
        for which, pid in enumerate(pids):
            notes.doomed[lives[which]] = 1
            server.kill(pid)
    except BrokenPromiseError as violation:
        raise BrokenPromiseError(f"{violation}\nseed {seed}, queue kept in {queue}") from None
    finally:
        appender.stopped.set()
        server.close()
        messages = writer.next_seq
        writer.close()
    shutil.rmtree(root)
    return PythonShared(kills, messages, redelivered)
