"""Members of a group to be killed: a server that forks one per line of its input.

``python -m faults.group_member QUEUE NOTES`` reads lines: ``start LIFE SEED`` prints the pid of a new
member, ``wait PID`` prints how it ended. The server opens no queue itself and so has no threads: every
child is as good as a fresh process.

A member notes each operation on a message in a mapped file, before and after the operation.
"""

import asyncio
import mmap
import os
import random
import sys
import traceback
from pathlib import Path
from typing import Any

import uvloop

from aiochronicle import Delivery, Group, aopen_group

__all__ = ["ACKED", "GROUP", "LIVES_MAX", "MESSAGES_MAX", "Notes"]

GROUP = "work"
MESSAGES_MAX = 1 << 20
LIVES_MAX = 1 << 16
ACKING, ACKED = 1, 2
_STATES = 4 * MESSAGES_MAX
_DOOMED = _STATES + MESSAGES_MAX
_SIZE = _DOOMED + LIVES_MAX


class Notes:
    """Holder and acknowledgement of each message; whether each life is about to be killed."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, _SIZE)
        self._map = mmap.mmap(fd, _SIZE)
        os.close(fd)
        view = memoryview(self._map)
        self.holders = view[:_STATES].cast("I")  # life + 1
        self.states = view[_STATES:_DOOMED]
        self.doomed = view[_DOOMED:]


class Member:
    """One life of a member: join, work and leave, over and over, until it is killed."""

    def __init__(self, queue: str, notes: Notes, life: int, seed: int) -> None:
        self._queue = queue
        self._notes = notes
        self._life = life
        self._dice = random.Random(seed)

    async def live(self) -> None:
        while True:
            async with aopen_group(
                self._queue, GROUP, lease_s=60, max_in_flight=200, retry_s=(0.001, 0.002)
            ) as group:
                for _ in range(self._dice.randint(1, 300)):
                    await self._turn(group)

    async def _turn(self, group: Group[Any]) -> None:
        kind = self._dice.random()
        if kind < 0.5:
            await self._settle(await group.next())
        elif kind < 0.6:
            task = asyncio.create_task(group.next())
            await asyncio.sleep(self._dice.choice((0, 0, 0.0002)))
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                await self._settle(task.result())
        elif kind < 0.8:
            batch = await anext(group.batches(self._dice.randint(1, 20)))
            for delivery in batch:
                self._check(delivery)
            self._dice.shuffle(batch)
            for delivery in batch:
                await self._settle(delivery, checked=True)
        else:
            async for delivery in group:
                await self._settle(delivery)
                if self._dice.random() < 0.1:
                    break

    def _check(self, delivery: Delivery[Any]) -> None:
        seq, notes = delivery.seq, self._notes
        assert delivery.message.payload == b"%d" % seq, f"message {seq} has another's payload"
        assert notes.states[seq] != ACKED, f"message {seq} was acknowledged, and comes again"
        other = notes.holders[seq]
        notes.holders[seq] = self._life + 1
        assert not other or notes.doomed[other - 1], f"message {seq} is with another member, too"

    def _let_go(self, seq: int) -> None:
        if self._notes.holders[seq] == self._life + 1:
            self._notes.holders[seq] = 0

    async def _settle(self, delivery: Delivery[Any], *, checked: bool = False) -> None:
        if not checked:
            self._check(delivery)
        seq, kind = delivery.seq, self._dice.random()
        if kind < 0.1:
            delivery.extend()
        if kind < 0.15:
            self._let_go(seq)
            delivery.nack(delay_s=self._dice.choice((0, 0.001)))
        elif kind < 0.2:
            try:
                async with delivery:
                    self._let_go(seq)
                    raise ValueError(seq)
            except ValueError:
                pass
        elif kind < 0.25:
            self._let_go(seq)  # dropped unsettled
        else:
            self._notes.states[seq] = ACKING
            self._let_go(seq)
            if kind < 0.6:
                delivery.ack()
            else:
                async with delivery:
                    pass
            self._notes.states[seq] = ACKED


def _run(queue: str, notes: Notes, life: int, seed: int) -> None:
    try:
        runner = uvloop.run if seed % 2 else asyncio.run
        runner(Member(queue, notes, life, seed).live())
    finally:
        traceback.print_exc()
        os._exit(1)


def serve(queue: str, notes_path: str) -> None:
    """Read lines until the end of standard input."""
    notes = Notes(Path(notes_path))
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "start":
            life, seed = map(int, numbers)
            pid = os.fork()
            if pid == 0:
                _run(queue, notes, life, seed)
            print(pid, flush=True)
        else:
            status = os.waitpid(int(numbers[0]), 0)[1]
            print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
