"""Run a fan-in over real queues and its reference through the same random history."""

import os
import random
from pathlib import Path

import pytest
from reference.merge import CLOSED, Delivered, ReferenceMerge

import aiochronicle
from aiochronicle import FanIn, Message, Reader, Writer, open_reader, open_writer

SEGMENT_BYTES = 1 << 16


FIRST_NS = 1_000


class Machine:
    """A fan-in over real queues and its reference, which go through the same history."""

    def __init__(self, root: Path, seed: int, *, strict: bool, queues: int) -> None:
        self.chance = random.Random(seed)
        self.root = root
        self.fan_in = FanIn(order="strict" if strict else "available")
        self.reference = ReferenceMerge(strict=strict)
        self.now_ns = FIRST_NS
        self.delivered = 0
        self.writers: list[Writer | None] = []
        self.last_ns: list[int] = []
        self.promised_ns: list[int] = []
        self.unread: list[list[tuple[int, int]]] = []  # queues that are not attached
        self.readers: list[Reader] = []
        self.source_of: dict[int, int] = {}  # queue -> source id
        for queue in range(queues):
            self.writers.append(self.open(queue))
            self.readers.append(open_reader(root / f"{queue}", "merge"))
            self.last_ns.append(0)
            self.promised_ns.append(0)
            self.unread.append([])

    def open(self, queue: int) -> Writer:
        return open_writer(self.root / f"{queue}", segment_size=SEGMENT_BYTES)

    def close(self) -> None:
        self.fan_in.close()
        for handle in (*self.readers, *self.writers):
            if handle is not None:
                handle.close()

    def step(self) -> None:
        queue = self.chance.randrange(len(self.writers))
        actions = {
            self.append: 60,
            self.heartbeat: 20,
            self.attach: 6,
            self.detach: 3,
            self.end: 1 if len(self.writers) <= 8 else 8,
            self.reopen: 4,
            self.commit: 3,
        }
        (action,) = self.chance.choices([*actions], [*actions.values()])
        action(queue)
        self.compare()

    def moment(self, queue: int) -> int:
        """Return a time that often repeats and that this queue may still use."""
        self.now_ns += self.chance.choice((0, 0, 1, 1, 2, 5))
        return max(self.last_ns[queue], self.now_ns - self.chance.randrange(8))

    def append(self, queue: int) -> None:
        writer = self.writers[queue]
        if writer is None:
            return
        count = self.chance.choice((1, 1, 1, 2, 7))
        times = sorted(self.moment(queue) for _ in range(count))
        payloads = [os.urandom(self.chance.choice((0, 8, 300))) for _ in times]
        seqs = writer.append_many(payloads, timestamps_ns=times)
        self.last_ns[queue] = times[-1]
        for seq, timestamp_ns in zip(seqs, times, strict=True):
            if queue in self.source_of:
                self.reference.append(self.source_of[queue], timestamp_ns, seq)
            else:
                self.unread[queue].append((timestamp_ns, seq))

    def heartbeat(self, queue: int) -> None:
        writer = self.writers[queue]
        if writer is None:
            return
        self.last_ns[queue] = self.promised_ns[queue] = self.moment(queue)
        writer.heartbeat(self.last_ns[queue])
        self.promise(queue, self.last_ns[queue])

    def promise(self, queue: int, timestamp_ns: int) -> None:
        if queue in self.source_of:
            self.reference.promise(self.source_of[queue], timestamp_ns)

    def attach(self, queue: int) -> None:
        if queue in self.source_of:
            with pytest.raises(aiochronicle.errors.InvalidArgument, match="attached already"):
                self.fan_in.attach(self.readers[queue])
            return
        source = self.fan_in.attach(self.readers[queue])
        self.source_of[queue] = source
        promise_ns = CLOSED if self.writers[queue] is None else self.promised_ns[queue]
        self.reference.attach(source, self.unread[queue], promise_ns)
        self.unread[queue] = []

    def detach(self, queue: int) -> None:
        source = self.source_of.pop(queue, None)
        if source is None:
            with pytest.raises(KeyError):
                self.fan_in.detach(2**31)
            return
        assert self.fan_in.detach(source) is self.readers[queue]
        self.unread[queue] = self.reference.detach(source)
        if self.chance.random() < 0.5:  # alone, it continues after the last delivered message
            alone = [(m.timestamp_ns, m.seq) for m in self.readers[queue]]
            assert alone == self.unread[queue]
            self.unread[queue] = []
        self.readers[queue].commit()
        self.readers[queue].close()
        self.readers[queue] = open_reader(self.root / f"{queue}", "merge")

    def end(self, queue: int) -> None:
        writer, self.writers[queue] = self.writers[queue], None
        if writer is not None:
            writer.close()
            self.promise(queue, CLOSED)

    def reopen(self, queue: int) -> None:
        if self.writers[queue] is None:
            self.writers[queue] = self.open(queue)
            self.promise(queue, self.promised_ns[queue])

    def commit(self, queue: int) -> None:
        """Commit, and check where another reader of that name would continue."""
        source = self.source_of.get(queue)
        if source is None:
            self.fan_in.commit()
            return
        self.fan_in.commit(source)
        waiting = self.reference.sources[source].waiting
        with open_reader(self.root / f"{queue}") as other:
            other.seek_position(self.readers[queue].committed)
            message = other.poll()
            found = None if message is None else (message.timestamp_ns, message.seq)
            assert found == (waiting[0] if waiting else None)

    def compare(self) -> None:
        self.fan_in._check()
        # Now and then leave messages unread, so that heads are waiting during the next steps.
        limit = self.chance.choice((0, 1, 5, 10**6, 10**6))
        while limit > 0:
            limit -= 1
            expected = self.reference.poll()
            message = self.fan_in.poll()
            assert self.as_delivered(message) == expected
            if message is None:
                break
            self.delivered += 1
        self.fan_in._check()
        if limit > 0:
            blocked_by = self.fan_in.statistics().blocked_by
            blockers = self.reference.blockers() if self.reference.strict else set()
            assert (blocked_by in blockers) if blockers else blocked_by is None

    def as_delivered(self, message: Message | None) -> Delivered | None:
        if message is None:
            return None
        source = self.source_of[int(message.source)]
        return Delivered(message.timestamp_ns, source, message.seq, message.late)

    def finish(self) -> None:
        """Close every writer, so that the merge has nothing to wait for; compare the rest."""
        for queue in range(len(self.writers)):
            self.end(queue)
        while (expected := self.reference.poll()) is not None:
            assert self.as_delivered(self.fan_in.poll()) == expected
            self.delivered += 1
        assert self.fan_in.poll() is None
        statistics = self.fan_in.statistics()
        assert statistics.delivered == self.delivered
        assert statistics.idle == statistics.sources == len(self.source_of)
        assert self.fan_in.lag.messages == 0
