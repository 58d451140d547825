"""The sorted runs that the tasks of a sink make of their rows."""

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest

from aiochronicle.spark.private_files import Location, PrivateDirectory
from aiochronicle.spark.sink import runs
from aiochronicle.spark.sink.delta_encoding import decode_deltas
from aiochronicle.spark.sink.runs import Run, stage, stage_into
from aiochronicle.spark.sink.staging import Place
from spark.filling import FIRST_NS

COLUMNS = ["timestamp_ns", "source", "seq", "payload"]


def into(path: Path) -> Location:
    return Location(root=str(path), names=("staged",))


def rows(source: str, numbers: list[int], payload: bytes = b"") -> pa.RecordBatch:
    columns: dict[str, pa.Array[Any]] = {
        "source": pa.array([source] * len(numbers)),
        "seq": pa.array(numbers, pa.int64()),
        "timestamp_ns": pa.array([FIRST_NS + n // 3 for n in numbers], pa.int64()),
        "payload": pa.array([payload or b"%d" % n for n in numbers], pa.binary()),
    }
    return pa.record_batch(columns)


def stored(run: Run, queue: str) -> list[tuple[object, ...]]:
    """Return the part of a run for one queue, after checking it against the run's summary of it."""
    (share,) = (share for share in run.shares if share.queue == queue)
    with pa.memory_map(run.path) as file:
        packed = [pa.ipc.open_file(file).get_batch(number) for number in share.batches]
    batches = [decode_deltas(batch, run.deltas) for batch in packed]
    found = [
        row for b in batches for row in zip(*(b[name].to_pylist() for name in COLUMNS), strict=True)
    ]
    assert share.rows == len(found)
    assert share.first_ns == found[0][0]
    assert share.payload_bytes_max == max(len(payload) for *_, payload in found)
    return found


def test_rows_in_order_are_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "PIECE_BYTES", 1000)
    batches = [rows("a", list(range(first, first + 50))) for first in range(0, 1000, 50)]
    (run,) = stage(batches, into(tmp_path), None)
    assert [seq for _, _, seq, _ in stored(run, "a")] == list(range(1000))
    (run,) = stage([rows("a", [0, 1]), rows("b", [0])], into(tmp_path), None)
    assert [share.queue for share in run.shares] == ["a", "b"]


def test_what_comes_out_of_order_is_sorted_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "PIECE_BYTES", 1)
    batches = [rows("a", [0, 1]), rows("a", [8, 7]), rows("a", [4, 5]), rows("a", [2, 3])]
    late, in_time = stage(batches, into(tmp_path), None)
    assert [seq for _, _, seq, _ in stored(in_time, "a")] == [0, 1, 4, 5]
    assert [seq for _, _, seq, _ in stored(late, "a")] == [2, 3, 7, 8]


@pytest.mark.parametrize("queue", [None, "all"])
def test_every_run_is_in_order_and_no_row_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random, queue: str | None
) -> None:
    monkeypatch.setattr(runs, "PIECE_BYTES", rng.choice([1, 500, 5000]))
    monkeypatch.setattr(runs, "SORTED_BYTES", rng.choice([1, 2000, 50_000]))
    monkeypatch.setattr(runs, "BATCH_ROWS", rng.choice([1, 7, 1000]))
    next_seqs = dict.fromkeys("abc", 0)
    batches = []
    for _ in range(200):
        source = rng.choice("aaaabc")
        numbers = list(range(next_seqs[source], next_seqs[source] + rng.randrange(1, 9)))
        next_seqs[source] = numbers[-1] + 1
        if rng.random() < 0.1:
            rng.shuffle(numbers)
        batches.append(rows(source, numbers))
    for _ in range(rng.choice([0, 0, 5, 100])):
        i, j = rng.randrange(200), rng.randrange(200)
        batches[i], batches[j] = batches[j], batches[i]
    made = stage(batches, into(tmp_path), queue)
    found = []
    for run in made:
        numbers = [number for share in run.shares for number in share.batches]
        assert numbers == list(range(len(numbers)))
        for share in run.shares:
            of_queue = stored(run, share.queue)
            assert of_queue == sorted(of_queue)
            assert queue is not None or {source for _, source, _, _ in of_queue} == {share.queue}
            found += of_queue
    expected = [
        row for b in batches for row in zip(*(b[name].to_pylist() for name in COLUMNS), strict=True)
    ]
    assert sorted(found) == sorted(expected)


def test_rows_without_seq_are_staged(tmp_path: Path) -> None:
    batch = rows("a", [0, 3, 6]).set_column(1, "seq", pa.nulls(3, pa.int64()))
    (run,) = stage([batch], into(tmp_path), None)
    assert [payload for *_, payload in stored(run, "a")] == [b"0", b"3", b"6"]


def test_memory_does_not_grow_with_what_comes_in_order(tmp_path: Path) -> None:
    most_bytes = 0
    before_bytes = pa.total_allocated_bytes()

    def many() -> Iterator[pa.RecordBatch]:
        nonlocal most_bytes
        for first in range(0, 40_000, 1000):
            yield rows("a", list(range(first, first + 1000)), payload=bytes(4000))
            most_bytes = max(most_bytes, pa.total_allocated_bytes() - before_bytes)

    stage(many(), into(tmp_path), None)
    assert most_bytes < 8 * runs.PIECE_BYTES  # the rows take 160 MB


def test_what_is_given_up_while_tasks_are_at_work_is_gone(tmp_path: Path) -> None:
    place = Place(root=str(tmp_path), writer_id="w", batch=0)
    for _ in range(20):
        directory = place.new_attempt()
        directory.make().close()
        begun = Event()

        def work(directory: Location = directory, begun: Event = begun) -> None:
            with contextlib.suppress(FileNotFoundError):
                while True:
                    stage_into([rows("a", [1])], directory, None)
                    begun.set()

        task = Thread(target=work)
        task.start()
        assert begun.wait(60)
        place.sweep()
        task.join()
        assert not place.path.exists()


def test_a_file_that_a_task_creates_during_the_removal_is_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(root=str(tmp_path), writer_id="w", batch=0)
    directory = place.new_attempt()
    task = directory.make()  # opened before its directory is moved away
    late = ["late.arrow"]
    remove_tree = PrivateDirectory.remove_tree

    def remove_beside_the_task(self: PrivateDirectory, name: str) -> None:
        rmdir = os.rmdir

        def rmdir_after_the_task(path: str, *, dir_fd: int | None = None) -> None:
            while late:
                task.create(late.pop()).close()
            rmdir(path, dir_fd=dir_fd)

        with monkeypatch.context() as patched:
            patched.setattr(os, "rmdir", rmdir_after_the_task)
            remove_tree(self, name)

    monkeypatch.setattr(PrivateDirectory, "remove_tree", remove_beside_the_task)
    place.sweep()
    task.close()
    assert not late
    assert not place.path.exists()
