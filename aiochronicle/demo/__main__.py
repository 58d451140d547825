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
from aiochronicle.demo import pipeline, proof
from aiochronicle.demo.board import Board
from aiochronicle.demo.children import Crew
from aiochronicle.demo.market import TYPES
from aiochronicle.demo.options import VENUES, Options, has_space, parse
from aiochronicle.demo.orders import FILLS, ORDERS, RULES
from aiochronicle.demo.reports import Role, Spec
from aiochronicle.demo.screen import View, frame, make_console, save_svg

__all__ = ["main"]

# Limits for the time without any progress, not for a whole step: machines may be busy.
START_PATIENCE_S = 120.0
RESTART_PATIENCE_S = 120.0
FINISH_PATIENCE_S = 60.0
LOST_PATIENCE_S = 1.0
PAUSE_S = 0.5
# When the last strategy joins, and when a process is killed.
JOIN_SHARE = 0.25
KILL_SHARE = 0.5


class EndedEarlyError(Exception):
    """The user asked for the end, or a process is missing."""


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _end_early(number: int, frame: FrameType | None) -> None:
    # Only the first: a second one stops at once.
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
        self._root = root
        self._crew = crew
        self._venues: list[str] = list(VENUES[: options.venues])
        self._strategies = list(RULES)[: options.strategies]
        self._late = self._strategies[-1] if options.strategies > 1 else None
        self._join = "to come" if self._late else "over"
        self._crash = "over" if options.kill == "none" else "to come"
        self.board = Board()
        self._create_queues()

    def _create_queues(self) -> None:
        # Now, so that every process finds its inputs, and leftovers of an earlier run are repaired.
        codecs = {f"market/{venue}": TYPES for venue in self._venues}
        for name, codec in {**codecs, "routed": ORDERS, "fills": FILLS}.items():
            path = self._root / name
            path.parent.mkdir(exist_ok=True)
            aiochronicle.open_writer(
                path, segment_size=self._options.segment_bytes, codec=codec
            ).close()
        for name in ("orders", "orders.replies"):
            (self._root / name).mkdir(exist_ok=True)

    def start(self, refresh: Callable[[], None]) -> None:
        """Start everything but the late strategy, and the clock when all are at work."""
        # Venues first: strict order holds among queues that are open when they are attached.
        for venue in self._venues:
            self._start("venue", venue)
        self._wait_for_reports(refresh)
        self._start("gateway", "gateway")
        self._start("router", "router")
        self._start("risk", "risk")
        for strategy in self._strategies:
            if strategy != self._late:
                self._start("strategy", strategy)
        self._wait_for_reports(refresh)
        self.board.start_clock()

    def _start(self, role: Role, name: str) -> None:
        if name not in self.board.processes:
            self.board.add(role, name)
        self._crew.start(
            Spec(
                role=role,
                name=name,
                root=str(self._root),
                venues=self._venues,
                rate_hz=self._options.rate_hz,
                segment_bytes=self._options.segment_bytes,
                seed=self._options.seed + len(self.board.processes),
            )
        )

    def _wait_for_reports(self, refresh: Callable[[], None]) -> None:
        deadline_s = time.monotonic() + START_PATIENCE_S
        while not all(process.report for process in self.board.processes.values()):
            self.listen(0.05)
            refresh()
            if self.someone_ended() or time.monotonic() > deadline_s:
                raise EndedEarlyError

    def listen(self, seconds: float) -> None:
        """Take reports for this long; 0: those available now."""
        until_s = time.monotonic() + seconds
        while True:
            report = self._crew.next_report(max(0.0, until_s - time.monotonic()))
            if report is not None:
                self.board.apply(report)
            elif time.monotonic() >= until_s:
                return

    def someone_ended(self) -> bool:
        """Return whether a process ended that should not have."""
        return any(child.ended for child in self._crew.children.values())

    def goes_on(self) -> bool:
        """Return whether there is time left. Joining and recovering may take as long as they need."""
        late_s = self.board.elapsed_s - self._options.seconds
        waiting = self._crash != "over" or self._join != "over"
        return late_s < (RESTART_PATIENCE_S if waiting else 0.0)

    def act(self) -> None:
        """Start the late strategy and kill the victim when their times come."""
        share = self.board.elapsed_s / self._options.seconds
        if self._late is not None:
            self._join_if_due(self._late, share)
        if self._join == "over":
            self._crash_if_due(share)

    def _join_if_due(self, late: str, share: float) -> None:
        board = self.board
        if self._join == "to come" and share >= JOIN_SHARE:
            self._join = "started"
            board.note(f"{late}: started; the router does not know it yet")
            self._start("strategy", late)
        elif self._join == "started":
            (router,) = board.of("router")
            if router.report is not None and late in router.report.sources:
                self._join = "over"
                waiting = board.processes[late].lag
                board.note(f"{late}: attached by the router; {waiting:,} ticks to catch up with")

    def _crash_if_due(self, share: float) -> None:
        board = self.board
        victim = board.of(self._options.kill)[0] if self._crash != "over" else None
        if victim is None:
            return
        if self._crash == "to come" and share >= KILL_SHARE:
            self._crash = "killed"
            self._killed_s = time.monotonic()
            self._crew.kill(victim.name)
            self.listen(0)  # its last reports must not be taken for its successor's
            victim.restart("killed")
            board.note(f"{victim.name}: killed (SIGKILL)")
        elif self._crash == "killed" and time.monotonic() >= self._killed_s + PAUSE_S:
            self._crash = "restarted"
            victim.restart("recovering")
            self._start(victim.role, victim.name)
        elif self._crash == "restarted" and victim.state == "running":
            self._crash = "over"
            away_s = time.monotonic() - self._killed_s
            board.note(f"{victim.name}: a new process took over after {away_s:.1f} s")

    def finish(self) -> list[str]:
        """End all processes, venues first; each reads to the end before. Return what went wrong."""
        problems: list[str] = []
        if self._crash in ("killed", "restarted") and not self.goes_on():
            victim = self.board.of(self._options.kill)[0]
            problems.append(f"{victim.name}: killed, and no new process took over")
        # The others might wait in vain for a lost process.
        lost = problems or self.someone_ended()
        patience_s = LOST_PATIENCE_S if lost else FINISH_PATIENCE_S
        roles: tuple[Role, ...] = ("venue", "strategy", "router", "gateway", "risk")
        for role in roles:
            problems += self._crew.finish(role, patience_s)
            self.listen(0)
        return problems


def _trade(run: Run, view: View) -> None:
    try:
        _on_signals(_end_early)
        run.start(view.refresh)
        while run.goes_on() and not run.someone_ended():
            run.listen(0.02)
            run.act()
            view.refresh()
        _on_signals(signal.default_int_handler)
    except EndedEarlyError:
        run.board.note("stopped early")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    options = parse(arguments)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")  # arrows, on a terminal without them
    console = make_console(options)
    _on_signals(signal.default_int_handler)
    with _root(options) as root, Crew() as crew:
        if not has_space(options, root):
            print(f"not enough free space in {root} for this run", file=sys.stderr)
            return 2
        run = Run(options, root, crew)
        with View(run.board, options, console) as view:
            _trade(run, view)
            last_frame = frame(run.board, options, 90)
            problems = run.finish()
        proven = proof.prove(root, run.board, problems)
        verdict = proof.show(proven)
        console.print(verdict)
        if options.svg is not None:
            save_svg(options.svg, "make demo", [last_frame, verdict])
        if options.pipeline and not proven.problems:
            pipeline.show(console, root / "market", VENUES[0], options.plot)
        if options.root is not None:
            console.print(f"the queues are in {root}", markup=False, soft_wrap=True)
        return 1 if proven.problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
