"""JVMs and our processes append to one queue while both follow it; all see the same sequence."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from .judge import Digest, Judge
from .ours import Ours, digest

__all__ = ["Load", "append_together"]

_PATIENCE_S = 30.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The appenders and their load. Every other JVM writes calls with a MethodWriter."""

    roll_cycle: str
    jvms: int = 2
    ours: int = 2
    messages: int  # of each
    rate_hz: int = 0  # per appender; 0: as fast as possible
    speed: int = 1  # of the clock that rolls the cycles
    java_first: bool = True  # Java creates the queue

    @property
    def total(self) -> int:
        return (self.jvms + self.ours) * self.messages


def append_together(path: Path, load: Load) -> Digest:
    """Run the load; raise AssertionError if messages are lost, duplicated, reordered or read differently."""
    with ExitStack() as stack:
        since_ms = time.time_ns() // 1_000_000
        clock = {"speed": load.speed, "since_ms": since_ms}
        judges = [stack.enter_context(Judge()) for _ in range(load.jvms + 1)]
        ours = [
            stack.enter_context(Ours(speed=load.speed, since_ms=since_ms))
            for _ in range(load.ours + 1)
        ]
        options: dict[str, Any] = {"roll_cycle": load.roll_cycle, **clock}
        if not load.java_first:
            ours[0].open(path, roll_cycle=load.roll_cycle)
            ours[0].close_writer()
        queues = [stack.enter_context(judge.open(path, **options)) for judge in judges]
        tailer = stack.enter_context(queues[-1].tailer(start="start"))
        tailer.start_digest(load.total, wait_s=_PATIENCE_S)
        ours[-1].start_digest(path, load.total, wait_s=_PATIENCE_S)
        for number, queue in enumerate(queues[:-1]):
            queue.start_append(
                prefix=f"java{number}",
                count=load.messages,
                rate_hz=load.rate_hz or None,
                calls=number % 2 == 1,
            )
        for number, process in enumerate(ours[:-1]):
            process.start_flood(
                path,
                f"ours{number}",
                count=load.messages,
                rate_hz=load.rate_hz,
            )
        timeout_s = 60.0 + 2 * load.messages / (load.rate_hz or 2000)
        for process in ours[:-1]:
            assert process.finish_flood(timeout_s)["written"] == load.messages
        for judge, queue in zip(judges, queues[:-1], strict=False):
            judge.timeout_s = timeout_s
            written = queue.stop_append(let_finish=True)
            assert (written.written, written.thrown) == (load.messages, None), written
        heard = tailer.finish_digest(timeout_s)
        followed, counts = ours[-1].finish_digest(timeout_s)
    assert heard.gap is None, heard
    assert heard == followed
    assert sorted(counts.values()) == [load.messages] * (load.jvms + load.ours), counts
    assert digest(path)[0] == heard, "what was followed is not what is there"
    return heard
