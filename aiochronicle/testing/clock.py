"""A clock that tests move."""

from datetime import datetime

from aiochronicle._core.reader import unix_ns

__all__ = ["ManualClock"]


class ManualClock:
    """Unix nanoseconds that stand still until they are moved: ``open_writer(clock=ManualClock(...))``.

    It may go back, like a system's clock; the writer then continues with its newest timestamp.

    >>> clock = ManualClock(1_000)
    >>> with open_writer(tmp_path / "q", clock=clock) as writer:
    ...     _ = writer.append(b"one")
    ...     clock.advance(0.5)
    ...     _ = writer.append(b"two")
    >>> with open_reader(tmp_path / "q") as reader:
    ...     [message.timestamp_ns for message in reader]
    [1000, 500001000]
    """

    def __init__(self, start: int | datetime = 0) -> None:
        self._now_ns = unix_ns(start, "start")

    def __call__(self) -> int:
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Move forward, or back by a negative number of seconds."""
        self._now_ns += round(seconds * 1e9)

    def set(self, to: int | datetime) -> None:
        """Show this time: Unix nanoseconds or an aware datetime."""
        self._now_ns = unix_ns(to, "to")
