"""A job's input: its arguments as options of the source, and damaged messages."""

import re
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aiochronicle.cli.output import Output
from aiochronicle.cli.spark.arguments import Reading, Running
from aiochronicle.cli.spark.job import OPTIONS, note
from aiochronicle.cli.units import many
from aiochronicle.errors import InvalidArgument

if TYPE_CHECKING:
    from aiochronicle.spark import BadRecords
    from aiochronicle.spark.jobs.inputs import Input

__all__ = ["chosen", "describe"]

PLACES_SHOWN = 10


@contextmanager
def chosen(
    name: str, root: str, reading: Reading, running: Running
) -> Generator[dict[str, str], None, None]:
    """Yield the options of the source, and report the skipped damaged messages at the end."""
    if reading.bad_records is not None and not reading.skip_corrupt:
        raise InvalidArgument("--bad-records lists what --skip-corrupt steps over: give both")
    if not reading.skip_corrupt or running.dry_run:
        yield _options(root, reading, None)
        return
    from aiochronicle.spark import bad_records

    with tempfile.TemporaryDirectory(prefix="aiochronicle-") as temporary:
        target = reading.bad_records
        if target is not None and Path(target).exists():
            raise InvalidArgument("something is there already", path=target)
        if target is None and (running.master or "local").startswith("local"):
            target = temporary
        yield _options(root, reading, target)
        if target is not None:
            for line in _summary(bad_records(target)):
                note(name, line)


def _options(root: str, reading: Reading, bad_records: str | None) -> dict[str, str]:
    from aiochronicle.spark.options import read_options

    options = {
        "subscribe": reading.queues,
        "subscribePattern": reading.pattern,
        "startingTimestamp": reading.start,
        "endingTimestamp": reading.end,
        "archive": reading.moved,
        "on_corrupt": "skip" if reading.skip_corrupt else None,
        "badRecordsPath": bad_records,
    }
    given = {name: value for name, value in options.items() if value is not None}
    try:
        read_options({"path": root, **given})
    except InvalidArgument as error:
        text = re.sub(r"\w+", lambda word: OPTIONS.get(word[0], word[0]), error.detail)
        raise InvalidArgument(text) from error
    return given


def _summary(notes: Sequence["BadRecords"]) -> Iterator[str]:
    """Report how many messages were damaged, and where the first ones are."""
    messages = sum(one.end_seq - one.first_seq for one in notes)
    yield (
        f"damaged messages that were stepped over: {messages:,}"
        if notes
        else "no message was damaged"
    )
    for one in notes[:PLACES_SHOWN]:
        yield f"  {one.source} {_seqs(one)}: {one.place}: {one.reason}"
    if len(notes) > PLACES_SHOWN:
        yield f"  and in {len(notes) - PLACES_SHOWN:,} more places: --bad-records DIR lists all"


def _seqs(damaged: "BadRecords") -> str:
    match damaged.end_seq - damaged.first_seq:
        case 0:
            return "cannot be opened"
        case 1:
            return str(damaged.first_seq)
        case _:
            return f"{damaged.first_seq} to {damaged.end_seq - 1}"


def describe(found: "Input", would: str, running: Running) -> None:
    """Report what a job would read and do."""
    out = Output(as_json=running.json)
    tasks = len(found.parts())
    if running.json:
        queues = [
            {
                "source": name,
                "messages": found.messages(name),
                "start_seq": found.start[name],
                "end_seq": found.end[name],
            }
            for name in sorted(found.sources)
        ]
        out.json({"would": would, "queues": queues, "tasks": tasks})
        return
    for line in found.describe():
        out.line(line)
    out.line(f"would {would}, in {many(tasks, 'task')}")
