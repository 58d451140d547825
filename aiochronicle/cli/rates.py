"""``hz`` and ``latency``: message rates and latencies."""

import time
from typing import Annotated

from cyclopts import Parameter

import aiochronicle
from aiochronicle._base.histogram import Histogram
from aiochronicle.cli.arguments import Json, QueuePath, Seconds
from aiochronicle.cli.exits import Refused
from aiochronicle.cli.output import Output
from aiochronicle.cli.units import age, amount, many, rate

__all__ = ["hz", "latency"]

_SHOWN_S = 1.0
_PERCENTILES = (50.0, 90.0, 99.0, 99.9)

Length = Annotated[
    Seconds, Parameter(name="--seconds", help="how long to measure; 0: until Ctrl-C")
]


def hz(queue: QueuePath, /, *, seconds: Length = 5.0, json: Json = False) -> None:
    """Count new messages: one line per second, and the total at the end.

    Example: aioc hz /var/lib/feeds/trades --seconds 10
    """
    out = Output(as_json=json)
    with aiochronicle.open_reader(queue, start="last", verify=False) as reader:
        began_s = shown_s = time.monotonic()
        total = total_bytes = messages = size = 0  # in earlier lines, and in the incomplete line
        try:
            while True:
                until_s = shown_s + _SHOWN_S
                if seconds:
                    until_s = min(until_s, began_s + seconds)
                while (left_s := until_s - time.monotonic()) > 0:
                    reader.wait(left_s)
                    batch = reader.read_batch(4096)
                    messages += len(batch)
                    size += sum(map(len, batch))
                now_s = time.monotonic()
                _tell_rate(out, messages, size, now_s - shown_s, whole=False)
                shown_s = now_s
                total, total_bytes = total + messages, total_bytes + size
                messages = size = 0
                if seconds and now_s - began_s >= seconds:
                    break
        finally:
            if not json:
                passed_s = time.monotonic() - began_s
                _tell_rate(out, total + messages, total_bytes + size, passed_s, whole=True)


def _tell_rate(out: Output, messages: int, size: int, passed_s: float, *, whole: bool) -> None:
    passed_s = max(passed_s, 1e-9)
    if out.as_json:
        out.json(
            {
                "messages": messages,
                "payload_bytes": size,
                "seconds": passed_s,
                "messages_per_s": messages / passed_s,
                "bytes_per_s": size / passed_s,
            }
        )
    else:
        text = f"{rate(messages / passed_s):>10}  {amount(size / passed_s):>10}/s"
        mean = f"  {amount(size / messages)} each" if messages else ""
        out.line(
            f"{text}{mean}"
            + (f"  in {age(passed_s)}: {many(messages, 'message')}" if whole else "")
        )
    out.flush()


def latency(
    queue: QueuePath,
    /,
    *,
    seconds: Length = 5.0,
    timestamp: Annotated[
        str | None,
        Parameter(
            metavar="FIELD", help="for a Java queue: the field with the time, in nanoseconds"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure the time from a message's timestamp until a reader has the message.

    The reader sleeps until the writer wakes it, like your own readers. Both clocks are this machine's. If a
    program sets its own timestamps, the figure is their age.

    Example: aioc latency /var/lib/feeds/trades --seconds 10
    """
    out = Output(as_json=json)
    histogram = Histogram()
    ahead = 0
    if timestamp is None and aiochronicle.inspect(queue).format == "cq4":
        raise Refused(
            f"{queue}: messages of a Java queue have no time of their own; say which field has it"
            " with --timestamp FIELD."
        )
    with aiochronicle.open_reader(queue, start="last", verify=False, timestamp=timestamp) as reader:
        until_s = time.monotonic() + seconds if seconds else float("inf")
        try:
            while (left_s := until_s - time.monotonic()) > 0:
                reader.wait(min(left_s, 0.2))
                for message in reader.read_batch(256):
                    taken_ns = time.time_ns() - message.timestamp_ns
                    ahead += taken_ns < 0
                    histogram.add(taken_ns)
        finally:
            _tell_latency(out, histogram, ahead)


def _tell_latency(out: Output, histogram: Histogram, ahead: int) -> None:
    values = {percent: histogram.percentile(percent) for percent in (*_PERCENTILES, 100.0)}
    named = {
        ("max" if percent == 100 else f"p{percent:g}".replace(".", "")): value
        for percent, value in values.items()
    }
    if out.as_json:
        out.json(
            {
                "messages": histogram.total,
                "ahead_of_clock": ahead,
                **{f"{name}_ns": value for name, value in named.items()},
            }
        )
        return
    if not histogram.total:
        out.line("no message came")
        return
    shown = "  ".join(
        f"p{percent:g} {age((value or 0) / 1e9)}"
        for percent, value in values.items()
        if percent < 100
    )
    out.line(f"{many(histogram.total, 'message')}  {shown}  max {age((values[100.0] or 0) / 1e9)}")
    if ahead:
        out.line(
            f"{ahead:,} of them have a timestamp ahead of this machine's clock; they count as 0"
        )
