"""The command line: which campaigns, how long, from which seed, and the table at the end."""

import argparse
import os
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence

import msgspec
from faults.scratch import in_memory

from .registry import Campaign, load_all

__all__ = ["main"]

_SHOWN_EVERY_S = 5.0
_SEED_VARIABLE = "AIOCHRONICLE_SEED"


class Progress:
    """One campaign's run: counts cases, shows progress and decides when to stop."""

    def __init__(self, campaign: Campaign, seed: int, goal: int, limit_s: float | None) -> None:
        """Start the clock."""
        self.seed = seed
        self.goal = goal
        self.done = 0
        self._name = campaign.name
        self._started_s = self._shown_s = time.monotonic()
        self._limit_s = limit_s

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._started_s

    @property
    def has_limit(self) -> bool:
        """Return whether the run stops by the clock."""
        return self._limit_s is not None

    def progress(self, done: int) -> bool:
        """Note how many cases are done; return False when the time is up."""
        self.done = done
        if time.monotonic() - self._shown_s >= _SHOWN_EVERY_S:
            self._shown_s = time.monotonic()
            rate = done / self.elapsed_s
            print(f"  {self._name}: {done:,} of {self.goal:,}, {rate:,.0f}/s", flush=True)
        return self._limit_s is None or self.elapsed_s < self._limit_s


class Result(msgspec.Struct, frozen=True):
    """A line of the table."""

    name: str
    done: int
    goal: int
    elapsed_s: float
    failed: bool
    remark: str


def _run(campaign: Campaign, seed: int, goal: int, limit_s: float | None) -> Result:
    print(f"{campaign.name}: {campaign.title}", flush=True)
    run = Progress(campaign, seed, goal, limit_s)
    try:
        remark, failed = campaign.function(run) or "", False
    except KeyboardInterrupt:
        remark, failed = "interrupted", False
    except Exception as error:  # noqa: BLE001  every kind of failure belongs into the table
        traceback.print_exc()
        remark, failed = f"{type(error).__name__}, see above", True
    return Result(campaign.name, run.done, goal, run.elapsed_s, failed, remark)


def _print_table(results: Sequence[Result]) -> None:
    print(f"\n{'campaign':<16}{'done':>15}{'goal':>15}{'seconds':>10}  result")
    for result in results:
        verdict = "FAILED" if result.failed else "ok" if result.done >= result.goal else "cut short"
        line = f"{result.name:<16}{result.done:>15,}{result.goal:>15,}{result.elapsed_s:>10.1f}"
        print(f"{line}  {verdict:<10} {result.remark}".rstrip())


def _parser(known: dict[str, Campaign]) -> argparse.ArgumentParser:
    listing = "\n".join(f"  {c.name:<16}{c.goal:>10,}  {c.title}" for c in known.values())
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture",
        description="Runs the long campaigns and ends with 1 if a promise was broken.",
        epilog=f"campaigns and how many cases they aim at:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("campaign", nargs="*", help="names of campaigns; all when none is given")
    parser.add_argument("--list", action="store_true", help="list the campaigns and end")
    parser.add_argument("--seed", type=lambda text: int(text, 0), help="repeat a run")
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="stop each campaign after so long"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="X", help="multiply every goal (0.01 = 1 %%)"
    )
    parser.add_argument(
        "--count", type=int, metavar="N", help="aim at this many cases instead of the goal"
    )
    return parser


def _make_scratch() -> str:
    """Make a directory for all files of this process and its children, in memory if possible."""
    scratch = tempfile.mkdtemp(prefix="aiochronicle-torture-", dir=in_memory())
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    return scratch


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaigns that the arguments name; return the exit code."""
    known = load_all()
    parser = _parser(known)
    options = parser.parse_args(arguments)
    if options.list:
        print(*known, sep="\n")
        return 0
    for name in options.campaign:
        if name not in known:
            parser.error(f"no campaign {name!r}; there are {', '.join(known)}")
    given = os.environ.get(_SEED_VARIABLE)
    seed = options.seed if options.seed is not None else int(given, 0) if given else None
    seed = secrets.randbits(48) if seed is None else seed
    print(f"{_SEED_VARIABLE}={seed}")
    limit_s = None if options.minutes is None else options.minutes * 60
    scratch = _make_scratch()
    results = []
    for name in options.campaign or known:
        goal = options.count or max(1, round(known[name].goal * options.scale))
        results.append(_run(known[name], seed, goal, limit_s))
    _print_table(results)
    failed = any(result.failed for result in results)
    if failed:
        print(f"what was left of the queues is in {scratch}")
    else:
        shutil.rmtree(scratch)
    sys.stdout.flush()
    return int(failed)
