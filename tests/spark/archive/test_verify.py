"""Verification notices any difference between a file and the rows that were to be written."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import aiochronicle
from aiochronicle._columns.export import write_parquet
from aiochronicle.errors import CorruptionError
from aiochronicle.spark.archive.verify import COLUMNS, prove, read_back, verify

FIRST_NS = 1_700_000_000_000_000_000


@pytest.fixture
def batches(tmp_path: Path, rng: random.Random) -> list[pa.RecordBatch]:
    """Return rows of a queue in uneven batches; some have a cause, key or headers, some no payload."""
    with aiochronicle.open_writer(tmp_path / "queue") as writer:
        for number in range(100):
            writer.append(
                rng.randbytes(rng.randrange(20)),
                type_id=rng.randrange(3),
                timestamp_ns=FIRST_NS + number // 2 * 1000,
                cause=(7, number) if number % 3 else None,
                key=b"%d" % number if number % 4 else None,
                headers={"n": b"%d" % number, "é": b""} if number % 5 else {},
            )
    with aiochronicle.Queue(tmp_path / "queue") as queue:
        (whole,) = queue.slice().batches(columns=COLUMNS)
    return [whole.slice(0, 33), whole.slice(33, 1), whole.slice(34)]


def write(batches: list[pa.RecordBatch], path: Path) -> None:
    write_parquet(
        batches,
        batches[0].schema,
        path,
        rows_total=0,
        row_group_rows=1,
        compression="zstd",
        progress=None,
    )


def test_verify_accepts_what_was_written(batches: list[pa.RecordBatch], tmp_path: Path) -> None:
    write(batches, tmp_path / "file.parquet")
    verify([prove(batch) for batch in batches], tmp_path / "file.parquet")


def test_verify_refuses_rows_out_of_order_even_if_they_were_written_so(
    batches: list[pa.RecordBatch], tmp_path: Path
) -> None:
    batches.reverse()
    write(batches, tmp_path / "file.parquet")
    with pytest.raises(CorruptionError, match=r"rows after seq 99 are not in order.*run the job"):
        verify([prove(batch) for batch in batches], tmp_path / "file.parquet")
    with pytest.raises(CorruptionError, match=r"are not in order.*Restore"):
        list(read_back(tmp_path / "file.parquet"))


@pytest.mark.parametrize("column", COLUMNS)
def test_verify_notices_rows_that_changed_places(
    batches: list[pa.RecordBatch], tmp_path: Path, column: str
) -> None:
    """Only one column changes, so verification has to check each column."""
    last = batches[-1]
    number = last.schema.names.index(column)
    values = last.column(column)
    reverse = pa.array(range(len(values) - 1, -1, -1))
    assert values.take(reverse) != values
    changed = last.set_column(number, last.schema.field(column), values.take(reverse))
    write([*batches[:-1], changed], tmp_path / "file.parquet")
    with pytest.raises(
        CorruptionError, match=r"from seq 34 on it is not what was written|not in order"
    ):
        verify([prove(batch) for batch in batches], tmp_path / "file.parquet")


def test_verify_notices_rows_that_are_missing_or_too_many(
    batches: list[pa.RecordBatch], tmp_path: Path
) -> None:
    write(batches, tmp_path / "file.parquet")
    proofs = [prove(batch) for batch in batches]
    for others in (proofs[:-1], [*proofs, proofs[-1]], [proofs[1], proofs[0], proofs[2]]):
        with pytest.raises(CorruptionError, match=r"row groups|is not what was written"):
            verify(others, tmp_path / "file.parquet")
    with pytest.raises(CorruptionError, match="from seq 35 on"):
        verify([*proofs[:-1], prove(batches[-1].slice(1))], tmp_path / "file.parquet")


def test_a_file_from_before_there_were_headers(
    batches: list[pa.RecordBatch], tmp_path: Path
) -> None:
    older = [batch.drop_columns(["key", "headers"]) for batch in batches]
    write(older, tmp_path / "file.parquet")
    verify([prove(batch) for batch in older], tmp_path / "file.parquet")
    (found,) = read_back(tmp_path / "file.parquet")
    found.validate(full=True)
    assert found.schema == batches[0].schema
    assert found.column("key").null_count == 100
    assert found.column("headers").to_pylist() == [[]] * 100
    assert found.column("payload").to_pylist() == [
        payload for batch in batches for payload in batch.column("payload").to_pylist()
    ]


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def zero(file: Path) -> None:
    """Overwrite the middle of the file and keep the footer."""
    with file.open("r+b") as opened:
        opened.seek(8)
        opened.write(bytes(200))


@pytest.mark.parametrize("damage", [Path.unlink, cut, empty, zero])
def test_of_a_damaged_file_it_is_told_what_can_be_done(
    batches: list[pa.RecordBatch], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    file = tmp_path / "file.parquet"
    write(batches, file)
    damage(file)
    what = "is gone" if damage is Path.unlink else "is damaged: "
    with pytest.raises(CorruptionError, match=f"file.parquet: {what}.* Restore the file") as told:
        list(read_back(file))
    assert "on_corrupt" not in str(told.value)
    with pytest.raises(CorruptionError, match=f"file.parquet: {what}.*run the job again"):
        verify([prove(batch) for batch in batches], file)


def test_a_file_that_is_not_verified_does_not_appear(
    batches: list[pa.RecordBatch], tmp_path: Path
) -> None:
    def refuse(part: Path) -> None:
        assert part.exists()
        raise CorruptionError("no", path=str(part))

    target = tmp_path / "out" / "file.parquet"
    target.parent.mkdir()
    with pytest.raises(CorruptionError):
        write_parquet(
            batches,
            batches[0].schema,
            target,
            rows_total=0,
            row_group_rows=1,
            compression="zstd",
            progress=None,
            verify=refuse,
        )
    assert not list(target.parent.iterdir())
