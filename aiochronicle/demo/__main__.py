"""Runs the demo: starts the processes, watches them, ends them in order, and judges the result."""

import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import FrameType

import aiochronicle
from aiochronicle.demo import pipeline, summary
from aiochronicle.demo.board import Board, Feed, Reader
from aiochronicle.demo.children import Child, Crew
from aiochronicle.demo.options import FEED_NAMES, READER_NAMES, Options, has_space, parse
from aiochronicle.demo.reports import FeedSpec, ReaderSpec
from aiochronicle.demo.screen import View, view_for

__all__ = ["main"]

START_TIMEOUT_S = 30.0
PAUSE_S = 0.3
TAKE_OVER_TIMEOUT_S = 30.0


class EndedEarlyError(Exception):
    """The user wants to see the end of it, or a process is missing."""


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _end_early(number: int, frame: FrameType | None) -> None:
    # Once: whoever asks again means at once.
    _on_signals(signal.default_int_handler)
    raise EndedEarlyError


@contextlib.contextmanager
def _root(options: Options) -> Generator[Path]:
    if options.root is not None:
        options.root.mkdir(parents=True, exist_ok=True)
        yield options.root
        return
    with tempfile.TemporaryDirectory(prefix="aiochronicle-demo-") as name:
        yield Path(name)


class Run:
    """One run, from the first process to the last."""

    def __init__(self, options: Options, root: Path, crew: Crew) -> None:
        self._options = options
        self._crew = crew
        self._feeds: dict[str, Child] = {}
        self._crash = "to come" if options.crash else "over"
        self.board = Board()
        for queue in FEED_NAMES[: options.feeds]:
            self._create_queue(queue, root / queue)

    def _create_queue(self, queue: str, path: Path) -> None:
        # Now, so that readers find it; and whatever an earlier run left is repaired by this.
        aiochronicle.open_writer(path, segment_size=self._options.segment_bytes).close()
        self.board.feeds[queue] = Feed(queue, path, aiochronicle.inspect(path).next_seq)
        for name in READER_NAMES[: self._options.readers]:
            self.board.readers[queue, name] = Reader(queue, name)

    def start(self, refresh: Callable[[], None]) -> None:
        """Start everybody, readers first, and the clock when all are at work."""
        board = self.board
        for reader in board.readers.values():
            feed = board.feeds[reader.queue]
            self._crew.start(
                ReaderSpec(
                    queue=reader.queue,
                    name=reader.name,
                    path=str(feed.path),
                    first_seq=feed.first_seq,
                )
            )
        self._wait_until(lambda: all(r.report for r in board.readers.values()), refresh)
        for queue in board.feeds:
            self._start_feed(queue)
        self._wait_until(lambda: all(f.report for f in board.feeds.values()), refresh)
        board.start_clock()

    def _start_feed(self, queue: str) -> None:
        options, feed = self._options, self.board.feeds[queue]
        self._feeds[queue] = self._crew.start(
            FeedSpec(
                queue=queue,
                path=str(feed.path),
                rate_hz=options.rate_hz,
                segment_bytes=options.segment_bytes,
                seed=options.seed + list(self.board.feeds).index(queue),
            )
        )

    def _wait_until(self, condition: Callable[[], bool], refresh: Callable[[], None]) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not condition():
            self.listen(0.05)
            refresh()
            if self.someone_ended() or time.monotonic() > deadline_s:
                raise EndedEarlyError

    def listen(self, seconds: float) -> None:
        """Take the reports of so long; 0: those that are there."""
        until_s = time.monotonic() + seconds
        while True:
            report = self._crew.next_report(max(0.0, until_s - time.monotonic()))
            if report is not None:
                self.board.apply(report)
            elif time.monotonic() >= until_s:
                return

    def someone_ended(self) -> bool:
        """Tell whether a process ended that should not have."""
        return any(child.ended for child in self._crew.children)

    def goes_on(self) -> bool:
        """Tell whether there is time left. The crash and the recovery from it get theirs."""
        late_s = self.board.elapsed_s - self._options.seconds
        return late_s < (0.0 if self._crash == "over" else TAKE_OVER_TIMEOUT_S)

    def crash_if_due(self) -> None:
        """Half-way, kill a feed in the middle of its work; start it again a moment later."""
        queue = list(self.board.feeds)[-1]
        half_s = self._options.seconds / 2
        if self._crash == "to come" and self.board.elapsed_s >= half_s:
            self._crash = "killed"
            self._kill_feed(queue)
        elif self._crash == "killed" and self.board.elapsed_s >= half_s + PAUSE_S:
            self._crash = "restarted"
            self.board.feeds[queue].state = "recovering"
            self._start_feed(queue)
        elif self._crash == "restarted" and self.board.feeds[queue].state == "writing":
            self._crash = "over"
            self._note_recovery(queue)

    def _kill_feed(self, queue: str) -> None:
        self._crew.kill(self._feeds.pop(queue))
        self.listen(0)  # its last reports must not look like those of its successor
        self.board.feeds[queue].state = "killed"
        self.board.note(f"{queue}: killed (SIGKILL) while writing")

    def _note_recovery(self, queue: str) -> None:
        report = self.board.feeds[queue].report
        assert report is not None
        self.board.note(
            f"{queue}: a new writer took over in {report.opened_ms:.0f} ms:"
            f" {report.records_scanned:,} records checked, {report.torn_records} torn"
        )

    def finish(self) -> list[str]:
        """End the feeds, then the readers, which read to the end first; return what went wrong."""
        problems: list[str] = []
        if self._crash != "over" and not self.goes_on():
            problems.append(f"{list(self.board.feeds)[-1]}: killed, and no new writer took over")
        problems += self._crew.finish(FeedSpec)
        problems += self._crew.finish(ReaderSpec)
        self.listen(0)
        return problems


def _write_and_read(run: Run, view: View) -> None:
    try:
        _on_signals(_end_early)
        run.start(view.refresh)
        while run.goes_on() and not run.someone_ended():
            run.listen(0.02)
            run.crash_if_due()
            view.refresh()
        _on_signals(signal.default_int_handler)
    except EndedEarlyError:
        run.board.note("stopped early")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    options = parse(arguments)
    _on_signals(signal.default_int_handler)
    with _root(options) as root, Crew() as crew:
        if not has_space(options, root):
            print(f"not enough free space in {root} for this run", file=sys.stderr)
            return 2
        run = Run(options, root, crew)
        with view_for(run.board, options) as view:
            _write_and_read(run, view)
            wrote_s = max(run.board.elapsed_s, 1e-3)
            problems = run.finish()
        verdict = summary.judge(run.board, problems)
        summary.show(view.theme, run.board, verdict, wrote_s)
        if options.pipeline and not verdict.problems:
            pipeline.show(view.theme, root, next(iter(run.board.feeds)), options.plot)
        if options.root is not None:
            print(f" the queues are in {root}")
        return 1 if verdict.problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
