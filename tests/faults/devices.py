"""Real disks for the tests: ext4 on a loop device whose blocks can be made to fail.

    with Disk.make() as disk:
        queue = disk.path / "queue"
        ...
        disk.drop_caches()                      # what is needed is read from the disk again
        with disk.unreadable(segment, 8192):    # this page of the file gives EIO
            ...
        with disk.unwritable(segment):          # no page of it can be written back
            ...
        with disk.power_cut() as image:         # what is on the disk now, mounted elsewhere
            ...

What lies below the loop device is ``bad_disk``, which says what fails, and is asked for images: what it was
given to write is on the disk, what the kernel still holds is not. No cache has to be dropped behind
anybody's back, and nothing else on the machine notices.

Needs root, a loop device and /dev/fuse; ``missing`` tells what is not there.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from .bad_disk import Plan, Snapshot
from .scratch import in_memory

__all__ = ["PAGE", "Disk", "content", "missing", "tmpfs"]

PAGE = 4096
_SIZE_BYTES = 96 << 20
_TIMEOUT_S = 60
_END_TIMEOUT_S = 2
_TESTS = Path(__file__).parents[1]


def missing() -> str | None:
    """Tell why there can be no disk here, or None if there can."""
    if os.geteuid() != 0:
        return "needs root, to mount a loop device"
    for path in ("/dev/loop-control", "/dev/fuse"):
        if not os.access(path, os.R_OK | os.W_OK):
            return f"needs {path}"
    for name in ("mkfs.ext4", "filefrag", "mount"):
        if shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            return f"needs the program {name}"
    return None


def _run(*command: str | Path) -> str:
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    outcome = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        env=environment,
        check=False,
    )
    if outcome.returncode != 0:
        raise OSError(f"{' '.join(map(str, command))}: {outcome.stderr.strip()}")
    return outcome.stdout


def _unmount(path: Path) -> None:
    """Unmount; a file that is still open, after a failed test, must not keep the device."""
    try:
        _run("umount", path)
    except OSError:
        with suppress(OSError):
            _run("umount", "-l", path)


@contextmanager
def _mounted(what: Path, where: Path) -> Iterator[None]:
    where.mkdir()
    _run("mount", "-o", "loop,noatime", what, where)  # the loop device goes with the mount
    try:
        yield
    finally:
        _unmount(where)


@contextmanager
def tmpfs(where: Path, size: str) -> Iterator[Path]:
    """Mount a file system in memory that is no larger than this."""
    where.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", where)
    try:
        yield where
    finally:
        _unmount(where)


def content(directory: Path) -> dict[str, bytes]:
    """Return the bytes of each file of a queue but its lock, which names who has tried it last."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "writer.lock"
    }


class Disk:
    """An ext4 file system at ``path``, on a disk of its own."""

    def __init__(self, directory: Path, daemon: subprocess.Popen[bytes]) -> None:
        """Belong to ``make``."""
        self.path = directory / "mnt"
        self._directory = directory
        self._disk = directory / "disk"
        self._daemon = daemon
        self._images = 0

    @staticmethod
    @contextmanager
    def make(size_bytes: int = _SIZE_BYTES) -> Iterator["Disk"]:
        """Make a disk and a file system on it, and take all of it away in the end."""
        with ExitStack() as stack:
            directory = Path(tempfile.mkdtemp(prefix="aiochronicle-disk-", dir=in_memory()))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            backing = directory / "backing"
            with backing.open("wb") as file:
                file.truncate(size_bytes)
            _run("mkfs.ext4", "-q", "-F", "-b", str(PAGE), "-E", "lazy_itable_init=0", backing)
            (directory / "disk").touch()
            daemon = subprocess.Popen(
                [sys.executable, "-m", "faults.bad_disk", backing, directory / "disk"],
                cwd=_TESTS,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.callback(_end, daemon)
            disk = Disk(directory, daemon)
            disk._answer("mounted")
            stack.callback(_unmount, directory / "disk")
            stack.enter_context(_mounted(directory / "disk", disk.path))
            disk._read_single_pages()
            yield disk

    def _answer(self, expected: str) -> None:
        assert self._daemon.stdout is not None
        line = self._daemon.stdout.readline().decode().strip()
        assert line == expected, f"the disk said {line!r}"

    def _follow(self, order: Plan | Snapshot) -> None:
        assert self._daemon.stdin is not None
        self._daemon.stdin.write(msgspec.json.encode(order) + b"\n")
        self._daemon.stdin.flush()
        self._answer("holds")

    def drop_caches(self) -> None:
        """Have everything read from the disk again. Nobody may have a file open."""
        _run("umount", self.path)
        _run("mount", "-o", "loop,noatime", self._disk, self.path)
        self._read_single_pages()

    def _read_single_pages(self) -> None:
        """Have no page depend on its neighbours: reading ahead makes larger units of them."""
        device = self.path.stat().st_dev
        queue = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue")
        (queue / "read_ahead_kb").write_text("0")

    def blocks(self, file: Path, start: int = 0, length: int | None = None) -> list[int]:
        """Tell where on the disk the pages of a file are that hold these bytes.

        Nothing is written back for that: what has no place on the disk yet is left out.
        """
        end = file.stat().st_size if length is None else start + length
        first, last = start // PAGE, (end - 1) // PAGE
        pattern = re.compile(r"^\s*\d+:\s*(\d+)\.\.\s*\d+:\s*(\d+)\.\.\s*\d+:\s*(\d+):", re.M)
        found: dict[int, int] = {}
        for extent in pattern.finditer(_run("filefrag", "-v", file)):
            logical, physical, count = map(int, extent.groups())
            found.update((logical + i, physical + i) for i in range(count))
        return [found[page] * PAGE for page in range(first, last + 1) if page in found]

    @contextmanager
    def _failing(self, plan: Plan) -> Iterator[None]:
        self._follow(plan)
        try:
            yield
        finally:
            self._follow(Plan())

    @contextmanager
    def unreadable(self, file: Path, start: int = 0, length: int = 1) -> Iterator[None]:
        """Have reads of the pages that hold these bytes of the file fail with EIO."""
        ranges = tuple((block, block + PAGE) for block in self.blocks(file, start, length))
        assert ranges, f"{file} has nothing on the disk at {start}"
        with self._failing(Plan(unreadable=ranges)):
            yield

    @contextmanager
    def unwritable(self, *files: Path) -> Iterator[None]:
        """Have all that is written to these files fail, when it gets to the disk."""
        ranges = tuple((block, block + PAGE) for file in files for block in self.blocks(file))
        with self._failing(Plan(unwritable=ranges)):
            yield

    @contextmanager
    def power_cut(self) -> Iterator[Path]:
        """Mount what is on the disk at this moment somewhere else, and return where.

        Whoever writes to the disk goes on and has no part in it.
        """
        self._images += 1
        image = self._directory / f"image{self._images}"
        self._follow(Snapshot(str(image)))
        try:
            with _mounted(image, self._directory / f"mnt{self._images}"):
                yield self._directory / f"mnt{self._images}"
        finally:
            image.unlink()


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """Wait for the disk's server, which ends when nothing uses the disk any more, or stop it."""
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    daemon.stdin.close()
    daemon.stdout.close()
    try:
        daemon.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
