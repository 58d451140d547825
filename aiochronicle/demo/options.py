"""What can be chosen on the command line."""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

__all__ = ["FEED_NAMES", "READER_NAMES", "Options", "has_space", "parse"]

FEED_NAMES = ("nasdaq", "xetra", "lse", "tse", "six", "asx", "hkex", "nse")
READER_NAMES = ("risk", "audit", "strategy", "research")

# A record of the demo: 64 bytes of header, 32 or 40 of payload, padded to a multiple of 64.
RECORD_BYTES = 128


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the demo. ``rate_hz`` 0 means as fast as the feed can."""

    seconds: float = 8.0
    feeds: int = 3
    readers: int = 2
    rate_hz: int = 20_000
    segment_bytes: int = 16 << 20
    root: Path | None = None
    crash: bool = True
    plain: bool = False
    seed: int = 1
    pipeline: bool = True
    plot: Path = Path(tempfile.gettempdir()) / "aiochronicle-demo.png"


def _number_in(
    kind: type[int] | type[float], low: float, high: float
) -> Callable[[str], int | float]:
    def convert(text: str) -> int | float:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low:g} and {high:g}")
        return value

    convert.__name__ = "number"
    return convert


def _parser() -> argparse.ArgumentParser:
    default = Options()
    parser = argparse.ArgumentParser(
        prog="python -m aiochronicle.demo",
        description="Market-data feeds and their readers over real queues, with a live view, "
        "a check that every reader got every message, and a Spark pipeline over what was recorded.",
        epilog="Ends with status 0 if everything was delivered and verified, with 1 if not. "
        "Ctrl-C ends early and still verifies; a second Ctrl-C stops at once.",
    )
    add = parser.add_argument
    add(
        "--seconds",
        type=_number_in(float, 0.1, 86_400),
        default=default.seconds,
        metavar="S",
        help="how long the feeds write (default: %(default)g)",
    )
    add(
        "--feeds",
        type=_number_in(int, 1, len(FEED_NAMES)),
        default=default.feeds,
        metavar="N",
        help="writer processes, each with a queue of its own (default: %(default)s)",
    )
    add(
        "--readers",
        type=_number_in(int, 1, len(READER_NAMES)),
        default=default.readers,
        metavar="N",
        help="reader processes per queue (default: %(default)s)",
    )
    add(
        "--rate",
        type=_number_in(int, 0, 10_000_000),
        default=default.rate_hz,
        metavar="HZ",
        dest="rate_hz",
        help="messages per second and feed; 0: as fast as possible (default: %(default)s)",
    )
    add(
        "--root",
        type=Path,
        metavar="DIR",
        help="directory for the queues, which are kept (default: a temporary one, which is not)",
    )
    add(
        "--no-crash",
        action="store_false",
        dest="crash",
        help="do not kill and restart a feed half-way",
    )
    add(
        "--plain",
        action="store_true",
        help="a line per second instead of the live view, as without a terminal",
    )
    add(
        "--seed",
        type=_number_in(int, 0, 2**63 - 1),
        default=default.seed,
        metavar="N",
        help="seed of the random walks (default: %(default)s)",
    )
    add(
        "--no-pipeline",
        action="store_false",
        dest="pipeline",
        help="leave out the bars that Spark makes of what was recorded",
    )
    add(
        "--plot",
        type=Path,
        default=default.plot,
        metavar="FILE",
        help="where the picture of the bars goes (default: %(default)s)",
    )
    return parser


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; ends the program with a usage message if it makes no sense."""
    parser = _parser()
    options = Options(**vars(parser.parse_args(arguments)))
    if options.root is not None and options.root.exists() and not options.root.is_dir():
        parser.error(f"--root {options.root} is not a directory")
    return options


def space_needed_bytes(options: Options) -> int:
    """Estimate what the queues will take. Unpaced feeds: a guess on the large side."""
    rate_hz = options.rate_hz or 1_000_000
    data = int(options.feeds * options.seconds * rate_hz * RECORD_BYTES)
    return data + options.feeds * 3 * options.segment_bytes


def has_space(options: Options, root: Path) -> bool:
    """Tell whether the file system of ``root`` has room for the run."""
    return shutil.disk_usage(root).free > space_needed_bytes(options)
