"""When messages become durable, for each flush policy."""

from pathlib import Path

import pytest
from helpers.waiting import eventually

from aiochronicle import Batch
from aiochronicle.errors import InvalidArgument
from contract.backend import SMALL_SEGMENT, Backend

pytestmark = pytest.mark.needs("flush")


def test_flush_returns_the_seq_before_which_all_is_durable(
    backend: Backend, queue_path: Path
) -> None:
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        assert writer.flush_now() == 0
        for number in range(100):
            writer.append(b"x")
            if number % 9 == 0:
                assert writer.flush_now() == number + 1
                assert writer.statistics().durable_seq == number + 1
        syncs = writer.statistics().syncs
        assert writer.flush_now() == 100
        assert writer.flush_now() == 100
        assert writer.statistics().syncs <= syncs + 2, "nothing new, nothing to do"


def test_asynchronous_writer_does_not_sync(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, flush="async") as writer:
        for _ in range(100):
            writer.append(b"x")
        assert writer.statistics().syncs == 0
        assert writer.statistics().durable_seq == 0


def test_synchronous_writer_syncs_each_append(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, flush="sync", segment_size=SMALL_SEGMENT) as writer:
        for number in range(40):
            writer.append(b"x")
            assert writer.statistics().durable_seq == number + 1
        writer.append_many([b"x"] * 5)
        assert writer.statistics().durable_seq == 45
        if "reserve" in backend.features:
            with writer.reserve(1):
                pass
            assert writer.statistics().durable_seq == 46
        assert writer.statistics().syncs >= 41


@pytest.mark.needs("batch flush")
def test_batch_writer_bounds_the_bytes(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, flush=Batch(1024, 3600), segment_size=4096) as writer:
        for number in range(200):
            writer.append(bytes(64))  # takes 128 bytes
            waiting = number + 1 - writer.statistics().durable_seq
            assert waiting <= 8
        assert writer.statistics().syncs < 100, "not each append"


@pytest.mark.needs("batch flush")
def test_batch_writer_bounds_the_time(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, flush=Batch(1 << 20, 0.02)) as writer:
        for _ in range(3):
            writer.append(b"x")
            eventually(lambda: writer.statistics().durable_seq == writer.next_seq)


@pytest.mark.parametrize("flush", [Batch(0, 1), Batch(1, 0), Batch(1, -1), "never", None])
def test_flush_modes_are_checked(backend: Backend, queue_path: Path, flush: object) -> None:
    with pytest.raises(InvalidArgument):
        backend.open_writer(queue_path, flush=flush)


def test_closing_makes_everything_durable(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path) as writer:
        for _ in range(10):
            writer.append(b"x")
    assert writer.statistics().durable_seq == 10
