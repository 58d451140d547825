"""``bench`` and ``demo``: whole programs."""

import tempfile
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import aiochronicle
from aiochronicle.cli.arguments import Amount, Directory, Json
from aiochronicle.cli.exits import Refused
from aiochronicle.cli.output import Column, Output
from aiochronicle.cli.units import age, amount, rate

__all__ = ["bench", "demo"]

_FLUSHES = 20
_TEMPORARY = Path(tempfile.gettempdir())

Arguments = Annotated[
    str,
    Parameter(
        allow_leading_hyphen=True, metavar="ARGUMENT", help="its arguments; --help lists them"
    ),
]


def bench(
    directory: Directory = _TEMPORARY,
    /,
    *,
    messages: Annotated[int, Parameter(metavar="N", help="how many")] = 200_000,
    size: Annotated[Amount, Parameter(help="payload of each")] = 100,
    json: Json = False,
) -> None:
    """Measure append, read and flush of one process on this file system.

    For comparisons with others, and between processes, see the benchmarks of the source tree.

    Example: aioc bench /var/lib/feeds --messages 1000000

    Parameters
    ----------
    directory
        where to put the queue, which is removed again
    """
    if messages < 1:
        raise Refused("--messages takes a number from 1 on")
    payload = bytes(size)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=directory, prefix=".aioc-bench-") as place:
        queue = Path(place) / "queue"
        with aiochronicle.open_writer(queue) as writer:
            append = writer.append
            began_s = time.perf_counter()
            for _ in range(messages):
                append(payload)
            found["append_s"] = (time.perf_counter() - began_s) / messages
            batch = [payload] * 100
            began_s = time.perf_counter()
            for _ in range(max(1, messages // 100)):
                writer.append_many(batch)
            found["append_many_s"] = (time.perf_counter() - began_s) / (
                max(1, messages // 100) * 100
            )
            taken: list[float] = []
            for _ in range(_FLUSHES):
                append(payload)
                began_s = time.perf_counter()
                writer.flush_now()
                taken.append(time.perf_counter() - began_s)
            found["flush_s"] = sorted(taken)[_FLUSHES // 2]
        with aiochronicle.open_reader(queue) as reader:
            began_s = time.perf_counter()
            count = sum(1 for _ in reader)
            found["read_s"] = (time.perf_counter() - began_s) / count
    _tell(Output(as_json=json), directory, found, messages, size)


def _tell(out: Output, directory: Path, found: dict[str, float], messages: int, size: int) -> None:
    names = {
        "append_s": "append",
        "append_many_s": "append_many, 100 at a time",
        "read_s": "read and check",
        "flush_s": f"flush (median of {_FLUSHES})",
    }
    record = {"path": str(directory), "messages": messages, "payload_bytes": size, **found}
    rows = [
        [names[name], age(found[name]), rate(1 / found[name]), f"{amount(size / found[name])}/s"]
        for name in names
    ]
    for row in rows[-1:]:
        row[3] = "–"
    columns = [
        Column("WHAT"),
        Column("EACH", right=True),
        Column("RATE", right=True),
        Column("PAYLOAD", right=True),
    ]
    out.table(record, columns, rows)


def demo(*arguments: Arguments) -> int:
    """Run the demo: a live trading desk of real processes, whose router is killed halfway.

    Example: aioc demo --seconds 5 --no-pipeline
    """
    from aiochronicle.demo.__main__ import main

    return main(arguments)
