"""Tables and plots of figures: ``python -m benchmarks.publish FILE…``.

A FILE is the output of ``benchmarks.figures --json``. The tables replace the text between two marks in
docs/performance.md, the plots are SVG files in docs/images. Each figure is a median, with its range and the
number of samples; no figure is left out or rounded in our favour. The machine, its load, the versions and
the command are printed above them.
"""

import argparse
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from benchmarks.figures import Report
from benchmarks.measure import Figure

__all__ = ["main", "markdown"]

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
QUESTIONS = {
    "sustained": "append",
    "rates": "age",
}  # the question of a module that has another name
TITLES = {
    "append": "Appending, in bursts and without a pause",
    "recorder": "Appending for long, with nothing removed",
    "longest": "The longest append, beside a busy disk",
    "durable": "One durable message",
    "reading": "Reading what is there",
    "foreign": "Queues of another program, next to ours",
    "waking": "Waking a reader that sleeps, 2,000 messages a second",
    "age": "Age of a message at a fixed rate, without coordinated omission",
    "sleepers": "Appending while readers sleep",
    "fans": "Many queues into one, one queue to many readers",
    "peers": "From process to process, per message",
}


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _row(figure: Figure) -> str:
    low, middle, high = (_number(f(figure.samples)) for f in (min, statistics.median, max))
    return f"| {figure.case} | {middle} {figure.unit} | {low}–{high} | {len(figure.samples)} |"


def merge(reports: list[Report]) -> Report:
    """Return the figures of several runs on one machine, with the highest of their loads."""
    machines = [report.machine for report in reports]
    machine = msgspec.structs.replace(
        machines[0],
        load_before=max(machine.load_before for machine in machines),
        load_after=max(machine.load_after for machine in machines),
    )
    return Report(
        command="; ".join(report.command for report in reports),
        started=min(report.started for report in reports),
        machine=machine,
        figures=[figure for report in reports for figure in report.figures],
    )


def _head(report: Report) -> Iterator[str]:
    machine = report.machine
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    yield (
        f"`{report.command}`, {report.started}: {machine.processor}, {machine.cores} cores, "
        f"{machine.memory_gib} GiB, Linux {machine.kernel}, {machine.python}, {versions}. "
        f"Highest load average before and after: {machine.load_before:.1f}, {machine.load_after:.1f}."
    )
    yield ""
    if max(machine.load_before, machine.load_after) > machine.cores:
        yield "**The machine had other work to do: these figures show that work, too.**"
        yield ""


def markdown(report: Report, images: Iterable[str] = ()) -> str:
    """Return the tables."""
    lines = [*_head(report)]
    shown = set(images)
    for question, title in TITLES.items():
        figures = [figure for figure in report.figures if figure.question == question]
        if not figures:
            continue
        lines += [f"### {title}", ""]
        if question in shown:
            lines += [f"![{title}](images/figures-{question}.svg)", ""]
        lines += ["| | median | range | n |", "|---|---|---|---|", *map(_row, figures), ""]
    return "\n".join(lines)


def _plot(figures: list[Figure], title: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "aiochronicle"  # the same figures give the same file
    height = 0.22 * len(figures) + 1.2
    figure, axes = plt.subplots(figsize=(9, height))
    rows = list(range(len(figures)))[::-1]
    for row, item in zip(rows, figures, strict=True):
        low, middle, high = min(item.samples), statistics.median(item.samples), max(item.samples)
        axes.plot([low, high], [row, row], color="#8ab", linewidth=5, solid_capstyle="butt")
        axes.plot([middle], [row], marker="|", color="#124", markersize=9)
    axes.set_yticks(rows, [item.case for item in figures], fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel(f"{figures[0].unit}: range and median")
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Write the tables and the plots."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    options = parser.parse_args(arguments)
    report = merge([msgspec.json.decode(file.read_bytes(), type=Report) for file in options.files])
    page = options.docs / "performance.md"
    text = page.read_text(encoding="utf-8")
    if not (BEGIN in text and END in text):
        print(f"{page} has no {BEGIN} and {END}", file=sys.stderr)
        return 2
    drawn: list[str] = []
    for question, title in TITLES.items():
        figures = [figure for figure in report.figures if figure.question == question]
        if figures:
            measured = [figure for figure in figures if figure.unit]  # no counts
            _plot(measured, title, options.docs / "images" / f"figures-{question}.svg")
            drawn.append(question)
    tables = f"{BEGIN}\n{markdown(report, drawn)}\n{END}"
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    page.write_text(pattern.sub(lambda _: tables, text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
