"""``python -m aiochronicle.spark JOB …``: the jobs as commands."""

import argparse
import contextlib
import difflib
import importlib
import io
import itertools
import math
import re
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from aiochronicle.errors import ChronicleError, InvalidArgument, QueueNotFound, TimestampOrder
from aiochronicle.spark.badrecords import BadRecords, bad_records
from aiochronicle.spark.explain import explain
from aiochronicle.spark.jobs import asof, audit, bars, quality, replay
from aiochronicle.spark.jobs.archive import READER, archive_each, archive_plan
from aiochronicle.spark.jobs.asof import options_of_quotes
from aiochronicle.spark.jobs.bars import nanoseconds
from aiochronicle.spark.jobs.failures import failure
from aiochronicle.spark.jobs.inputs import Input, find_input
from aiochronicle.spark.jobs.ledger import find_archive
from aiochronicle.spark.jobs.replay import check_times
from aiochronicle.spark.options import read_options
from aiochronicle.spark.pack import pack
from aiochronicle.spark.progress import Progress
from aiochronicle.spark.session import session

__all__ = ["main"]

ROWS_SHOWN = 20
PLACES_SHOWN = 10
FAILED, NOT_UNDERSTOOD, INTERRUPTED = 1, 2, 130

# What options of the source are called here.
ARGUMENTS = {
    "subscribe": "--queues",
    "subscribePattern": "--pattern",
    "startingTimestamp": "--start",
    "endingTimestamp": "--end",
    "archive": "--moved",
    "badRecordsPath": "--bad-records",
}

# Without an appender Spark would take its own configuration instead.
NO_LOGGING = """
rootLogger.level = off
rootLogger.appenderRef.none.ref = none
appender.none.type = Null
appender.none.name = none
"""

Arguments = argparse.Namespace


def _amount(text: str) -> float:
    """Read a size."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")


def _number(text: str) -> int:
    """Read how many."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


def _positive_number(text: str) -> int:
    """Read how many, at least one."""
    if _number(text) == 0:
        raise argparse.ArgumentTypeError("must be 1 at least")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job; the exit status is 1 if it failed, 2 if it was not understood."""
    given = _parser().parse_args(arguments)
    try:
        run: Callable[[Arguments], None] = given.run
        with _telling_bad_records(given):
            run(given)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ChronicleError, PySparkException, OSError) as error:
        print(f"{given.job}: {_advised(given, explain(error))}", file=sys.stderr)
        understood = not isinstance(error, InvalidArgument) or isinstance(error, TimestampOrder)
        return FAILED if understood else NOT_UNDERSTOOD
    return 0


def _advised(given: Arguments, text: str) -> str:
    """Return an error's text with the arguments of this job instead of the options they stand for."""
    if not hasattr(given, "skip_corrupt"):
        return text
    text = re.sub(r'on_corrupt="?skip"?', "--skip-corrupt", text)
    return re.sub(r"\boption (\w+)", lambda found: ARGUMENTS.get(found[1], found[0]), text)


class _JobParser(argparse.ArgumentParser):
    """Tells of a misspelt argument first; argparse would only say what is missing without it."""

    def parse_known_args(self, args: Any = None, *others: Any, **named: Any) -> Any:
        """Look at the names first."""
        known = self._option_string_actions
        given = itertools.takewhile(lambda text: text != "--", args or ())
        for name in (text.partition("=")[0] for text in given):
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                nearest = difflib.get_close_matches(name, known, n=1)
                hint = f": did you mean {nearest[0]}?" if nearest else ""
                self.error(f"there is no argument {name}{hint}")
        return super().parse_known_args(args, *others, **named)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m aiochronicle.spark",
        description="Jobs over recorded queues, on Spark: this machine's processors, or a cluster.",
    )
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB", parser_class=_JobParser)
    _add_archive(jobs)
    _add_bars(jobs)
    _add_asof(jobs)
    _add_audit(jobs)
    _add_quality(jobs)
    _add_replay(jobs)
    _add_pack(jobs)
    return parser


def _add_job(
    jobs: Any,
    name: str,
    run: Callable[[Arguments], None],
    what: str,
    example: str,
    *,
    reads: str = "queues",
) -> argparse.ArgumentParser:
    """Add a job with the arguments that all of them have."""
    parser: argparse.ArgumentParser = jobs.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=f"Example: python -m aiochronicle.spark {name} {example}",
    )
    parser.set_defaults(run=run)
    parser.add_argument("root", help=f"directory in or under which the {reads} are")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and do nothing"
    )
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where Spark runs: local[*] (default), local[N], spark://HOST:PORT …",
    )
    return parser


def _add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which messages of which queues are read."""
    parser.add_argument("--queues", metavar="NAME,NAME", help="only these queues")
    parser.add_argument(
        "--pattern", metavar="REGEX", help="only queues whose names match this regular expression"
    )
    parser.add_argument("--start", metavar="TIME", help="from then on: ISO 8601, or nanoseconds")
    parser.add_argument("--end", metavar="TIME", help="before that time")
    parser.add_argument(
        "--moved", metavar="DIR", help="where retention moves segments to, to read them too"
    )
    parser.add_argument(
        "--skip-corrupt", action="store_true", help="step over damaged messages, and tell which"
    )
    parser.add_argument(
        "--bad-records",
        metavar="DIR",
        help="with --skip-corrupt: note there which, as JSON; in a cluster all machines must see it",
    )


def _reading(given: Arguments) -> dict[str, str]:
    """Return the options of the source that these arguments stand for."""
    if given.bad_records is not None and not given.skip_corrupt:
        raise InvalidArgument("--bad-records notes what --skip-corrupt steps over: give both")
    options = {
        "subscribe": given.queues,
        "subscribePattern": given.pattern,
        "startingTimestamp": given.start,
        "endingTimestamp": given.end,
        "archive": given.moved,
        "on_corrupt": "skip" if given.skip_corrupt else None,
        "badRecordsPath": None if given.dry_run else given.bad_records,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    try:
        read_options({"path": given.root, **chosen})
    except InvalidArgument as error:
        told = re.sub(r"\w+", lambda word: ARGUMENTS.get(word[0], word[0]), error.detail)
        raise InvalidArgument(told) from error
    return chosen


@contextmanager
def _telling_bad_records(given: Arguments) -> Generator[None]:
    """Say in the end which damaged messages were stepped over."""
    if not getattr(given, "skip_corrupt", False) or given.dry_run:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="aiochronicle-") as temporary:
        if given.bad_records is not None:
            if Path(given.bad_records).exists():
                raise InvalidArgument("something is there already", path=given.bad_records)
        elif given.master is None or given.master.startswith("local"):
            given.bad_records = temporary
        yield
        if given.bad_records is not None:
            for line in _told(bad_records(given.bad_records)):
                print(f"{given.job}: {line}", file=sys.stderr)


def _told(notes: Sequence[BadRecords]) -> Iterator[str]:
    """Say how many messages were damaged, and where the first ones are."""
    messages = sum(note.end_seq - note.first_seq for note in notes)
    yield (
        f"damaged messages that were stepped over: {messages:,}"
        if notes
        else "no message was damaged"
    )
    for note in notes[:PLACES_SHOWN]:
        yield f"  {note.source} {_seqs(note)}: {note.place}: {note.reason}"
    if len(notes) > PLACES_SHOWN:
        yield f"  and in {len(notes) - PLACES_SHOWN:,} more places: --bad-records DIR notes all"


def _seqs(note: BadRecords) -> str:
    match note.end_seq - note.first_seq:
        case 0:
            return "cannot be opened"
        case 1:
            return str(note.first_seq)
        case _:
            return f"{note.first_seq} to {note.end_seq - 1}"


def _add_out(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--out", metavar="DIR", help=f"write {what} there, as Parquet")
    parser.add_argument("--overwrite", action="store_true", help="replace what is at --out")
    parser.add_argument(
        "--show",
        type=_number,
        metavar="N",
        help=f"print the first N rows (default: {ROWS_SHOWN}, or 0 with --out)",
    )


def _check_out(given: Arguments) -> None:
    """Say before anything is computed if its result cannot be kept."""
    plot = getattr(given, "plot", None)
    if plot is not None and Path(plot).suffix.lower() != ".png":
        raise InvalidArgument("pictures are PNG: give --plot a name that ends in .png", path=plot)
    if plot is not None and not Path(plot).absolute().parent.is_dir():
        raise InvalidArgument("there is no such directory for the picture", path=plot)
    if given.out is None or not Path(given.out).exists():
        return
    if not given.overwrite:
        raise InvalidArgument("something is there; --overwrite replaces it", path=given.out)
    if not _is_result(Path(given.out)):
        raise InvalidArgument(
            "is no table that a job has written, so it is not replaced; delete it, or give another"
            " directory",
            path=given.out,
        )


def _is_result(path: Path) -> bool:
    """Tell whether there is nothing else than what Spark writes: to overwrite is to delete first."""
    pattern = r"_SUCCESS|part-.*\.parquet|\..*\.crc"
    return path.is_dir() and all(
        entry.is_file() and re.fullmatch(pattern, entry.name) for entry in path.iterdir()
    )


@contextmanager
def _spark(given: Arguments) -> Generator[SparkSession]:
    """Give a session, show how far it is, and stop it if nobody else had it."""
    print(f"{given.job}: starting Spark", file=sys.stderr)
    before = SparkSession.getActiveSession()
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as logging:
        # What fails is told once, by us.
        logging.write(NO_LOGGING)
        logging.flush()
        quiet = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.name}"}
        spark = session(f"aiochronicle {given.job}", master=given.master, config=quiet)
    try:
        with Progress(spark, given.job):
            yield spark
    finally:
        if before is None:  # it may be somebody else's
            spark.stop()


def _run_frame(
    given: Arguments, make: Callable[[SparkSession], DataFrame], order: Sequence[str] = ()
) -> None:
    """Make the frame of a job, and write or show it.

    A table goes into one file. Rows that are many have an ``order``: they are written by many tasks, into
    files that are in order themselves and by their names.
    """
    shown = ROWS_SHOWN if given.out is None else 0
    shown = shown if given.show is None else given.show
    with _spark(given) as spark:
        frame = make(spark)
        frame = frame.orderBy(*order) if order else frame
        if given.out is not None:
            mode = "overwrite" if given.overwrite else "errorifexists"
            (frame if order else frame.coalesce(1)).write.mode(mode).parquet(given.out)
            frame = spark.read.parquet(given.out)
            frame = frame.orderBy(*order) if order else frame
        written = 0 if given.out is None else frame.count()
        table = _table(frame, shown) if shown else ""
    if given.out is not None:
        print(f"{given.job}: {_of(written, 'row')} in {given.out}")
    if table:
        print(table)


def _table(frame: DataFrame, rows: int) -> str:
    """Return the first rows as text."""
    buffer = io.StringIO()
    with contextlib.redirect_stdout(buffer):
        frame.show(rows, truncate=False)
    return buffer.getvalue().rstrip()


def plots() -> ModuleType:
    """Return the module that draws; it takes a second to import."""
    return importlib.import_module("aiochronicle.spark.jobs.plots")


def _describe(found: Input, what: str) -> None:
    """Say what a job would read and do."""
    print(*found.describe(), sep="\n")
    print(f"{what}, in {_of(len(found.parts()), 'task')}")


def _of(count: int, what: str) -> str:
    """Say how many there are of something."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _add_archive(jobs: Any) -> None:
    parser = _add_job(
        jobs,
        "archive",
        _archive,
        "queues into Parquet files by date and queue, verified",
        "bus/md --out /data/archive",
    )
    _add_reading(parser)
    parser.add_argument("--out", metavar="DIR", required=True, help="the archive; made if missing")
    name = parser.add_mutually_exclusive_group()
    name.add_argument(
        "--reader",
        default=READER,
        metavar="NAME",
        help=f"reader whose position tells retention how far the archive is (default: {READER})",
    )
    name.add_argument(
        "--no-reader",
        dest="reader",
        action="store_const",
        const=None,
        help="leave no position: for queues that may only be read",
    )
    parser.add_argument(
        "--allow-loss",
        action="store_true",
        help="go on where a queue begins now, if messages were removed before they were archived",
    )


def _archive(given: Arguments) -> None:
    options = _reading(given)
    if given.allow_loss:
        options["failOnDataLoss"] = "false"
    found, _, failed = archive_plan(given.root, given.out, options)
    if given.dry_run:
        _describe(found, f"would archive them in {given.out}")
        if failed:
            raise failure(failed)
        return
    with _spark(given) as spark:
        done, failed = archive_each(
            spark, given.root, given.out, reader=given.reader, options=options
        )
    for queue in done:
        print(
            f"{queue.source}: {_of(queue.rows, 'message')} verified in {_of(queue.files, 'file')} of"
            f" {queue.bytes:,} bytes; archived up to seq {queue.next_seq}"
        )
    if failed:
        raise failure(failed)


def _add_asof(jobs: Any) -> None:
    parser = _add_job(
        jobs,
        "asof",
        _asof,
        "each trade with the quote that was in force",
        "bus/md --out trades.parquet",
    )
    _add_reading(parser)
    parser.add_argument("--quotes-root", metavar="DIR", help="where the quotes are, if elsewhere")
    parser.add_argument(
        "--trades", default="trade", metavar="TYPE", help="type of the trades (default: trade)"
    )
    parser.add_argument(
        "--quotes", default="quote", metavar="TYPE", help="type of the quotes (default: quote)"
    )
    parser.add_argument(
        "--by", default="symbol", metavar="FIELD", help="what both have in common (default: symbol)"
    )
    parser.add_argument(
        "--look-back",
        metavar="DURATION",
        help="how old a quote may be at --start (default: as old as they are there)",
    )
    _add_out(parser, "the trades")


def _asof(given: Arguments) -> None:
    _check_out(given)
    found = find_input(given.root, _reading(given), type_name=given.trades, fields=[given.by])
    elsewhere = given.quotes_root is not None
    of_quotes = options_of_quotes(_reading(given), elsewhere=elsewhere, look_back=given.look_back)
    quotes_root = given.quotes_root or given.root
    find_input(quotes_root, of_quotes, type_name=given.quotes, fields=[given.by])
    if given.dry_run:
        _describe(found, f"would look up the quotes for {given.out or 'the terminal'}")
        return
    _run_frame(
        given,
        lambda spark: asof(
            spark,
            given.root,
            quotes_root=given.quotes_root,
            trades=given.trades,
            quotes=given.quotes,
            by=given.by,
            look_back=given.look_back,
            options=_reading(given),
        ),
        order=("timestamp_ns", "source", "seq"),
    )


def _add_audit(jobs: Any) -> None:
    parser = _add_job(
        jobs,
        "audit",
        _audit,
        "all queues as one ordered stream, and the digest of it",
        "bus --start 2026-11-16T08:00Z --end 2026-11-16T16:30Z",
    )
    _add_reading(parser)
    parser.add_argument("--out", metavar="DIR", help="write the stream there, as Parquet")
    parser.add_argument("--expect", metavar="DIGEST", help="fail if the digest is another one")


def _audit(given: Arguments) -> None:
    found = find_input(given.root, _reading(given))
    if given.dry_run:
        _describe(found, "would merge them")
        return
    with _spark(given) as spark:
        done = audit(spark, given.root, out=given.out, options=_reading(given))
    print(f"{_of(done.messages, 'message')} of {_of(len(done.sources), 'queue')}")
    print(done.digest)
    if given.expect is not None and given.expect != done.digest:
        raise ChronicleError(f"the digest is not {given.expect}")


def _add_quality(jobs: Any) -> None:
    parser = _add_job(
        jobs,
        "quality",
        _quality,
        "gaps, duplicates, disorder and delays, by queue and day",
        "bus/md --messages trade --number trade_id --by symbol --time venue_ns --plot quality.png",
    )
    _add_reading(parser)
    parser.add_argument("--messages", metavar="TYPE", help="look at messages of this type only")
    parser.add_argument("--number", metavar="FIELD", help="the venue's number (default: seq)")
    parser.add_argument("--by", metavar="FIELD", help="… which is counted per value of this field")
    parser.add_argument("--time", metavar="FIELD", help="the venue's time, in nanoseconds")
    parser.add_argument(
        "--late",
        default="1s",
        metavar="DURATION",
        help="a message is late that is delayed by more (default: 1s)",
    )
    parser.add_argument("--plot", metavar="FILE", help="also draw the table, as PNG")
    _add_out(parser, "the table")


def _quality(given: Arguments) -> None:
    _check_out(given)
    nanoseconds(given.late)
    if given.messages is None and (given.number or given.time or given.by):
        raise InvalidArgument(
            "of which messages are these fields? Name their type: --messages TYPE"
        )
    whole = [name for name in (given.number, given.time) if name is not None]
    found = find_input(
        given.root,
        _reading(given),
        type_name=given.messages,
        fields=[] if given.by is None else [given.by],
        whole=whole,
    )
    if given.dry_run:
        _describe(found, "would look at them twice")
        return

    def make(spark: SparkSession) -> DataFrame:
        frame = quality(
            spark,
            given.root,
            messages=given.messages,
            number=given.number,
            time=given.time,
            by=given.by,
            late=given.late,
            options=_reading(given),
        ).cache()
        if given.plot is not None:
            plots().plot_quality(frame.collect(), given.plot)
        return frame

    _run_frame(given, make)


def _add_replay(jobs: Any) -> None:
    parser = _add_job(
        jobs,
        "replay",
        _replay,
        "an archive or other Parquet files into queues",
        "/data/archive --out bus/again",
        reads="files",
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="root of the queues")
    parser.add_argument("--queues", metavar="NAME,NAME", help="only these queues of an archive")
    parser.add_argument("--queue", metavar="NAME", help="everything into one queue of this name")


def _replay(given: Arguments) -> None:
    queues = None if given.queues is None else given.queues.split(",")
    files = Path(given.root)
    found = find_archive(files, queues)
    if not found and files.is_dir() and next(files.rglob("*.parquet"), None) is None:
        raise QueueNotFound(
            "there is neither an archive nor any Parquet file",
            path=given.root,
            advice="Give the directory that archive has written to; queues themselves are not replayed.",
        )
    if given.dry_run:
        for ledger in found:
            messages, many = _of(ledger.rows, "message"), _of(len(ledger.files), "file")
            print(f"{ledger.source}: {messages} in {many}")
        check_times(given.root, found, given.out, given.queue)
        print(f"would write {'them' if found else 'Parquet files'} into queues in {given.out}")
        return
    with _spark(given) as spark:
        done = replay(spark, given.root, given.out, queues=queues, queue=given.queue)
    for queue in done:
        verified = " and verified" if found and given.queue is None else ""
        print(f"{queue.source}: {_of(queue.rows, 'message')} written{verified}")


def _add_pack(jobs: Any) -> None:
    what = "the installed package as one file for a cluster"
    parser: argparse.ArgumentParser = jobs.add_parser("pack", help=what, description=f"{what}.")
    parser.set_defaults(run=_pack)
    parser.add_argument("--out", metavar="FILE.tar.gz", required=True, help="the file to write")


def _pack(given: Arguments) -> None:
    target = pack(given.out)
    print(f"spark-submit --archives {target}#lib --conf spark.executorEnv.PYTHONPATH=./lib …")


def _add_bars(jobs: Any) -> None:
    parser = _add_job(
        jobs,
        "bars",
        _bars,
        "open, high, low, close, volume and VWAP by time, ticks or volume",
        "bus/md --every 1m --out bars.parquet --plot bars.png",
    )
    _add_reading(parser)
    rule = parser.add_mutually_exclusive_group(required=True)
    rule.add_argument("--every", metavar="DURATION", help="a bar per 250ms, 1s, 5m, 1h, 1d …")
    rule.add_argument(
        "--ticks", type=_positive_number, metavar="N", help="a bar per so many trades"
    )
    rule.add_argument(
        "--volume", type=_amount, metavar="SIZE", help="a bar whenever so much was traded"
    )
    parser.add_argument(
        "--lot", type=_amount, metavar="SIZE", help="unit of sizes that are not whole numbers"
    )
    parser.add_argument(
        "--trades", default="trade", metavar="TYPE", help="type of the trades (default: trade)"
    )
    parser.add_argument(
        "--price", default="price", metavar="FIELD", help="its price (default: price)"
    )
    parser.add_argument("--size", default="size", metavar="FIELD", help="its size (default: size)")
    by = parser.add_mutually_exclusive_group()
    by.add_argument(
        "--by",
        default="symbol",
        metavar="FIELD",
        help="a series per queue and value (default: symbol)",
    )
    by.add_argument(
        "--per-queue", dest="by", action="store_const", const=None, help="one series per queue"
    )
    parser.add_argument("--plot", metavar="FILE", help="also draw the bars, as PNG")
    _add_out(parser, "the bars")


def _bars(given: Arguments) -> None:
    _check_out(given)
    if given.every is not None:
        nanoseconds(given.every)
    fields = [given.price, given.size, *([given.by] if given.by else [])]
    found = find_input(given.root, _reading(given), type_name=given.trades, fields=fields)
    if given.dry_run:
        _describe(found, f"would make bars for {given.out or 'the terminal'}")
        return

    def make(spark: SparkSession) -> DataFrame:
        frame = bars(
            spark,
            given.root,
            every=given.every,
            ticks=given.ticks,
            volume=given.volume,
            trades=given.trades,
            price=given.price,
            size=given.size,
            by=given.by,
            lot=given.lot,
            options=_reading(given),
        ).cache()
        if given.plot is not None:
            plots().plot_bars(frame.collect(), given.plot, by=given.by)
        return frame

    _run_frame(given, make)


if __name__ == "__main__":
    sys.exit(main())
