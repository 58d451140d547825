"""``export``, ``replay`` and ``convert``: messages into files and into other queues."""

import asyncio
import csv
import io
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from cyclopts import Parameter

import aiochronicle
from aiochronicle import Message, Slice
from aiochronicle._columns.export import replaceable, replacing
from aiochronicle._core.slices import skipped_in
from aiochronicle.cli.arguments import Directory, Json, Moment, QueuePath, path_argument
from aiochronicle.cli.decoding import Decoder
from aiochronicle.cli.exits import DAMAGED, Refused
from aiochronicle.cli.finding import find_queues, is_queue
from aiochronicle.cli.missing import say_removed, say_skipped
from aiochronicle.cli.output import Output
from aiochronicle.cli.progress import progress
from aiochronicle.cli.units import age, amount, many, rate
from aiochronicle.errors import ExportFailed

__all__ = ["convert", "export", "replay"]

Format = Literal["parquet", "arrow", "csv", "jsonl"]
_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_FIELDS = ("seq", "timestamp_ns", "time", "type_id", "type")
_TOLD_EVERY = 4096


def export(
    queue: QueuePath,
    file: Annotated[
        Path,
        path_argument(
            "FILE", "the file to write; an existing one is replaced after everything was written"
        ),
    ],
    /,
    *,
    format_: Annotated[
        Format | None, Parameter(name="--format", help="default: by the name of the file")
    ] = None,
    start: Annotated[
        Moment | None, Parameter(name="--from", help="start; default: the oldest message")
    ] = None,
    end: Annotated[
        Moment | None, Parameter(name="--to", help="end, excluded; default: the present end")
    ] = None,
    type_: Annotated[
        str | None,
        Parameter(
            name="--type",
            metavar="TYPE",
            help="only this type of schema.json, with a column per field",
        ),
    ] = None,
    skip_corrupt: Annotated[
        bool, Parameter(negative=(), show_default=False, help="step over damaged messages")
    ] = False,
    json: Json = False,
) -> int:
    """Write messages to a file: Parquet, Arrow, CSV or JSON lines.

    Example: aioc export /var/lib/feeds/trades trades.parquet --type Trade --from 1h
    """
    chosen = format_ or _SUFFIXES.get(file.suffix.lower())
    if chosen is None:
        known = ", ".join(sorted(_SUFFIXES))
        raise Refused(f"{file}: say --format, or name the file with one of {known}.")
    try:
        replaceable(file)
    except ExportFailed as error:
        raise Refused(str(error)) from None
    decoder = Decoder(queue)
    if decoder.problem is not None:
        raise Refused(f"{queue}: {decoder.problem}. Nothing was exported.", DAMAGED)
    wanted = None if type_ is None else decoder.type_id_of(type_)
    say_removed(queue, start, end)
    began_s = time.monotonic()
    with (
        aiochronicle.Queue(
            queue, on_corrupt="skip" if skip_corrupt else "raise", _over_gaps=skip_corrupt
        ) as whole,
        progress(is_bytes=False) as advance,
    ):
        part = whole.slice(start, end)
        if chosen in ("parquet", "arrow"):
            rows = part.export(
                file,
                codec=type_,
                format=chosen,
                progress=lambda step: advance("export", step.rows, step.rows_total),
            )
        else:
            rows = _export_text(part, file, decoder, wanted, chosen, advance)
        damage = say_skipped(queue, part, skipped_in(part, from_oldest=start is None))
    passed_s = max(time.monotonic() - began_s, 1e-9)
    size = file.stat().st_size
    Output(as_json=json).record(
        {
            "path": str(file),
            "format": chosen,
            "rows": rows,
            "bytes": size,
            "skipped": 0 if damage is None else max(1, damage.corrupt),
            "missing_seqs": 0 if damage is None else damage.missing_seqs,
        },
        [
            ("file", str(file)),
            ("rows", f"{rows:,}"),
            ("size", amount(size)),
            ("took", f"{age(passed_s)}, {rate(rows / passed_s)}"),
        ],
    )
    return 0 if damage is None else DAMAGED


def _export_text(
    part: Slice,
    file: Path,
    decoder: Decoder,
    wanted: int | None,
    form: str,
    advance: Callable[[str, int, int], None],
) -> int:
    total = part.count
    rows = 0
    with replacing(file) as out:
        for line in _lines(_count(part, total, advance), decoder, wanted, form):
            out.write(line)
            rows += 1
    return rows - (form == "csv")


def _count(part: Slice, total: int, advance: Callable[[str, int, int], None]) -> Iterator[Message]:
    for number, message in enumerate(part):
        if number % _TOLD_EVERY == 0:
            advance("export", number, total)
        yield message


def _lines(
    messages: Iterable[Message], decoder: Decoder, wanted: int | None, form: str
) -> Iterator[bytes]:
    codec = None if wanted is None else decoder.codec(wanted)
    names = [] if codec is None else list(codec.type.__struct_fields__)
    if form == "csv":
        yield _csv_line([*_FIELDS, *(names or ["payload"])])
    for message in messages:
        if wanted is not None and message.type_id != wanted:
            continue
        if form == "jsonl":
            yield decoder.json_line(message).encode() + b"\n"
        else:
            yield _csv_line(_csv_row(decoder.record(message), names))


def _csv_row(record: dict[str, Any], names: list[str]) -> list[Any]:
    head = [record[name] for name in _FIELDS]
    value = record.get("value")
    if names:
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        return [*head, *(fields.get(name) for name in names)]
    if value is not None:
        import json

        return [*head, json.dumps(value)]
    return [*head, record.get("text", record.get("base64"))]


def _csv_line(row: Iterable[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(row)
    return text.getvalue().encode()


def replay(
    source: Directory,
    target: Directory,
    /,
    *,
    start: Annotated[Moment | None, Parameter(name="--from", help="from this time on")] = None,
    end: Annotated[Moment | None, Parameter(name="--to", help="before this time")] = None,
    speed: Annotated[
        float | None,
        Parameter(
            help="1 keeps the recorded intervals, 10 is ten times as fast; default: as fast as possible"
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Copy recorded queues into new queues of the same names, with their timestamps.

    If it is interrupted, start it again: it continues where it stopped.

    Example: aioc replay /var/lib/feeds /tmp/yesterday --from 2026-01-30 --to 2026-01-31 --speed 10

    Parameters
    ----------
    source
        a queue, or a directory with queues below it
    target
        directory for the new queues, created if missing
    """
    for name, moment in (("--from", start), ("--to", end)):
        if isinstance(moment, int):
            raise Refused(f"replay {name} takes a time, as 2026-01-31T12:00:00Z or 15m, not a seq")
    assert not isinstance(start, int)
    assert not isinstance(end, int)
    for path in find_queues(source):
        if aiochronicle.inspect(path).format == "cq4":
            raise Refused(
                f"{path}: messages of a Java queue have neither times nor ids, which replay needs; make a"
                " native queue of it with aioc convert."
            )
    if speed is not None and not 0 < speed < float("inf"):
        raise Refused(f"--speed {speed:g}: give a positive number, or leave it out")
    _refuse_inside(source, target)
    began_s = time.monotonic()
    count = aiochronicle.run(_replay(source, target, start, end, speed))
    passed_s = max(time.monotonic() - began_s, 1e-9)
    Output(as_json=json).record(
        {"source": str(source), "target": str(target), "messages": count, "seconds": passed_s},
        [
            ("replayed", f"{many(count, 'message')} into {target}"),
            ("took", f"{age(passed_s)}, {rate(count / passed_s)}"),
        ],
    )
    return 0


def _refuse_inside(source: Path, target: Path) -> None:
    """Refuse a target that would be a source of the next replay, or would put queues into a queue."""
    whole, origin = target.resolve(), source.resolve()
    if whole.is_relative_to(origin) or (is_queue(source) and whole / origin.name == origin):
        raise Refused(f"{target}: is in what is replayed, {source}; give a directory beside it.")
    queue = next((one for one in (whole, *whole.parents) if is_queue(one)), None)
    if queue is not None:
        raise Refused(f"{target}: {queue} is a queue; give a directory for the new queues.")


async def _replay(
    source: Path, target: Path, start: datetime | None, end: datetime | None, speed: float | None
) -> int:
    with progress(is_bytes=False) as advance:
        async with aiochronicle.replay(source, speed=speed, start=start, end=end) as history:
            total = max(history.lag.messages, 1)
            copying = asyncio.create_task(history.into(target, cause="message"))
            while not copying.done():
                await asyncio.wait([copying], timeout=0.1)
                if not history.closed:
                    advance("replay", history.statistics().messages, total)
            return copying.result()


def convert(
    source: Annotated[Path, Parameter(metavar="QUEUE", help="a native queue, or a Java queue")],
    target: Annotated[Path, Parameter(metavar="NEW", help="path of the new queue; must not exist")],
    /,
    *,
    roll_cycle: Annotated[
        str, Parameter(metavar="NAME", help="of the Java queue, as in Java's RollCycles")
    ] = "FAST_DAILY",
    timestamp: Annotated[
        str | None,
        Parameter(
            metavar="FIELD", help="for a Java queue: the field with the time, in nanoseconds"
        ),
    ] = None,
    headers: Annotated[
        Literal["drop", "field"],
        Parameter(help="keys and headers: left out, or in fields of a Java document"),
    ] = "drop",
    skip_corrupt: Annotated[
        bool, Parameter(negative=(), show_default=False, help="step over damaged messages")
    ] = False,
    json: Json = False,
) -> int:
    """Copy a native queue to a new Java queue, or a Java queue to a new native one.

    Messages keep their order and payloads, readers their positions. The report at the end lists what the
    other format cannot store. An interrupted conversion leaves nothing.

    Example: aioc convert /var/lib/feeds/trades /var/lib/java/trades --roll-cycle FAST_HOURLY
    """
    began_s = time.monotonic()
    with progress(is_bytes=False) as advance:
        report = aiochronicle.convert(
            source,
            target,
            roll_cycle=roll_cycle,
            timestamp=timestamp,
            headers=headers,
            on_corrupt="skip" if skip_corrupt else "raise",
            progress=lambda step: advance("convert", step.messages, step.messages_total),
        )
    passed_s = max(time.monotonic() - began_s, 1e-9)
    if report.skipped:
        with aiochronicle.Queue(source, on_corrupt="skip") as whole:
            say_skipped(source, whole.slice(), report.skipped)
    Output(as_json=json).record(
        report,
        [
            ("queue", f"{report.path}, {'Java' if report.format == 'cq4' else 'native'}"),
            ("messages", f"{report.messages:,}"),
            ("readers", f"{report.readers:,}"),
            ("took", f"{age(passed_s)}, {rate(report.messages / passed_s)}"),
            *([("times raised", f"{report.times_raised:,}")] if report.times_raised else []),
            *(("not carried", text) for text in report.not_carried),
        ],
    )
    return DAMAGED if report.skipped else 0
