"""Positions of a queue whose segments, but not its positions, were restored to an older state."""

import shutil
import time
from pathlib import Path

import pytest

from aiochronicle import FanIn, Position, open_reader, open_writer
from aiochronicle.errors import PositionLost

SIZE = 1 << 16


def append(queue: Path, *payloads: bytes) -> None:
    with open_writer(queue, segment_size=SIZE) as writer:
        for payload in payloads:
            writer.append(payload)


def put_back(backup: Path, queue: Path) -> None:
    """Overwrite the files in place, as `cp` does, so that the copy cannot be detected."""
    for file in backup.iterdir():
        if file.is_file():
            shutil.copyfile(file, queue / file.name)


def read(queue: Path, name: str | None) -> list[bytes]:
    with open_reader(queue, name) as reader:
        payloads = [message.payload for message in reader]
        if name:
            reader.commit()
    return payloads


def test_a_position_inside_of_other_messages_is_lost(tmp_path: Path) -> None:
    """The new messages have the same lengths, so that the position is at the start of one of them."""
    queue, backup = tmp_path / "queue", tmp_path / "backup"
    append(queue, b"a", b"b")
    shutil.copytree(queue, backup)
    append(queue, b"c", b"d")
    assert read(queue, "risk") == [b"a", b"b", b"c", b"d"]
    put_back(backup, queue)
    time.sleep(2.1)  # an epoch is a second: two writers within one second might share it here
    append(queue, b"C", b"D", b"E")
    with pytest.raises(PositionLost, match="older state") as caught:
        open_reader(queue, "risk")
    assert caught.value.wanted == Position(0, 64 + 4 * 128)
    with open_reader(queue) as reader:
        reader.seek_position(caught.value.nearest)
        assert [message.payload for message in reader] == [b"C", b"D", b"E"]


@pytest.mark.parametrize("way", ["commit", "commit(message)", "fan-in"])
def test_a_position_of_this_history_is_taken_up(tmp_path: Path, way: str) -> None:
    """Writers come and go, at the position itself and elsewhere; each has its own epoch."""
    queue = tmp_path / "queue"
    expected = []
    for number in range(6):
        append(queue, *[b"%d" % number] * (number % 3))
        expected += [b"%d" % number] * (number % 3)
        with open_reader(queue, "risk") as reader:
            if way == "fan-in":
                with FanIn([reader]) as fan_in:
                    messages = list(fan_in)
                    fan_in.commit()
            else:
                messages = list(reader)
                if way == "commit":
                    reader.commit()
                elif messages:
                    reader.commit(messages[-1])
        assert [message.payload for message in messages] == expected
        expected = []


def test_a_position_in_the_middle_is_taken_up(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    append(queue, b"a", b"b", b"c")
    with open_reader(queue, "risk") as reader:
        messages = reader.read_batch(3)
        reader.commit(messages[0])
    append(queue, b"d")
    assert read(queue, "risk") == [b"b", b"c", b"d"]
    assert read(queue, "risk") == []
    append(queue, b"e")
    assert read(queue, "risk") == [b"e"]
