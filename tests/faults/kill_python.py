"""R1 through Python: the same loop as kill_loop, with the package's own writer as the victim."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from aiochronicle import Writer, open_reader, open_writer

from .kill_loop import Tally, memory_directory
from .oracle import BrokenPromiseError, check_queue, payload, require
from .victim import READER, Ledger, RandomJob, VictimServer, Word

__all__ = ["PythonKillLoop"]

_SEGMENT_SIZES = (4096, 8192, 65536)


def _check_reader(path: Path, ledger: Ledger, salt: int, next_seq: int) -> None:
    """The named reader resumes after its last commit, or after the one that was under way."""
    committed = {ledger[Word.COMMITTED], ledger[Word.COMMIT_ATTEMPTED]}
    if 0 in committed:
        return  # perhaps it never committed; then it may start anywhere
    with open_reader(path, READER) as reader:
        messages = list(reader)
    seqs = [message.seq for message in messages]
    resumed = seqs[0] if seqs else next_seq
    require(resumed + 1 in committed, "resumes at {}, not at {} - 1", resumed, committed)
    require(seqs == list(range(resumed, next_seq)), "the reader finds {}", seqs)
    require(all(m.payload == payload(salt, m.seq) for m in messages), "wrong payload")


class PythonKillLoop:
    """Runs cycles, one after the other, over queues that are replaced now and then."""

    def __init__(self, seed: int, *, cycles_per_queue: int = 5) -> None:
        """Start the server that forks the victims."""
        self._seed = seed
        self._dice = random.Random(seed)
        self._cycles_per_queue = cycles_per_queue
        self._root = memory_directory()
        self._server = VictimServer()

    def _kill_one(self, job: RandomJob) -> None:
        pid = self._server.start(job)
        time.sleep(self._dice.uniform(0, 0.02) ** 2 / 0.02)  # the random instant; mostly soon
        os.kill(pid, signal.SIGKILL)
        status = self._server.wait()
        require(status == -signal.SIGKILL, "the writer ended with {}", status)

    def _recover(self, path: Path, ledger: Ledger, salt: int, segment_size: int) -> int:
        """Open the queue after the kill and compare it with what was promised."""
        with open_writer(path, segment_size=segment_size) as writer:
            first = self._judge(writer, ledger)
        late = ledger[Word.RETAINED] and not ledger[Word.COMMITTED]
        tolerated = [f"reader {READER}: segment removed"] if late else []
        first_seq, next_seq, dump = check_queue(path, salt, tolerated=tolerated)
        require(bool(ledger[Word.RETAINED]) or first_seq == 0, "seqs below {} gone", first_seq)
        if dump.records:
            require(next_seq == first, "the writer goes on at {}, not {}", first, next_seq)
        _check_reader(path, ledger, salt, first)
        return first

    @staticmethod
    def _judge(writer: Writer, ledger: Ledger) -> int:
        statistics = writer.statistics()
        promised = {ledger[Word.ACKNOWLEDGED], ledger[Word.ATTEMPTED]}
        found = statistics.next_seq
        require(found in promised, "next seq is {}, promised were {}", found, promised)
        recovery = statistics.recovery
        require(recovery.torn_records == recovery.corrupt_records == 0, "torn: {}", recovery)
        require(recovery.segments_set_aside == 0, "set aside: {}", recovery)
        return found

    def run(self, cycles: int, go_on: Callable[[Tally], bool] = lambda _: True) -> Tally:
        """Run this many cycles, or until ``go_on``, called after each queue, returns false."""
        tally = Tally()
        while tally.cycles < cycles and go_on(tally):
            path = self._root / f"queue{tally.cycles}"
            salt = self._dice.getrandbits(63)
            size = self._dice.choice(_SEGMENT_SIZES)
            ledger_path = str(self._root / "ledger")
            ledger = Ledger(ledger_path)
            try:
                for _ in range(min(self._cycles_per_queue, cycles - tally.cycles)):
                    seed = self._dice.getrandbits(63)
                    self._kill_one(RandomJob(str(path), salt, seed, size, ledger_path))
                    hit = ledger[Word.ATTEMPTED] != ledger[Word.ACKNOWLEDGED]
                    tally.before_first_open += not ledger[Word.OPENED]
                    next_seq = self._recover(path, ledger, salt, size)
                    tally.cycles += 1
                    tally.in_a_call += hit
                    tally.took_effect += hit and next_seq == ledger[Word.ATTEMPTED]
                    tally.messages += next_seq
                    ledger[Word.ACKNOWLEDGED] = ledger[Word.ATTEMPTED] = next_seq
                    if ledger[Word.COMMITTED]:
                        resumed = self._resumed(path, next_seq)
                        ledger[Word.COMMIT_ATTEMPTED] = ledger[Word.COMMITTED] = resumed
            except BrokenPromiseError as violation:
                raise BrokenPromiseError(
                    f"{violation}\nseed {self._seed}, cycle {tally.cycles}, queue kept in {path}"
                ) from None
            finally:
                ledger.close()
                Path(ledger_path).unlink()
            shutil.rmtree(path)
        return tally

    @staticmethod
    def _resumed(path: Path, next_seq: int) -> int:
        """Return 1 + the seq at which the reader will resume."""
        with open_reader(path, READER) as reader:
            message = reader.poll()
        return 1 + (next_seq if message is None else message.seq)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        if kind is None or not issubclass(kind, BrokenPromiseError):
            shutil.rmtree(self._root, ignore_errors=True)
