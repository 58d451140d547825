"""R13: processes that open, use and close all kinds of objects for hours must not leak.

Each role is a process of its own. It repeatedly closes all its objects and reports what it still holds
according to the kernel. Descriptors and mappings must be exactly the same every time, and its heap must not
grow. ``python tests/helpers/soaking.py ROLE ROOT`` is such a process.
"""

import asyncio
import functools
import gc
import itertools
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from aiochronicle import FanIn, Retention, open_reader, open_writer
from aiochronicle._core.reader import StartPoint
from aiochronicle.errors import PositionLost

__all__ = ["HEAP_GROWTH_MIB_PER_HOUR", "Soak"]

HEAP_GROWTH_MIB_PER_HOUR = 1.0
QUEUES = 4
SEGMENT_BYTES = 1 << 16
BURST_MESSAGES = 200
CYCLES_PER_REPORT = 50
WARM_UP_SHARE = 0.25  # share of the run until the heap size is stable


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a process that has closed all its objects."""

    role: str
    cycles: int  # since the last report: opened and closed, attached and detached
    messages: int
    holds: dict[str, int]  # number of open descriptors and mapped files, by kind
    heap_kib: int


# ---- the processes ----


def _holds() -> dict[str, int]:
    found: Counter[str] = Counter()
    for fd in list(Path("/proc/self/fd").iterdir()):
        try:
            found[re.sub(r"\d+", "N", f"open {fd.readlink()}")] += 1
        except FileNotFoundError:  # the descriptor of this listing
            continue
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/"):
            found[f"mapped {fields[5]}"] += 1
    return dict(found)


def _heap_kib() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"RssAnon:\s+(\d+)", status)
    assert found
    return int(found[1])


def _queues(root: Path) -> list[Path]:
    return [root / f"q{number}" for number in range(QUEUES)]


def _write(number: int, root: Path) -> Iterator[tuple[int, int]]:
    """Append in bursts, and let retention remove segments that the readers have finished."""
    path = _queues(root)[number]
    while True:
        with open_writer(
            path,
            segment_size=SEGMENT_BYTES,
            retention=Retention(max_bytes=64 * SEGMENT_BYTES),
        ) as writer:
            for _ in range(BURST_MESSAGES):
                writer.append(b"x" * 200)
            writer.flush_now()
        yield 1, BURST_MESSAGES
        time.sleep(0.002)


def _read_a_little(path: Path, number: int) -> int:
    name = f"r{number % 3}" if number % 2 else None
    start: StartPoint = "committed" if name else "last" if number % 4 else "first"
    try:
        with open_reader(path, name, start=start) as reader:
            messages = reader.read_batch(100)
            if name and messages:
                reader.commit(messages[-1])
            if number % 16 == 0:
                reader.seek_first()
            return len(messages)
    except PositionLost:  # retention was faster, which is allowed
        with open_reader(path, name, start="last") as reader:
            reader.commit()
    return 0


def _read(root: Path) -> Iterator[tuple[int, int]]:
    """Open readers by name and without one, read a little, commit, seek, close."""
    for number, path in enumerate(itertools.cycle(_queues(root))):
        yield 1, _read_a_little(path, number)


def _merge(root: Path) -> Iterator[tuple[int, int]]:
    """Attach and detach sources while the fan-in keeps merging."""
    for number in itertools.count():
        readers = [open_reader(path, start="last") for path in _queues(root)]
        with FanIn(order="strict" if number % 2 else "available", max_wait=0.01) as fan_in:
            taken = 0
            for reader in readers:
                source = fan_in.attach(reader)
                taken += len(fan_in.read_batch(20))
                fan_in.detach(source)
                fan_in.attach(reader)
            fan_in.wait(0.01)
            taken += len(fan_in.read_batch(100))
        for reader in readers:
            reader.close()
        yield 1 + 2 * len(readers), taken


def _await(root: Path) -> Iterator[tuple[int, int]]:
    """Wait on eventfds in an event loop, and get cancelled."""

    async def take(path: Path) -> int:
        taken = 0
        async with open_reader(path, start="last") as reader:
            try:
                async with asyncio.timeout(0.005):
                    async for _ in reader:
                        taken += 1
            except TimeoutError:
                pass
        return taken

    async def take_all() -> int:
        return sum(await asyncio.gather(*(take(path) for path in _queues(root))))

    with asyncio.Runner() as runner:
        while True:
            yield QUEUES, runner.run(take_all())


ROLES: dict[str, Callable[[Path], Iterator[tuple[int, int]]]] = {
    **{f"writer-{number}": functools.partial(_write, number) for number in range(QUEUES)},
    "reader": _read,
    "fan-in": _merge,
    "loop": _await,
}


def _main(role: str, root: Path) -> None:
    work = ROLES[role](root)
    while True:
        done = [next(work) for _ in range(CYCLES_PER_REPORT)]
        gc.collect()
        report = Report(
            role=role,
            cycles=sum(cycles for cycles, _ in done),
            messages=sum(messages for _, messages in done),
            holds=_holds(),
            heap_kib=_heap_kib(),
        )
        print(msgspec.json.encode(report).decode(), flush=True)


# ---- the parent process ----


class Watched:
    """One process: its first report, and the history of its heap size."""

    def __init__(self, role: str, root: Path) -> None:
        self.role = role
        self.cycles = self.messages = 0
        self.heap: list[tuple[float, int]] = []  # seconds, KiB
        self._first: dict[str, int] | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, role, str(root)], stdout=subprocess.PIPE
        )

    def hear(self) -> None:
        """Take the next report and compare it with the first one, made after caches have warmed up."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"{self.role} ended with {self._process.wait()}"
        report = msgspec.json.decode(line, type=Report)
        self.cycles += report.cycles
        self.messages += report.messages
        self.heap.append((time.monotonic(), report.heap_kib))
        if self._first is None:
            self._first = report.holds
        more = Counter(report.holds)
        more.subtract(self._first)
        changed = {what: count for what, count in more.items() if count}
        assert not changed, f"{self.role} holds more or less than at first: {changed}"

    def heap_growth(self) -> tuple[float, float]:
        """Return the heap growth since the warm-up in MiB, and in MiB per hour, by linear regression."""
        begin_s = self.heap[0][0] + WARM_UP_SHARE * (self.heap[-1][0] - self.heap[0][0])
        warm = [(when_s, kib) for when_s, kib in self.heap if when_s >= begin_s]
        if len(warm) < 2:
            return 0.0, 0.0
        slope_kib, _ = statistics.linear_regression(*zip(*warm, strict=True))
        return slope_kib * (warm[-1][0] - warm[0][0]) / 1024, slope_kib * 3600 / 1024

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


class Soak:
    """All roles at work on the same queues.

    >>> with Soak(tmp_path) as soak:
    ...     soak.step()
    """

    def __init__(self, root: Path) -> None:
        """Make the queues and start the processes."""
        for path in _queues(root):
            open_writer(path, segment_size=SEGMENT_BYTES).close()
        self.watched = [Watched(role, root) for role in ROLES]

    @property
    def cycles(self) -> int:
        """How many times an object was opened and closed, or attached and detached."""
        return sum(watched.cycles for watched in self.watched)

    def step(self) -> None:
        """Take one report of each process."""
        for watched in self.watched:
            watched.hear()

    def check_heaps(self) -> None:
        """Raise if a heap grew by more than an hour's limit, and faster than the limit."""
        for watched in self.watched:
            grown_mib, per_hour_mib = watched.heap_growth()
            slow = per_hour_mib < HEAP_GROWTH_MIB_PER_HOUR
            assert slow or grown_mib < HEAP_GROWTH_MIB_PER_HOUR, (
                f"the heap of {watched.role} grew by {grown_mib:.2f} MiB, {per_hour_mib:.2f} an hour"
            )

    def summary(self) -> str:
        """Return a line per process."""
        lines = [f"  {'process':<10}{'cycles':>10}{'messages':>12}{'heap MiB':>10}{'grown':>8}"]
        for watched in self.watched:
            heap_mib = watched.heap[-1][1] / 1024 if watched.heap else 0
            lines.append(
                f"  {watched.role:<10}{watched.cycles:>10,}{watched.messages:>12,}"
                f"{heap_mib:>10.1f}{watched.heap_growth()[0]:>8.2f}"
            )
        return "\n".join(lines)

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
        for watched in self.watched:
            watched.stop()


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
