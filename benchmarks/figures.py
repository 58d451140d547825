"""Figures without bars: ``python -m benchmarks.figures --json FILE``.

``python -m benchmarks.publish FILE`` makes tables and plots of them for the documentation.

Each figure is measured several times. The file keeps all samples, so that a table can show the median, the
range and the number of samples. It also has the machine, the versions and the command, because a figure
means nothing without them. The top of each module says what it measures, and how.
"""

import argparse
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from benchmarks import (
    durable_peers,
    fans,
    foreign,
    longest,
    measure,
    peers,
    rates,
    reading,
    recorder,
    sleepers,
    sustained,
    waking,
)
from benchmarks.measure import Figure

__all__ = ["Machine", "Report", "main"]

MEASURED: dict[str, Callable[[Path, bool], Iterator[Figure]]] = {
    "sustained": sustained.figures,
    "recorder": recorder.figures,
    "longest": longest.figures,
    "durable": durable_peers.figures,
    "reading": reading.figures,
    "foreign": foreign.figures,
    "waking": waking.figures,
    "rates": rates.figures,
    "sleepers": sleepers.figures,
    "fans": fans.figures,
    "peers": peers.figures,
}
PACKAGES = (
    "aiochronicle",
    "uvloop",
    "hdrhistogram",
    "pyzmq",
    "redis",
    "nats-py",
    "iceoryx2",
    "persist-queue",
)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that the figures come from."""

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    versions: dict[str, str]
    load_before: float  # average over a minute: other work of the machine
    load_after: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    command: str
    started: str
    machine: Machine
    figures: list[Figure]


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def describe_machine(load_before: float) -> Machine:
    """Return the present state of the machine."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 0,
        memory_gib=round(memory_bytes / 2**30, 1),
        kernel=platform.release().partition("-")[0],
        python=f"{platform.python_implementation()} {platform.python_version()}",
        versions=_versions(),
        load_before=load_before,
        load_after=os.getloadavg()[0],
    )


def priority() -> list[str]:
    """Return how this process was started, if not with the default priority."""
    flags = {os.SCHED_RR: "--rr", os.SCHED_FIFO: "--fifo"}
    flag = flags.get(os.sched_getscheduler(0))
    return ["chrt", flag, str(os.sched_getparam(0).sched_priority)] if flag else []


def show(figure: Figure) -> None:
    """Print one line."""
    middle = statistics.median(figure.samples)
    low, high = min(figure.samples), max(figure.samples)
    line = f"{figure.question:9} {figure.case:58} {middle:10.1f} {figure.unit}"
    print(f"{line}  {low:.1f} to {high:.1f}, n = {len(figure.samples)}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go")
    parser.add_argument("--only", action="append", choices=list(MEASURED), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="shows that it works, not how fast")
    parser.add_argument("--directory", type=Path, help="on the disk to measure: /var/tmp")
    options = parser.parse_args(arguments)
    load_before = os.getloadavg()[0]
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    figures: list[Figure] = []
    with measure.workspace(options.directory) as directory:
        for name in options.only or MEASURED:
            for figure in MEASURED[name](directory, options.quick):
                show(figure)
                figures.append(figure)
    if options.json:
        words = [*priority(), "python", "-m", "benchmarks.figures"]
        words += ["--quick"] * options.quick
        words += [word for name in options.only or () for word in ("--only", name)]
        report = Report(
            command=shlex.join(words),
            started=started,
            machine=describe_machine(load_before),
            figures=figures,
        )
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
