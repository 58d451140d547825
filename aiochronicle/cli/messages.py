"""``tail`` and ``cat``: the messages of a queue."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import aiochronicle
from aiochronicle import Message
from aiochronicle._core.newest import start_of_newest
from aiochronicle._core.slices import skipped_in
from aiochronicle.cli.arguments import Json, Moment, QueuePath
from aiochronicle.cli.decoding import Decoder
from aiochronicle.cli.exits import DAMAGED, Refused
from aiochronicle.cli.missing import Skipping, say_removed, say_skipped
from aiochronicle.cli.output import Output

__all__ = ["cat", "tail"]

_WAIT_S = 0.2  # after which Ctrl-C is noticed

Type = Annotated[
    str | None,
    Parameter(
        name="--type",
        metavar="TYPE",
        help="only messages of this type: a name of schema.json, or a type_id",
    ),
]
Hex = Annotated[
    bool, Parameter(name="--hex", negative=(), show_default=False, help="dump the payloads")
]
Skip = Annotated[
    bool,
    Parameter(
        name="--skip-corrupt", negative=(), show_default=False, help="step over damaged messages"
    ),
]


def tail(
    queue: QueuePath,
    /,
    *,
    follow: Annotated[
        bool,
        Parameter(alias="-f", negative=(), show_default=False, help="wait for new messages"),
    ] = False,
    lines: Annotated[
        int | None,
        Parameter(alias="-n", metavar="N", help="how many of the last messages; default: 10"),
    ] = None,
    start: Annotated[
        Moment | None,
        Parameter(name="--from", help="start: a seq, a time, or how long ago (15m)"),
    ] = None,
    type_: Type = None,
    hex_: Hex = False,
    skip_corrupt: Skip = False,
    json: Json = False,
) -> int:
    """Show the last messages of a queue, decoded by its schema.json.

    Example: aioc tail -f /var/lib/feeds/trades --type Trade
    """
    if lines is not None and (lines < 0 or start is not None):
        raise Refused("-n takes a number from 0 on" if lines < 0 else "give -n or --from, not both")
    decoder = Decoder(queue)
    decoder.tell_problem()
    wanted = None if type_ is None else decoder.type_id_of(type_)
    printing = _Printing(decoder, as_json=json, as_hex=hex_)
    policy: Literal["skip", "raise"] = "skip" if skip_corrupt else "raise"
    where: int | datetime = 0 if start is None else start
    if start is None:
        where = _start_of_last(queue, 10 if lines is None else lines, wanted, policy)
    say_removed(queue, start)
    with aiochronicle.open_reader(queue, start=where, on_corrupt=policy) as reader:
        reading = Skipping(reader, over_gaps=skip_corrupt)
        found = _matching(reading.messages(), wanted)
        if start is None and not follow:  # more may have been appended since
            found = islice(found, 10 if lines is None else lines)
        printing.all(found)
        reported = _report_skipped(queue, where, reading, 0)
        while follow:
            if reader.wait(_WAIT_S):
                printing.all(_matching(reading.messages(), wanted))
                reported = _report_skipped(queue, where, reading, reported)
    return DAMAGED if reported else 0


def _report_skipped(queue: Path, start: int | datetime, reading: Skipping, reported: int) -> int:
    """Report what was skipped if that is more than was reported before; return how much."""
    skipped = reading.skipped
    if skipped > reported:
        with aiochronicle.Queue(queue, on_corrupt="skip") as whole:
            say_skipped(queue, whole.slice(start), skipped)
    return skipped


def cat(
    queue: QueuePath,
    /,
    *,
    start: Annotated[
        Moment | None, Parameter(name="--from", help="start; default: the oldest message")
    ] = None,
    end: Annotated[
        Moment | None,
        Parameter(name="--to", help="end, excluded; default: the present end"),
    ] = None,
    type_: Type = None,
    raw: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="the payloads alone, each followed by a newline"
        ),
    ] = False,
    hex_: Hex = False,
    skip_corrupt: Skip = False,
    json: Json = False,
) -> int:
    """Print the messages of a queue, all of them or from one place to another.

    Example: aioc cat /var/lib/feeds/trades --from 1000 --to 2000 --json
    """
    decoder = Decoder(queue)
    decoder.tell_problem()
    wanted = None if type_ is None else decoder.type_id_of(type_)
    printing = _Printing(decoder, as_json=json, as_hex=hex_, raw=raw)
    policy: Literal["skip", "raise"] = "skip" if skip_corrupt else "raise"
    with aiochronicle.Queue(queue, on_corrupt=policy, _over_gaps=skip_corrupt) as whole:
        say_removed(queue, start, end)
        part = whole.slice(start, end)
        printing.all(_matching(part, wanted))
        return (
            DAMAGED if say_skipped(queue, part, skipped_in(part, from_oldest=start is None)) else 0
        )


def _matching(messages: Iterable[Message], wanted: int | None) -> Iterator[Message]:
    return (message for message in messages if wanted is None or message.type_id == wanted)


def _start_of_last(
    queue: Path, count: int, wanted: int | None, policy: Literal["skip", "raise"]
) -> int:
    """Return the seq of the first of the newest ``count`` messages of the wanted type."""
    if wanted is None or count == 0:
        return start_of_newest(queue, count, on_corrupt=policy)
    window, before = max(count, 1024), None
    with aiochronicle.Queue(queue, on_corrupt=policy, _over_gaps=policy == "skip") as whole:
        while True:
            start = start_of_newest(queue, window, on_corrupt=policy)
            part = whole.slice(start)
            seqs = [one.seq for one in part if one.type_id == wanted]
            if len(seqs) >= count:
                return seqs[-count]
            if start == before:
                return start
            window, before = window * 2, start


class _Printing:
    """Prints messages in the requested form."""

    def __init__(self, decoder: Decoder, *, as_json: bool, as_hex: bool, raw: bool = False) -> None:
        if as_json + as_hex + raw > 1:
            raise Refused("--json, --hex and --raw exclude each other")
        self._out = Output(as_json=as_json)
        shape: Callable[[Any], str] = decoder.line
        if as_json:
            shape = decoder.json_line
        elif as_hex:
            shape = decoder.hex_lines
        self._shape = shape
        self._raw = raw

    def all(self, messages: Iterable[Message]) -> None:
        """Print and flush them."""
        for message in messages:
            if self._raw:
                self._out.bytes(message.payload + b"\n")
            else:
                self._out.raw(self._shape(message))
        self._out.flush()
