"""File names are bytes: every feature works on a queue whose path is not UTF-8."""

import os
from pathlib import Path

import msgspec
import pytest

import aiochronicle
from aiochronicle import digest, errors


class Tick(msgspec.Struct):
    price: int


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """Return a queue of three ticks whose name is Latin-1."""
    root = tmp_path / os.fsdecode(b"caf\xe9")
    root.mkdir()
    with aiochronicle.open_writer(root / "ticks\udcff", segment_size=65536, codec=Tick) as writer:
        writer.send_many([Tick(price) for price in range(3)])
    return root / "ticks\udcff"


def damage(queue: Path) -> None:
    with (queue / "000000000.q").open("r+b") as segment:
        segment.seek(64 + 64)
        segment.write(b"Z")


def test_errors_on_the_hot_path_are_ours(queue: Path) -> None:
    with aiochronicle.open_writer(queue) as writer:
        with pytest.raises(errors.MessageTooLarge) as too_large:
            writer.append(bytes(100_000))
        assert too_large.value.path == str(queue)
        assert r"caf\xe9/ticks\xff" in str(too_large.value)
        with pytest.raises(errors.TimestampOrder):
            writer.append(b"", timestamp_ns=1)
    damage(queue)
    with aiochronicle.open_reader(queue) as reader:
        for call in (reader.poll, reader.read_batch, reader.read_block, lambda: next(iter(reader))):
            with pytest.raises(errors.CorruptionError):
                call()
        with (
            aiochronicle.FanIn([reader]) as merged,
            pytest.raises(errors.CorruptionError) as corrupt,
        ):
            merged.poll()
        assert corrupt.value.path == str(queue / "000000000.q")
    assert aiochronicle.verify(queue).corrupt == 1


def test_waiting_reader_commits(queue: Path) -> None:
    missing = queue.with_name("missing\udcfe")
    with (
        aiochronicle.open_reader(missing, "risk", wait_for_queue=True) as reader,
        pytest.raises(errors.QueueNotFound),
    ):
        reader.commit()


def test_router_sets_a_damaged_queue_aside(queue: Path) -> None:
    with aiochronicle.open_writer(queue, ready=True):
        damage(queue)

        async def route() -> dict[str, Exception]:
            async with aiochronicle.Router(queue.parent, name="router") as router:
                assert router.poll() is None
                return dict(router.problems)

        ((path, problem),) = aiochronicle.run(route()).items()
    assert path == str(queue)
    assert isinstance(problem, errors.CorruptionError)


def test_columns_escape_the_source(queue: Path) -> None:
    pytest.importorskip("pyarrow")
    with aiochronicle.open_reader(queue) as reader:
        assert reader.source == "ticks\udcff"
        assert reader.to_arrow()["source"].to_pylist() == [r"ticks\xff"] * 3
    with aiochronicle.Queue(queue) as whole:
        assert whole.slice().to_arrow(["source", "price"], codec="Tick")["price"].to_pylist() == [
            *range(3)
        ]
        assert whole.slice().export(queue.parent / "ticks\udcff.parquet") == 3


def test_backup_and_restore(queue: Path) -> None:
    backups, target = queue.with_name("backups\udcff"), queue.with_name("restored\udcff")
    aiochronicle.backup(queue, backups)
    aiochronicle.restore(backups, target)
    assert aiochronicle.inspect(target).next_seq == 3
    java, backups = queue.with_name("java\udcff"), queue.with_name("java backups\udcff")
    with aiochronicle.open_writer(java, format="cq4") as writer:
        writer.send("text")
    aiochronicle.backup(java, backups)
    aiochronicle.restore(backups, queue.with_name("java restored\udcff"))


def test_dead_letters_are_retried(queue: Path) -> None:
    dead = queue.with_name("dead\udcff")
    with aiochronicle.open_group(queue, "risk", max_deliver=1, dead_letter=dead) as group:
        for delivery in group.take_batch():
            delivery.nack(error=f"no such file: {queue}")
    assert aiochronicle.inspect_group(queue, "risk").pending == 0
    letters = [letter for _, letter in aiochronicle.list_dead_letters(dead)]
    assert len(letters) == 3
    assert letters[0].place == str(queue)
    assert letters[0].queue == str(queue).replace("\udce9", r"\xe9").replace("\udcff", r"\xff")
    assert aiochronicle.retry_dead_letters(dead) == [0, 1, 2]
    assert aiochronicle.inspect(queue).next_seq == 6


def test_settings_refuse_a_path_that_their_file_cannot_hold(queue: Path) -> None:
    archive = aiochronicle.Retention(archive=str(queue.with_name("archive\udcff")))
    with pytest.raises(errors.InvalidArgument, match="archive must be a path in UTF-8"):
        aiochronicle.configure(queue, retention=archive)
    with aiochronicle.open_writer(queue) as writer:
        writer.configure(retention=archive)


def test_digest_takes_the_source(queue: Path) -> None:
    with aiochronicle.open_reader(queue) as reader:
        stream = digest.StreamDigest([reader.source])
        stream.add(reader)
    assert stream.messages == 3
    assert stream.hexdigest()
