"""Programs during which the power is cut, and what must be left of their queue at each moment.

A Scenario runs real writers and readers over a Recording and keeps, for every moment, an
Expectation: which messages may be there, how many must be, and where the named reader may stand.
"""

import errno
import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import aiochronicle
from aiochronicle import Position, Reader, Retention, Roll, Writer

from .power_disk import Recording
from .system_calls import Call, injected, observed

__all__ = ["READER", "Expectation", "Scenario", "random_scenario", "small_scenario"]

READER = "audit"


class Expectation(msgspec.Struct):
    """What a power cut must and may leave, from ``time`` on.

    ``payloads`` holds all payloads by seq, including those being written. The first ``durable`` of them must
    be there, except those before ``first``, which retention was free to remove. The queue may end only at a
    seq in ``ends``: batches are whole or absent.
    """

    time: int
    payloads: list[bytes]
    ends: frozenset[int]
    durable: int
    first: int
    positions: tuple[Position, ...]  # where the named reader's commit may be
    unrepaired: list[bytes] | None = (
        None  # what a reader may get before a writer has repaired the queue
    )


class Scenario:
    """One program. Each method is a step; the recording sees all of them."""

    def __init__(self, queue: Path, *, after: Expectation | None = None) -> None:
        self.queue = queue
        self.recording = Recording(queue)
        self.life = 0 if after is None else len(after.payloads) + 1_000_000
        self.expectations = [after or Expectation(0, [], frozenset({0}), 0, 0, ())]
        self.expectations[0].time = 0
        self._recovering = after is not None
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        # Starts after the timestamps of all earlier programs.
        self._clock = itertools.count(1_700_000_000_000_000_000 + self.life * 1_000_000)
        self._failing_syncs = False

    # ---- the oracle ----

    @property
    def now(self) -> Expectation:
        return self.expectations[-1]

    def at(self, time: int) -> Expectation:
        """Return what holds for a power cut at this time."""
        return next(state for state in reversed(self.expectations) if state.time <= time)

    def _expect(self, **changes: Any) -> None:
        self.expectations.append(
            msgspec.structs.replace(self.now, time=self.recording.mark(), **changes)
        )

    def _about_to_append(self, payloads: list[bytes]) -> None:
        known = self.now.payloads
        end = len(known) + len(payloads)
        self._expect(payloads=known + payloads, ends=self.now.ends | {end})

    def _payload(self, length: int) -> bytes:
        seq = len(self.now.payloads)
        return random.Random(f"{self.life} {seq}").randbytes(length)

    # ---- the steps ----

    @property
    def writer(self) -> Writer:
        assert self._writer is not None
        return self._writer

    @property
    def reader(self) -> Reader:
        assert self._reader is not None
        return self._reader

    def run(self, steps: Callable[["Scenario"], None]) -> "Scenario":
        """Run the steps under the recording; drop what they leave open, as a kill does."""
        with observed(self._answer):
            try:
                steps(self)
                self.recording.mark()
            finally:
                self.kill()
                self.close_reader()
        return self

    def _answer(self, call: Call) -> int:
        if self._failing_syncs and call.name in ("sync", "sync_map"):
            return errno.EIO
        return self.recording.before_call(call)

    def open(self, **options: Any) -> None:
        options.setdefault("_inline_housekeeping", 1)
        self._writer = aiochronicle.open_writer(
            self.queue, clock=lambda: next(self._clock), **options
        )
        end = self._writer.next_seq
        if self._recovering:
            # A cut during recovery must lead to exactly the same end.
            for state in self.expectations:
                state.unrepaired = state.payloads
                state.payloads = state.payloads[:end]
                state.ends = frozenset({end})
                state.durable = end
            self._recovering = False
        assert end == len(self.now.payloads), (end, len(self.now.payloads))
        self._expect(durable=end, unrepaired=None)  # recovery syncs what it found

    def append(self, length: int) -> None:
        payload = self._payload(length)
        self._about_to_append([payload])
        self.writer.append(payload)
        self.recording.mark()

    def batch(self, *lengths: int) -> None:
        payloads = [self._payload(length)[:-1] + bytes([i]) for i, length in enumerate(lengths)]
        self._about_to_append(payloads)
        self.writer.append_many(payloads)
        self.recording.mark()

    def reserve(self, length: int, *, abandon: bool = False) -> None:
        payload = self._payload(length)
        if not abandon:
            self._about_to_append([payload])
        try:
            with self.writer.reserve(length) as room:
                room[: length // 2] = payload[: length // 2]
                self.recording.mark()
                room[length // 2 :] = payload[length // 2 :]
                self.recording.mark()
                if abandon:
                    raise _AbandonedError
        except _AbandonedError:
            pass
        self.recording.mark()

    def flush(self) -> None:
        assert self.writer.flush_now() == len(self.now.payloads)
        self._expect(durable=len(self.now.payloads))

    def failing_flush(self) -> None:
        """Flush while the disk fails: nothing is promised, and the writer is dropped."""
        self._failing_syncs = True
        try:
            self.writer.flush_now()
        except aiochronicle.errors.StorageError:
            pass
        else:
            # Rolling had already synced everything.
            self._expect(durable=len(self.now.payloads))
        finally:
            self._failing_syncs = False
        self.kill()

    def close(self) -> None:
        self.writer.close()
        self._writer = None
        self._expect(durable=len(self.now.payloads))

    def kill(self) -> None:
        """End the writer as SIGKILL does: none of its later system calls has an effect."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        # Closing must fail; it still releases its lock and its mappings.
        with injected(None, errno.EIO), suppress(aiochronicle.ChronicleError):
            writer.close()
        self.recording.mark()

    def attach(self) -> None:
        # A new reader starts at the segment that is the oldest by then.
        starts = (Position(int(path.stem), 64) for path in self.queue.glob("*.q"))
        self._expect(positions=(*self.now.positions, *starts))
        try:
            self._reader = aiochronicle.open_reader(self.queue, READER)
        except aiochronicle.errors.PositionLost:  # in the previous life
            self._reader = aiochronicle.open_reader(self.queue, READER, start="first")
        self._expect(positions=(*self.now.positions, self._reader.committed))

    def read(self, count: int) -> None:
        for _ in range(count):
            self.reader.poll()
        self._expect(positions=(*self.now.positions, self.reader.position))
        self.reader.commit()
        self.recording.mark()

    def close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def retain(self) -> None:
        before = len(self.expectations)
        self._expect()
        self.writer.retain_now()
        with aiochronicle.open_reader(self.queue, start="first") as reader:
            oldest = reader.poll()
        first = len(self.now.payloads) if oldest is None else oldest.seq
        for state in self.expectations[before:]:
            state.first = max(state.first, first)
        self._expect()


class _AbandonedError(Exception):
    pass


def random_scenario(rng: random.Random) -> Callable[[Scenario], None]:
    """Return 5 to 40 steps with rolls, reopenings, a reader and retention."""
    segment_size = rng.choice((4096, 8192, 16384))
    options: dict[str, Any] = {"segment_size": segment_size}
    if rng.random() < 0.5:
        options["roll"] = Roll(messages=rng.randint(1, 8))
    if rng.random() < 0.3:
        options["flush"] = "sync"
    if rng.random() < 0.3:
        options["retention"] = Retention(max_bytes=rng.randint(1, 3) * segment_size)
    if rng.random() < 0.3:  # earlier segments are not on disk yet
        options["_inline_housekeeping"] = 2
    count = rng.randint(5, 40)
    plan = rng.getrandbits(64)

    def steps(scenario: Scenario) -> None:
        choose = random.Random(plan)
        scenario.open(**options)
        attached = False
        for _ in range(count):
            step = choose.choices(
                ("append", "batch", "reserve", "abandon", "flush", "fail", "close", "kill",
                 "attach", "read", "retain"),
                (30, 15, 8, 4, 12, 2, 5, 5, 5, 15, 5),
            )[0]  # fmt: skip
            if step == "append":
                _append(scenario, choose.choice((0, 1, 40, 200, 700, 1500)))
            elif step == "batch":
                scenario.batch(*(choose.choice((1, 100, 400)) for _ in range(choose.randint(2, 5))))
                _settled(scenario)
            elif step in ("reserve", "abandon"):
                scenario.reserve(choose.randint(2, 900), abandon=step == "abandon")
                _settled(scenario)
            elif step == "flush":
                scenario.flush()
            elif step == "attach" and not attached:
                scenario.attach()
                attached = True
            elif step == "read" and attached:
                scenario.read(choose.randint(0, 6))
            elif step == "retain" and "retention" in options:
                scenario.retain()
            elif step in ("fail", "close", "kill"):
                {"fail": scenario.failing_flush, "close": scenario.close, "kill": scenario.kill}[
                    step
                ]()
                scenario.open(**options)
        if choose.random() < 0.3:
            scenario.close()

    def _settled(scenario: Scenario) -> None:
        if options.get("flush") == "sync":
            scenario._expect(durable=len(scenario.now.payloads))

    def _append(scenario: Scenario, length: int) -> None:
        scenario.append(length)
        _settled(scenario)

    return steps


def small_scenario(rng: random.Random) -> Callable[[Scenario], None]:
    """Return a program so small that all its images can be checked."""
    plan = [rng.choice(("append", "batch", "flush", "roll", "reopen")) for _ in range(3)]

    def steps(scenario: Scenario) -> None:
        options: dict[str, Any] = {"segment_size": 4096, "roll": Roll(messages=2)}
        if "roll" not in plan:
            del options["roll"]
        scenario.open(**options)
        scenario.append(100)
        for step in plan:
            if step == "append" or step == "roll":
                scenario.append(600)
            elif step == "batch":
                scenario.batch(300, 500)
            elif step == "flush":
                scenario.flush()
            else:
                scenario.kill()
                scenario.open(**options)

    return steps
