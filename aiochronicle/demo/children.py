"""The demo's processes: started, listened to, ended."""

import contextlib
import subprocess
import sys
import tempfile
import threading
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Self

import msgspec

from aiochronicle.demo.reports import FeedSpec, ReaderSpec, Report

__all__ = ["Child", "Crew"]

FINISH_TIMEOUT_S = 15.0

Spec = FeedSpec | ReaderSpec


class Child:
    """One process, and a thread that passes on what it reports."""

    def __init__(self, spec: Spec, inbox: "SimpleQueue[Report]") -> None:
        module = "feed" if isinstance(spec, FeedSpec) else "follower"
        self.label = spec.queue if isinstance(spec, FeedSpec) else f"{spec.queue} → {spec.name}"
        self.spec = spec
        self._inbox = inbox
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        # A process group of its own: Ctrl-C is for the parent, which then ends the others in order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"aiochronicle.demo.{module}", msgspec.json.encode(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            process_group=0,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True, name=self.label)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        decoder = msgspec.json.Decoder(Report)
        for line in self._process.stdout:
            # A killed child can leave half a line.
            with contextlib.suppress(msgspec.DecodeError):
                self._inbox.put(decoder.decode(line))

    @property
    def ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process.poll() is not None

    def ask_to_finish(self) -> None:
        """Let it end in its own time."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._reap()

    def join(self) -> str | None:
        """Wait for its end; return what was wrong with it, or None."""
        self.ask_to_finish()
        try:
            status = self._process.wait(FINISH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"{self.label}: did not end within {FINISH_TIMEOUT_S:g} s"
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        self._reap()
        if status == 0 and not said:
            return None
        return f"{self.label}: ended with status {status}: {said.splitlines()[-1] if said else '-'}"

    def _reap(self) -> None:
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class Crew:
    """All processes of a run. Leaving the context ends whatever is still there."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Report] = SimpleQueue()
        self.children: list[Child] = []

    def start(self, spec: Spec) -> Child:
        """Start a process."""
        child = Child(spec, self._inbox)
        self.children.append(child)
        return child

    def kill(self, child: Child) -> None:
        """Kill one, on purpose."""
        child.kill()
        self.children.remove(child)

    def next_report(self, timeout_s: float) -> Report | None:
        """Return a report, or None if there is none within the time."""
        try:
            return self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
        except Empty:
            return None

    def finish(self, kind: type[Spec]) -> list[str]:
        """End all feeds, or all readers, in good order; return what was wrong with them."""
        leaving = [child for child in self.children if isinstance(child.spec, kind)]
        for child in leaving:
            child.ask_to_finish()
        problems = [child.join() for child in leaving]
        self.children = [child for child in self.children if child not in leaving]
        return [problem for problem in problems if problem is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self.children:
            child.kill()
        self.children.clear()
