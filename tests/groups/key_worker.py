"""A server that forks members of a keyed topic group, one per line of input, and kills them.

``python key_worker.py TOPIC NOTES`` reads lines: ``start LIFE SEED`` prints the pid of a new member, ``kill
PID`` kills one, and prints the pid. The server opens nothing itself, so a child is equivalent to a fresh
process.

The payload of a message is KEY:NUMBER, and the numbers of a key grow, whichever writer appends them. A
mapped file holds, per key, its holder and the last number done.
"""

import mmap
import os
import random
import signal
import sys
import traceback
from pathlib import Path

from aiochronicle import Message, TopicGroup

KEYS = 8
LIVES = 4096
_HOLDERS, _DONE, _DOOMED = 0, 4 * KEYS, 8 * KEYS
SIZE = _DOOMED + LIVES


class Notes:
    """Per key: its holder and the last number done. Per life: whether it is about to be killed."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, SIZE)
        self._map = mmap.mmap(fd, SIZE)
        os.close(fd)
        view = memoryview(self._map)
        self.holders = view[_HOLDERS:_DONE].cast("I")  # life + 1
        self.done = view[_DONE:_DOOMED].cast("I")  # number + 1
        self.doomed = view[_DOOMED:]


def key_of(message: Message) -> bytes:
    """Return the key."""
    return message.payload.split(b":")[0]


def work(topic: str, notes: Notes, life: int, seed: int) -> None:
    """Take and check messages until killed."""
    dice = random.Random(seed)
    while True:
        with TopicGroup(
            topic, "work", order="key", key=key_of, lease_s=60, max_in_flight=20, retry_s=0
        ) as group:
            for _ in range(dice.randint(1, 200)):
                if not group.wait(0.05):
                    continue
                batch = group.take_batch(dice.randint(1, 5))
                for delivery in batch:
                    key, number = map(int, delivery.message.payload.split(b":"))
                    other = notes.holders[key]
                    notes.holders[key] = life + 1
                    assert not other or notes.doomed[other - 1], f"key {key} is with another, too"
                    # A message whose member was killed after the work but before the ack is delivered again.
                    last = notes.done[key]
                    assert number in (last, last - 1), f"{key}: {number} comes after {last - 1}"
                dice.shuffle(batch)
                for delivery in batch:
                    key, number = map(int, delivery.message.payload.split(b":"))
                    if dice.random() < 0.1:
                        notes.holders[key] = 0
                        delivery.nack()
                        continue
                    notes.done[key] = number + 1
                    notes.holders[key] = 0
                    delivery.ack()


def serve(topic: str, notes_path: str) -> None:
    """Serve requests until the end of standard input."""
    notes = Notes(Path(notes_path))
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "start":
            life, seed = map(int, numbers)
            pid = os.fork()
            if pid == 0:
                try:
                    work(topic, notes, life, seed)
                finally:
                    traceback.print_exc()
                    os._exit(1)
        else:
            pid = int(numbers[0])
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it had failed before"
        print(pid, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
