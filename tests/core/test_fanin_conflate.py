"""The latest message per key over many queues, and snapshots."""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from asynchronous.both_loops import on_both_loops
from asynchronous.turns import longest_pause

import aiochronicle
from aiochronicle import FanIn, Message, Position, Writer
from aiochronicle._core.checkpoints import Checkpoints
from aiochronicle.errors import InvalidArgument, TooManyKeys

START_NS = 1_700_000_000_000_000_000


def by_type(message: Message) -> int:
    return message.type_id


class Feeds:
    """Three queues written in turns; each message is later than all before it."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.paths = [root / name for name in "abc"]
        self.newest: dict[int, int] = {}  # key to the number of its last message
        self._rng = rng
        self._opened = contextlib.ExitStack()
        self._writers: list[Writer] = [
            self._opened.enter_context(aiochronicle.open_writer(path, segment_size=1 << 16))
            for path in self.paths
        ]
        self.count = 0

    def write(self, count: int, keys: int) -> None:
        for _ in range(count):
            key = self._rng.randrange(keys)
            payload, time_ns = b"%d" % self.count, START_NS + self.count * 1000
            self._rng.choice(self._writers).append(payload, type_id=key, timestamp_ns=time_ns)
            self.newest[key] = self.count
            self.count += 1

    def close(self) -> None:
        self._opened.close()

    @contextlib.contextmanager
    def reading(self, name: str | None = None, *, strict: bool = False) -> Iterator[FanIn]:
        with contextlib.ExitStack() as opened:
            readers = [
                opened.enter_context(aiochronicle.open_reader(path, name)) for path in self.paths
            ]
            order = "strict" if strict else "available"
            yield opened.enter_context(FanIn(readers, order=order))  # type: ignore[arg-type]


@pytest.fixture
def feeds(tmp_path: Path, rng: random.Random) -> Iterator[Feeds]:
    with contextlib.closing(Feeds(tmp_path, rng)) as feeds:
        yield feeds


@pytest.mark.parametrize("strict", [False, True])
def test_the_latest_per_key_of_all_sources(feeds: Feeds, strict: bool) -> None:
    feeds.write(6000, 40)
    feeds.close()
    with feeds.reading(strict=strict) as fan_in:
        conflation = fan_in.conflate(by_type)
        found = [(message.type_id, int(message.payload)) for message in conflation]
        assert dict(found) == feeds.newest
        assert [number for _, number in found] == sorted(feeds.newest.values())
        statistics = conflation.statistics()
        assert (statistics.taken, statistics.delivered, statistics.waiting) == (6000, 40, 0)


def test_after_a_commit_nothing_is_lost_and_nothing_ends_outdated(
    feeds: Feeds, rng: random.Random
) -> None:
    """A consumer commits, stops and restarts at random places; every queue has messages of every key."""
    seen: dict[int, int] = {}
    for _ in range(25):
        feeds.write(rng.randrange(1, 150), 12)
        for _ in range(3):
            with feeds.reading("view") as fan_in:
                conflation = fan_in.conflate(by_type, max_keys=rng.choice([5, 1000]))
                committed = dict(seen)
                for _ in range(rng.randrange(30)):
                    message = conflation.poll()
                    if message is None:
                        break
                    seen[message.type_id] = int(message.payload)
                    feeds.write(rng.randrange(5), 12)  # some of these overtake waiting messages
                    if rng.random() < 0.3:
                        conflation.commit()
                        committed = dict(seen)
            seen = committed  # messages delivered since then are lost with the process
        with feeds.reading("view") as fan_in:
            conflation = fan_in.conflate(by_type)
            for message in conflation:
                seen[message.type_id] = int(message.payload)
            conflation.commit()
        assert seen == feeds.newest
    with feeds.reading("view") as fan_in:
        assert list(fan_in) == []


def test_after_a_commit_everything_after_the_oldest_that_waits_comes_again(
    feeds: Feeds, rng: random.Random
) -> None:
    """At most one batch of older messages comes again with them, whatever was taken meanwhile."""
    feeds.write(1, 1)  # the key that waits
    with feeds.reading("view") as fan_in:
        conflation = fan_in.conflate(by_type)
        taken: list[int] = []
        for _ in range(rng.randrange(5, 60)):
            feeds.write(rng.randrange(1, 400), 10**4)
            message = conflation.poll()
            assert message is not None
            taken.append(int(message.payload))
        conflation.commit()
        oldest = min(int(message.payload) for message in conflation)
    with feeds.reading("view") as fan_in:
        again = [int(message.payload) for message in fan_in]
    assert again == list(range(again[0], feeds.count))
    assert oldest - 1024 <= again[0] <= oldest


def test_checkpoints_are_few_and_never_too_late(rng: random.Random) -> None:
    checkpoints = Checkpoints()
    number = needed = 0
    for _ in range(5000):
        if checkpoints.is_due(number):
            checkpoints.add(number, {0: Position(0, number)}, needed)
        number += rng.randrange(5)
        wanted = rng.randrange(needed, number + 1)
        assert checkpoints.before(wanted)[0].offset <= wanted
        assert len(checkpoints) <= 256
        if rng.random() < 0.001:
            needed = rng.randrange(needed, number + 1)
    checkpoints.add(number + 1, {}, number + 1)
    assert len(checkpoints) == 1


@on_both_loops
async def test_a_commit_of_200_queues_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    """Opening and searching each queue instead took 30 ms."""
    queues = [tmp_path / f"{number:03}" for number in range(200)]
    for path in queues:
        with aiochronicle.open_writer(path, segment_size=1 << 16) as writer:
            for seq in range(20):
                writer.append(b"", timestamp_ns=START_NS + seq)
    with contextlib.ExitStack() as opened:
        readers = [opened.enter_context(aiochronicle.open_reader(path, "view")) for path in queues]
        fan_in = opened.enter_context(FanIn(readers))
        conflation = fan_in.conflate(lambda message: (message.source, message.seq % 3))
        await anext(conflation)
        began = time.monotonic()
        for path in queues:
            with aiochronicle.open_reader(path) as scout:
                scout.seek_time(START_NS + 10)
        searching_s = time.monotonic() - began
        pauses: list[float] = []
        for _ in range(20):
            async with longest_pause() as pause:
                await asyncio.sleep(0)
                conflation.commit()
                await asyncio.sleep(0)
            pauses.append(pause[0])
            for _ in range(20):
                await anext(conflation)
        assert conflation.statistics().waiting > 100
        assert sum(reader.committed != Position(0, 0) for reader in readers) == 200
        assert min(pauses) < searching_s / 4


def test_a_snapshot_and_then_the_tail_have_no_gap(feeds: Feeds) -> None:
    feeds.write(5000, 30)
    with feeds.reading() as fan_in:
        snapshot = fan_in.snapshot_now(by_type)
        assert {key: int(message.payload) for key, message in snapshot.items()} == feeds.newest
        assert fan_in.lag.messages == 0
        feeds.write(3, 30)
        assert [int(message.payload) for message in fan_in] == [5000, 5001, 5002]


@on_both_loops
async def test_a_snapshot_that_is_not_finished_has_taken_nothing(
    tmp_path: Path, rng: random.Random
) -> None:
    with contextlib.closing(Feeds(tmp_path, rng)) as feeds:
        feeds.write(6000, 30)
        with feeds.reading() as fan_in:
            begin = [int(message.payload) for message in fan_in.read_batch(rng.randrange(1, 3000))]
            for _ in range(3):
                taking = asyncio.create_task(fan_in.snapshot(by_type))
                for _ in range(rng.randrange(2, 4)):
                    await asyncio.sleep(0)
                taking.cancel()
                await asyncio.wait([taking])
                fan_in._check()
            with pytest.raises(TooManyKeys, match="Raise max_keys"):
                await fan_in.snapshot(by_type, max_keys=2)
            rest = list(fan_in)
            assert begin + [int(message.payload) for message in rest] == list(range(6000))
            assert not any(message.late for message in rest)
            assert fan_in.statistics().late == 0


def test_going_back_and_forth_at_random(feeds: Feeds, rng: random.Random) -> None:
    """Failed snapshots between all other ways to read do not change the order."""
    feeds.write(3000, 30)
    found: list[int] = []

    def fail_sometimes(message: Message) -> int:
        if rng.random() < 0.003:
            raise LookupError
        return message.type_id

    with feeds.reading() as fan_in:
        while len(found) < feeds.count:
            match rng.randrange(4):
                case 0:
                    with contextlib.suppress(LookupError):
                        fan_in.snapshot_now(fail_sometimes)
                        found.extend(range(len(found), feeds.count))  # the snapshot took the rest
                case 1:
                    batch = fan_in.read_batch(rng.randrange(1, 100), rng.randrange(1, 300))
                    found += [int(message.payload) for message in batch]
                case 2:
                    message = fan_in.poll()
                    if message is not None:
                        found.append(int(message.payload))
                case _ if feeds.count < 6000:
                    feeds.write(rng.randrange(50), 30)
                case _:
                    pass
            fan_in._check()
    assert found == list(range(feeds.count))


@on_both_loops
async def test_async_for_ends_with_the_fan_in(tmp_path: Path, rng: random.Random) -> None:
    with contextlib.closing(Feeds(tmp_path, rng)) as feeds:
        feeds.write(1000, 20)
        seen: dict[int, int] = {}
        with feeds.reading() as fan_in:
            conflation = fan_in.conflate(by_type)
            async for message in conflation:
                seen[message.type_id] = int(message.payload)
                if feeds.count < 1200:
                    feeds.write(rng.randrange(20), 20)
                if seen == feeds.newest:
                    fan_in.close()
        assert seen == feeds.newest
        assert conflation.statistics().skipped > 500


def test_readers_that_commit_by_themselves_are_refused(queue: Path) -> None:
    with (
        aiochronicle.open_reader(queue, "view", commit="auto") as reader,
        FanIn([reader]) as fan_in,
        pytest.raises(InvalidArgument, match="manual"),
    ):
        fan_in.conflate(by_type)


def test_a_message_without_a_key_is_named_by_its_queue(feeds: Feeds) -> None:
    feeds.write(1, 1)
    with feeds.reading() as fan_in:
        no_keys: dict[int, str] = {}
        conflation = fan_in.conflate(lambda message: no_keys[message.seq])
        with pytest.raises(KeyError) as caught:
            conflation.poll()
        assert any(f"of {path}: it has no key" in caught.value.__notes__[0] for path in feeds.paths)
        assert conflation.poll() is None


async def test_a_consumer_that_commits_each_message_leaves_turns_to_the_loop(
    tmp_path: Path,
) -> None:
    """Turns are given by time, not only by number of messages, so short messages do not delay them."""
    readers = []
    for number in range(100):
        path = tmp_path / f"{number:03}"
        with aiochronicle.open_writer(path, segment_size=1 << 16) as writer:
            writer.append_many([b"x"] * 20)
        readers.append(aiochronicle.open_reader(path, "view"))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with FanIn(readers) as fan_in:
        counting = asyncio.create_task(count_turns())
        conflation = fan_in.conflate(lambda message: (message.source, message.seq))
        taken = 0
        busy_s = 0.0
        async for _ in conflation:
            started_s = time.monotonic()
            conflation.commit()
            busy_s += time.monotonic() - started_s
            taken += 1
            if taken == 1000:
                break
        counting.cancel()
    for reader in readers:
        reader.close()
    # At least one turn every few milliseconds; by number alone there would be four or five in total.
    assert turns > min(busy_s / 0.01, 20)
