"""The options of the command line."""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from aiochronicle.demo.orders import RULES

__all__ = ["VENUES", "Options", "has_space", "parse"]

VENUES = ("nasdaq", "xetra", "lse", "tse", "six", "asx", "hkex", "nse")
TO_KILL = ("router", "gateway", "strategy", "venue", "none")

# A record of the demo: 64 bytes of header, 32 or 40 of payload, padded to a multiple of 64.
RECORD_BYTES = 128


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the demo."""

    seconds: float = 10.0
    venues: int = 3
    strategies: int = 3
    rate_hz: int = 5_000
    segment_bytes: int = 16 << 20
    root: Path | None = None
    kill: str = "router"
    plain: bool = False
    seed: int = 1
    pipeline: bool = True
    svg: Path | None = None
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
        description="A trading desk over real queues: venues, strategies that may join while it runs, "
        "a router that is killed halfway, a gateway and risk, each a process. At the end the queues "
        "prove that every order was executed exactly once. Then Spark makes bars of the trades.",
        epilog="Ends with status 0 if the proof holds, with 1 if not. "
        "Ctrl-C ends early and still proves; a second Ctrl-C stops at once.",
    )
    add = parser.add_argument
    add(
        "--seconds",
        type=_number_in(float, 0.1, 86_400),
        default=default.seconds,
        metavar="S",
        help="how long the venues write (default: %(default)g)",
    )
    add(
        "--venues",
        type=_number_in(int, 1, len(VENUES)),
        default=default.venues,
        metavar="N",
        help="processes that write market data (default: %(default)s)",
    )
    add(
        "--strategies",
        type=_number_in(int, 1, len(RULES)),
        default=default.strategies,
        metavar="N",
        help="processes that trade; the last of several joins while the others run "
        "(default: %(default)s)",
    )
    add(
        "--rate",
        type=_number_in(int, 1, 100_000),
        default=default.rate_hz,
        metavar="HZ",
        dest="rate_hz",
        help="messages per second and venue (default: %(default)s)",
    )
    add(
        "--root",
        type=Path,
        metavar="DIR",
        help="directory for the queues, which are kept (default: a temporary one, which is not)",
    )
    add(
        "--kill",
        choices=TO_KILL,
        default=default.kill,
        help="process to kill (SIGKILL) halfway, and start again (default: %(default)s)",
    )
    add(
        "--plain",
        action="store_true",
        help="print a line per second instead of the live view, as without a terminal",
    )
    add(
        "--seed",
        type=_number_in(int, 0, 2**63 - 1),
        default=default.seed,
        metavar="N",
        help="seed of the random walks (default: %(default)s)",
    )
    add(
        "--svg",
        type=Path,
        metavar="FILE",
        help="save the last frame and the proof as a picture",
    )
    add(
        "--no-pipeline",
        action="store_false",
        dest="pipeline",
        help="leave out the bars that Spark makes from the recording",
    )
    add(
        "--plot",
        type=Path,
        default=default.plot,
        metavar="FILE",
        help="file for the picture of the bars (default: %(default)s)",
    )
    return parser


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line; exits with a usage message if it is invalid."""
    parser = _parser()
    options = Options(**vars(parser.parse_args(arguments)))
    if options.root is not None and options.root.exists() and not options.root.is_dir():
        parser.error(f"--root {options.root} is not a directory")
    return options


def space_needed_bytes(options: Options) -> int:
    """Estimate the disk usage of the queues; orders are few compared with market data."""
    data = int(2 * options.venues * options.seconds * options.rate_hz * RECORD_BYTES)
    queues = options.venues + options.strategies + 2
    return data + queues * 3 * options.segment_bytes


def has_space(options: Options, root: Path) -> bool:
    """Return whether the file system of ``root`` has room for the run."""
    return shutil.disk_usage(root).free > space_needed_bytes(options)
