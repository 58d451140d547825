"""When root maintains the queue of another user, that user's processes can use what root leaves there."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.users import SHARED, WRITER, run_as

import aiochronicle
from aiochronicle import Retention, Roll, open_reader, open_writer, seek_reader

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")


@pytest.fixture
def path() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    os.chown(base, WRITER, SHARED)
    yield base / "queue"
    shutil.rmtree(base)


def write(path: Path, count: int = 6) -> None:
    with open_writer(path, segment_size=4096, roll=Roll(messages=2)) as writer:
        for number in range(count):
            writer.append(b"%d" % number)


def read_all(path: Path) -> int:
    with open_reader(path, "risk") as reader:
        count = sum(1 for _ in reader)
        reader.commit()
    return count


def owners(path: Path) -> set[tuple[int, int]]:
    found = [path, *path.rglob("*")]
    return {(one.lstat().st_uid, one.lstat().st_gid) for one in found}


def test_what_root_appends_and_moves_stays_the_owners(path: Path) -> None:
    run_as(WRITER, lambda: write(path, 1))
    of_user = owners(path)
    write(path)
    seek_reader(path, "risk", "first", create=True)
    aiochronicle.configure(path, retention=Retention(max_bytes=1 << 30))
    assert owners(path) == of_user
    assert run_as(WRITER, lambda: read_all(path)) == 7
    run_as(WRITER, lambda: write(path))
    assert run_as(WRITER, lambda: read_all(path)) == 6


def test_what_root_archives_stays_the_owners(path: Path) -> None:
    archive = path.parent / "archive"
    run_as(WRITER, lambda: write(path))
    run_as(WRITER, archive.mkdir)
    rules = Retention(max_bytes=1, archive=str(archive), check_interval_s=1000.0)
    with open_writer(path, retention=rules) as writer:
        writer.retain_now()
        assert writer.statistics().segments_archived
    assert {uid for uid, _ in owners(archive)} == {WRITER}


def test_what_root_repairs_stays_the_owners(path: Path) -> None:
    backups = path.parent / "backups"
    run_as(WRITER, lambda: write(path))
    aiochronicle.backup(path, backups)
    of_user = owners(path)
    (path / "control.meta").unlink()
    (path / "writer.lock").unlink()
    damaged = sorted(path.glob("*.q"))[0]
    content = bytearray(damaged.read_bytes())
    content[100] ^= 0xFF
    damaged.write_bytes(bytes(content))
    report = aiochronicle.repair(path, backup=backups)
    assert report.findings
    assert owners(path) == of_user
    assert run_as(WRITER, lambda: read_all(path)) == 6
    run_as(WRITER, lambda: write(path))


def test_a_queue_that_root_makes_is_roots(path: Path) -> None:
    write(path)
    assert {uid for uid, _ in owners(path)} == {0}
