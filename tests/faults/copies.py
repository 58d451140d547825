"""The ways in which people copy, back up and restore a directory."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

__all__ = ["WAYS", "copy_in_name_order", "hard_links"]


def _copytree(source: Path, target: Path) -> None:
    # The sockets of running readers are not part of a backup.
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.efd"))


def _cp(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def _tar(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    archive = target.with_name(f"{target.name}.tar")
    subprocess.run(["tar", "-C", str(source), "-cf", str(archive), "."], check=True)
    subprocess.run(["tar", "-C", str(target), "-xf", str(archive)], check=True)
    archive.unlink()


WAYS: dict[str, Callable[[Path, Path], None]] = {"copytree": _copytree, "cp -a": _cp, "tar": _tar}


def hard_links(source: Path, target: Path) -> None:
    """Make a snapshot of hard links, which takes no space.

    Temporary files may vanish while cp runs; cp is then started again.
    """
    for _ in range(20):
        done = subprocess.run(
            ["cp", "-al", str(source), str(target)], check=False, capture_output=True, text=True
        )
        if done.returncode == 0:
            return
        assert "No such file" in done.stderr, done.stderr
        shutil.rmtree(target)
    raise AssertionError("files vanish again and again")


def copy_in_name_order(
    source: Path, target: Path, between: Callable[[str], None] | None = None
) -> None:
    """Copy a directory in use, file by file, as rsync does.

    ``between`` is called with the name of each file before it is copied; it may write to the queue.
    """
    target.mkdir(mode=0o700)
    for path in sorted(source.iterdir(), key=lambda path: path.name):
        if between is not None:
            between(path.name)
        copy = target / path.name
        if path.is_dir():
            copy_in_name_order(path, copy)
        elif path.is_file() and not path.name.endswith(".tmp"):
            try:
                copy.write_bytes(path.read_bytes())
            except FileNotFoundError:  # removed during the copy
                continue
            copy.chmod(0o600)
