"""A batch that lost a page in a power cut counts as never written.

No reader gets a part of it, neither before nor after the next writer has repaired the queue. That writer
reuses its seqs, and a reader that had taken some of them would miss the new ones.
"""

from pathlib import Path

import pytest

from .actor import Actor, Failure
from .devices import PAGE

# Three records of two pages each, after a record that fills the first page.
FIRST = "b'first' + bytes(4096 - 64 - 64 - 5)"
BATCH = "[b'%d' % n + bytes(2 * 4096 - 64 - 1) for n in range(3)]"
STARTS = [PAGE, 3 * PAGE, 5 * PAGE]
OTHERS = "for n in range(3): writer.append(b'other %d' % n)"
TAKE = "[(message.seq, message.payload.rstrip(bytes(1))) for message in reader]"
EXPECTED = [(1, b"other 0"), (2, b"other 1"), (3, b"other 2")]


def make_torn(queue: Path, start: int, *, named: bool) -> None:
    """Leave the queue of a power cut that came before this page of a batch was on the disk."""
    with Actor() as actor:
        actor.do("writer = open_writer(path, segment_size=1 << 20)", path=str(queue))
        actor.do(f"writer.append({FIRST}); writer.flush_now()")
        if named:
            actor.do("reader = open_reader(path, 'audit'); reader.poll(); reader.commit()")
        actor.do(f"writer.append_many({BATCH})")
        assert actor.do("writer.position.offset") == 7 * PAGE
        actor.kill()
    with (queue / "000000000.q").open("r+b") as file:
        file.seek(start)
        file.write(bytes(PAGE))


PAGES = pytest.mark.parametrize("start", STARTS[1:], ids=["second record", "last record"])


@PAGES
@pytest.mark.parametrize("name", [None, "audit"])
def test_half_batch_is_given_to_nobody_and_its_seqs_to_the_next_messages(
    tmp_path: Path, start: int, name: str | None
) -> None:
    queue = tmp_path / "queue"
    make_torn(queue, start, named=name is not None)
    with Actor() as reading, Actor() as writing:
        reading.do("reader = open_reader(path, name)", path=str(queue), name=name)
        expected = [(0, b"first")] if name is None else []
        assert reading.do(TAKE) == expected
        assert reading.do(TAKE) == []
        writing.do("writer = open_writer(path)", path=str(queue))
        assert writing.do("writer.next_seq") == 1
        assert reading.do(TAKE) == []
        writing.do(OTHERS)
        assert reading.do(TAKE) == EXPECTED
        if name is not None:
            reading.do("reader.commit(); reader.close()")
            reading.do("reader = open_reader(path, name)")
            assert reading.do(TAKE) == []


@PAGES
def test_half_batch_is_not_in_a_batch_of_the_reader(tmp_path: Path, start: int) -> None:
    """read_batch and columns, which take several records at once, also stop before the batch."""
    queue = tmp_path / "queue"
    make_torn(queue, start, named=False)
    with Actor() as actor:
        actor.do("reader = open_reader(path)", path=str(queue))
        assert actor.do("len(reader.read_batch())") == 1
        assert actor.do("len(reader.read_batch())") == 0
        assert actor.do("open_reader(path).to_arrow().num_rows") == 1


FOLLOW = """
async def follow():
    taken = []
    async with open_reader(path, name) as reader:
        taken += [message.seq for message in reader]
        Path(flag).touch()
        async for message in reader:
            taken.append((message.seq, message.payload))
            if len(taken) == wanted:
                return taken

taken = asyncio.run(asyncio.wait_for(follow(), 10))
"""


@PAGES
@pytest.mark.parametrize("name", [None, "audit"])
def test_half_batch_is_not_what_a_parked_reader_wakes_up_with(
    tmp_path: Path, start: int, name: str | None
) -> None:
    queue, flag = tmp_path / "queue", tmp_path / "flag"
    make_torn(queue, start, named=name is not None)
    first = [0] if name is None else []
    with Actor() as reading, Actor() as writing:
        wanted = len(first) + len(EXPECTED)
        reading.start(FOLLOW, path=str(queue), name=name, flag=str(flag), wanted=wanted)
        step = "while not Path(flag).exists(): time.sleep(0.01)"
        writing.do(step, flag=str(flag))
        writing.do("writer = open_writer(path)", path=str(queue))
        writing.do(OTHERS)
        outcome = reading.result("async for", 30)
        assert not isinstance(outcome, Failure), outcome
        assert reading.do("taken") == [*first, *EXPECTED]


@PAGES
def test_half_batch_does_not_move_a_fan_in(tmp_path: Path, start: int) -> None:
    queue = tmp_path / "queue"
    make_torn(queue, start, named=True)
    with Actor() as reading, Actor() as writing:
        reading.do("reader = FanIn([open_reader(path, 'audit')])", path=str(queue))
        assert reading.do(TAKE) == []
        writing.do("writer = open_writer(path)", path=str(queue))
        writing.do(OTHERS)
        assert reading.do(TAKE) == EXPECTED
