"""A stranger's queue becomes a link to a private one: a job uses the queue that it found, or fails.

The stranger is a real user. A swap at a chosen moment stands for the race of an attack.
"""

import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.users import STRANGER, run_as
from pyarrow import parquet
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle import list_readers
from aiochronicle._columns.export import replacing
from aiochronicle._typed.description import Field, Record
from aiochronicle._typed.schema_file import fingerprint
from aiochronicle.errors import (
    AccessDenied,
    ChronicleError,
    CorruptionError,
    LockedError,
    QueueGone,
    QueueNotFound,
    SchemaError,
    StorageError,
)
from aiochronicle.spark.archive import retention_position as retention_module
from aiochronicle.spark.archive import verify as verify_module
from aiochronicle.spark.archive import writing as writing_module
from aiochronicle.spark.archive.manifest import ArchivedFile
from aiochronicle.spark.archive.store import open_store
from aiochronicle.spark.archive.verify import read_listed
from aiochronicle.spark.jobs import archive
from aiochronicle.spark.jobs.inputs import find_input
from aiochronicle.spark.options import read_options, write_options
from aiochronicle.spark.sink import targets
from aiochronicle.spark.sink.runs import Run, Share
from aiochronicle.spark.source.bad_records import bad_records
from aiochronicle.spark.source.plan import Range, plan
from aiochronicle.spark.source.queues import Source, find_sources
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.source.typed import find_type

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")

# In the package, this name is a function.
archive_module: Any = importlib.import_module("aiochronicle.spark.jobs.archive")

MESSAGES = 20


class Trade(msgspec.Struct):
    price: float


def write_queue(path: Path, payload: bytes, mode: int) -> None:
    with aiochronicle.open_writer(
        path, segment_size=1 << 16, ready=True, mode=mode, codec=Trade
    ) as writer:
        for _ in range(MESSAGES):
            writer.append(payload)


class Shared(msgspec.Struct):
    """A world-writable directory with a queue of the stranger, and root's private queues."""

    root: Path
    private: Path

    @property
    def queue(self) -> Path:
        """Return the stranger's queue."""
        return self.root / "q"

    @property
    def secret(self) -> Path:
        """Return root's private queue, which must stay private."""
        return self.private / "q"

    def swap(self) -> None:
        """Replace the stranger's queue with a link to root's."""

        def exchange() -> None:
            self.queue.rename(self.root / ".hidden")
            self.queue.symlink_to(self.secret)

        run_as(STRANGER, exchange)

    def source(self, **options: str) -> Source:
        """Find the stranger's queue, swap it, and return what was found."""
        found = find_sources(read_options({"path": str(self.root), **options}))["q"]
        self.swap()
        return found


@pytest.fixture
def shared() -> Iterator[Shared]:
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    made = Shared(base / "bus", base / "private")
    made.root.mkdir()
    made.root.chmod(0o1777)
    made.private.mkdir(mode=0o700)
    write_queue(made.secret, b"ROOT-SECRET", 0o600)
    run_as(STRANGER, lambda: write_queue(made.queue, b"mine", 0o644))
    yield made
    shutil.rmtree(base)


def swapping(shared: Shared, work: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function so that a swap precedes its first call."""
    waiting = [shared.swap]

    def swapped(*arguments: Any, **options: Any) -> Any:
        while waiting:
            waiting.pop()()
        return work(*arguments, **options)

    return swapped


def archived_rows(out: Path) -> list[bytes]:
    files = [parquet.ParquetFile(file) for file in sorted(out.rglob("*.parquet"))]
    rows: list[Any] = [
        row for file in files for row in file.read(["payload"]).column(0).to_pylist()
    ]
    return rows


@pytest.mark.parametrize("step", ["_let_readers_in", "_work", "run_tasks", "_publish"])
def test_archive_copies_nothing_of_a_queue_that_was_put_in_place_of_the_strangers(
    spark: SparkSession, shared: Shared, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(archive_module, step, swapping(shared, getattr(archive_module, step)))
    out = shared.root.parent / "out"
    with pytest.raises(ChronicleError, match=r"bus/q: "):
        archive(spark, str(shared.root), str(out))
    assert b"ROOT-SECRET" not in archived_rows(out)
    assert list_readers(shared.secret) == []
    assert not list(out.rglob("*.schema.json"))


@pytest.mark.parametrize("step", ["_load_archived", "_check_file"])
def test_retention_commits_no_reader_in_a_queue_that_was_put_there(
    spark: SparkSession, shared: Shared, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(retention_module, step, swapping(shared, getattr(retention_module, step)))
    out = shared.root.parent / "out"
    with pytest.raises(QueueGone, match=r"bus/q: "):
        archive(spark, str(shared.root), str(out))
    assert list_readers(shared.secret) == []
    assert archived_rows(out) == [b"mine"] * MESSAGES


def test_nothing_that_reads_a_source_takes_another_directory(shared: Shared) -> None:
    source = shared.source()
    for ask in (source.earliest, source.latest, lambda: source.at_time(1)):
        with pytest.raises(QueueGone, match=r"bus/q: is not the directory that was found"):
            ask()
    assert source.readable_mode() == 0o600
    assert find_type(source, "Trade") is None
    options = read_options({"path": str(shared.root), "failOnDataLoss": "false"})
    [part] = plan({"q": source}, {"q": 0}, {"q": MESSAGES})
    assert list(read_range(part, ["seq", "payload"], options)) == []


def test_a_range_takes_the_identity_along_to_its_task(shared: Shared) -> None:
    whole = Range(
        source=find_sources(read_options({"path": str(shared.root)}))["q"], start=0, end=9
    )
    there = msgspec.msgpack.decode(msgspec.msgpack.encode(whole), type=Range)
    assert there.source.latest() == MESSAGES
    shared.swap()
    with pytest.raises(QueueGone):
        there.source.latest()


def test_a_root_that_is_a_link_to_a_queue_is_found_by_the_name_of_the_link(shared: Shared) -> None:
    link = shared.root.parent / "current"
    link.symlink_to(shared.queue)
    found = find_sources(read_options({"path": str(link)}))
    assert found["current"].latest() == MESSAGES
    shared.swap()
    with pytest.raises(QueueGone):
        found["current"].latest()


def test_the_device_counts_only_where_it_is_the_same_one(shared: Shared) -> None:
    """Another host or container has a different device number for the same file system."""
    found = find_sources(read_options({"path": str(shared.root)}))["q"]
    identity = found.live_identity
    assert identity is not None
    renumbered = msgspec.structs.replace(identity, device=identity.device + 1)
    with pytest.raises(QueueGone):
        msgspec.structs.replace(found, live_identity=renumbered).latest()
    elsewhere = msgspec.structs.replace(renumbered, mounts="of another host")
    assert msgspec.structs.replace(found, live_identity=elsewhere).latest() == MESSAGES
    another = msgspec.structs.replace(elsewhere, owner=identity.owner + 1)
    with pytest.raises(QueueGone):
        msgspec.structs.replace(found, live_identity=another).latest()


def fill_archive(path: Path, archived: Path) -> None:
    """Write a queue most of whose segments retention has moved to an archive."""
    with aiochronicle.open_writer(
        path,
        segment_size=1 << 16,
        retention=aiochronicle.Retention(max_bytes=1 << 16, archive=str(archived)),
    ) as writer:
        for _ in range(300):
            writer.append(b"ROOT-SECRET" + bytes(900))
        until = time.monotonic() + 60
        while not list(archived.rglob("control.meta")):  # the housekeeper may not be done yet
            assert time.monotonic() < until
            writer.retain_now()


@pytest.mark.parametrize("level", [1, 2, 3])
def test_links_to_days_or_what_is_above_them_are_no_archive(shared: Shared, level: int) -> None:
    fill_archive(shared.private / "kept", shared.private / "days")
    [control] = (shared.private / "days").rglob("control.meta")
    parts = control.parent.relative_to(shared.private / "days").parts[:level]

    def plant() -> None:
        link = Path(shared.root, "evil", *parts)
        link.parent.mkdir(parents=True)
        link.symlink_to(Path(shared.private, "days", *parts))

    run_as(STRANGER, plant)
    assert list(find_sources(read_options({"path": str(shared.root)}))) == ["q"]


def test_a_day_that_becomes_a_link_is_not_read(shared: Shared) -> None:
    fill_archive(shared.private / "kept", shared.private / "days")
    [control] = (shared.private / "days").rglob("control.meta")
    day = control.parent.relative_to(shared.private / "days")
    evil = shared.root / "evil"
    run_as(STRANGER, lambda: fill_archive(shared.root / ".own", evil))
    source = find_sources(read_options({"path": str(shared.root), "subscribe": "evil"}))["evil"]
    [part] = source.parts()

    def exchange() -> None:
        (evil / day.parts[0]).rename(shared.root / ".hidden")
        (evil / day.parts[0]).symlink_to(shared.private / "days" / day.parts[0])

    run_as(STRANGER, exchange)
    assert source.parts() == []
    with pytest.raises(QueueGone):
        part.inspect()


def test_a_directory_that_cannot_be_entered_is_left_out_and_told(
    shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    run_as(STRANGER, lambda: (shared.root / "zz").mkdir(0o700))

    def look(**options: str) -> list[str]:
        return list(find_sources(read_options({"path": str(shared.root), **options})))

    def as_victim() -> list[Any]:
        told: list[Any] = [look()]
        told.append([record.getMessage() for record in caplog.records])
        for name in ("zz", "zz/below"):
            with pytest.raises(AccessDenied) as refused:
                look(subscribe=name)
            told.append(str(refused.value))
        told.append(look(subscribe="q"))
        return told

    found, log, refused, below, asked = run_as(1001, as_victim)
    assert found == asked == ["q"]
    assert log == [f"{shared.root}/zz: left out, since it cannot be looked into: Permission denied"]
    assert refused == below
    assert refused.startswith(f"{shared.root}/zz: cannot be looked into: Permission denied. ")


def test_a_pipe_among_the_indexes_is_not_opened(shared: Shared) -> None:
    run_as(STRANGER, lambda: os.mkfifo(shared.queue / "evil.idx"))
    found = find_sources(read_options({"path": str(shared.root)}))
    [part] = plan(found, {"q": 0}, {"q": MESSAGES})
    assert (part.start, part.end) == (0, MESSAGES)


def test_headless_directories_that_are_touched_for_ever_are_waited_for_once(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiochronicle.spark.source.queues.PATIENCE_S", 2.0)
    headless = [shared.root / f"h{number}" for number in range(8)]

    def plant() -> None:
        for directory in headless:
            directory.mkdir()
            (directory / "000000000.q").touch()
            os.utime(directory, (2**32, 2**32))  # appears modified at every scan

    run_as(STRANGER, plant)
    touches = iter(range(10**6))

    def touch(_: float) -> None:
        for directory in headless:
            os.utime(directory, (2**32, 2**32 + next(touches)))

    monkeypatch.setattr("aiochronicle.spark.source.queues.time.sleep", touch)
    begun = time.monotonic()
    failed: dict[str, ChronicleError] = {}
    assert list(find_input(str(shared.root), None, failed=failed).sources) == ["q"]
    assert sorted(failed) == [directory.name for directory in headless]
    assert time.monotonic() - begun < 8 * 2.0


def test_names_of_strangers_are_printed_on_one_line(shared: Shared) -> None:
    evil = "ev\n2026 FORGED\x1b[2J"
    run_as(STRANGER, lambda: write_queue(shared.root / evil, b"x", 0o644))
    with pytest.raises(QueueNotFound) as refused:
        find_sources(read_options({"path": str(shared.root), "subscribe": "nope"}))
    assert "\n" not in str(refused.value)
    assert r"there are ev\n2026 FORGED\x1b[2J, q" in str(refused.value)


@pytest.mark.parametrize("own_fingerprint", [False, True])
def test_names_in_a_strangers_schema_are_printed_on_one_line(
    shared: Shared, own_fingerprint: bool
) -> None:
    evil = "ev\n2026 FORGED\x1b[2J"
    record = Record(name=evil, fields=(Field(name=evil, type="int"),))
    entry = {
        "type_id": 1,
        "name": evil,
        "format": "msgpack",
        "fingerprint": fingerprint("msgpack", record) if own_fingerprint else "",
        "fields": record.fields,
    }
    content = msgspec.json.encode({"version": 1, "types": [entry]})
    run_as(STRANGER, lambda: (shared.queue / "schema.json").write_bytes(content))
    told: list[ChronicleError] = []
    for ask in (
        lambda: aiochronicle.Registry.load(shared.queue),
        lambda: aiochronicle.open_reader(shared.queue, codec=Trade),
        lambda: find_type(find_sources(read_options({"path": str(shared.root)}))["q"], "Trade"),
    ):
        with pytest.raises(SchemaError) as refused:
            ask()
        told.append(refused.value)
    for error in told:
        assert "\n2026" not in str(error)
        assert "\x1b" not in str(error)
        assert r"ev\n2026 FORGED\x1b[2J" in str(error).replace("\\\\", "\\")


def test_archive_writes_into_the_directory_that_it_has_checked(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a world-writable directory, another directory can take its name before the file is written."""
    out = shared.root.parent / "out"
    out.mkdir()
    out.chmod(0o777)
    given, manifests, _ = archive_module.archive_plan(str(shared.root), str(out))
    [work] = archive_module._work(given, manifests, compacts=True)

    def exchange(day: str) -> None:
        [dataset] = out.glob("type=*")
        dataset.rename(out / "moved")
        (dataset / day).mkdir(parents=True)
        (dataset / day / "source=q").symlink_to(shared.private)

    def swapped(*arguments: Any, **options: Any) -> Any:
        [day] = out.glob("type=*/date=*")
        run_as(STRANGER, lambda: exchange(day.name))
        return replacing(*arguments, **options)

    monkeypatch.setattr(writing_module, "replacing", swapped)
    before = sorted(shared.private.iterdir())
    [file] = archive_module._write_files(task_of(out, given), work).files
    assert sorted(shared.private.iterdir()) == before
    [written] = (out / "moved").rglob("*.parquet")
    assert file.path.endswith(written.name)
    assert file.bytes == written.stat().st_size


def task_of(out: Path, given: Any) -> Any:
    return archive_module._Task(
        store=open_store(out), run="run", options=given.options, payload=False
    )


def test_pipes_among_notes_and_archived_files_are_not_opened(shared: Shared) -> None:
    path = "date=2026-11-18/source=q/0.parquet"

    def plant() -> None:
        os.mkfifo(shared.root / "x.json")
        (shared.root / path).parent.mkdir(parents=True)
        os.mkfifo(shared.root / path)

    run_as(STRANGER, plant)
    with pytest.raises(StorageError, match=r"bus/x\.json: not notes: .*not a regular file"):
        bad_records(shared.root)
    for checksum in (None, 1):
        file = ArchivedFile(
            path=path, first_seq=0, end_seq=1, rows=1, bytes=1, digest="x", checksum=checksum
        )
        with pytest.raises(CorruptionError, match=f"bus/{path}: .*not a regular file"):
            list(read_listed(shared.root, "q", file))


def test_what_is_read_of_an_archive_is_the_file_that_was_checked(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shared.root.parent / "out"
    given, manifests, _ = archive_module.archive_plan(str(shared.root), str(out))
    [work] = archive_module._work(given, manifests, compacts=True)
    out.mkdir()
    [file] = archive_module._write_files(task_of(out, given), work).files
    check = verify_module._check

    def replaced(*arguments: Any) -> None:
        check(*arguments)
        (out / file.path).unlink()
        (out / file.path).write_bytes(b"something else")

    monkeypatch.setattr(verify_module, "_check", replaced)
    rows = [row for batch in read_listed(out, "q", file) for row in batch.column("payload")]
    assert [row.as_py() for row in rows] == [b"mine"] * MESSAGES


def begin(root: Path, queue: str) -> None:
    """Open a queue for a batch of one row as the sink does, and append to it."""
    share = Share(
        queue=queue, batches=[0], rows=1, first_ns=1, payload_bytes_max=5, record_bytes=64
    )
    options = write_options({"path": str(root), "segmentSize": "65536"})
    with targets.open_to_begin(options, [Run(path="x", shares=[share])]) as writers:
        writers[queue].append(b"hello", timestamp_ns=1)


@pytest.mark.parametrize("swapped", ["a", "a/q"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_sink_writes_into_no_directory_that_was_swapped_meanwhile(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, swapped: str, is_there: bool
) -> None:
    """The stranger owns the parent directory and plants a link there after the check."""

    def prepare() -> None:
        (shared.root / "a").mkdir()
        (shared.root / "a").chmod(0o777)

    def exchange() -> None:
        if (shared.root / swapped).exists():
            (shared.root / swapped).rename((shared.root / swapped).with_name(".moved"))
        (shared.root / swapped).symlink_to(shared.private if swapped == "a" else shared.secret)

    run_as(STRANGER, prepare)
    if is_there:
        begin(shared.root, "a/q")
    before = sorted(shared.private.rglob("*")), aiochronicle.inspect(shared.secret)
    segment_bytes = targets._segment_bytes

    def choose(*arguments: Any) -> Any:
        run_as(STRANGER, exchange)
        return segment_bytes(*arguments)

    monkeypatch.setattr(targets, "_segment_bytes", choose)
    with pytest.raises(AccessDenied, match=f"bus/{swapped}: is a link of user {STRANGER}"):
        begin(shared.root, "a/q")
    assert (sorted(shared.private.rglob("*")), aiochronicle.inspect(shared.secret)) == before


def test_a_sink_that_writes_below_a_directory_of_others_says_where(shared: Shared) -> None:
    def prepare() -> None:
        (shared.root / "a").mkdir()
        (shared.root / "a").chmod(0o777)

    run_as(STRANGER, prepare)
    begin(shared.root, "a/q")
    with (
        aiochronicle.open_writer(shared.root / "a" / "q"),
        pytest.raises(LockedError, match=r"bus/a/q") as refused,
    ):
        begin(shared.root, "a/q")
    assert refused.value.path == str(shared.root / "a" / "q" / "writer.lock")
    assert "/proc/" not in str(refused.value)
    assert (shared.root / "a" / "q" / "READY").exists()


def test_links_of_root_itself_on_the_way_to_a_queue_are_followed(shared: Shared) -> None:
    (shared.root / "own").symlink_to("../private")
    begin(shared.root, "own/new")
    assert aiochronicle.inspect(shared.private / "new").next_seq == 1
