"""The digest of a stream does not depend on how it is read, and changes with every difference."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

import aiochronicle
from aiochronicle.digest import StreamDigest, digest_of_blocks
from aiochronicle.errors import InvalidArgument

FIRST_NS = 1_700_000_000_000_000_000

Content = list[tuple[int, int, bytes]]


def random_content(rng: random.Random, messages: int) -> Content:
    time_ns, content = FIRST_NS, []
    for _ in range(messages):
        time_ns += rng.choice((0, 1, rng.randrange(10**8)))
        content.append((time_ns, rng.randrange(4), rng.randbytes(rng.randrange(40))))
    return content


def write(path: Path, content: Content) -> Path:
    with aiochronicle.open_writer(path, segment_size=1 << 20) as writer:
        for time_ns, type_id, payload in content:
            writer.append(payload, type_id=type_id, timestamp_ns=time_ns)
    return path


def of_messages(path: Path) -> StreamDigest:
    digest = StreamDigest(["a"])
    with aiochronicle.open_reader(path) as reader:
        digest.add(reader, lambda message: "a")
    return digest


def test_columns_and_messages_have_one_digest(tmp_path: Path, rng: random.Random) -> None:
    path = write(tmp_path / "q", random_content(rng, 500))
    expected = of_messages(path)
    for rows in (1, 7, 1000):
        digest = StreamDigest(["a"])
        with aiochronicle.Queue(path) as queue:
            for batch in queue.slice().batches(rows):
                digest.add_batch(batch)
        assert digest.hexdigest() == expected.hexdigest()
        assert digest.messages == 500


def test_every_difference_shows(tmp_path: Path) -> None:
    content = [(FIRST_NS, 1, b"ab"), (FIRST_NS + 1, 2, b"c"), (FIRST_NS + 10**9, 1, b"")]
    changes: Sequence[Content] = [
        content,
        content[:2],
        [(FIRST_NS, 1, b"a"), (FIRST_NS + 1, 2, b"bc"), content[2]],
        [content[0], (FIRST_NS + 2, 2, b"c"), content[2]],
        [content[0], (FIRST_NS + 1, 1, b"c"), content[2]],
        [(FIRST_NS, 2, b"c"), (FIRST_NS + 1, 1, b"ab"), content[2]],
        [content[0], content[1], (FIRST_NS + 10**9 - 1, 1, b"")],
    ]
    digests = [
        of_messages(write(tmp_path / f"q{number}", changed)).hexdigest()
        for number, changed in enumerate(changes)
    ]
    assert len(set(digests)) == len(changes)
    assert digest_of_blocks(["b"], of_messages(tmp_path / "q0").blocks()) != digests[0]


def test_blocks_tell_where_two_streams_part(tmp_path: Path) -> None:
    content = [(FIRST_NS + second * 10**9, 0, b"x") for second in range(5)]
    other = [*content[:3], (content[3][0], 0, b"y"), content[4]]
    blocks = of_messages(write(tmp_path / "a", content)).blocks()
    others = of_messages(write(tmp_path / "b", other)).blocks()
    assert [a == b for a, b in zip(blocks, others, strict=True)] == [True, True, True, False, True]


def test_a_message_of_nobody_is_refused(queue: Path) -> None:
    with (
        aiochronicle.open_reader(queue) as reader,
        pytest.raises(
            InvalidArgument, match="is from 'hello', which is not a source of this digest: a, b"
        ),
    ):
        StreamDigest(["a", "b"]).add(reader)
    with pytest.raises(InvalidArgument, match="twice"):
        StreamDigest(["a", "a"])
