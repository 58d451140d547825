"""A slow consumer sees the latest message per key, a late one a snapshot; neither misses a key."""

import asyncio
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from asynchronous.both_loops import on_both_loops
from asynchronous.turns import counted_turns

import aiochronicle
from aiochronicle import Message
from aiochronicle.errors import InvalidArgument, TooManyKeys


def by_type(message: Message) -> int:
    return message.type_id


def write(path: Path, keys: list[int]) -> None:
    with aiochronicle.open_writer(path, segment_size=1 << 20) as writer:
        for key in keys:
            writer.append(b"", type_id=key)


def latest(keys: list[int]) -> dict[int, int]:
    """Return the seq of the newest message per key."""
    return {key: seq for seq, key in enumerate(keys)}


def test_the_latest_per_key_in_order_of_arrival(queue_path: Path, rng: random.Random) -> None:
    keys = [rng.randrange(40) for _ in range(5000)]
    write(queue_path, keys)
    with aiochronicle.open_reader(queue_path) as reader:
        conflation = reader.conflate(by_type)
        found = [(message.type_id, message.seq, conflation.skipped) for message in conflation]
        assert [seq for _, seq, _ in found] == sorted(latest(keys).values())
        for key, _, skipped in found:
            assert skipped == keys.count(key) - 1
        statistics = conflation.statistics()
        assert (statistics.taken, statistics.delivered) == (5000, len(found))
        assert (statistics.skipped, statistics.waiting) == (5000 - len(found), 0)
        assert conflation.poll() is None


def test_who_keeps_up_sees_everything(queue_path: Path) -> None:
    with (
        aiochronicle.open_writer(queue_path) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        conflation = reader.conflate(by_type)
        for seq in range(100):
            writer.append(b"", type_id=seq % 3)
            message = conflation.poll()
            assert message is not None
            assert (message.seq, conflation.skipped) == (seq, 0)


def test_no_key_starves_and_none_is_outdated(queue_path: Path, rng: random.Random) -> None:
    """One key is written constantly, a hundred rarely; the consumer takes one of every ten messages."""
    newest: dict[int, int] = {}
    seen: dict[int, list[int]] = {}
    busy_polls: list[int] = []
    with (
        aiochronicle.open_writer(queue_path) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):
        conflation = reader.conflate(by_type)
        for poll in range(1000):
            for number in range(10):
                key = 0 if number % 2 else rng.randrange(1, 101)
                newest[key] = writer.append(b"", type_id=key)
            message = conflation.poll()
            assert message is not None
            assert message.seq == newest[message.type_id]
            seen.setdefault(message.type_id, []).append(message.seq)
            if message.type_id == 0:
                busy_polls.append(poll)
        # A turn has 101 keys at most, so a key that is always waiting is seen once in each.
        assert max(after - before for before, after in pairwise(busy_polls)) <= 2 * 101
        assert set(seen) == set(range(101))
        for message in conflation:
            seen[message.type_id].append(message.seq)
    assert {key: seqs[-1] for key, seqs in seen.items()} == newest
    assert all(seqs == sorted(set(seqs)) for seqs in seen.values())


def test_memory_is_bounded_and_nothing_is_lost(queue_path: Path, rng: random.Random) -> None:
    keys = [rng.randrange(1000) for _ in range(20_000)]
    write(queue_path, keys)
    seen: dict[int, int] = {}
    with aiochronicle.open_reader(queue_path) as reader:
        conflation = reader.conflate(by_type, max_keys=50)
        for message in conflation:
            statistics = conflation.statistics()
            assert statistics.waiting <= 50
            assert statistics.held <= 1024
            assert seen.get(message.type_id, -1) < message.seq
            seen[message.type_id] = message.seq
        assert conflation.statistics().taken == 20_000
    assert seen == latest(keys)


@on_both_loops
async def test_async_for_goes_on_and_ends_with_the_reader(
    queue_path: Path, rng: random.Random
) -> None:
    """A slow consumer of a writer in another process always sees the last message of each key."""
    script = """
import sys, aiochronicle
with aiochronicle.open_writer(sys.argv[1]) as writer:
    for number in range(30_000):
        writer.append(b"%d" % number, type_id=number * 7919 % 17)
    for key in range(17):
        writer.append(b"end", type_id=key)
"""
    ended: set[int] = set()
    last: dict[int, int] = {}
    with subprocess.Popen([sys.executable, "-c", script, str(queue_path)]) as writing:
        async with aiochronicle.open_reader(queue_path, wait_for_queue=True) as reader:
            conflation = reader.conflate(by_type)
            async for quote in conflation:
                assert quote.seq > last.get(quote.type_id, -1)
                last[quote.type_id] = quote.seq
                if quote.payload == b"end":
                    ended.add(quote.type_id)
                if len(ended) == 17:
                    reader.close()
                elif rng.random() < 0.1:
                    await asyncio.sleep(0.002)
            statistics = conflation.statistics()
    assert writing.returncode == 0
    assert statistics.taken == 30_017
    assert statistics.delivered + statistics.skipped == 30_017


@on_both_loops
async def test_taking_a_backlog_leaves_the_loop_its_turns(queue_path: Path) -> None:
    write(queue_path, [number % 5 for number in range(20_000)])
    async with aiochronicle.open_reader(queue_path) as reader, counted_turns() as turns:
        assert (await anext(reader.conflate(by_type))).seq == 19_995
    assert len(turns) >= 10


@on_both_loops
async def test_cancelling_loses_nothing(queue_path: Path, rng: random.Random) -> None:
    keys = [rng.randrange(300) for _ in range(30_000)]
    write(queue_path, keys)
    seen: dict[int, int] = {}
    cancelled = 0
    async with aiochronicle.open_reader(queue_path) as reader:
        conflation = reader.conflate(by_type)

        async def consume() -> None:
            async for message in conflation:
                seen[message.type_id] = message.seq
                await asyncio.sleep(0)

        while seen != latest(keys):
            task = asyncio.create_task(consume())
            for _ in range(rng.randrange(1, 20)):
                await asyncio.sleep(0)
            cancelled += task.cancel()
            await asyncio.wait([task])
    assert cancelled > 5


def test_after_a_commit_every_key_that_was_not_seen_comes_again(
    queue_path: Path, rng: random.Random
) -> None:
    """A consumer that commits, stops and restarts at random places always sees the newest messages."""
    with aiochronicle.open_writer(queue_path) as writer:
        newest: dict[int, int] = {}
        seen: dict[int, int] = {}
        for _ in range(30):
            for _ in range(rng.randrange(200)):
                key = rng.randrange(50)
                newest[key] = writer.append(b"", type_id=key)
            with aiochronicle.open_reader(queue_path, "view") as reader:
                conflation = reader.conflate(by_type, max_keys=rng.choice([5, 1000]))
                for _ in range(rng.randrange(60)):
                    message = conflation.poll()
                    if message is None:
                        break
                    seen[message.type_id] = message.seq
                    if rng.random() < 0.2:
                        newest[7] = writer.append(b"", type_id=7)
                    if rng.random() < 0.5:
                        conflation.commit()
                conflation.commit()
        with aiochronicle.open_reader(queue_path, "view") as reader:
            conflation = reader.conflate(by_type)
            for message in conflation:
                seen[message.type_id] = message.seq
            conflation.commit()
            assert reader.committed == reader.position
    assert seen == newest


def test_readers_that_commit_by_themselves_are_refused(queue: Path) -> None:
    with (
        aiochronicle.open_reader(queue, "view", commit="auto") as reader,
        pytest.raises(InvalidArgument, match="manual"),
    ):
        reader.conflate(by_type)
    with (
        aiochronicle.open_reader(queue) as reader,
        pytest.raises(InvalidArgument, match="max_keys"),
    ):
        reader.conflate(by_type, max_keys=0)


def test_a_message_without_a_key_is_raised_once_and_stepped_over(queue_path: Path) -> None:
    write(queue_path, [1, 2, 99, 3])

    def picky(message: Message) -> int:
        if message.type_id == 99:
            raise ValueError("no symbol")
        return message.type_id

    with aiochronicle.open_reader(queue_path) as reader:
        conflation = reader.conflate(picky)
        with pytest.raises(ValueError, match="no symbol") as caught:
            conflation.poll()
        assert caught.value.__notes__ == [f"skipped seq 2 of {queue_path}: it has no key"]
        assert [message.type_id for message in conflation] == [1, 2, 3]


def unhashable(message: Message) -> object:
    return [message.type_id] if message.type_id == 99 else message.type_id


def test_a_key_without_a_hash_is_raised_once_and_stepped_over(queue_path: Path) -> None:
    write(queue_path, [1, 2, 99, 3, 99])
    with aiochronicle.open_reader(queue_path, "view") as reader:
        conflation = reader.conflate(unhashable)
        for seq in (2, 4):
            with pytest.raises(TypeError, match="unhashable") as caught:
                conflation.poll()
            note = f"skipped seq {seq} of {queue_path}: it has no key"
            assert caught.value.__notes__ == [note]
        assert [message.type_id for message in conflation] == [1, 2, 3]
        conflation.commit()
        assert reader.committed == reader.position


@on_both_loops
async def test_a_snapshot_with_a_key_without_a_hash_fails_and_has_taken_nothing(
    queue_path: Path,
) -> None:
    write(queue_path, [1, 2, 99, 3])
    async with aiochronicle.open_reader(queue_path) as reader:
        for _ in range(2):
            with pytest.raises(TypeError, match="unhashable"):
                await reader.snapshot(unhashable)
            assert reader.statistics().next_seq == 0
        assert list(await reader.snapshot(by_type)) == [1, 2, 99, 3]


def test_a_snapshot_and_then_the_tail_have_no_gap(queue_path: Path, rng: random.Random) -> None:
    keys = [rng.randrange(30) for _ in range(4000)]
    write(queue_path, keys)
    with (
        aiochronicle.open_writer(queue_path) as writer,
        aiochronicle.open_reader(queue_path, "late") as reader,
    ):
        snapshot = reader.snapshot_now(by_type)
        assert {key: message.seq for key, message in snapshot.items()} == latest(keys)
        assert [message.seq for message in snapshot.values()] == sorted(latest(keys).values())
        writer.append(b"")
        assert [message.seq for message in reader] == [4000]
        assert reader.snapshot_now(by_type) == {}


@on_both_loops
async def test_a_snapshot_in_a_loop_while_the_feed_goes_on(queue_path: Path) -> None:
    write(queue_path, [number % 9 for number in range(20_000)])
    async with (
        aiochronicle.open_writer(queue_path) as writer,
        aiochronicle.open_reader(queue_path) as reader,
    ):

        async def feed() -> None:
            while True:
                writer.append(b"", type_id=3)
                await asyncio.sleep(0)

        feeding = asyncio.create_task(feed())
        snapshot = await reader.snapshot(by_type)
        feeding.cancel()
        newest = max(message.seq for message in snapshot.values())
        assert len(snapshot) == 9
        assert writer.next_seq > newest + 1
        assert (await reader.next(timeout=10)).seq == newest + 1


@on_both_loops
async def test_a_snapshot_that_is_not_finished_has_taken_nothing(queue_path: Path) -> None:
    write(queue_path, [*[1] * 5000, 2, 3])
    async with aiochronicle.open_reader(queue_path) as reader:
        taking = asyncio.create_task(reader.snapshot(by_type))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert reader.statistics().messages > 0
        taking.cancel()
        await asyncio.wait([taking])
        assert taking.cancelled()
        with pytest.raises(TooManyKeys, match="Raise max_keys"):
            await reader.snapshot(by_type, max_keys=2)
        assert (await reader.next(timeout=10)).seq == 0
