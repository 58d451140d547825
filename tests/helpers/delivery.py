"""R10: four writers and eight readers, killed and stopped at random, under clocks that jump.

Every reader follows every queue through a fan-in and commits now and then. Before it commits, it reports the
messages that it took, as ranges of seqs. The parent process checks that no message is missing or out of
order, that every payload belongs to its seq, and that a killed reader resumes between its last commit and
the last message that it took.
"""

import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import aiochronicle
from aiochronicle import Capacity, FanIn, Retention, open_reader, open_writer

__all__ = ["Delivery"]

WRITERS = 4
READERS = 8
SEGMENT_BYTES = 1 << 20
AHEAD_BYTES = 8 << 20
READER_TTL_S = 600  # longer than any process is dead or stopped
NS_PER_S = 10**9


def payload(queue: int, seq: int) -> bytes:
    return b"%d" % (seq * 1_000_003 + queue) * (1 + seq % 7)


# ---- the processes ----


def _write(root: Path, queue: int) -> None:
    """Append forever, with timestamps from a clock that jumps forward and back."""
    dice = random.Random()
    off_ns = 0

    def clock() -> int:
        return time.time_ns() + off_ns

    with open_writer(
        root / str(queue),
        segment_size=SEGMENT_BYTES,
        clock=clock,
        retention=Retention(check_interval_s=0.05, reader_ttl_s=READER_TTL_S),
        capacity=Capacity(AHEAD_BYTES, policy="block", timeout_s=60),
    ) as writer:
        while True:
            off_ns = dice.randrange(-NS_PER_S, NS_PER_S)
            for _ in range(dice.randrange(100)):
                writer.append(payload(queue, writer.next_seq))
            seq = writer.next_seq
            writer.append_many([payload(queue, seq + i) for i in range(dice.randrange(1, 200))])


def _read(root: Path, name: str) -> None:
    """Take all messages, report them, commit."""
    queues = [open_reader(root / str(queue), name) for queue in range(WRITERS)]
    with FanIn(queues) as fan_in:
        for number, batch in enumerate(_batches(fan_in)):
            taken: dict[int, tuple[int, int]] = {}  # queue: first and last seq
            for message in batch:
                queue, seq = int(message.source), message.seq
                first, last = taken.get(queue, (seq, seq - 1))
                assert seq == last + 1, f"{name}: {seq} of queue {queue} follows {last}"
                assert message.payload == payload(queue, seq), f"{name}: wrong payload at {seq}"
                taken[queue] = first, seq
            ranges = (f"{queue} {first} {last}\n" for queue, (first, last) in taken.items())
            os.write(1, "".join(ranges).encode())
            if number % 8 == 0:
                fan_in.commit()
                os.write(1, b"committed\n")


def _batches(fan_in: FanIn) -> Iterator[list[aiochronicle.Message]]:
    while True:
        fan_in.wait()
        if batch := fan_in.read_batch(2000):
            yield batch


# ---- the parent process ----


class Victim:
    """A process that is restarted whenever it is killed."""

    def __init__(self, role: str, root: Path, name: str) -> None:
        """Start it."""
        self._command = [sys.executable, "-W", "error", __file__, role, str(root), name]
        self.start()

    def start(self) -> None:
        """Start the process again."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.out = self.process.stdout

    def kill(self) -> bytes:
        """Kill the process; return the rest of its output."""
        self.process.kill()
        rest = self.out.read()
        status = self.process.wait()
        self.out.close()
        assert status == -signal.SIGKILL, f"{self._command[4:]} ended by itself with {status}"
        return rest


class Follower(Victim):
    """A reader, and its known progress per queue."""

    def __init__(self, root: Path, number: int) -> None:
        """Start with no message taken."""
        self.taken = [0] * WRITERS  # the first seq that the reader has not taken
        self._committed = [0] * WRITERS
        self._begun = [False] * WRITERS  # since the last start
        self._half_a_line = b""
        super().__init__("reader", root, f"reader{number}")

    def start(self) -> None:
        """Restart the reader. It may resume anywhere between its last commit and the last message it
        took."""
        self._begun = [False] * WRITERS
        self._half_a_line = b""
        super().start()

    def hear(self, said: bytes) -> int:
        """Check the messages that the reader reports; return how many there are."""
        *lines, self._half_a_line = (self._half_a_line + said).split(b"\n")
        messages = 0
        for line in lines:
            if line == b"committed":
                self._commit()
                continue
            queue, first, last = map(int, line.split())
            if self._begun[queue]:
                assert first == self.taken[queue], f"after {self.taken[queue]} came {first}"
            else:
                # A commit in progress when the reader died may or may not have succeeded.
                within = self._committed[queue] <= first <= self.taken[queue]
                assert within, f"began at {first}: {self._committed[queue]}, {self.taken[queue]}"
            self._begun[queue] = True
            self.taken[queue] = last + 1
            messages += last + 1 - first
        return messages

    def _commit(self) -> None:
        """Record the commit, for the queues with messages since the last start."""
        for queue, begun in enumerate(self._begun):
            if begun:
                self._committed[queue] = self.taken[queue]


class Delivery:
    """Starts all processes; ``run`` continues until this many messages are delivered."""

    def __init__(self, root: Path, seed: int) -> None:
        """Make the queues and start all processes."""
        self._root = root
        self._dice = random.Random(seed)
        self.kills = self.stops = 0
        for queue in range(WRITERS):
            open_writer(root / str(queue), segment_size=SEGMENT_BYTES).close()
            for number in range(READERS):  # known to retention before anything can be removed
                with open_reader(root / str(queue), f"reader{number}") as reader:
                    reader.commit()
        self._readers = [Follower(root, number) for number in range(READERS)]
        self._writers = [Victim("writer", root, str(queue)) for queue in range(WRITERS)]

    def run(
        self, messages: int, go_on: Callable[[int], bool] = lambda _: True, *, kills: int = 0
    ) -> int:
        """Return how many messages all readers took; every one is checked.

        Runs until there were at least this many messages and kills, or ``go_on`` returns False.
        """
        delivered = 0
        while (delivered < messages or self.kills < kills) and go_on(delivered):
            delivered += self._hear(self._dice.uniform(0, 0.4))
            victim = self._dice.choice([*self._readers, *self._writers])
            if self._dice.random() < 0.3:
                delivered += self._stop(victim)
            else:
                delivered += self._kill(victim)
        return delivered + self._finish()

    def _hear(self, for_s: float) -> int:
        """Collect the reports of all readers for this long."""
        messages = 0
        deadline_s = time.monotonic() + for_s
        with selectors.DefaultSelector() as selector:
            for reader in self._readers:
                selector.register(reader.out, selectors.EVENT_READ, reader)
            while (left_s := deadline_s - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    said = os.read(key.fd, 1 << 16)
                    assert said, f"a reader ended by itself with {key.data.process.wait()}"
                    messages += key.data.hear(said)
        return messages

    def _kill(self, victim: Victim) -> int:
        rest = victim.kill()
        messages = victim.hear(rest) if isinstance(victim, Follower) else 0
        victim.start()
        self.kills += 1
        return messages

    def _stop(self, victim: Victim) -> int:
        """Stop the process with SIGSTOP for a while, wherever it is."""
        victim.process.send_signal(signal.SIGSTOP)
        messages = self._hear(self._dice.uniform(0, 0.2))
        victim.process.send_signal(signal.SIGCONT)
        self.stops += 1
        return messages

    def _finish(self) -> int:
        """Kill the writers, and wait until every reader has taken all messages."""
        for writer in self._writers:
            writer.kill()
        self._writers = []
        ends = []
        for queue in range(WRITERS):
            with open_writer(self._root / str(queue)) as successor:
                ends.append(successor.next_seq)
        messages = 0
        deadline_s = time.monotonic() + 120
        while any(reader.taken != ends for reader in self._readers):
            assert time.monotonic() < deadline_s, [(r.taken, ends) for r in self._readers]
            messages += self._hear(0.1)
        return messages

    def __enter__(self) -> Self:
        """Return itself: the processes already run."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all processes."""
        for victim in (*self._readers, *self._writers):
            victim.process.kill()
            victim.process.wait()
            victim.out.close()


if __name__ == "__main__":
    role, root, name = sys.argv[1:]
    if role == "writer":
        _write(Path(root), int(name))
    else:
        _read(Path(root), name)
