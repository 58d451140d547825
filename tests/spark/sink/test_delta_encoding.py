"""Delta encoding and decoding of numbers."""

import random
from typing import Any

import pyarrow as pa
import pytest

from aiochronicle.spark.sink.delta_encoding import decode_deltas, encode_deltas

NAMES = ("timestamp_ns", "seq")
EXTREMES = [-(2**63), 2**63 - 1, 0, -1]


def batch(times: list[int | None], seqs: list[int | None]) -> pa.RecordBatch:
    columns: list[pa.Array[Any]] = [
        pa.array(times, pa.int64()),
        pa.array(seqs, pa.int64()),
        pa.array([b"payload"] * len(times), pa.binary()),
    ]
    return pa.record_batch(columns, names=["timestamp_ns", "seq", "payload"])


@pytest.mark.parametrize("nulls", [0, 0.3, 1])
def test_what_was_packed_comes_back(rng: random.Random, nulls: float) -> None:
    for rows in (0, 1, 2, 100):
        times = sorted(rng.randrange(2**63) for _ in range(rows))
        seqs = [rng.choice([*EXTREMES, rng.randrange(1000)]) for _ in range(rows)]
        there = batch([*times], [None if rng.random() < nulls else seq for seq in seqs])
        for whole in (there, there.slice(rows // 3)):
            packed = encode_deltas(whole, NAMES)
            assert packed.schema == whole.schema
            assert decode_deltas(packed, NAMES).equals(whole)


def test_only_the_columns_that_are_named_and_there_are_changed() -> None:
    there = batch([5, 7], [1, 2])
    assert encode_deltas(there, ("timestamp_ns",)).column("timestamp_ns").to_pylist() == [5, 2]
    assert encode_deltas(there, ("timestamp_ns",)).column("seq").to_pylist() == [1, 2]
    assert decode_deltas(there.select(["payload"]), NAMES).equals(there.select(["payload"]))
