"""The end of the demo: is everything there, and what did it take?"""

from collections.abc import Iterable

import aiochronicle
from aiochronicle.demo.board import Board, Feed, Reader
from aiochronicle.demo.text import Theme, duration, table

__all__ = ["Verdict", "judge", "show"]


class Verdict:
    """What verification found in one queue, and everything that is wrong with the run."""

    def __init__(self) -> None:
        self.written: dict[str, int] = {}
        self.verified: dict[str, aiochronicle.VerifyReport] = {}
        self.problems: list[str] = []


def judge(board: Board, problems: Iterable[str]) -> Verdict:
    """Verify each queue and compare each reader with it."""
    verdict = Verdict()
    verdict.problems.extend(problems)
    for feed in board.feeds.values():
        written = aiochronicle.inspect(feed.path).next_seq - feed.first_seq
        verified = aiochronicle.verify(feed.path)
        verdict.written[feed.queue] = written
        verdict.verified[feed.queue] = verified
        verdict.problems.extend(_problems_of_queue(feed, written, verified))
        for reader in board.readers_of(feed.queue):
            verdict.problems.extend(_problems_of_reader(reader, written))
    return verdict


def _problems_of_queue(
    feed: Feed, written: int, verified: aiochronicle.VerifyReport
) -> Iterable[str]:
    if written == 0:
        yield f"{feed.queue}: nothing was written"
    if verified.corrupt:
        yield f"{feed.queue}: {verified.corrupt} corrupt records: {verified.first_problem}"
    if verified.records < written:
        yield f"{feed.queue}: {written:,} messages written, only {verified.records:,} found"


def _problems_of_reader(reader: Reader, written: int) -> Iterable[str]:
    who, report = f"{reader.queue} → {reader.name}", reader.report
    if report is None:
        yield f"{who}: never said a word"
        return
    if report.messages != written:
        yield f"{who}: {written:,} messages written, but {report.messages:,} read"
    if report.gaps:
        yield f"{who}: {report.gaps:,} gaps"
    if report.wrong:
        yield f"{who}: {report.wrong:,} messages with the content of another"


def show(theme: Theme, board: Board, verdict: Verdict, wrote_s: float) -> None:
    """Print the summary."""
    lines = ["", *_feed_table(theme, board, verdict, wrote_s), ""]
    lines += [*_reader_table(theme, board, verdict, wrote_s), ""]
    lines += [f"{elapsed_s:4.1f} s  {text}" for elapsed_s, text in board.events]
    lines += [""] if board.events else []
    lines += _conclusion(theme, board, verdict, wrote_s)
    print("\n".join(theme.plain_text(f" {line}".rstrip()) for line in lines), flush=True)


def _feed_table(theme: Theme, board: Board, verdict: Verdict, wrote_s: float) -> list[str]:
    rows: list[list[str]] = []
    for feed in board.feeds.values():
        verified = verdict.verified[feed.queue]
        written = verdict.written[feed.queue]
        payload_bytes = max(reader.payload_bytes.value for reader in board.readers_of(feed.queue))
        rows.append(
            [
                theme.paint(feed.queue, "cyan"),
                f"{written:,}",
                f"{written / wrote_s:,.0f}",
                f"{payload_bytes / 1e6 / wrote_s:.1f}",
                str(aiochronicle.inspect(feed.path).segments),
                *(duration(feed.append_times.percentile(percent)) for percent in (50, 99.9)),
                f"{verified.records:,}",
                _mark(theme, verified.corrupt == 0, f"{verified.corrupt} corrupt"),
            ]
        )
    headings = [
        "FEED",
        "written",
        "per s",
        "MB/s",
        "segments",
        "append p50",
        "p99.9",
        "verified",
        "",
    ]
    return table(theme, headings, rows)


def _reader_table(theme: Theme, board: Board, verdict: Verdict, wrote_s: float) -> list[str]:
    rows: list[list[str]] = []
    for reader in board.readers.values():
        report = reader.report
        gaps = report.gaps if report else 0
        good = not list(_problems_of_reader(reader, verdict.written[reader.queue]))
        rows.append(
            [
                theme.paint(reader.queue, "cyan") + theme.paint(" → ", "dim") + reader.name,
                f"{reader.messages.value:,}",
                f"{gaps:,}",
                *(duration(reader.latencies.percentile(percent)) for percent in (50, 99, 99.9)),
                f"{reader.payload_bytes.value / 1e6 / wrote_s:.1f}",
                _mark(theme, good, "all there" if good else "see below"),
            ]
        )
    return table(theme, ["READER", "read", "gaps", "p50", "p99", "p99.9", "MB/s", ""], rows)


def _mark(theme: Theme, good: bool, text: str) -> str:
    return theme.paint(f"✓ {text}" if good else f"✗ {text}", "good" if good else "bad")


def _conclusion(theme: Theme, board: Board, verdict: Verdict, wrote_s: float) -> list[str]:
    if verdict.problems:
        return [theme.paint(f"✗ {problem}", "bad") for problem in verdict.problems]
    written = sum(verdict.written.values())
    read = sum(reader.messages.value for reader in board.readers.values())
    return [
        theme.paint("✓ ", "good")
        + f"{written:,} messages written in {wrote_s:.1f} s, {read:,} read; every reader got every"
        " message, once, in order",
        theme.paint("  latency: from the timestamp given by append to the reader's hands", "dim"),
    ]
