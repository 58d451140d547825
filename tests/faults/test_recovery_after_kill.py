"""Regression tests for cases that random tests found."""

import os
import signal
from pathlib import Path

from reference import format as fmt

from aiochronicle import Roll, open_reader, open_writer


def write_and_die(path: Path, count: int) -> None:
    """Append this many messages in another process, two to a segment, and kill it."""
    pid = os.fork()
    if pid == 0:
        writer = open_writer(
            path, segment_size=4096, roll=Roll(messages=2), _inline_housekeeping=True
        )
        for number in range(count):
            writer.append(b"%d" % number)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_segment_with_an_index_is_not_cut_though_index_meta_is_lost(tmp_path: Path) -> None:
    """An index is published only when its whole segment is durable."""
    path = tmp_path / "queue"
    write_and_die(path, 4)
    segment = path / fmt.segment_name(0)
    (path / "index.meta").unlink()
    content = bytearray(segment.read_bytes())
    second = fmt.decode_segment(bytes(content)).records[1]
    content[second.offset + fmt.RECORD_HEADER_SIZE] ^= 1
    segment.write_bytes(content)
    write_and_die(path, 0)  # recovers without leaving the mark of a clean close
    assert not (path / "recovered").exists()
    with open_writer(path) as writer:
        assert writer.append(b"again") == 4
    with open_reader(path, on_corrupt="skip") as reader:
        assert [m.payload for m in reader] == [b"0", b"2", b"3", b"again"]
