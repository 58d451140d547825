"""Permissions, names and links: what another user of the same host can and cannot do."""

import ast
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.nobody import as_nobody
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import Retention, Roll, errors, open_reader, open_writer

SIZE = 4096


def modes(path: Path) -> dict[str, int]:
    found = {".": path, **{str(p.relative_to(path)): p for p in path.rglob("*")}}
    return {
        name: stat.S_IMODE(entry.lstat().st_mode)
        for name, entry in found.items()
        if not stat.S_ISSOCK(entry.lstat().st_mode)
    }


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    previous = os.umask(request.param)
    yield request.param
    os.umask(previous)


def use(path: Path, archive: Path, mode: int) -> None:
    """Create every kind of file that a queue can have."""
    retention = Retention(max_bytes=3 * SIZE, archive=str(archive), check_interval_s=3600)
    with open_writer(
        path, segment_size=SIZE, roll=Roll(messages=1), mode=mode, ready=True, retention=retention
    ) as writer:
        for _ in range(8):
            writer.append(b"x")
        with open_reader(path, "reader", mode=mode, start="last") as reader:
            reader.commit()
        eventually(lambda: writer.statistics().seals == 7)
        writer.retain_now()
        assert writer.statistics().segments_archived > 0


@pytest.mark.parametrize(
    ("mode", "directory", "readers"),
    [
        (0o600, 0o700, 0o700),
        (0o640, 0o750, 0o3770),
        (0o644, 0o755, 0o3775),
        (0o660, 0o770, 0o3770),
        (0o666, 0o777, 0o3777),
    ],
)
def test_modes_whatever_the_umask(
    tmp_path: Path, umask: int, mode: int, directory: int, readers: int
) -> None:
    use(tmp_path / "queue", tmp_path / "archive", mode)
    for root in (tmp_path / "queue", tmp_path / "archive"):
        for name, found in modes(root).items():
            is_directory = (root / name).is_dir()
            wanted = readers if name == "readers" else directory if is_directory else mode
            if name == "wake" and directory & 0o022:
                wanted |= stat.S_ISVTX  # sockets of other users stay
            assert found == wanted, (root.name, name, oct(umask))


def test_reader_of_another_user_works_by_polling(open_tmp: Path) -> None:
    """With read permission only, everything works except committing a position."""
    path = open_tmp / "shared"
    with open_writer(path, segment_size=SIZE, mode=0o644) as writer:
        for number in range(100):
            writer.append(b"%d" % number, timestamp_ns=1000 + number)
        code = """
path = sys.argv[1]
with open_reader(path) as reader:
    assert [m.payload for m in reader] == [b"%d" % n for n in range(100)]
    reader.seek(50)
    assert reader.poll().seq == 50
    reader.seek_time(1070)
    assert reader.poll().seq == 70
    assert reader.lag.messages == 29
    reader.seek_last()
    assert not reader.wait(0.01)
    print("ready", flush=True)
    assert reader.wait(30)
    assert reader.poll().payload == b"new"
for opener in (lambda: open_reader(path, "named"), lambda: open_writer(path)):
    try:
        opener()
    except errors.AccessDenied as error:
        assert error.path.startswith(path)
    else:
        raise AssertionError("no AccessDenied")
"""
        prelude = (
            "import os, sys, aiochronicle\n"
            "from aiochronicle import errors, open_reader, open_writer\n"
            "if os.geteuid() == 0:\n"
            "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", prelude + code, str(path)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            writer.append(b"new", timestamp_ns=2000)
            assert child.wait(60) == 0
    with open_reader(path) as reader:
        assert len(list(reader)) == 101


def test_reader_maps_segments_read_only(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with open_writer(path, segment_size=SIZE) as writer:
        writer.append(b"x")
    with open_reader(path, "named") as reader:
        message = reader.poll()
        assert message is not None
        lines = Path("/proc/self/maps").read_text(encoding="ascii").splitlines()
        segments = [line.split() for line in lines if str(path) in line and line.endswith(".q")]
        assert segments
        assert all(fields[1] == "r--s" for fields in segments)
        with pytest.raises(TypeError):
            message.view[0] = 1


FILES = ["control.meta", "writer.lock", "index.meta", "000000000.q", "readers/known.meta"]


@pytest.fixture
def known(tmp_path: Path) -> Path:
    path = tmp_path / "known"
    with open_writer(path, segment_size=SIZE) as writer:
        writer.append(b"x")
        writer.flush_now()
    with open_reader(path, "known") as reader:
        reader.commit()
    return path


def openers(name: str) -> list[Callable[[Path], object]]:
    """The function that uses the file, and so must refuse it."""
    if name.startswith("readers/"):
        return [lambda path: open_reader(path, "known")]
    if name in ("writer.lock", "index.meta"):
        return [open_writer]
    return [open_writer, open_reader]


@pytest.mark.parametrize("name", FILES)
def test_symbolic_links_are_not_followed(known: Path, tmp_path: Path, name: str) -> None:
    file, target = known / name, tmp_path / "target"
    file.rename(target)
    content = target.read_bytes()
    file.symlink_to(target)
    for opener in openers(name):
        with pytest.raises(errors.NotAQueue, match="symbolic link") as caught:
            opener(known)
        assert caught.value.path is not None
        assert caught.value.path.endswith(Path(name).name)
    assert target.read_bytes() == content
    file.unlink()
    target.rename(file)
    with open_reader(known) as reader:
        assert len(list(reader)) == 1


@pytest.mark.parametrize("name", FILES)
def test_hard_linked_files_of_another_user_than_the_directory_are_refused(
    known: Path, tmp_path: Path, name: str
) -> None:
    """The directory's owner may have linked a file of ours into it, so that we overwrite it."""
    file, other = known / name, tmp_path / "other"
    os.link(file, other)
    os.chown(known, 65534, -1)
    other.chmod(0o640)
    content = file.read_bytes()
    for opener in openers(name):
        with pytest.raises(errors.NotAQueue, match="more than one link"):
            opener(known)
    assert other.read_bytes() == content
    assert stat.S_IMODE(other.stat().st_mode) == 0o640
    os.chown(known, 0, -1)
    with open_reader(known) as reader:
        assert len(list(reader)) == 1


@pytest.mark.parametrize("name", FILES)
def test_other_kinds_of_files_are_refused(known: Path, tmp_path: Path, name: str) -> None:
    file = known / name
    file.rename(tmp_path / "aside")
    os.mkfifo(file)
    for opener in openers(name):
        with pytest.raises(errors.ChronicleError):  # opening does not wait for the other end
            opener(known)
    file.unlink()
    file.mkdir()
    for opener in openers(name):
        with pytest.raises(errors.ChronicleError):
            opener(known)


def test_directory_of_readers_that_is_a_link(known: Path, tmp_path: Path) -> None:
    (known / "readers").rename(tmp_path / "elsewhere")
    (known / "readers").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.NotAQueue):
        open_reader(known, "known")
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["known.meta"]


def test_file_of_another_user_is_refused(known: Path) -> None:
    """A user who may write into the directory could put anything there."""
    os.chown(known / "000000000.q", 65534, 65534)
    (known / "000000000.q").chmod(0o666)
    with pytest.raises(errors.NotAQueue, match="another user"):
        open_reader(known)


@pytest.mark.parametrize("name", ["../escape", "a/b", "/tmp/x", ".", "..", "x" * 65, "ä"])
def test_names_cannot_leave_the_directory(known: Path, name: str) -> None:
    before = sorted(known.parent.rglob("*"))
    with pytest.raises(errors.InvalidName):
        open_reader(known, name)
    assert sorted(known.parent.rglob("*")) == before


def test_dropping_rights_is_real() -> None:
    """The test user of these tests must not be able to read files that only root may read."""
    outcome = as_nobody("open('/etc/shadow').read()")
    assert outcome.returncode != 0
    assert "PermissionError" in outcome.stderr


def test_nothing_is_unpickled_or_evaluated() -> None:
    """No module of the package that reads files can unpickle or evaluate."""
    package = Path(aiochronicle.__file__).parent
    found = []
    for module in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            name = module.relative_to(package).as_posix()
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found += [(name, node.func.id)] if node.func.id in {"eval", "exec"} else []
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [(name, one) for one in modules if one in {"pickle", "marshal", "shelve"}]
    assert found == []
