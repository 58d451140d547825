"""How the demo's processes talk: JSON lines upwards, the end of standard input downwards.

A child works until its standard input ends, and then reads everything that is left. It ends at once when its
parent is gone, so no child outlives the parent.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Literal

import msgspec

from aiochronicle._base.prepared import prepared

__all__ = ["Report", "Role", "Spec", "Stop", "reporting"]

REPORT_INTERVAL_S = 0.1
PARENT_INTERVAL_S = 0.2

Role = Literal["venue", "strategy", "router", "gateway", "risk"]


@prepared
class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a process."""

    role: Role
    name: str
    root: str
    venues: list[str] = []
    rate_hz: int = 0
    segment_bytes: int = 0
    seed: int = 0


@prepared
class Report(msgspec.Struct, frozen=True, kw_only=True):
    """State of a process. ``times`` are the latency buckets counted since the report before."""

    name: str
    done: int
    lag: int = 0
    times: dict[int, int] = {}
    orders: int = 0
    fills: int = 0
    sources: list[str] = []
    positions: dict[str, int] = {}
    opened_ms: float = 0.0


@contextlib.asynccontextmanager
async def reporting(report: Callable[[], Report]) -> AsyncGenerator[None]:
    """Write reports to standard output: now, a few times per second, and at the end."""
    encoder = msgspec.json.Encoder()

    def send() -> None:
        sys.stdout.buffer.write(encoder.encode(report()) + b"\n")
        sys.stdout.buffer.flush()

    async def repeat() -> None:
        while True:
            send()
            await asyncio.sleep(REPORT_INTERVAL_S)

    repeating = asyncio.create_task(repeat())
    try:
        yield
        send()
    finally:
        repeating.cancel()


class Stop(asyncio.Event):
    """Set when standard input ends. Create it in the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._parent = os.getppid()
        self._loop.add_reader(0, self._read)
        self._watch_parent()

    def _read(self) -> None:
        if not os.read(0, 4096):
            self._loop.remove_reader(0)
            self.set()

    def _watch_parent(self) -> None:
        if os.getppid() != self._parent:
            os._exit(3)
        self._loop.call_later(PARENT_INTERVAL_S, self._watch_parent)
