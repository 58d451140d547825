"""What an exactly-once chain remembers, and how it recognises orders that come twice."""

import logging
import time
from pathlib import Path

import pytest

from aiochronicle import Causes, Message, open_reader, open_writer
from aiochronicle._core.causes import Cause

SEGMENT = 4096


def orders(path: Path, *lives: int) -> list[Message]:
    """Append this many messages with each of several writers in turn; return all messages."""
    for count in lives:
        with open_writer(path, segment_size=SEGMENT) as writer:
            writer.append_many([b""] * count)
    with open_reader(path) as reader:
        return list(reader)


def test_epochs_count_the_writers_of_a_queue(tmp_path: Path) -> None:
    epochs = [order.epoch for order in orders(tmp_path / "queue", 2, 1, 3)]
    assert epochs == sorted(epochs)
    assert [epochs.count(epoch) for epoch in sorted(set(epochs))] == [2, 1, 3]
    assert abs(epochs[0] - time.time()) < 600


def test_a_clean_restart_of_the_source_changes_nothing(tmp_path: Path) -> None:
    messages = orders(tmp_path / "orders", 3, 3)
    for count in range(7):
        with open_writer(tmp_path / f"fills-{count}", segment_size=SEGMENT) as fills:
            for message in messages[:count]:
                fills.append(b"", cause=message)
            done = fills.last_causes()
            assert [done.covers(message) for message in messages] == [
                number < count for number in range(6)
            ]
            assert done == ({messages[0].queue_id: count - 1} if count else {})


@pytest.mark.parametrize("known", [True, False])
def test_a_seq_of_a_later_writer_is_another_message(tmp_path: Path, known: bool) -> None:
    """This happens after a power cut. Without an epoch, a cause (queue_id, seq) is compared by its seq."""
    newest = orders(tmp_path / "orders", 1, 1)[-1]
    done = Causes({newest.queue_id: Cause(5, epoch=1 if known else 0)})
    assert done.covers(newest) is not known


def test_a_chain_says_that_its_source_lost_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = orders(tmp_path / "orders", 1, 2)
    done = Causes({first.queue_id: Cause(2, epoch=1)})
    with caplog.at_level(logging.WARNING, "aiochronicle.causes"):
        done.add(second)
        done.add(third)
    assert [record.getMessage() for record in caplog.records] == [
        "orders lost its messages from seq 1 up to at least 2 in a power cut;"
        " their results still exist"
    ]
    assert done == {first.queue_id: 2}
    assert repr(done) == f"Causes({{{first.queue_id}: 2}})"
