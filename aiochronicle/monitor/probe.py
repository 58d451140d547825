"""Measures wake latency: the time from a message's timestamp until a sleeping reader has the message.

It is a program of its own, so that the rest of the monitor does not delay it. Standard input has JSON
lines, each a list of queue numbers and paths. The probe takes one queue after the other: it sleeps at the
end of the queue until the writer wakes it, and prints the number of the queue and the latency in
nanoseconds.

It measures at most ``SAMPLES_PER_S`` times a second in total. That is also the cost for all writers
together: so many wake-ups a second.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import msgspec

from aiochronicle._core.reader import Reader, open_reader
from aiochronicle.errors import ChronicleError

__all__ = ["SAMPLES_PER_S", "main"]

SAMPLES_PER_S = 20
QUEUES_MAX = 64
_WAIT_S = 0.2
_OLD_NS = 10 * 10**9  # a timestamp of the program's own choice, or a replay

Targets = list[tuple[int, str]]


class _Probe:
    def __init__(self) -> None:
        self.targets: Targets = []
        self._readers: dict[str, Reader[Any]] = {}

    def listen(self) -> None:
        """Read the list of queues from standard input; the process ends when that ends."""
        for line in sys.stdin.buffer:
            self.targets = msgspec.json.decode(line, type=Targets)
        os._exit(0)  # the other thread may be in the middle of a wait

    def run(self) -> None:
        """Measure the queues in turn until the process ends."""
        while True:
            targets = self.targets[:QUEUES_MAX]
            self._let_go({path for _, path in targets})
            for number, path in targets:
                began_s = time.monotonic()
                with suppress(ChronicleError, OSError):
                    taken_ns = self._measure(path)
                    if taken_ns is not None:
                        sys.stdout.write(f"{number} {taken_ns}\n")
                        sys.stdout.flush()
                time.sleep(max(0.0, began_s + 1 / SAMPLES_PER_S - time.monotonic()))
            if not targets:
                time.sleep(_WAIT_S)

    def _measure(self, path: str) -> int | None:
        if path not in self._readers:
            self._readers[path] = open_reader(path, start="last", verify=False)
        reader = self._readers[path]
        try:
            reader.seek_last()
            if not reader.wait(_WAIT_S):
                return None
            woken_ns = time.time_ns()
            message = reader.poll()
            is_woken = reader.statistics().attended
        except BaseException:
            del self._readers[path]
            reader.close()
            raise
        taken_ns = -1 if message is None else woken_ns - message.timestamp_ns
        # A reader that may not be woken polls, and would measure that.
        return taken_ns if is_woken and 0 <= taken_ns < _OLD_NS else None

    def _let_go(self, wanted: set[str]) -> None:
        for path in self._readers.keys() - wanted:
            self._readers.pop(path).close()


def main() -> None:
    """Measure until standard input ends."""
    probe = _Probe()
    threading.Thread(target=probe.listen, daemon=True).start()
    with suppress(KeyboardInterrupt, BrokenPipeError):
        probe.run()


if __name__ == "__main__":
    main()
