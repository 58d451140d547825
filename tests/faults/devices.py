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

``bad_disk`` lies below the loop device. It decides which blocks fail, and it makes the images: what the
kernel has written to it is on the disk, what the kernel still holds in memory is not. So no cache has to be
dropped for an image, and nothing else on the machine is affected.

Needs root, a loop device and /dev/fuse; ``missing`` returns what is not there.
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
    """Return why no disk can be made here, or None if one can."""
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
    """Unmount; a file that a failed test left open must not keep the device."""
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
    """Return the bytes of each file of a queue except its lock, which changes when a writer tries it."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "writer.lock"
    }


class Disk:
    """An ext4 file system at ``path``, on a disk of its own."""

    def __init__(self, directory: Path, daemon: subprocess.Popen[bytes]) -> None:
        """Used by ``make`` only."""
        self.path = directory / "mnt"
        self._directory = directory
        self._disk = directory / "disk"
        self._daemon = daemon
        self._images = 0

    @staticmethod
    @contextmanager
    def make(size_bytes: int = _SIZE_BYTES) -> Iterator["Disk"]:
        """Make a disk with a file system on it, and remove both at the end."""
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
        """Drop the page cache of this disk, so that reads go to the disk. No file may be open."""
        _run("umount", self.path)
        _run("mount", "-o", "loop,noatime", self._disk, self.path)
        self._read_single_pages()

    def _read_single_pages(self) -> None:
        """Turn off read-ahead, which would make the fault of one page depend on its neighbours."""
        device = self.path.stat().st_dev
        queue = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue")
        (queue / "read_ahead_kb").write_text("0")

    def blocks(self, file: Path, start: int = 0, length: int | None = None) -> list[int]:
        """Return where on the disk the pages are that hold these bytes of a file.

        Nothing is written back for this: pages that have no place on the disk yet are left out.
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
        """Let reads of the pages that hold these bytes of the file fail with EIO."""
        ranges = tuple((block, block + PAGE) for block in self.blocks(file, start, length))
        assert ranges, f"{file} has nothing on the disk at {start}"
        with self._failing(Plan(unreadable=ranges)):
            yield

    @contextmanager
    def unwritable(self, *files: Path) -> Iterator[None]:
        """Let every write to these files fail when it reaches the disk."""
        ranges = tuple((block, block + PAGE) for file in files for block in self.blocks(file))
        with self._failing(Plan(unwritable=ranges)):
            yield

    @contextmanager
    def power_cut(self) -> Iterator[Path]:
        """Mount the present content of the disk somewhere else, and return where.

        Running writers are not affected.
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
    """Wait for the disk's server, which ends when the disk is unused; stop it after a time-out."""
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    daemon.stdin.close()
    daemon.stdout.close()
    try:
        daemon.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
