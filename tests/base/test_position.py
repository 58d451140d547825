"""Every API that returns a place in a queue returns the same type."""

import pickle
from pathlib import Path

import pytest

from aiochronicle import Position, Retention, Roll, inspect, list_readers, open_reader, open_writer
from aiochronicle.errors import PositionLost, WrongType
from aiochronicle.testing import eventually


def test_every_place_is_a_position(queue_path: Path) -> None:
    with (
        open_writer(queue_path, segment_size=1 << 16, roll=Roll(messages=3)) as writer,
        open_reader(queue_path, "one") as reader,
    ):
        for number in range(10):
            writer.append(b"%d" % number)
        messages = list(reader)
        reader.commit(messages[4])
        given = [
            writer.position,
            reader.position,
            reader.committed,
            *(info.committed for info in list_readers(queue_path)),
            *(message.position for message in messages),
        ]
        assert {type(position) for position in given} == {Position}
        assert reader.committed == messages[5].position
        assert messages[0].position == Position(0, 64) == Position(segment=0, offset=64)
        assert messages[5].position.segment == 1


def test_positions_are_ordered_as_messages_are(queue_path: Path) -> None:
    with open_writer(queue_path, segment_size=1 << 16, roll=Roll(messages=3)) as writer:
        for number in range(10):
            writer.append(b"%d" % number)
        end = writer.position
    with open_reader(queue_path) as reader:
        positions = [message.position for message in reader]
    assert positions == sorted(positions, reverse=True)[::-1]
    assert positions[0] < positions[-1] < end
    assert max(positions) >= positions[3]
    assert len({*positions, *positions}) == 10
    assert pickle.loads(pickle.dumps(positions)) == positions  # noqa: S301
    assert repr(positions[0]) == "Position(segment=0, offset=64)"


def test_every_call_takes_the_position_of_a_message(queue_path: Path) -> None:
    with open_writer(queue_path, segment_size=1 << 16) as writer:
        for number in range(5):
            writer.append(b"%d" % number)
    with open_reader(queue_path, "one") as reader:
        messages = list(reader)
        reader.seek_position(messages[2].position)
        assert reader.position == messages[2].position
        reader.end_at(messages[4].position)
        assert [message.seq for message in reader] == [2, 3]
        reader.commit_position(messages[3].position)
        assert reader.committed == messages[3].position
        with pytest.raises(WrongType):
            reader.seek_position((0, 64))  # type: ignore[arg-type]


def test_a_lost_position_names_positions(queue_path: Path) -> None:
    retention = Retention(max_bytes=1)
    with open_writer(
        queue_path, segment_size=1 << 16, roll=Roll(messages=1), retention=retention
    ) as writer:
        for number in range(5):
            writer.append(b"%d" % number)
        writer.flush_now()

        def removed() -> bool:
            writer.retain_now()  # the segments that the background thread has sealed by now
            return inspect(queue_path).first_segment > 0

        eventually(removed)
        with open_reader(queue_path) as reader:
            with pytest.raises(PositionLost) as caught:
                reader.seek_position(Position(0, 64))
            lost = caught.value
            assert type(lost.wanted) is type(lost.nearest) is Position
            assert lost.wanted == Position(0, 64) < lost.nearest
            reader.seek_position(lost.nearest)
            assert reader.poll() is not None
