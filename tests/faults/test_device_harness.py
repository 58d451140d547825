"""The test disks fail the requested operations and no others."""

import mmap
import os
from contextlib import suppress
from pathlib import Path

import pytest

from .actor import Actor
from .devices import PAGE, Disk, tmpfs

PAGES = 64


def make_file(path: Path) -> bytes:
    data = b"".join(bytes([number]) * PAGE for number in range(PAGES))
    path.write_bytes(data)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return data


def readable(path: Path) -> list[int]:
    """Return the numbers of the pages of the file that can be read."""
    found = []
    with path.open("rb", buffering=0) as file:
        for number in range(PAGES):
            with suppress(OSError):
                assert os.pread(file.fileno(), PAGE, number * PAGE) == bytes([number]) * PAGE
                found.append(number)
    return found


def test_harness_makes_exactly_the_chosen_page_unreadable(disk: Disk) -> None:
    file = disk.path / "file"
    data = make_file(file)
    disk.drop_caches()
    with disk.unreadable(file, 20 * PAGE):
        assert readable(file) == [number for number in range(PAGES) if number != 20]
    assert file.read_bytes() == data
    disk.drop_caches()
    with disk.unreadable(file, 5 * PAGE, 3 * PAGE):
        assert readable(file) == [number for number in range(PAGES) if number not in (5, 6, 7)]


def test_harness_makes_an_unreadable_page_a_signal_of_a_plain_program(disk: Disk) -> None:
    """A mapped read of a bad page kills a program that lacks the engine's handler."""
    file = disk.path / "file"
    make_file(file)
    disk.drop_caches()
    with disk.unreadable(file, 20 * PAGE), Actor() as actor:
        actor.do("import mmap; view = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=1)",
                 path=str(file))  # fmt: skip
        assert actor.do("view[0]") == 0
        with pytest.raises(AssertionError, match="SIGBUS"):
            actor.do(f"view[{20 * PAGE}]")


def test_harness_fails_write_back_once_and_keeps_the_old_bytes(disk: Disk) -> None:
    file = disk.path / "file"
    data = make_file(file)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as view:
        with disk.unwritable(file):
            view[0:3] = b"new"
            with pytest.raises(OSError, match="Input/output error"):
                view.flush()
        view.flush()  # reports nothing, and writes nothing
        with disk.power_cut() as image:
            assert (image / "file").read_bytes() == data
        view[0:3] = b"new"
        view.flush()
        with disk.power_cut() as image:
            assert (image / "file").read_bytes() == b"new" + data[3:]


def test_harness_cuts_the_power_between_what_was_synced_and_what_was_not(disk: Disk) -> None:
    file = disk.path / "file"
    data = make_file(file)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as view:
        view[0:6] = b"synced"
        view.flush()
        view[PAGE : PAGE + 6] = b"cached"
        with disk.power_cut() as image:
            expected = b"synced" + data[6:]
            assert (image / "file").read_bytes() == expected
            (image / "file").unlink()
        assert view[PAGE : PAGE + 6] == b"cached"


def test_harness_leaves_nothing_behind_when_a_test_fails(tmp_path: Path, disk: Disk) -> None:
    """Nothing is left behind, even if a program still has a file open."""
    del disk  # there can be one
    where = tmp_path
    with pytest.raises(ZeroDivisionError), Actor() as actor, Disk.make() as failing:
        where = failing.path
        make_file(where / "file")
        actor.do("file = open(path)", path=str(where / "file"))
        _ = 1 / 0
    assert str(where) not in Path("/proc/mounts").read_text()
    assert not where.parent.exists()
    with tmpfs(tmp_path / "small", "1m") as small, pytest.raises(OSError, match="space"):
        (small / "file").write_bytes(bytes(2 << 20))
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
