"""Seeking in a queue that grew since the last seek."""

from pathlib import Path

from aiochronicle import Roll, open_reader, open_writer


def test_seek_finds_what_came_into_a_segment_that_was_empty_at_the_last_seek(
    tmp_path: Path,
) -> None:
    path = tmp_path / "queue"
    open_writer(path, segment_size=4096).close()
    with open_reader(path) as reader:
        reader.seek(0)
        with open_writer(path, roll=Roll(messages=1)) as writer:
            for payload in (b"a", b"b", b"c"):
                writer.append(payload)
            for seq in range(3):
                reader.seek(seq)
                assert [message.seq for message in reader] == list(range(seq, 3))
