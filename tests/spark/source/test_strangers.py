"""Files that other users leave in shared directories do not influence Spark's writes.

The victim and the stranger are real users, each in a separate process.
"""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.users import STRANGER, run_as
from helpers.users import WRITER as VICTIM
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle.errors import ChronicleError, ExportFailed
from aiochronicle.spark.archive.manifest import ArchivedFile, Manifest, find_archive
from aiochronicle.spark.archive.names import escape
from aiochronicle.spark.jobs import archive, audit
from aiochronicle.spark.jobs.plots import plot_bars
from aiochronicle.spark.pack import pack
from aiochronicle.spark.private_files import directory_mode
from aiochronicle.spark.sink.append import append_rows
from aiochronicle.spark.sink.runs import checksum
from aiochronicle.spark.source.bad_records import BadRecords, keep
from spark.sink.staging_rows import die_half_way, payloads, rows, staged, write

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")

PROFILE = "umask 022\n"  # a default file, so its checksum is public


class Shared(msgspec.Struct):
    """A world-writable directory for queues, like /dev/shm, and a home directory beside it."""

    root: Path
    home: Path

    def journal(self, writer: str, *paths: str, version: int = 4) -> None:
        """Write a journal as the stranger, with a pending batch whose rows are in these files."""
        run = {"shares": [], "checksum": self.known_checksum}
        pending = {"batch_id": 0, "runs": [{"path": p, **run} for p in paths], "targets": []}
        (self.root / ".sink" / f"{writer}.json").write_text(
            json.dumps({"version": version, "pending": pending})
        )

    @property
    def known_checksum(self) -> int:
        """Return the checksum of a file whose content is public."""
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(PROFILE)
            file.flush()
            return checksum(Path(file.name))

    def at_home(self) -> list[str]:
        """Return the names of the files in the victim's home."""
        return sorted(path.name for path in self.home.iterdir()) if self.home.exists() else []


@pytest.fixture
def shared() -> Iterator[Shared]:
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    (users := base / "users").mkdir()
    os.chown(users, VICTIM, -1)
    made = Shared(base / "bus", users / "victim")
    made.root.mkdir()
    made.root.chmod(0o1777)
    made.home.mkdir(mode=0o755)
    for name in (".profile", "thesis"):
        (made.home / name).write_text(PROFILE)
        os.chown(made.home / name, VICTIM, -1)
    os.chown(made.home, VICTIM, -1)
    yield made
    shutil.rmtree(base)


def write_some(root: Path, batch_id: int = 0) -> str:
    """Write a batch; return the error text."""
    try:
        write(root, staged(root, [rows("a", [batch_id])]), batch_id)
    except ChronicleError as error:
        return str(error)
    return ""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@as_root
@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("path", ["{home}/.profile", "../users/victim/.profile"])
def test_a_strangers_journal_moves_and_deletes_nothing(
    shared: Shared, path: str, version: int
) -> None:
    def plant() -> None:
        (shared.root / ".sink").mkdir()
        (shared.root / ".sink").chmod(0o777)
        shared.journal("evil", path.format(home=shared.home), version=version)

    run_as(STRANGER, plant)
    told = run_as(VICTIM, lambda: write_some(shared.root))
    assert shared.at_home() == [".profile", "thesis"]
    assert f"{shared.root}/.sink: belongs to user {STRANGER}" in told
    assert not (shared.root / "a").exists()


@as_root
@pytest.mark.parametrize("depth", [1, 2])
def test_a_journal_through_planted_links_moves_and_deletes_nothing(
    shared: Shared, depth: int
) -> None:
    """The paths look right, but a directory above them is a link."""

    def plant() -> None:
        (shared.root / ".sink").mkdir()
        (shared.root / ".sink").chmod(0o777)
        if depth == 1:
            (shared.root / ".staging").symlink_to(shared.home.parent.parent)
            shared.journal("evil", ".staging/users/victim/.profile")
        else:
            (shared.root / ".staging").mkdir()
            (shared.root / ".staging").chmod(0o777)
            (shared.root / ".staging" / "evil@stream").symlink_to(shared.home.parent)
            shared.journal("evil", ".staging/evil@stream/victim/.profile")

    run_as(STRANGER, plant)
    told = run_as(VICTIM, lambda: write_some(shared.root))
    assert shared.at_home() == [".profile", "thesis"]
    assert "Nothing of it was used or changed" in told
    assert sorted(p.name for p in shared.root.rglob("*") if p.is_file()) == ["evil.json"]


@as_root
def test_a_journal_that_a_stranger_put_among_ones_own_is_refused(shared: Shared) -> None:
    """This is possible in a directory that was created with a permissive umask."""

    def begin() -> None:
        os.umask(0)
        write(shared.root, staged(shared.root, [rows("a", [0])]))
        (shared.root / ".sink").chmod(0o777)

    run_as(VICTIM, begin)
    run_as(STRANGER, lambda: shared.journal("evil", f"{shared.home}/.profile"))
    told = run_as(VICTIM, lambda: write_some(shared.root))
    assert shared.at_home() == [".profile", "thesis"]
    assert f"{shared.root}/.sink: can be changed by other users (mode 777)" in told
    assert f"chmod -R go-w {shared.root}/.sink" in told


@as_root
def test_nobody_stages_rows_in_a_strangers_directory(shared: Shared) -> None:
    def plant() -> None:
        (shared.root / ".staging").mkdir()
        (shared.root / ".staging").chmod(0o777)

    run_as(STRANGER, plant)
    told = run_as(VICTIM, lambda: write_some(shared.root))
    assert f"{shared.root}/.staging: belongs to user {STRANGER}" in told
    assert not list((shared.root / ".staging").iterdir())


@as_root
@pytest.mark.parametrize("name", ["test.tmp", "test.json.new", "test.lock", "test.json"])
def test_planted_links_in_place_of_the_sinks_files_are_not_followed(
    shared: Shared, name: str
) -> None:
    """The links were planted while the directory was open to all."""
    run_as(VICTIM, lambda: write_some(shared.root))
    sink = shared.root / ".sink"
    (sink / name).unlink(missing_ok=True)
    (sink / name).symlink_to(shared.home / "thesis")
    run_as(VICTIM, lambda: write_some(shared.root, 1))
    assert (shared.home / "thesis").read_text() == PROFILE
    assert not (shared.home / "thesis").is_symlink()


@as_root
def test_what_strangers_leave_to_be_swept_is_not_followed(shared: Shared) -> None:
    def plant() -> None:
        (shared.root / ".staging").mkdir()
        (shared.root / ".staging" / "old@stream").symlink_to(shared.home)
        os.utime(shared.root / ".staging" / "old@stream", (0, 0), follow_symlinks=False)

    run_as(STRANGER, plant)
    os.utime(shared.home, (0, 0))
    run_as(VICTIM, lambda: write_some(shared.root))
    assert shared.at_home() == [".profile", "thesis"]


BAD_PATHS = [
    "/etc/passwd",
    "../x/y/z.arrow",
    ".staging/test@stream/../z.arrow",
    ".staging/test@stream/attempt/..",
    ".staging/other@stream/attempt/z.arrow",
    ".staging/test@7/attempt/z.arrow",
    ".staging/test@stream/z.arrow",
    ".staging/test@stream/a/b/z.arrow",
    ".staging//attempt/z.arrow",
    ".sink/test@stream/attempt/z.arrow",
    ".staging/test@stream/att\0empt/z.arrow",
    ".staging/test@stream/./z.arrow",
    "",
]


def damaged(root: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the pending batch in the journal of writer "test"."""
    file = root / ".sink" / "test.json"
    content = msgspec.json.decode(file.read_bytes())
    change(content["pending"])
    file.write_bytes(msgspec.json.encode(content))
    return file


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_journal_names_rows_of_its_own_batch_only(
    root: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even our own journal, perhaps from a backup, is refused as a whole and nothing is touched."""
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    there = payloads(root / "a")
    file = damaged(root, lambda pending: pending["runs"].append({"path": path, "shares": []}))
    before = (file.read_bytes(), sorted((root / ".staging").rglob("*")))
    with pytest.raises(ChronicleError, match=rf"(?s){file}: .*not below .*delete it"):
        write(root, [], 1)
    assert (file.read_bytes(), sorted((root / ".staging").rglob("*"))) == before
    assert payloads(root / "a") == there


@pytest.mark.parametrize(
    "change",
    [
        lambda pending: pending["targets"].clear(),
        lambda pending: pending["targets"][0].update(queue="b"),
        lambda pending: pending["targets"][0].update(start_seq=-1),
        lambda pending: pending["targets"][0].update(done_rows=-1),
        lambda pending: pending["runs"][0]["shares"][0].update(queue="../a"),
        lambda pending: pending["runs"][0]["shares"][0].update(batches=[-1]),
        lambda pending: pending["runs"][0]["shares"][0].update(batches=[1 << 40]),
    ],
)
def test_a_journal_that_contradicts_itself_is_refused(
    root: Path, change: Callable[[dict[str, Any]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    there = payloads(root / "a")
    file = damaged(root, change)
    before = file.read_bytes()
    with pytest.raises(ChronicleError):
        write(root, [], 1)
    assert file.read_bytes() == before
    assert payloads(root / "a") == there
    assert list((root / ".staging").glob("*/*/*.arrow"))


def test_a_journal_of_many_brackets_is_refused(root: Path) -> None:
    (root / ".sink").mkdir()
    (root / ".sink" / "test.json").write_text('{"version": 4, "x": ' + "[" * 200_000)
    with pytest.raises(ChronicleError, match="not the journal of a sink"):
        write(root, [])


def test_staged_rows_that_are_a_link_are_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = runs = staged(root, [rows("a", list(range(20_000)))])
    die_half_way(root, runs, "test", monkeypatch)
    there = payloads(root / "a")
    Path(run.path).rename(tmp_path / "elsewhere")
    Path(run.path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ChronicleError, match="is a link"):
        write(root, [], 1)
    assert payloads(root / "a") == there
    assert (tmp_path / "elsewhere").exists()


def test_directories_that_are_swapped_for_a_link_meanwhile_are_not_followed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the root can do so, with a directory that has the same file names."""
    (run,) = runs = staged(root, [rows("a", list(range(20_000)))])
    die_half_way(root, runs, "test", monkeypatch)
    precious = tmp_path / "home" / Path(run.path).relative_to(root / ".staging")
    precious.parent.mkdir(parents=True)
    precious.write_text(PROFILE)

    def swap_and_append(*arguments: Any) -> None:
        if not (root / ".staging").is_symlink():
            (root / ".staging").rename(root / ".moved")
            (root / ".staging").symlink_to(tmp_path / "home")
        append_rows(*arguments)

    monkeypatch.setattr("aiochronicle.spark.sink.publish.append_rows", swap_and_append)
    with pytest.raises(ChronicleError, match="is a link"):
        write(root, [], 1)
    assert precious.read_text() == PROFILE
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]
    (root / ".staging").unlink()
    write(root, [], 1)
    assert len(payloads(root / "a")) == 20_000


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777], ids=oct)
def test_what_the_sink_writes_is_its_owners_alone_whatever_the_umask(
    tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "new" / "bus"
    previous = os.umask(umask)
    try:
        runs = staged(root, [rows("md/a", [0, 1])])
        die_at_begin(root, runs, monkeypatch)
    finally:
        os.umask(previous)
    places = [root / ".sink", root / ".staging"]
    places += [path for place in places for path in place.rglob("*")]
    if umask != 0o777:  # with this one, no directory could be entered
        places = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    found = {path: mode_of(path) for path in places}
    kinds = {path.suffix for path in found if path.is_file()}
    assert {".arrow", ".json", ".lock"} <= kinds
    for path, mode in found.items():
        if path.is_dir() and path.name != "readers":
            assert mode == 0o700, path
        elif path.is_file():
            assert mode == 0o600, path


def die_at_begin(root: Path, runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Write until the journal exists, then leave everything as a killed driver does."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("aiochronicle.spark.sink.publish.append_rows", die)
        with pytest.raises(KeyboardInterrupt):
            write(root, runs)


@pytest.mark.parametrize("umask", [0o022, 0o002], ids=oct)
def test_a_batch_that_the_version_before_has_begun_is_completed(
    root: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous version created directories and files with the umask's permissions."""
    die_half_way(root, staged(root, [rows("a", list(range(20_000)))]), "test", monkeypatch)
    places = [root / ".sink", root / ".staging"]
    for path in (*places, *(below for place in places for below in place.rglob("*"))):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
    (root / ".sink" / "test.tmp").write_text("half a jour")
    if umask == 0o002:  # group-writable: only the owner can judge
        for place in places:
            with pytest.raises(ChronicleError, match=rf"chmod -R go-w {place}"):
                write(root, [], 1)
            subprocess.run(["chmod", "-R", "go-w", str(place)], check=True)
    write(root, [], 1)
    assert payloads(root / "a") == [f"a {n}".encode() for n in range(20_000)]


@as_root
def test_a_link_of_a_stranger_is_no_queue(shared: Shared) -> None:
    """Following it would write the rows to another queue of the victim."""
    run_as(VICTIM, lambda: aiochronicle.open_writer(shared.home / "orders").close())
    run_as(STRANGER, lambda: (shared.root / "a").symlink_to(shared.home / "orders"))
    told = run_as(VICTIM, lambda: write_some(shared.root))
    assert f"{shared.root}/a: is a link of user {STRANGER}" in told
    assert payloads(shared.home / "orders") == []


# Jobs: here the victim is root, who owns the session.


def plant(path: Path, to: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)


def queue_of_one(path: Path, mode: int = 0o600) -> None:
    path.parent.mkdir(exist_ok=True)
    with aiochronicle.open_writer(path, mode=mode) as writer:
        writer.append(b"x", timestamp_ns=10**18)


@pytest.fixture
def archive_place(shared: Shared) -> Path:
    """A world-writable directory in which no archive exists yet."""
    (shared.root / "archive").mkdir()
    (shared.root / "archive").chmod(0o1777)
    queue_of_one(shared.root / "queues" / "a")
    return shared.root / "archive"


@as_root
@pytest.mark.parametrize("depth", [1, 2])
def test_an_archive_deletes_nothing_behind_planted_links(
    spark: SparkSession, shared: Shared, archive_place: Path, depth: int
) -> None:
    """Leftovers of a failed run are deleted only in directories of the archive."""
    day = archive_place / "date=2001-09-09"
    theirs = shared.root / "theirs" if depth == 1 else day
    run_as(STRANGER, lambda: plant(theirs / "source=a", shared.home))
    if depth == 1:
        run_as(STRANGER, lambda: plant(day, theirs))
    with contextlib.suppress(ChronicleError):
        archive(spark, str(shared.root / "queues"), str(archive_place))
    assert shared.at_home() == [".profile", "thesis"]


@as_root
@pytest.mark.parametrize("name", ["lock", "a.json.new", "a.json", "a.schema.json"])
def test_an_archive_whose_manifests_are_a_strangers_is_refused(
    spark: SparkSession, shared: Shared, archive_place: Path, name: str
) -> None:
    run_as(STRANGER, lambda: plant(archive_place / "_chronicle" / name, shared.home / "thesis"))
    with pytest.raises(ChronicleError, match=f"_chronicle: belongs to user {STRANGER}"):
        archive(spark, str(shared.root / "queues"), str(archive_place))
    assert (shared.home / "thesis").read_text() == PROFILE


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o666], ids=oct)
@pytest.mark.parametrize("umask", [0o000, 0o077], ids=oct)
def test_an_archive_can_be_read_by_those_who_may_read_the_queue(
    spark: SparkSession, tmp_path: Path, mode: int, umask: int
) -> None:
    queue_of_one(tmp_path / "queues" / "a", mode)
    queue_of_one(tmp_path / "queues" / "private")
    (tmp_path / "queues" / "a" / "schema.json").write_text("{}")
    out = tmp_path / "archive"
    previous = os.umask(umask)
    try:
        archive(spark, str(tmp_path / "queues"), str(out))
    finally:
        os.umask(previous)
    readable = mode & 0o644
    directory = directory_mode(readable)
    for path in (out, *out.rglob("*")):
        is_private = "private" in str(path.relative_to(out)) or path.name == "lock"
        wanted = (
            (0o700 if is_private else directory)
            if path.is_dir()
            else (0o600 if is_private else readable)
        )
        assert mode_of(path) == wanted, path


@as_root
def test_an_archive_keeps_no_file_that_a_schema_is_a_link_to(
    spark: SparkSession, shared: Shared, archive_place: Path
) -> None:
    """The owner of the queue could otherwise read a file of the archiving user in the archive."""
    (shared.home / "thesis").chmod(0o600)
    plant(shared.root / "queues" / "a" / "schema.json", shared.home / "thesis")
    with pytest.raises(ChronicleError, match=r"schema.json"):
        archive(spark, str(shared.root / "queues"), str(archive_place))
    for path in archive_place.rglob("*"):
        assert not path.is_file() or PROFILE.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../../x.parquet", "date=x//y.parquet", "a\0b", ""]
)
def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    file = ArchivedFile(path=path, first_seq=0, end_seq=1, rows=1, bytes=1, digest="")
    manifest = Manifest(source="a", queue_id=1, next_seq=1, rows=1, files=(file,))
    (tmp_path / "_chronicle").mkdir()
    (tmp_path / "_chronicle" / "a.json").write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(ChronicleError, match=r"a\.json: not the manifest of an archive"):
        find_archive(tmp_path)


@pytest.mark.parametrize("source", ["../../a", "/a", "a//b", "b"])
def test_a_manifest_of_a_queue_that_cannot_be_is_refused(tmp_path: Path, source: str) -> None:
    """A replay would create that queue."""
    manifest = Manifest(source=source, queue_id=1, next_seq=0, rows=0)
    (tmp_path / "_chronicle").mkdir()
    name = "a.json" if source == "b" else f"{escape(source)}.json"
    (tmp_path / "_chronicle" / name).write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(ChronicleError, match="not the manifest of an archive"):
        find_archive(tmp_path)


@as_root
@pytest.mark.parametrize("kind", ["link", "hard link", "file"])
def test_an_export_does_not_write_through_what_a_stranger_has_planted(
    shared: Shared, kind: str
) -> None:
    queue_of_one(shared.root / "a")
    part = shared.root / ".out.parquet.part"
    (shared.home / "thesis").chmod(0o666)
    if kind == "link":
        run_as(STRANGER, lambda: plant(part, shared.home / "thesis"))
    elif kind == "hard link":
        run_as(STRANGER, lambda: part.hardlink_to(shared.home / "thesis"))
    else:
        run_as(STRANGER, lambda: part.write_text("x"))
    with (
        aiochronicle.Queue(shared.root / "a") as queue,
        pytest.raises(ExportFailed, match=r"\.out\.parquet\.part"),
    ):
        queue.slice().export(shared.root / "out.parquet")
    assert (shared.home / "thesis").read_text() == PROFILE
    assert not (shared.root / "out.parquet").exists()


@pytest.mark.parametrize("modes", [(0o600, 0o644), (0o640, 0o644)])
def test_an_audit_can_be_read_by_those_who_may_read_all_of_the_queues(
    spark: SparkSession, tmp_path: Path, modes: tuple[int, int]
) -> None:
    for name, mode in zip("ab", modes, strict=True):
        queue_of_one(tmp_path / "queues" / name, mode)
    audit(spark, str(tmp_path / "queues"), out=str(tmp_path / "out"))
    assert mode_of(tmp_path / "out") == directory_mode(modes[0])
    (file,) = (tmp_path / "out").iterdir()
    assert mode_of(file) == modes[0]


def test_what_users_ask_for_is_not_written_through_a_link(tmp_path: Path) -> None:
    """The name may be predictable, like /tmp/bars.png."""
    precious = tmp_path / "thesis"
    precious.write_text(PROFILE)
    for name in ("bars.png", "lib.tar.gz"):
        plant(tmp_path / name, precious)
    plot_bars([], tmp_path / "bars.png")
    pack(str(tmp_path / "lib.tar.gz"))
    note = BadRecords.between("a", "b", 0, 1, None)
    plant(tmp_path / "a-task.json", precious)
    keep(str(tmp_path), "task", [note])
    assert precious.read_text() == PROFILE
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
    assert tarfile.is_tarfile(tmp_path / "lib.tar.gz")


def test_what_users_ask_for_does_not_replace_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bars.png")
    with pytest.raises(FileExistsError, match="not a regular file"):
        plot_bars([], tmp_path / "bars.png")
    assert stat.S_ISFIFO((tmp_path / "bars.png").stat().st_mode)
