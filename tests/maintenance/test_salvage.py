"""Opening for writing sets possibly durable messages aside only with the caller's consent."""

from pathlib import Path

import pytest
from reference import format as fmt

import aiochronicle
from aiochronicle import open_reader, open_writer
from aiochronicle.errors import InvalidArgument, SalvageRequired

SIZE = 4096


def files(queue: Path) -> dict[str, bytes]:
    """Return the files that must not change: segments, and those set aside."""
    return {
        str(path.relative_to(queue)): path.read_bytes()
        for path in sorted(queue.rglob("*"))
        if path.is_file() and path.suffix in {".q", ".bin", ".meta"} and path.name != "control.meta"
    }


def make_foreign(queue: Path, segments: int) -> None:
    """Write this many segments like a program that keeps no durable position."""
    writer = fmt.ForeignWriter(queue, SIZE)
    for segment in range(segments):
        if segment:
            writer.roll()
        for number in range(5):
            writer.append(b"%d.%d" % (segment, number), 0, 1000 * segment + number)
    writer.close(durable=False)
    (queue / "index.meta").unlink(missing_ok=True)


@pytest.mark.parametrize("missing", [1, 3])
def test_segments_after_a_missing_one_are_not_set_aside_in_silence(
    tmp_path: Path, missing: int
) -> None:
    """An interrupted retention of another program leaves such a gap."""
    queue = tmp_path / "queue"
    make_foreign(queue, 6)
    (queue / fmt.segment_name(missing)).unlink()
    before = files(queue)
    with pytest.raises(SalvageRequired, match=f"segment {missing} is missing") as caught:
        open_writer(queue)
    assert caught.value.path == str(queue)
    assert 'recover="salvage"' in str(caught.value)
    assert files(queue) == before
    with open_writer(queue, recover="salvage") as writer:
        assert writer.recovery.segments_set_aside == 5 - missing
        writer.append(b"on")
    with open_reader(queue, start="first") as reader:
        found = [message.payload for message in reader]
    assert found == [b"%d.%d" % (s, n) for s in range(missing) for n in range(5)] + [b"on"]
    assert len(list((queue / "recovered").glob("*.q"))) == 5 - missing


def test_a_missing_last_segment_is_told(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    with open_writer(queue, segment_size=SIZE) as writer:
        while writer.position.segment < 2:
            writer.append(bytes(500))
        next_seq = writer.next_seq
    (queue / fmt.segment_name(2)).unlink()
    before = files(queue)
    with pytest.raises(SalvageRequired, match="says that segment 2 was on disk"):
        open_writer(queue)
    assert files(queue) == before
    with open_writer(queue, recover="salvage") as writer:
        assert writer.append(b"on") == next_seq  # seqs are not reused, so readers notice the gap
    assert aiochronicle.verify(queue).corrupt == 1
    with open_reader(queue, start="first", on_corrupt="skip") as reader:
        assert [message.payload for message in reader][-1] == b"on"


def test_recover_takes_one_of_two_words(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="recover"):
        open_writer(tmp_path / "queue", recover="please")  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"", bytes(17), bytes(SIZE)])
def test_a_segment_without_a_header_is_no_obstacle(tmp_path: Path, content: bytes) -> None:
    """Another program published the segment and died; it is the only or the newest segment."""
    for segments in (1, 3):
        queue = tmp_path / f"queue-{segments}"
        make_foreign(queue, segments)
        newest = queue / fmt.segment_name(segments - 1)
        newest.write_bytes(content)
        control = bytearray((queue / "control.meta").read_bytes())
        control[132:136] = max(segments - 2, 0).to_bytes(4, "little")
        control[256:264] = (64).to_bytes(8, "little")
        (queue / "control.meta").write_bytes(control)
        with open_writer(queue) as writer:
            writer.append(b"on")
        with open_reader(queue, start="first") as reader:
            found = [message.payload for message in reader]
        expected = [b"%d.%d" % (s, n) for s in range(segments - 1) for n in range(5)]
        assert found == [*expected, b"on"]
