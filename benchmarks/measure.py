"""Run and judge the comparisons.

Times on a shared machine drift by tens of per cent within seconds, ratios taken at the same moment do not.
So contestants take turns, in many short rounds, and the best round of each counts, because noise only adds
time. Loops that only compute are measured by the processor time of their thread, which excludes other
programs; questions about single operations measure waiting, in real time.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

__all__ = [
    "PAYLOAD",
    "PAYLOAD_BYTES",
    "Best",
    "Figure",
    "Result",
    "compare",
    "percentile",
    "skip",
    "workspace",
]

PAYLOAD_BYTES = 100
PAYLOAD = bytes(range(1, 1 + PAYLOAD_BYTES))  # without a zero, which would end a text


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: a measurement, and whether it is within its bar."""

    question: str
    what: str
    measured: float
    bar: float
    unit: str
    passed: bool
    detail: str = ""
    is_least: bool = False  # the bar is a minimum, not a maximum

    @classmethod
    def at_least(
        cls, question: str, what: str, measured: float, bar: float, unit: str, detail: str = ""
    ) -> "Result":
        """Return the result of a measurement that must reach its bar."""
        result = cls.at_most(question, what, measured, bar, unit, detail)
        return msgspec.structs.replace(result, passed=measured >= bar, is_least=True)

    @classmethod
    def at_most(
        cls, question: str, what: str, measured: float, bar: float, unit: str, detail: str = ""
    ) -> "Result":
        """Return the result of a measurement that must not exceed its bar."""
        return cls(
            question=question,
            what=what,
            measured=measured,
            bar=bar,
            unit=unit,
            passed=measured <= bar,
            detail=detail,
        )


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of benchmarks.figures, with every sample of it."""

    question: str
    case: str
    unit: str
    samples: list[float]


class Best(msgspec.Struct, frozen=True):
    """The best round of each contestant, in nanoseconds per operation."""

    ns: dict[str, float]

    def ratio(self, measured: str, yardstick: str) -> float:
        """Return the ratio of the times of two contestants."""
        return self.ns[measured] / self.ns[yardstick]

    def at_most(self, bar: float, what: str, *, question: str, pair: tuple[str, str]) -> Result:
        """Return the result for a contestant and its yardstick, which must not exceed the bar."""
        detail = self.describe(*pair)
        return Result.at_most(question, what, self.ratio(*pair), bar, "x", detail)

    def at_least(self, bar: float, what: str, *, question: str, pair: tuple[str, str]) -> Result:
        """Return the result for a contestant that must be this many times as fast as its yardstick."""
        speed = 1 / self.ratio(*pair)
        return Result.at_least(question, what, speed, bar, "x", self.describe(*pair))

    def describe(self, *names: str) -> str:
        """Return the times behind a ratio, for the table."""
        return " / ".join(f"{self.ns[name]:.1f} ns" for name in names)


def compare(contestants: Mapping[str, Callable[[], int]], rounds: int) -> Best:
    """Let the contestants take turns; each returns the number of operations in its round."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, contestant in contestants.items():
            started_ns = time.thread_time_ns()
            operations = contestant()
            taken_ns = time.thread_time_ns() - started_ns
            best[name] = min(best[name], taken_ns / operations)
    return Best(best)


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def skip(question: str, peer: str, why: str) -> None:
    """Print in the table that a peer was not compared, and why."""
    print(f"{question:8} {peer} was not compared: {why}")


@contextmanager
def workspace(parent: Path | None) -> Iterator[Path]:
    """Yield a directory on disk for the queues, and remove it afterwards."""
    with TemporaryDirectory(prefix="aiochronicle-bench-", dir=parent or Path("/var/tmp")) as name:
        yield Path(name)
