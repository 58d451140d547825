"""R1 in C: kill a writer at a random instant, recover in fresh processes, compare.

csrc/tests/kill_writer.c does the killing and reports what the writer had acknowledged and what the
recoveries said; here the directory that is left is judged.
"""

import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from .oracle import BrokenPromiseError, check_queue, require
from .programs import program
from .scratch import in_memory

__all__ = ["KillLoop", "Tally", "memory_directory"]

_SEGMENT_SIZES = (4096, 4160, 8192, 16384, 65536)
_SIGKILL = 9
_NEVER = -1


def memory_directory() -> Path:
    """Return a new directory in memory if the machine has such a file system, else on disk."""
    return Path(tempfile.mkdtemp(prefix="aiochronicle-kill-", dir=in_memory()))


class Tally(msgspec.Struct):
    """What the kills hit, to show that they hit everything."""

    cycles: int = 0
    in_a_call: int = 0  # … that adds records
    took_effect: int = 0  # of those, the records are there
    before_first_open: int = 0
    after_clean_close: int = 0
    inside_recovery: int = 0
    messages: int = 0

    def add(self, other: "Tally") -> None:
        """Add another one's numbers."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


Report = dict[str, int]


def _parse(line: str) -> tuple[Report, str]:
    numbers, _, detail = line.rstrip("\n").partition(" detail=")
    pairs = (pair.split("=") for pair in numbers.split())
    return {name: int(value) for name, value in pairs}, detail


def _check_readers(report: Report, next_seq: int) -> None:
    """Each named reader resumes behind its last commit, or behind the one that was under way."""
    for name in ("reader0_", "reader1_"):
        committed, attempted = report[name + "committed"], report[name + "attempted"]
        if committed == _NEVER:
            continue
        require(report[name + "error"] == 0, "{}: error {}", name, report[name + "error"])
        require(report[name + "wrong"] == 0, "{}: wrong message", name)
        resumed = report[name + "first"] if report[name + "messages"] else next_seq
        require(
            resumed in (committed, attempted),
            "{} resumes at {}, committed were {} and perhaps {}",
            name,
            resumed,
            committed,
            attempted,
        )
        end = resumed + report[name + "messages"]
        require(end == next_seq, "{} stops at {} of {}", name, end, next_seq)


def _check_recovery(report: Report, which: str, next_seq: int, end: tuple[int, int]) -> None:
    """A kill tears nothing that was committed, so nothing may be found corrupt or set aside."""
    require(report[which + "error"] == 0, "{} recovery fails: {}", which, report[which + "error"])
    for name in ("torn", "corrupt", "aside"):
        require(report[which + name] == 0, "{} recovery reports {}", which, name)
    require(report[which + "next_seq"] == next_seq, "{} recovery goes on elsewhere", which)
    found = report[which + "end_segment"], report[which + "end_offset"]
    durable = report[which + "durable_segment"], report[which + "durable_offset"]
    if report[which + "next_seq"] > 0:
        require(durable <= found, "{} recovery ends at {} before {}", which, found, durable)
    require(found <= end, "{} recovery reports the end at {}, not {}", which, found, end)
    if report[which + "clean"]:
        require(report[which + "scanned"] == 0, "{} recovery is clean but scanned", which)


def _late_readers(report: Report) -> list[str]:
    """Names that registered while retention was at work, and have not committed anything yet."""
    names = zip(("reader0_", "reader1_"), ("audit", "risk"), strict=True)
    return [
        f"reader {name}: segment removed"
        for prefix, name in names
        if report["retained"] and report[prefix + "committed"] == _NEVER
    ]


def check_report(report: Report, path: Path, salt: int) -> int:
    """Compare all that is known about one cycle; return the next seq of the queue."""
    require(report["writer_status"] == _SIGKILL, "the writer ended with {}", report)
    require(report["crashes"] == 0, "a reader or a recovery crashed")
    require(
        report["failed_line"] == 0,
        "a call gave {} at kill_writer.c:{}",
        report["failed_code"],
        report["failed_line"],
    )
    first_seq, next_seq, dump = check_queue(path, salt, tolerated=_late_readers(report))
    promised = report["acknowledged"], report["attempted"]
    # A queue whose segments were all removed but for an empty one has nothing left to show.
    counted = next_seq if dump.records else report["second_next_seq"]
    require(counted in promised, "next seq is {}, promised were {}", counted, promised)
    require(bool(report["retained"]) or first_seq == 0, "seqs below {} are gone", first_seq)
    require(report["before_error"] == 0, "before recovery: error {}", report["before_error"])
    for look, name in (("before_", "before"), ("first_all_", "after")):
        require(report[look + "wrong"] == 0, "{} recovery: wrong message", name)
        if dump.records:
            seen = report[look + "first"], report[look + "next"]
            require(seen == (first_seq, next_seq), "{} recovery a reader sees {}", name, seen)
    assert dump.end is not None
    _check_recovery(report, "first_", counted, dump.end)
    _check_recovery(report, "second_", counted, dump.end)
    if report["closed"] and not report["first_verify"]:
        require(report["first_clean"] == 1, "closed cleanly, but recovered")
    require(report["same_bytes"] == 1, "a second recovery changed the segments")
    _check_readers(report, counted)
    return counted


class KillLoop:
    """Runs cycles, one after the other, over queues that are replaced now and then."""

    def __init__(self, seed: int, *, cycles_per_queue: int = 6) -> None:
        """Start the program that does the killing."""
        self._seed = seed
        self._random = random.Random(seed)
        self._cycles_per_queue = cycles_per_queue
        self._root = memory_directory()
        self._process = subprocess.Popen(
            [program("kill_writer")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _cycle(self, path: Path, salt: int, segment_size: int, fresh: bool) -> tuple[Report, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        seed = self._random.getrandbits(63)
        self._process.stdin.write(f"cycle {path} {salt} {seed} {segment_size} {fresh:d}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BrokenPromiseError(f"kill_writer ended with {self._process.wait()}")
        return _parse(line)

    def run(self, cycles: int, go_on: Callable[[Tally], bool] = lambda _: True) -> Tally:
        """Run so many cycles, or until ``go_on``, asked after each queue, says no."""
        tally = Tally()
        while tally.cycles < cycles and go_on(tally):
            path = self._root / f"queue{tally.cycles}"
            salt = self._random.getrandbits(63)
            segment_size = self._random.choice(_SEGMENT_SIZES)
            for turn in range(min(self._cycles_per_queue, cycles - tally.cycles)):
                report, detail = self._cycle(path, salt, segment_size, turn == 0)
                try:
                    next_seq = check_report(report, path, salt)
                except BrokenPromiseError as violation:
                    raise BrokenPromiseError(
                        f"{violation}\nseed {self._seed}, cycle {tally.cycles},"
                        f" queue kept in {path}\n{report} {detail}"
                    ) from None
                self._count(tally, report, next_seq)
            shutil.rmtree(path)
        return tally

    @staticmethod
    def _count(tally: Tally, report: Report, next_seq: int) -> None:
        hit = report["attempted"] != report["acknowledged"]
        tally.cycles += 1
        tally.in_a_call += hit
        tally.took_effect += hit and next_seq == report["attempted"]
        tally.before_first_open += not report["opened"]
        tally.after_clean_close += report["closed"]
        tally.inside_recovery += report["recovery_kills"]
        tally.messages += next_seq

    def close(self, *, keep_queue: bool) -> None:
        """Stop the program; remove the queue unless it is wanted as evidence."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()
        if not keep_queue:
            shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(keep_queue=kind is not None and issubclass(kind, BrokenPromiseError))
