"""Compiles the judge (`tests/interop/java`) with Maven into build/judge, again whenever its sources change.

The libraries come from Maven Central once and are then in Maven's cache.
AIOCHRONICLE_JUDGE_VERSION selects another version of Chronicle Queue (5.24 or later) for all tests.
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
TESTS_PROJECT = Path(__file__).parent / "chronicle"
PRELOAD = Path(__file__).parent / "preload"
FLAGS = Path(__file__).parents[2] / "csrc" / "compile_flags.txt"
BUILT = Path(__file__).resolve().parents[2] / "build" / "judge"
VERSION = os.environ.get("AIOCHRONICLE_JUDGE_VERSION") or "2026.4"
BUILD_SECONDS = 90  # less than a test's limit; downloads up to then are kept


class JudgeUnavailable(Exception):
    """The judge cannot be built here."""


@functools.cache
def missing(version: str = VERSION) -> str | None:
    """Build the judge; return why it cannot run here, or None."""
    try:
        build(version)
    except JudgeUnavailable as reason:
        return str(reason)
    return None


def build(version: str = VERSION) -> Path:
    """Compile the judge if its sources changed; return its build directory."""
    _check_tools()
    built = BUILT / version
    sources = [PROJECT / "pom.xml", *sorted(PROJECT.rglob("*.java"))]
    with _anew(built, sources) as has_changed:
        if has_changed:
            _fetch(PROJECT / "pom.xml", built, "compile", version=version)
    return built


def chronicle_tests() -> Path:
    """Fetch Chronicle's own tests and their dependencies; return the directory of the libraries."""
    _check_tools()
    built = BUILT / "chronicle-tests"
    with _anew(built, [TESTS_PROJECT / "pom.xml"]) as has_changed:
        if has_changed:
            _fetch(TESTS_PROJECT / "pom.xml", built, version="2026.4")
    return built / "lib"


def preloaded(name: str) -> Path:
    """Compile `preload/NAME.c`; return the library for LD_PRELOAD."""
    built = BUILT / "preload" / name
    source = PRELOAD / f"{name}.c"
    library = built / f"{name}.so"
    with _anew(built, [source]) as has_changed:
        if has_changed:
            compiler = os.environ.get("CC", "cc")
            command: list[str | Path] = [compiler, f"@{FLAGS}", "-fvisibility=default", "-fPIC"]
            command += ["-shared", source, "-o", library]
            subprocess.run(command, check=True, env=environment())
    return library


def _check_tools() -> None:
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise JudgeUnavailable(f"{tool} is not installed")


@contextlib.contextmanager
def _anew(built: Path, sources: list[Path]) -> Iterator[bool]:
    """Yield whether a build is needed, under a lock: two test sessions must not build at once."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()
    stamp = built / "stamp"
    built.mkdir(parents=True, exist_ok=True)
    with (built / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        has_changed = not stamp.exists() or stamp.read_text() != digest
        if has_changed:
            stamp.unlink(missing_ok=True)
        yield has_changed
        stamp.write_text(digest)


def _fetch(pom: Path, built: Path, *goals: str, version: str) -> None:
    """Run the goals and copy the libraries; use the network only if Maven's cache is not enough."""
    for directory in ("classes", "lib", "maven-status"):
        shutil.rmtree(built / directory, ignore_errors=True)
    command = ["-f", str(pom), f"-Djudge.build={built}", f"-Dqueue.version={version}", *goals]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    command.append(f"-DoutputDirectory={built / 'lib'}")
    if _maven("-o", *command) is None:
        return
    complaint = _maven(*command)
    if complaint is not None:
        raise JudgeUnavailable(f"Maven could not fetch or build {pom.parent.name}: {complaint}")


def _maven(*command: str) -> str | None:
    """Run Maven; return its error output, or None."""
    try:
        done = subprocess.run(
            ["mvn", "-q", "-B", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_SECONDS,
            env=environment(),
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {BUILD_SECONDS} s"
    assert "COMPILATION ERROR" not in done.stdout, done.stdout  # fail instead of skipping
    return None if done.returncode == 0 else done.stdout[-2000:]


def environment() -> dict[str, str]:
    """Return the environment without the sanitizers' LD_PRELOAD, with which no JVM starts."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
