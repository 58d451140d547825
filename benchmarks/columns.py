"""What do columns cost, next to building them from tuples and to copying their bytes?

``to_arrow`` of a whole queue that is in the page cache, all six columns, every record checked. The table of
tuples has the same contents, built with ``for message in reader``; it has a tenth of the rows, and the
comparison is per row. memcpy copies as many bytes as the table has from one array to another, alternating
with ``to_arrow``. As ``to_arrow`` uses threads, all times are real time, the best of rounds.

``to_numpy`` returns all messages of a full segment, or one.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy
import pyarrow

from aiochronicle import Queue, Slice, open_reader, open_writer
from aiochronicle._columns.column_reader import arrow_schema
from benchmarks.measure import PAYLOAD_BYTES, Best, Result

MESSAGES = 10_000_000
MESSAGES_QUICK = 200_000
BATCH = 1000


def write(path: Path, count: int) -> None:
    with open_writer(path) as writer:
        for start in range(0, count, BATCH):
            writer.append_many([b"%*d" % (PAYLOAD_BYTES, start + n) for n in range(BATCH)])


def table_of_tuples(path: Path, count: int) -> pyarrow.Table:
    with open_reader(path) as reader:
        rows = [
            (
                message.source,
                message.seq,
                message.timestamp_ns,
                datetime.fromtimestamp(message.timestamp_ns / 1e9, UTC),
                message.type_id,
                message.payload,
            )
            for message in reader.read_batch(count)
        ]
    schema = arrow_schema()
    columns = zip(*rows, strict=True)
    arrays = [
        pyarrow.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)
    ]
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def timed(function: Callable[[], object]) -> float:
    started_ns = time.perf_counter_ns()
    result = function()
    taken_ns = time.perf_counter_ns() - started_ns
    del result  # releasing the memory is not measured
    return taken_ns


def compare_tables(path: Path, count: int, rounds: int) -> tuple[Best, Best]:
    """Return the times per row, with tuples, and per byte, with memcpy."""
    few = count // 10
    with Queue(path) as queue:
        part = queue.slice()
        size = part.to_arrow().nbytes
        source, target = numpy.ones(size, numpy.uint8), numpy.zeros(size, numpy.uint8)
        to_arrow, tuples, memcpy = float("inf"), float("inf"), float("inf")
        for _ in range(rounds):
            to_arrow = min(to_arrow, timed(part.to_arrow))
            memcpy = min(memcpy, timed(lambda: numpy.copyto(target, source)))
        for _ in range(2):  # not alternating: slow, and the allocator would release its pages
            tuples = min(tuples, timed(lambda: table_of_tuples(path, few)))
    return (
        Best({"to_arrow": to_arrow / count, "tuples": tuples / few}),
        Best({"to_arrow": to_arrow / size, "memcpy": memcpy / size}),
    )


def compare_arrays(path: Path, rounds: int) -> Best:
    layout = f"S{PAYLOAD_BYTES}"
    with Queue(path) as queue:
        one, many = queue.slice(0, 1), full_segment(queue)
        best = {"one": float("inf"), "many": float("inf")}
        for _ in range(rounds):
            best["one"] = min(best["one"], timed(lambda: one.to_numpy(layout)))
            best["many"] = min(best["many"], timed(lambda: many.to_numpy(layout)))
    return Best(best)


def full_segment(queue: Queue) -> Slice:
    return queue.slice(0, len(queue.slice().to_numpy(f"S{PAYLOAD_BYTES}")[0]))


def run(directory: Path, quick: bool) -> list[Result]:
    count = MESSAGES_QUICK if quick else MESSAGES
    path = directory / "columns"
    write(path, count)
    rows, size = compare_tables(path, count, 2 if quick else 15)
    arrays = compare_arrays(path, 5 if quick else 50)

    def row(best: Best, bar: float, what: str, *pair: str) -> Result:
        return best.at_most(bar, what, question="columns", pair=(pair[0], pair[1]))

    return [
        row(rows, 1 / 15, "to_arrow / table from tuples", "to_arrow", "tuples"),
        row(size, 2, "to_arrow / memcpy of the same bytes", "to_arrow", "memcpy"),
        row(arrays, 1.5, "to_numpy of a full segment / of one message", "many", "one"),
    ]
