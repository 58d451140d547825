"""Chronicle's own tests as a source of queues: we must list the queues they leave as Java does.

Their classes run in separate JVMs, and `preload/keep_queues.c` keeps each queue that they remove. Whether a
test passes does not matter here.
"""

import contextlib
import os
import signal
import subprocess
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from aiochronicle import open_reader
from aiochronicle.errors import ChronicleError

from .building import chronicle_tests, environment, preloaded
from .judge import MODULES, PROPERTIES, JavaThrew, Judge

__all__ = ["Verdict", "classes", "compare", "find_queues", "leave_queues", "unpack_queues"]

_CLASS_SECONDS = 600
_NOT_READY = "its creator has not finished it"
_WEEKLY = "format \"YYYY'W'ww\""  # Java cannot read these queues again either


class Verdict(msgspec.Struct, frozen=True):
    """The result of comparing our listing of a queue with Java's.

    ``equal``: the same, before and after Java opened the queue.
    ``completed``: the same only after Java's open completed an unfinished table store.
    ``ended``: Java lists fewer messages until its appender writes missing end marks.
    ``refused``: refused by Java, or by us because the queue is WEEKLY.
    """

    queue: Path
    outcome: Literal["equal", "completed", "ended", "refused", "different"]
    messages: int = 0
    reason: str = ""


def classes() -> list[str]:
    """Return the names of all test classes."""
    with zipfile.ZipFile(_tests_jar()) as jar:
        names = [name for name in jar.namelist() if name.endswith("Test.class")]
    return sorted(name[: -len(".class")].replace("/", ".") for name in names if "$" not in name)


def _tests_jar() -> Path:
    [jar] = chronicle_tests().glob("chronicle-queue-*-tests.jar")
    return jar


def unpack_queues(into: Path) -> None:
    """Unpack the queues of older versions from the resources of the tests."""
    with zipfile.ZipFile(_tests_jar()) as jar:
        for name in jar.namelist():
            if name.endswith((".cq4", ".cq4t")):
                jar.extract(name, into)


def leave_queues(names: Sequence[str], work: Path, timeout_s: float = _CLASS_SECONDS) -> str:
    """Run test classes in one JVM; return its output. The queues are then somewhere below ``work``."""
    kept = work / "kept"
    for directory in (kept, work / "target", work / "tmp"):
        directory.mkdir(parents=True, exist_ok=True)
    selected = [part for name in names for part in ("--select-class", name)]
    command = [
        "java",
        *MODULES,
        *PROPERTIES,
        "-Xmx1g",
        f"-Djava.io.tmpdir={work / 'tmp'}",
        *("-cp", f"{chronicle_tests()}/*"),
        *("org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner"),
        *("--details=summary", *selected),
    ]
    keeping = {"LD_PRELOAD": str(preloaded("keep_queues")), "KEEP_QUEUES": str(kept)}
    with (work / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment() | keeping,
            process_group=0,
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            log.write(b"\nTIMED OUT\n")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # tests may have started JVMs of their own
            process.wait()
    return (work / "log").read_text(errors="replace")


def find_queues(work: Path) -> Iterator[Path]:
    """Return the directories with data files."""
    for directory, _, files in os.walk(work):
        if any(file.endswith(".cq4") for file in files):
            yield Path(directory)


def compare(judge: Judge, queues: Iterable[Path], scratch: Path) -> Iterator[Verdict]:
    """List each queue with both readers and yield the comparison."""
    for queue in queues:
        yield _compare(judge, queue, scratch)


def _compare(judge: Judge, queue: Path, scratch: Path) -> Verdict:
    before = _ours(queue, scratch / "before")
    java, thrown = _java(judge, queue, scratch / "java")
    if thrown:
        return Verdict(queue, "refused", reason=f"Java: {thrown}; ours: {before or 'listed'}")
    if _WEEKLY in before:
        return Verdict(queue, "refused", reason=before)
    after = _ours(queue, scratch / "after")
    if not after and _is_same(scratch, "after"):
        if not before and _is_same(scratch, "before"):
            return Verdict(queue, "equal", java)
        if _NOT_READY in before:
            return Verdict(queue, "completed", java)
    java, thrown = _java(judge, queue, scratch / "java", end_cycles=True)
    if thrown:
        return Verdict(queue, "different", java, f"and no appender can be made: {thrown}")
    if not before and _is_same(scratch, "before"):
        return Verdict(queue, "ended", java)
    after = _ours(queue, scratch / "after")
    return Verdict(queue, "different", java, before or after or _difference(scratch))


def _java(judge: Judge, queue: Path, into: Path, *, end_cycles: bool = False) -> tuple[int, str]:
    """Return how many messages Java lists, and what it throws."""
    try:
        answer = judge.ask("list", path=str(queue), into=str(into), end_cycles=end_cycles)
    except JavaThrew as thrown:
        return 0, str(thrown)
    return answer["messages"], ""


def _ours(queue: Path, into: Path) -> str:
    """List a queue with our reader; return the error, if any."""
    try:
        with into.open("wb") as lines, open_reader(queue) as reader:
            for message in reader:
                lines.write(b"%x %s\n" % (message.seq, message.payload.hex().encode()))
    except ChronicleError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _is_same(scratch: Path, ours: str) -> bool:
    return (scratch / ours).read_bytes() == (scratch / "java").read_bytes()


def _difference(scratch: Path) -> str:
    """Return the first line that differs."""
    ours = (scratch / "before").read_text().splitlines()
    java = (scratch / "java").read_text().splitlines()
    for number, (left, right) in enumerate(zip(ours, java, strict=False)):
        if left != right:
            return f"message {number}: ours {left[:80]}, Java {right[:80]}"
    return f"ours has {len(ours)} messages, Java {len(java)}"
