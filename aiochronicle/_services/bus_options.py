"""Parameters of a bus's writers and readers."""

from typing import Literal, TypedDict

from aiochronicle._core.reader import StartPoint, WaitStrategy
from aiochronicle._core.writer_sending import Format
from aiochronicle.config import Batch, Capacity, Retention, Roll

__all__ = ["Delivery", "ReaderOptions", "WriterOptions"]

Delivery = Literal["before", "after", "manual"] | int


class WriterOptions(TypedDict, total=False):
    """Parameters of open_writer that Bus.writer takes; they override the configuration file."""

    segment_size: int
    roll: Roll | None
    flush: Literal["async", "sync"] | Batch
    retention: Retention | None
    capacity: int | Capacity | None
    heartbeat: float | None
    max_ahead_s: float | None
    ready: bool
    mode: int
    memlock: bool
    verify: bool
    lock_timeout: float | None
    format: Format | None
    roll_cycle: str | None
    epoch: int | None
    shared: bool | str


class ReaderOptions(TypedDict, total=False):
    """Parameters of open_reader that Bus.reader takes."""

    start: StartPoint
    commit: Literal["manual", "auto"] | int
    on_corrupt: Literal["raise", "skip"]
    wait: WaitStrategy
    burst: int
    verify: bool
    poll_max_us: int | None
    wait_for_queue: bool
