"""Durable messages survive the loss of any one proof; bytes in payloads are never taken for messages."""

import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from reference import format as fmt

from aiochronicle import Retention, open_reader, open_writer
from aiochronicle.errors import PositionCorrupt, SalvageRequired

SIZE = 4096


def fill(queue: Path, count: int) -> None:
    with open_writer(queue, segment_size=SIZE) as writer:
        for number in range(count):
            writer.append(b"%d" % number + bytes(100))


def flip(file: Path, offset: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 1]))


def seqs(queue: Path) -> list[int]:
    with open_reader(queue, start="first", on_corrupt="skip") as reader:
        return [message.seq for message in reader]


@pytest.mark.parametrize("mark", ["removed", "empty", "zero", "another byte"])
@pytest.mark.parametrize("segment", [0, 2])
def test_messages_of_a_closed_queue_stay_though_index_meta_is_lost(
    tmp_path: Path, mark: str, segment: int
) -> None:
    queue = tmp_path / "queue"
    fill(queue, 200)
    index = queue / "index.meta"
    if mark == "removed":
        index.unlink()
    elif mark == "another byte":
        content = index.read_bytes()
        index.write_bytes(bytes([2]) + content[1:])
    else:
        index.write_bytes(bytes(16 if mark == "zero" else 0))
    flip(queue / fmt.segment_name(segment), 64 + 64 + 10)
    with open_writer(queue) as writer:
        assert writer.recovery.segments_set_aside == 0
        assert writer.append(b"on") == 200
    assert len(seqs(queue)) == 200  # all but the damaged one, and the new one


def test_seqs_of_a_closed_queue_are_not_given_again(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    fill(queue, 10)
    with (queue / fmt.segment_name(0)).open("r+b") as file:
        file.seek(64 + 5 * 192)
        file.write(bytes(5 * 192))
    with open_writer(queue) as writer:
        assert writer.append(b"on") == 10
    assert seqs(queue) == [*range(5), 10]


def test_a_payload_that_looks_like_a_record_is_none(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    made_up = struct.pack("<IIQQHHI32x", 1, 1, 2**62, 1, 7, 0, 0)
    with open_writer(queue, segment_size=1 << 16) as writer:
        for _ in range(10):
            writer.append(b"x")
        writer.append(bytes(64) + made_up)
        for _ in range(5):
            writer.append(b"y")
    flip(
        queue / fmt.segment_name(0), 64 + 10 * 128 + 9
    )  # in the header of the record that holds it
    expected = [*range(10), *range(11, 16)]
    assert seqs(queue) == expected
    with open_writer(queue, verify=True) as writer:
        assert writer.append(b"on") == 16
    assert seqs(queue) == [*expected, 16]


def test_retention_removes_nothing_while_a_position_is_damaged(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    fill(queue, 100)
    for name, count in (("slow", 1), ("fast", 100)):
        with open_reader(queue, name) as reader:
            reader.read_batch(count)
            reader.commit()
    position = queue / "readers" / "slow.meta"
    content = position.read_bytes()
    segments = sorted(queue.glob("*.q"))
    for damaged in (b"\xff" * 80, b""):
        position.write_bytes(damaged)
        with open_writer(queue, retention=Retention(check_interval_s=3600)) as writer:
            with pytest.raises(PositionCorrupt) as caught:
                writer.retain_now()
            assert caught.value.path == str(position)
        assert sorted(queue.glob("*.q")) == segments
    position.write_bytes(content)
    with open_writer(queue, retention=Retention(check_interval_s=3600)) as writer:
        writer.retain_now()
    assert sorted(queue.glob("*.q")) == segments


def test_a_backup_that_lacks_its_last_segment_is_told(tmp_path: Path) -> None:
    queue, backup = tmp_path / "queue", tmp_path / "backup"
    fill(queue, 100)
    shutil.copytree(queue, backup)
    max(backup.glob("*.q")).unlink()
    with pytest.raises(SalvageRequired):
        open_writer(backup)


def test_a_missing_durable_segment_before_a_spare_one_is_told(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    program = f"""
import os, sys, aiochronicle
writer = aiochronicle.open_writer(sys.argv[1], segment_size={SIZE})
while writer.position.segment < 1 or writer.position.offset < 3500:
    writer.append(bytes(100))
writer.flush_now()
while not os.path.exists(sys.argv[1] + "/000000002.q"):
    pass
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", program, str(queue)], check=False)
    assert done.returncode == -signal.SIGKILL
    (queue / fmt.segment_name(1)).unlink()
    with pytest.raises(SalvageRequired, match="segment 1"):
        open_writer(queue)


def leave_torn(queue: Path) -> None:
    """Leave a record whose second page did not reach the disk, and a sound one after it."""
    program = f"""
import os, sys, aiochronicle
writer = aiochronicle.open_writer(sys.argv[1], segment_size={1 << 16})
writer.append(b"first")
writer.flush_now()
writer.append(b"x" * 6000)
writer.append(b"last")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program, str(queue)], check=False)
    fd = os.open(queue / fmt.segment_name(0), os.O_RDWR)
    os.pwrite(fd, bytes(2000), 4096)
    os.close(fd)


@pytest.mark.parametrize(
    ("verify", "on_corrupt"), [(True, "raise"), (False, "raise"), (True, "skip")]
)
def test_a_torn_end_is_the_end_for_every_reader(
    tmp_path: Path, verify: bool, on_corrupt: str
) -> None:
    queue = tmp_path / "queue"
    leave_torn(queue)
    with open_reader(queue, verify=verify, on_corrupt=on_corrupt) as reader:  # type: ignore[arg-type]
        assert [message.payload for message in reader] == [b"first"]
        with open_writer(queue) as writer:
            assert writer.append(b"next") == 1
        assert [message.payload for message in reader] == [b"next"]


def test_damage_in_an_old_segment_does_not_keep_a_queue_from_being_opened(tmp_path: Path) -> None:
    """The queue opens even if its newest segment is empty."""
    queue = tmp_path / "queue"
    fill(queue, 60)
    with open_writer(queue, segment_size=SIZE) as writer:
        while writer.position.offset != 64:  # until the next segment has begun
            writer.append(bytes(100))
            if writer.position.offset + 192 > SIZE:
                break
        next_seq = writer.next_seq
    flip(queue / "index.meta", 8)
    with (queue / fmt.segment_name(0)).open("r+b") as file:
        file.write(bytes(8))
    with open_writer(queue) as writer:
        assert writer.append(b"on") == next_seq


def test_a_copy_of_a_queue_that_was_closed_while_it_was_copied_opens(tmp_path: Path) -> None:
    """The copied segments are from before the close, control.meta from after it."""
    for rolls in (False, True):
        queue, copy = tmp_path / f"queue-{rolls}", tmp_path / f"copy-{rolls}"
        copy.mkdir()
        with open_writer(queue, segment_size=SIZE) as writer:
            for number in range(30):
                writer.append(b"%d" % number + bytes(100))
            writer.flush_now()
            last = writer.position.segment
            for file in sorted(queue.glob("*.q")):
                if file.name <= fmt.segment_name(last):
                    shutil.copy(file, copy)
            for number in range(30, 60 if rolls else 32):
                writer.append(b"%d" % number + bytes(100))
        for file in sorted(queue.iterdir()):
            if file.is_file() and (file.suffix != ".q" or not (copy / file.name).exists()):
                shutil.copy(file, copy)
        with open_writer(copy) as writer:
            assert writer.recovery.is_copy
            assert writer.recovery.corrupt_records == 0
            assert writer.append(b"on") == 30
        with open_reader(copy, start="first") as reader:
            assert [message.seq for message in reader] == [*range(31)]


def test_an_index_of_a_copied_segment_does_not_bring_back_its_seqs(tmp_path: Path) -> None:
    """The queue was copied and its segment cut, so the index refers to records that are gone."""
    queue, copy = tmp_path / "queue", tmp_path / "copy"
    program = f"""
import os, sys, aiochronicle
roll = aiochronicle.Roll(messages=2)
writer = aiochronicle.open_writer(
    sys.argv[1], segment_size={SIZE}, roll=roll, _inline_housekeeping=True
)
for number in range(4):
    writer.append(b"%d" % number)
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program, str(queue)], check=False)
    shutil.copytree(queue, copy)
    assert (copy / "000000000.idx").exists()
    (copy / "index.meta").unlink()
    second = fmt.decode_segment((copy / fmt.segment_name(0)).read_bytes()).records[1]
    flip(copy / fmt.segment_name(0), second.offset + fmt.RECORD_HEADER_SIZE)
    with open_writer(copy) as writer:
        assert writer.append(b"again") == 1
    with open_reader(copy) as reader:
        assert [(m.seq, m.payload) for m in reader] == [(0, b"0"), (1, b"again")]
