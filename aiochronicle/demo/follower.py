"""A reader: the process that follows one queue. The demo starts it, with a ReaderSpec."""

import sys
import time
from itertools import islice

import msgspec

import aiochronicle
from aiochronicle.demo.market import number_of
from aiochronicle.demo.reports import ReaderReport, ReaderSpec, Reporter, Stop
from aiochronicle.histogram import Histogram

__all__ = ["main"]

BURST = 1024
WAIT_S = 0.05


class Tally:
    """What a reader knows about the messages it was handed."""

    def __init__(self, first_seq: int) -> None:
        self.messages = 0
        self.payload_bytes = 0
        self.gaps = 0
        self.wrong = 0
        self.latencies = Histogram()
        self._expected_seq = first_seq

    def take(self, message: aiochronicle.Message) -> None:
        """Count a message: is it the next one, is it the right one, how old is it."""
        self.latencies.add(time.time_ns() - message.timestamp_ns)
        payload = message.payload
        self.messages += 1
        self.payload_bytes += len(payload)
        self.gaps += message.seq != self._expected_seq
        self.wrong += number_of(payload) != message.seq
        self._expected_seq = message.seq + 1


def follow(spec: ReaderSpec, reader: aiochronicle.Reader, stop: Stop, reporter: Reporter) -> None:
    """Read until told to stop, and then to the end of the queue."""
    tally = Tally(spec.first_seq)
    while True:
        stopping = stop.is_set()  # before the look, so that nothing written until then is missed
        before = tally.messages
        for message in islice(reader, BURST):
            tally.take(message)
        if tally.messages > before:
            reader.commit()
        elif stopping:
            break
        else:
            reader.wait(WAIT_S)
        if reporter.is_due():
            reporter.send(_report(spec, reader, tally))
    reporter.send(_report(spec, reader, tally))


def _report(spec: ReaderSpec, reader: aiochronicle.Reader, tally: Tally) -> ReaderReport:
    return ReaderReport(
        queue=spec.queue,
        name=spec.name,
        messages=tally.messages,
        payload_bytes=tally.payload_bytes,
        gaps=tally.gaps,
        wrong=tally.wrong,
        lag=reader.lag.messages,
        latencies=tally.latencies.take(),
    )


def main(argument: str) -> None:
    """Read until standard input ends, and then what is left."""
    spec = msgspec.json.decode(argument, type=ReaderSpec)
    stop = Stop()
    with aiochronicle.open_reader(spec.path, spec.name, start=spec.first_seq) as reader:
        follow(spec, reader, stop, Reporter())


if __name__ == "__main__":
    main(sys.argv[1])
