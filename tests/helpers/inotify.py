"""Read the inotify watches of a process from the kernel."""

from pathlib import Path

__all__ = ["count_watches", "watched_inodes"]


def watched_inodes(pid: int | str = "self") -> list[int]:
    """Return the inode of every inotify watch of a process."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            lines = file.read_text().splitlines()
        except OSError:  # closed in the meantime
            continue
        found += [
            int(line.split("ino:")[1].split()[0], 16) for line in lines if "inotify wd" in line
        ]
    return found


def count_watches(pid: int | str = "self") -> int:
    """Return how many inotify watches a process has."""
    return len(watched_inodes(pid))
