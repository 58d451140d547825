"""The demo's processes: started, listened to, ended."""

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Self

import msgspec

from aiochronicle.demo.reports import Report, Role, Spec

__all__ = ["Child", "Crew"]


class Child:
    """One process, and a thread that forwards its reports."""

    def __init__(self, spec: Spec, inbox: "SimpleQueue[Report]") -> None:
        self.spec = spec
        self._inbox = inbox
        self._done = -1
        self._progress_s = time.monotonic()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        # A process group of its own: Ctrl-C is for the parent, which then ends the others in order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "aiochronicle.demo.process", msgspec.json.encode(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            process_group=0,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True, name=spec.name)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        decoder = msgspec.json.Decoder(Report)
        for line in self._process.stdout:
            # A killed child can leave half a line.
            with contextlib.suppress(msgspec.DecodeError):
                report = decoder.decode(line)
                if report.done + report.fills != self._done:
                    self._done = report.done + report.fills
                    self._progress_s = time.monotonic()
                self._inbox.put(report)

    @property
    def ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process.poll() is not None

    def ask_to_finish(self) -> None:
        """Ask it to end when it is done."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._reap()

    def join(self, patience_s: float) -> str | None:
        """Wait for its end while it makes progress; return what went wrong, or None."""
        self.ask_to_finish()
        self._progress_s = time.monotonic()
        while not self.ended:
            if time.monotonic() > self._progress_s + patience_s:
                self.kill()
                return f"{self.spec.name}: did not end, and did nothing for {patience_s:g} s"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
        status = self._process.returncode
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        self._reap()
        if status == 0 and not said:
            return None
        last_line = said.splitlines()[-1] if said else "-"
        return f"{self.spec.name}: ended with status {status}: {last_line}"

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
        self.children: dict[str, Child] = {}

    def start(self, spec: Spec) -> None:
        """Start a process."""
        self.children[spec.name] = Child(spec, self._inbox)

    def kill(self, name: str) -> None:
        """Kill a process on purpose."""
        self.children.pop(name).kill()

    def next_report(self, timeout_s: float) -> Report | None:
        """Return a report, or None if there is none within the time."""
        try:
            return self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
        except Empty:
            return None

    def finish(self, role: Role, patience_s: float) -> list[str]:
        """End all processes of a role in order; return what went wrong."""
        leaving = [child for child in self.children.values() if child.spec.role == role]
        for child in leaving:
            child.ask_to_finish()
        problems = [child.join(patience_s) for child in leaving]
        for child in leaving:
            del self.children[child.spec.name]
        return [problem for problem in problems if problem is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self.children.values():
            child.kill()
        self.children.clear()
