"""On file systems with shared blocks (reflinks), a backup takes no extra space."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiochronicle import backup, open_reader, open_writer, restore

MIB = 1 << 20
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def missing(kind: str) -> str | None:
    """Return why a file system of this kind cannot be mounted here, or None."""
    if os.geteuid() != 0 or not os.access("/dev/loop-control", os.W_OK):
        return "needs root and loop devices"
    if f"\t{kind}\n" not in Path("/proc/filesystems").read_text():
        return f"the kernel has no {kind}"
    return None if shutil.which(f"mkfs.{kind}", path=PATH) else f"needs the program mkfs.{kind}"


@pytest.fixture(params=["btrfs", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    kind: str = request.param
    if reason := missing(kind):
        pytest.skip(reason)
    image, mounted = tmp_path / "image", tmp_path / "disk"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(320 * MIB)
    environment = {**os.environ, "PATH": PATH}
    subprocess.run([f"mkfs.{kind}", "-q", image], check=True, env=environment, capture_output=True)
    made = subprocess.run(["mount", "-o", "loop", image, mounted], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"mount says: {made.stderr.strip()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", mounted], check=True)


def used_bytes(path: Path) -> int:
    subprocess.run(["sync", "-f", path], check=True)
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@pytest.mark.parametrize("kind", ["native", "cq4"])
def test_a_backup_of_a_queue_in_use_takes_no_room(disk: Path, kind: str) -> None:
    options: dict[str, Any] = {"segment_size": MIB} if kind == "native" else {"format": "cq4"}
    with open_writer(disk / "queue", **options) as writer:
        for _ in range(16_000):
            writer.append(os.urandom(1000))
        writer.flush_now()
        before = used_bytes(disk)
        report = backup(disk / "queue", disk / "backups")
        assert used_bytes(disk) - before < MIB
        assert report.bytes_copied > 15 * MIB
        assert report.reflinked or kind == "cq4"
        writer.append(b"after")  # from here on, writes go to unshared blocks
    restore(disk / "backups", disk / "restored", new_id=kind == "native")
    with open_reader(disk / "restored") as reader:
        assert sum(1 for _ in reader) == 16_000
    with open_reader(disk / "queue") as reader:
        assert sum(1 for _ in reader) == 16_001
