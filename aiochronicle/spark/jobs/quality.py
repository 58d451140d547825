"""The quality of recorded data: gaps, duplicates, disorder and delays, by queue and day.

Numbers are the queue's own seqs, of all its messages, or a field in which the venue numbers its own.
Times are those of the queue, or a field with the time of the venue, in nanoseconds; the delay is the
difference.

A task reduces its range to runs of consecutive numbers, a histogram of delays and a few sums. These are
merged per queue, so the result does not depend on how the queues were divided. Whether a message is out of
order depends on the newest time of everything before its range, which a first pass finds.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
from pyspark.sql import DataFrame, SparkSession

from aiochronicle._base.histogram import Histogram, buckets_of
from aiochronicle.errors import InvalidArgument, NotSupported
from aiochronicle.spark.arrow import Batch, Column, Table, pa
from aiochronicle.spark.jobs.bars import nanoseconds
from aiochronicle.spark.jobs.inputs import Input, find_input
from aiochronicle.spark.options import Given, ReadOptions, Roots
from aiochronicle.spark.source.plan import Range
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.source.typed import TypedDecoder, find_type, rows_of_types
from aiochronicle.spark.tasks import run_tasks

__all__ = ["PERCENTILES", "quality"]

Array = np.ndarray[Any, np.dtype[Any]]

LARGEST_NS = 2**63 - 1
DAY_NS = 86_400 * 10**9
PERCENTILES = {"delay_p50_ns": 50.0, "delay_p99_ns": 99.0, "delay_p999_ns": 99.9}
SMALLEST_LIKELY_NS = 10**17  # 1973; of the present, microseconds are less

_NEWEST = "part long, newest_ns long, first_delay_ns long"
_PARTIALS = (
    "source string, day long, first_seq long, messages long, first_ns long, last_ns long,"
    " silence_ns long, out_of_order long, late long, delay_min_ns long, delay_max_ns long,"
    " usual_ns long, buckets array<long>, counts array<long>,"
    " usual_buckets array<long>, usual_counts array<long>, duplicates long,"
    " run_keys array<string>, run_starts array<long>, run_ends array<long>"
)
_QUALITY = (
    "source string, date date, messages long, first_ns long, last_ns long, silence_ns long,"
    " gaps long, missing long, duplicates long, out_of_order long, late long,"
    " delay_min_ns long, delay_p50_ns long, delay_p99_ns long, delay_p999_ns long,"
    " delay_max_ns long"
)


class _Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of the fields: the parameters of a task."""

    type_name: str | None
    number: str | None
    time: str | None
    by: str | None
    late_ns: int

    @property
    def fields(self) -> list[str]:
        return [name for name in (self.number, self.time, self.by) if name is not None]


def quality(
    spark: SparkSession,
    root: Roots,
    *,
    messages: str | None = None,
    number: str | None = None,
    time: str | None = None,
    by: str | None = None,
    late: str | int = "1s",
    options: Mapping[str, Given] | None = None,
) -> DataFrame:
    """Return one row per queue and day (UTC) with the quality of its messages.

    ``messages`` names a type of schema.json; ``number``, ``time`` and ``by`` fields of it: the venue's
    number, counted per value of ``by``, and its time in nanoseconds since 1970. Without ``messages`` all
    of them are examined, without ``time`` by the time they were recorded, and there are no delays.

    ``gaps`` and ``missing`` count gaps in the numbers, and missing numbers, on the day on which the numbers
    go on. Without ``number`` these are the seqs of the queue, whatever type its messages have. ``duplicates``
    are numbers that occurred before, ``out_of_order`` messages older than one before them, ``late`` those
    with a delay above ``late`` (a duration like 1s, or nanoseconds as an int), ``silence_ns`` the longest
    time without a message. Delays are negative where the clock of the venue is ahead. Percentiles are up to
    3 % too high: of the delay, or of how far it is from the delay of the queue's first message, whichever is
    less.

    >>> quality(spark, "bus/md", messages="trade", time="venue_ns").show()  # doctest: +SKIP
    """
    rule = _Rule(type_name=messages, number=number, time=time, by=by, late_ns=nanoseconds(late))
    if rule.fields and messages is None:
        raise InvalidArgument(f"{rule.fields[0]!r} is a field of which type? Give messages")
    whole = [name for name in (number, time) if name is not None]
    found = find_input(root, options, type_name=messages, fields=rule.fields, whole=whole)
    if number is None:
        _refuse_java_queues(found)
    parts = found.parts()
    before = _before_parts(spark, parts, rule, found.options)
    work = list(zip(parts, before, strict=True))
    partials = run_tasks(spark, work, partial(_reduce, rule, found.options), _PARTIALS)
    by_source: Any = partials.groupBy("source")
    merged: DataFrame = by_source.applyInArrow(_merge, _QUALITY)
    return merged.orderBy("source", "date")


def _refuse_java_queues(found: Input) -> None:
    for source in found.sources.values():
        if source.is_java:
            raise NotSupported(
                "gaps in the seqs of a Java queue tell nothing: its indexes jump from cycle to cycle",
                path=source.place,
                advice="Leave it out by option subscribe.",
            )


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Messages as arrays, in the order of the queue."""

    seq: Array
    timestamp_ns: Array
    time_ns: Array
    numbers: "_Numbers"


class _Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers, with the day of each and the value of ``by``."""

    number: Array
    day: Array
    key: Array
    names: list[str]


def _rows(part: Range, rule: _Rule, options: ReadOptions) -> Iterator[_Rows]:
    decoder = None
    if rule.type_name is not None:
        entry = find_type(part.source, rule.type_name)
        if entry is None:  # it existed when the job began
            raise InvalidArgument(f"{part.source.name} has lost its type {rule.type_name!r}")
        wanted = dict.fromkeys(rule.fields, pa.int64())
        if rule.by is not None:
            wanted[rule.by] = pa.utf8()
        decoder = TypedDecoder(entry, wanted, permissive=False)
    columns = ["seq", "timestamp_ns", *(["type_id", "payload"] if decoder else [])]
    types = None if decoder is None or rule.number is None else decoder.types
    for batch in read_range(part, columns, options, types=types):
        rows = batch
        fields: dict[str, Column] = {}
        if decoder is not None:
            rows = rows_of_types(batch, decoder.types)
            fields, _ = decoder.decode_rows(rows, part.source.place)
        times_ns = rows.column("timestamp_ns").to_numpy()
        yield _Rows(
            seq=rows.column("seq").to_numpy(),
            timestamp_ns=times_ns,
            time_ns=times_ns if rule.time is None else fields[rule.time].to_numpy(),
            numbers=_numbers(batch if rule.number is None else rows, fields, rule),
        )


def _numbers(counted: Batch, fields: Mapping[str, Column], rule: _Rule) -> _Numbers:
    days = counted.column("timestamp_ns").to_numpy() // DAY_NS
    keys, names = np.zeros(len(days), np.int64), [""]
    if rule.number is None:
        seqs = counted.column("seq").to_numpy()
        return _Numbers(number=seqs, day=days, key=keys, names=names)
    if rule.by is not None:
        encoded = fields[rule.by].dictionary_encode()
        keys, names = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
    return _Numbers(number=fields[rule.number].to_numpy(), day=days, key=keys, names=names)


class _Before(msgspec.Struct, frozen=True, kw_only=True):
    """What a task needs to know about the whole queue.

    ``usual_ns`` is the delay of the queue's first message. Delays are near it if clocks differ.
    """

    newest_ns: int  # of the messages before the part
    usual_ns: int


def _before_parts(
    spark: SparkSession, parts: Sequence[Range], rule: _Rule, options: ReadOptions
) -> list[_Before]:
    """Return for each part a summary of its queue before it."""
    find = partial(_newest, rule, options)
    rows = run_tasks(spark, list(enumerate(parts)), find, _NEWEST).collect()
    found = {row.part: row for row in rows}
    newest_ns: list[int] = []
    running: dict[str, int] = {}
    usual_ns: dict[str, int] = {}
    for number, part in enumerate(parts):  # in the order of the queue
        source = part.source.name
        newest_ns.append(running.get(source, 0))
        if (row := found.get(number)) is not None:
            running[source] = max(newest_ns[-1], row.newest_ns)
            if row.first_delay_ns is not None:
                usual_ns.setdefault(source, row.first_delay_ns)
    for source, newest in running.items():
        if 0 < newest < SMALLEST_LIKELY_NS < usual_ns.get(source, 0):
            raise InvalidArgument(
                f"{rule.time} of {rule.type_name} is at most {newest} in {source}, and has to be nanoseconds"
                " since 1970: it looks like milliseconds, or another unit"
            )
    return [
        _Before(newest_ns=newest, usual_ns=usual_ns.get(part.source.name, 0))
        for part, newest in zip(parts, newest_ns, strict=True)
    ]


def _newest(rule: _Rule, options: ReadOptions, numbered: tuple[int, Range]) -> Iterator[Batch]:
    number, part = numbered
    newest_ns, first_delay_ns = 0, None
    for rows in _rows(part, rule, options):
        newest_ns = int(rows.time_ns.max(initial=newest_ns))
        if first_delay_ns is None and len(rows.time_ns):
            first_delay_ns = int(_delays(rows.timestamp_ns[:1], rows.time_ns[:1])[0])
    found: dict[str, list[int | None]] = {
        "part": [number],
        "newest_ns": [newest_ns],
        "first_delay_ns": [first_delay_ns],
    }
    yield pa.record_batch(found, schema=_ARROW_NEWEST)


_ARROW_NEWEST = pa.schema([(part.split()[0], pa.int64()) for part in _NEWEST.split(", ")])


def _reduce(rule: _Rule, options: ReadOptions, work: tuple[Range, _Before]) -> Iterator[Batch]:
    """Yield a row for each batch and day."""
    part, before = work
    newest_ns = before.newest_ns
    for rows in _rows(part, rule, options):
        # The newest time up to, but not including, each message.
        before_ns = np.maximum.accumulate(np.concatenate(([newest_ns], rows.time_ns)))
        newest_ns = int(before_ns[-1])
        disordered = rows.time_ns < before_ns[:-1]
        days = rows.timestamp_ns // DAY_NS
        reduced = [
            {
                **_reduced_day(rows, np.flatnonzero(days == day), int(day), disordered),
                **_reduced_delays(rows, np.flatnonzero(days == day), before.usual_ns, rule),
                **_reduced_numbers(rows.numbers, int(day)),
            }
            for day in np.union1d(days, rows.numbers.day)
        ]
        named = [{"source": part.source.name, **row} for row in reduced]
        if named:
            yield pa.RecordBatch.from_pylist(named, schema=_ARROW_PARTIALS)


_ARROW_PARTIALS = pa.schema(
    [
        ("source", pa.utf8()),
        *((name, pa.int64()) for name in ("day", "first_seq", "messages", "first_ns", "last_ns")),
        *((name, pa.int64()) for name in ("silence_ns", "out_of_order", "late")),
        *((name, pa.int64()) for name in ("delay_min_ns", "delay_max_ns")),
        ("usual_ns", pa.int64()),
        *((name, pa.list_(pa.int64())) for name in ("buckets", "counts")),
        *((name, pa.list_(pa.int64())) for name in ("usual_buckets", "usual_counts")),
        ("duplicates", pa.int64()),
        ("run_keys", pa.list_(pa.utf8())),
        *((name, pa.list_(pa.int64())) for name in ("run_starts", "run_ends")),
    ]
)


def _reduced_day(rows: _Rows, here: Array, day: int, disordered: Array) -> dict[str, Any]:
    times_ns = rows.timestamp_ns[here]
    reduced: dict[str, Any] = {
        "day": day,
        "messages": len(here),
        "silence_ns": int(np.diff(times_ns).max(initial=0)),
        "out_of_order": int(disordered[here].sum()),
    }
    if len(here):  # else there are messages of other types, whose seqs count
        reduced |= {
            "first_seq": int(rows.seq[here[0]]),
            "first_ns": int(times_ns[0]),
            "last_ns": int(times_ns[-1]),
        }
    return reduced


def _reduced_delays(rows: _Rows, here: Array, usual_ns: int, rule: _Rule) -> dict[str, Any]:
    """Return two histograms: of the delays, and of their distances from the usual one."""
    if rule.time is None or len(here) == 0:
        return {"late": 0}
    delays = _delays(rows.timestamp_ns[here], rows.time_ns[here])
    # Beyond 146 years the difference does not matter.
    distances = np.clip(delays, -(2**62), 2**62) - min(max(usual_ns, -(2**62)), 2**62 - 1)
    buckets, counts = np.unique(buckets_of(delays), return_counts=True)
    usual_buckets, usual_counts = np.unique(buckets_of(distances), return_counts=True)
    return {
        "late": int((delays > rule.late_ns).sum()),
        "delay_min_ns": int(delays.min()),
        "delay_max_ns": int(delays.max()),
        "usual_ns": usual_ns,
        "buckets": buckets.tolist(),
        "counts": counts.tolist(),
        "usual_buckets": usual_buckets.tolist(),
        "usual_counts": usual_counts.tolist(),
    }


def _delays(times_ns: Array, venue_ns: Array) -> Array:
    """Return the differences, of which those that no int64 can hold are the largest one."""
    delays: Array = times_ns - venue_ns
    delays[(venue_ns < 0) & (delays < 0)] = LARGEST_NS
    return delays


def _reduced_numbers(numbers: _Numbers, day: int) -> dict[str, Any]:
    """Return the runs of consecutive numbers of a day."""
    here = np.flatnonzero(numbers.day == day)
    keys, counted = numbers.key[here], numbers.number[here]
    order = np.lexsort((counted, keys))
    keys, counted = keys[order], counted[order]
    steps, same_key = np.diff(counted), np.diff(keys) == 0
    repeated = same_key & (steps == 0)
    firsts = np.flatnonzero(np.concatenate(([True], ~(same_key & (steps <= 1)))))
    lasts = np.append(firsts[1:], len(counted)) - 1
    return {
        "duplicates": int(repeated.sum()),
        "run_keys": [numbers.names[int(key)] for key in keys[firsts]],
        "run_starts": counted[firsts].tolist(),
        "run_ends": (counted[lasts] + 1).tolist(),
    }


def _merge(partials: Table) -> Table:
    """Merge the rows of one queue by day."""
    everything: list[dict[str, Any]] = partials.to_pylist()
    gaps, missing, duplicates = _sweep(everything)
    rows = sorted((row for row in everything if row["messages"]), key=itemgetter("first_seq"))
    for before, row in pairwise(rows):
        row["silence_ns"] = max(row["silence_ns"], row["first_ns"] - before["last_ns"])
    rows += [row for row in everything if not row["messages"] and missing[row["day"]]]
    rows.sort(key=itemgetter("day"))  # stable: still by seq within a day
    merged = [
        {
            "source": everything[0]["source"],
            "date": np.datetime64(day, "D").item(),
            "gaps": gaps[day],
            "missing": missing[day],
            "duplicates": duplicates[day],
            **_merged_day(list(same_day)),
        }
        for day, same_day in groupby(rows, itemgetter("day"))
    ]
    return pa.Table.from_pylist(merged, schema=_ARROW_QUALITY)


_ARROW_QUALITY = pa.schema(
    [
        ("source", pa.utf8()),
        ("date", pa.date32()),
        *((part.split()[0], pa.int64()) for part in _QUALITY.split(", ")[2:]),
    ]
)


def _merged_day(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def known(name: str) -> list[int]:
        return [row[name] for row in rows if row[name] is not None]

    longest_ns = max(known("delay_max_ns"), default=None)
    return {
        **{name: sum(row[name] for row in rows) for name in ("messages", "out_of_order", "late")},
        "first_ns": min(known("first_ns"), default=None),
        "last_ns": max(known("last_ns"), default=None),
        "silence_ns": max(row["silence_ns"] for row in rows),
        "delay_min_ns": min(known("delay_min_ns"), default=None),
        "delay_max_ns": longest_ns,
        **({} if longest_ns is None else _percentiles(rows, longest_ns)),
    }


def _percentiles(rows: list[dict[str, Any]], longest_ns: int) -> dict[str, int]:
    """Return the percentiles of delays: where the bucket of each ends.

    Each of the histograms is exact to 3 % of what it counts, so the lower of the two is nearer.
    """
    delays, distances = Histogram(), Histogram()
    usual_ns = 0
    for row in rows:
        if row["buckets"] is not None:
            usual_ns = row["usual_ns"]
            delays.merge(dict(zip(row["buckets"], row["counts"], strict=True)))
            distances.merge(dict(zip(row["usual_buckets"], row["usual_counts"], strict=True)))
    return {
        name: min(
            delays.percentile(percent) or 0,
            usual_ns + (distances.percentile(percent) or 0),
            longest_ns,
        )
        for name, percent in PERCENTILES.items()
    }


def _sweep(rows: list[dict[str, Any]]) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Count missing and duplicate numbers between all runs, by day."""
    gaps, missing, duplicates = Counter[int](), Counter[int](), Counter[int]()
    runs: dict[str, list[tuple[int, int, int]]] = {}
    for row in rows:
        duplicates[row["day"]] += row["duplicates"]
        for key, start, end in zip(
            row["run_keys"], row["run_starts"], row["run_ends"], strict=True
        ):
            runs.setdefault(key, []).append((start, end, row["day"]))
    for of_key in runs.values():
        of_key.sort()
        covered_to, covered_on = of_key[0][0], of_key[0][2]
        for start, end, day in of_key:
            if start > covered_to:
                gaps[day] += 1
                missing[day] += start - covered_to
            # Runs are in the order of their numbers, and what came again is of the later day.
            duplicates[max(day, covered_on)] += max(0, min(end, covered_to) - start)
            if end > covered_to:
                covered_to, covered_on = end, day
    return gaps, missing, duplicates
