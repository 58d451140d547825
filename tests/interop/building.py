"""Compiles the judge: `tests/interop/java` by Maven, into build/judge, and again when its sources change.

The libraries come from Maven Central once, and are then in Maven's own cache.
AIOCHRONICLE_JUDGE_VERSION chooses another version of Chronicle Queue, from 5.24 on, for all tests.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parent / "java"
BUILT = Path(__file__).resolve().parents[2] / "build" / "judge"
VERSION = os.environ.get("AIOCHRONICLE_JUDGE_VERSION") or "2026.4"
BUILD_SECONDS = 90  # less than a test may take; what was downloaded by then is there the next time


class JudgeUnavailable(Exception):
    """The judge cannot be built here."""


@functools.cache
def missing(version: str = VERSION) -> str | None:
    """Why the judge cannot run here, or None if it can; builds it."""
    try:
        build(version)
    except JudgeUnavailable as reason:
        return str(reason)
    return None


def build(version: str = VERSION) -> Path:
    """Compile the judge if its sources changed, and give the directory of its classes."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise JudgeUnavailable(f"{tool} is not installed")
    digest = _digest()
    built = BUILT / version
    stamp = built / "stamp"
    built.mkdir(parents=True, exist_ok=True)
    with _exclusive(built / "lock"):
        if not stamp.exists() or stamp.read_text() != digest:
            stamp.unlink(missing_ok=True)
            _compile(built)
            stamp.write_text(digest)
    return built


def _digest() -> str:
    files = [PROJECT / "pom.xml", *sorted(PROJECT.rglob("*.java"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Two test sessions must not compile into one directory at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(built: Path) -> None:
    for directory in ("classes", "lib", "maven-status"):
        shutil.rmtree(built / directory, ignore_errors=True)
    if _maven(built, "-o") is None:
        return
    complaint = _maven(built)
    if complaint is not None:
        raise JudgeUnavailable(f"Maven could not fetch or build the judge: {complaint}")


def _maven(built: Path, *options: str) -> str | None:
    """What Maven complains of, or None."""
    command = ["mvn", "-q", "-B", *options, "-f", str(PROJECT / "pom.xml")]
    chosen = [f"-Djudge.build={built}", f"-Dqueue.version={built.name}"]
    goals = ["compile", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(
            [*command, *chosen, *goals, f"-DoutputDirectory={built / 'lib'}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_SECONDS,
            env=environment(),
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {BUILD_SECONDS} s"
    assert "COMPILATION ERROR" not in done.stdout, done.stdout  # no reason to skip anything
    return None if done.returncode == 0 else done.stdout[-2000:]


def environment() -> dict[str, str]:
    """Without the libraries that a sanitized test run puts before all others: no JVM starts with them."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
