"""How many instructions a message takes, by callgrind, compared with the counts in instructions.json.

Times on a shared machine differ by tens of per cent from run to run, counts of instructions by less than
one. ``make test`` counts them and fails if one has grown by more than 5 %. This command stores the present
counts, after a gain or a justified growth::

    .venv/bin/python -m benchmarks.instructions --update

Only the thread that appends or reads is counted, not the engine's own threads, over messages of 100 bytes
that are in memory; its clock stands still during the count. ``columns`` fills Arrow's columns in C.
Compiler, C library, interpreter and processor all affect the counts, so the file has counts for each
combination of them.
"""

import argparse
import asyncio
import ctypes
import gc
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from aiochronicle import FanIn, _hot, open_reader, open_writer

__all__ = ["Kept", "compare", "explain_missing", "measure", "name_platform"]

ROOT = Path(__file__).resolve().parent.parent
KEPT = Path(__file__).with_name("instructions.json")
GROWTH_MAX = 0.05
MESSAGES = 1280
BATCH = 64

Counts = dict[str, int]
"""Instructions per message, by operation."""


class Kept(msgspec.Struct, frozen=True):
    """The content of instructions.json: the counts of each measured platform."""

    platforms: dict[str, Counts]

    @classmethod
    def load(cls, path: Path = KEPT) -> "Kept":
        """Read the file; without a file there are no counts."""
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else cls({})

    def find(self, here: str) -> Counts | None:
        """Return the counts for a platform; for an unknown interpreter, those of the loops in C."""
        if here in self.platforms:
            return self.platforms[here]
        for platform_name, counts in self.platforms.items():
            if without_interpreter(platform_name) == without_interpreter(here):
                return {name: count for name, count in counts.items() if name.startswith("c.")}
        return None

    def save(self, path: Path = KEPT) -> None:
        """Write the file in a layout that is easy to diff."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self, order="sorted")) + b"\n")


def without_interpreter(platform_name: str) -> list[str]:
    """Return the parts of a platform's name on which the loops in C depend."""
    parts = platform_name.split(", ")
    return parts[:3] + parts[4:]


def name_platform() -> str:
    """Return the parts of the machine on which counts depend."""
    compiler = os.environ.get("CC", "cc")
    version = subprocess.run(
        [compiler, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=True
    )
    flags = sysconfig.get_config_var("PY_CFLAGS") or ""
    parts = [
        platform.machine(),
        f"{compiler} {version.stdout.strip()}",
        " ".join(platform.libc_ver()),
        f"{platform.python_implementation()} {platform.python_version()}",
        # Builds of the same interpreter differ, too.
        "-O3" if "-O3" in flags else "-O2",
        *(["lto"] if "-flto" in flags else []),
    ]
    return ", ".join(parts)


def explain_missing() -> str | None:
    """Return why instructions cannot be counted here, or None."""
    if shutil.which("valgrind") is None:
        return "valgrind is not installed"
    engine = Path(str(_hot.__file__)).read_bytes()
    if b"__asan_init" in engine or b"__gcov_" in engine:
        return "the engine was compiled for a sanitizer or for coverage"
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        return f"there is no compiler {compiler!r}"
    header = "#include <valgrind/callgrind.h>\n"
    command = [compiler, "-E", "-o", os.devnull, "-"]
    found = subprocess.run(command, input=header, text=True, capture_output=True, check=False)
    return "valgrind/callgrind.h is not installed" if found.returncode else None


def compare(kept: Counts, found: Counts) -> list[str]:
    """Return a line for each count that has grown too much or is missing on one side."""
    lines: list[str] = []
    for name in sorted(kept.keys() | found.keys()):
        if name not in found:
            lines.append(f"{name} was not counted")
        elif name not in kept:
            lines.append(f"{name} is not in {KEPT.name}")
        elif found[name] > kept[name] * (1 + GROWTH_MAX):
            growth = found[name] / kept[name] - 1
            lines.append(
                f"{name} takes {found[name]} instructions per message, {growth:.1%} more than"
                f" the {kept[name]} in {KEPT.name}"
            )
    return lines


# ---- in the process that valgrind watches ----


class Counter:
    """Begins and ends counting; see instructions.c."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)  # it is preloaded …
        ctypes.CDLL(str(_hot.__file__), ctypes.RTLD_GLOBAL)  # … and can find the engine now

    @contextmanager
    def counted(self, name: str) -> Iterator[None]:
        """Count the instructions of this thread inside the ``with`` block."""
        begin, end = self._library.begin_count, self._library.end_count
        encoded = name.encode()
        begin()
        yield
        end(encoded)

    def count_in_c(self, directory: Path) -> None:
        """Count the loops in C."""
        if self._library.count_in_c(os.fsencode(directory), MESSAGES) != 0:
            raise RuntimeError("the loops in C failed")


def count_appends(counter: Counter, path: Path) -> None:
    payload = bytes(100)
    batch = [payload] * BATCH
    with open_writer(path) as writer:
        append, append_many = writer.append, writer.append_many
        append(payload)
        with counter.counted("append"):
            for _ in range(MESSAGES):
                append(payload)
        append_many(batch)
        with counter.counted("append_many"):
            for _ in range(MESSAGES // BATCH):
                append_many(batch)


async def follow(counter: Counter, path: Path) -> None:
    # Without yielding to the event loop: the number of yields, and the loop's work in them, differ from run
    # to run.
    async with open_reader(path, start="first", burst=2 * MESSAGES) as reader:
        messages = aiter(reader)
        await anext(messages)
        left = MESSAGES
        with counter.counted("__anext__"):
            async for _ in messages:
                left -= 1
                if not left:
                    break


def count_reads(counter: Counter, path: Path, other: Path) -> None:
    with open_reader(path, start="first") as reader:
        poll = reader.poll
        poll()
        with counter.counted("poll"):
            for _ in range(MESSAGES):
                poll()
        with counter.counted("iterate"):
            deque(islice(reader, MESSAGES), maxlen=0)
    asyncio.run(follow(counter, path))
    readers = [open_reader(queue, start="first") for queue in (path, other)]
    with FanIn(readers) as fan_in:
        fan_in.poll()
        with counter.counted("merge"):
            for _ in range(MESSAGES):
                fan_in.poll()
    for reader in readers:
        reader.close()


def run_watched(directory: Path) -> None:
    """Run everything that is counted."""
    counter = Counter()
    gc.disable()  # its timing is random
    counter.count_in_c(directory / "c")
    count_appends(counter, directory / "python")
    count_reads(counter, directory / "python", directory / "c")


# ---- around it ----


def build(library: Path) -> None:
    """Compile instructions.c. Its calls of the engine are bound lazily."""
    flags = (ROOT / "csrc" / "compile_flags.txt").read_text(encoding="utf-8").split()
    source = Path(__file__).with_suffix(".c")
    compiler = os.environ.get("CC", "cc")
    command: list[str | Path] = [compiler, *flags, "-fPIC", "-shared", "-I", ROOT / "csrc", source]
    command += ["-Wl,-z,lazy", "-o", library]
    subprocess.run(command, check=True)


def read_dump(dump: Path) -> tuple[str, int] | None:
    """Return the name and the count of a dump; None for a dump without a name."""
    text = dump.read_text(encoding="utf-8", errors="replace")
    name = re.search(r"^desc: Trigger: Client Request: (\S+)$", text, re.MULTILINE)
    total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
    return (name[1], int(total[1])) if name and total else None


def measure() -> Counts:
    """Count the instructions per message of everything."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        library = directory / "instructions.so"
        build(library)
        dumps = directory / "dumps"
        dumps.mkdir()
        valgrind = ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no"]
        valgrind += ["--collect-atstart=no", f"--callgrind-out-file={dumps}/out"]
        script = [sys.executable, "-m", __spec__.name, "--watched", name]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "LD_PRELOAD": str(library)}
        subprocess.run([*valgrind, *script], cwd=ROOT, check=True, env=environment)
        found = filter(None, map(read_dump, dumps.iterdir()))
        return {name: round(count / MESSAGES) for name, count in found}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("--update", action="store_true", help=f"keep the counts in {KEPT.name}")
    parser.add_argument("--watched", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.watched:
        run_watched(arguments.watched)
        return 0
    if reason := explain_missing():
        print(f"instructions cannot be counted: {reason}", file=sys.stderr)
        return 2
    here, kept, found = name_platform(), Kept.load(), measure()
    before = kept.find(here) or {}
    for name in sorted(found):
        was = f"{before[name]:8d} before" if name in before else ""
        print(f"{name:16s} {found[name]:8d} {was}")
    if arguments.update:
        Kept({**kept.platforms, here: found}).save()
        return 0
    if not before:
        print(f"no counts are kept for {here}; --update adds them", file=sys.stderr)
        return 0
    if here not in kept.platforms:
        found = {name: count for name, count in found.items() if name in before}
    grown = compare(before, found)
    for line in grown:
        print(line, file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
