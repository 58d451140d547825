"""Order by key in a topic with many writers."""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import (
    Delivery,
    Message,
    Retention,
    TopicGroup,
    TopicReader,
    Writer,
    errors,
    forget_reader,
    inspect_group,
    list_groups,
    open_group,
    open_writer,
)

from .key_worker import KEYS, Notes

WORKER = Path(__file__).with_name("key_worker.py")


def by_key(message: Message) -> bytes | None:
    return message.key


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    return tmp_path / "desk"


@pytest.fixture
def writers(topic: Path) -> Iterator[list[Writer]]:
    opened = [open_writer(topic, shared=True) for _ in range(3)]
    yield opened
    for writer in opened:
        writer.close()


def join(topic: Path, **options: Any) -> aiochronicle.Group[Any]:
    return open_group(topic, "w", order="key", **{"key": by_key, **options})


def take(group: aiochronicle.Group[Any]) -> Delivery[Any]:
    """Wait for one delivery, even while queues disappear."""
    for _ in range(1000):
        if group.wait(30) and (delivery := group.poll()) is not None:
            return delivery
    raise AssertionError("nothing came")


def payloads(deliveries: list[Delivery[Any]]) -> list[bytes]:
    return [delivery.message.payload for delivery in deliveries]


def test_one_message_of_a_key_at_a_time_and_in_the_order_of_time(
    topic: Path, writers: list[Writer], rng: random.Random
) -> None:
    messages, keys = 3000, 7
    for i in range(messages):
        rng.choice(writers).append(b"%d" % i, key=b"k%d" % (i % keys))
    last = {key: key - keys for key in range(keys)}
    held: dict[int, Delivery[Any]] = {}
    with join(topic) as one, join(topic) as two:
        done = 0
        while done < messages:
            for delivery in rng.choice((one, two)).take_batch(rng.randint(1, 4)):
                number = int(delivery.message.payload)
                assert number % keys not in held
                assert last[number % keys] == number - keys
                held[number % keys] = delivery
            for key in rng.sample(sorted(held), rng.randint(0, len(held))):
                delivery = held.pop(key)
                if rng.random() < 0.1:
                    delivery.nack()
                    continue
                last[key] += keys
                delivery.ack()
                done += 1
        info = inspect_group(topic, "w")
        assert (info.pending, info.order) == (0, "key")


def test_a_message_that_is_given_back_holds_up_its_key_in_all_queues(
    topic: Path, writers: list[Writer]
) -> None:
    one, two, _ = writers
    one.append(b"a1", key=b"a")
    two.append(b"a2", key=b"a")
    two.append(b"b1", key=b"b")
    with join(topic) as group, join(topic) as other:
        first, second = sorted(group.take_batch(), key=lambda delivery: delivery.message.payload)
        assert payloads([first, second]) == [b"a1", b"b1"]
        first.nack(delay_s=0.2)
        second.ack()
        assert not other.take_batch()
        assert other.wait(30)
        (again,) = other.take_batch()
        assert (again.message.payload, again.attempt) == (b"a1", 2)
        assert not group.take_batch()
        again.ack()
        (last,) = group.take_batch()
        assert last.message.payload == b"a2"
        last.ack()


def test_in_a_loop_two_members_take_turns(topic: Path, writers: list[Writer]) -> None:
    seen: list[int] = []

    async def work(group: aiochronicle.Group[Any]) -> None:
        async for delivery in group:
            async with delivery:
                seen.append(int(delivery.message.payload))
                await asyncio.sleep(0)

    async def main() -> None:
        options: dict[str, Any] = {"order": "key", "key": by_key}
        groups = [await aiochronicle.aopen_group(topic, "w", **options) for _ in range(2)]
        tasks = [asyncio.create_task(work(group)) for group in groups for _ in range(2)]
        for i in range(60):
            writers[i % 3].append(b"%d" % i, key=b"same")
            if i % 20 == 0:
                await asyncio.sleep(0.01)
        while len(seen) < 60:
            await asyncio.sleep(0.001)
        for group in groups:
            await group.aclose()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert seen == list(range(60))


def test_a_full_window_holds_back_what_is_newer_than_it(topic: Path, writers: list[Writer]) -> None:
    """Older messages of any key may lie beyond the window."""
    one, two, _ = writers
    one.append(b"hangs", key=b"a")
    one.append(b"b1", key=b"b")
    one.append(b"beyond", key=b"c")
    two.append(b"c2", key=b"c")
    with join(topic, max_in_flight=2) as group:
        hanging, beside = group.take_batch()
        assert payloads([hanging, beside]) == [b"hangs", b"b1"]
        beside.ack()
        assert not group.take_batch()
        hanging.ack()
        (beyond,) = group.take_batch()
        assert beyond.message.payload == b"beyond"
        beyond.ack()
        (last,) = group.take_batch()
        assert last.message.payload == b"c2"
        last.ack()


def test_an_older_message_that_comes_late_waits_for_the_one_that_is_held(
    topic: Path, writers: list[Writer]
) -> None:
    one, two, _ = writers
    one.append(b"newer", key=b"a", timestamp_ns=2_000)
    with join(topic) as group, join(topic) as other:
        (held,) = group.take_batch()
        two.append(b"older", key=b"a", timestamp_ns=1_000)
        assert not other.take_batch()
        held.nack()
        (again,) = other.take_batch()
        assert again.message.payload == b"newer"
        again.ack()
        (last,) = group.take_batch()
        assert last.message.payload == b"older"
        last.ack()


def test_the_keys_of_a_killed_member_go_on(topic: Path, writers: list[Writer]) -> None:
    one, two, _ = writers
    one.append(b"1", key=b"a")
    two.append(b"2", key=b"a")
    program = f"""
import os, signal
from aiochronicle import TopicGroup
group = TopicGroup({str(topic)!r}, "w", order="key", key=lambda message: message.key)
(held,) = group.take_batch()
assert held.message.payload == b"1"
os.kill(os.getpid(), signal.SIGKILL)
"""
    with join(topic) as group:
        done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
        assert group.wait(30)
        (again,) = group.take_batch()
        assert (again.message.payload, again.attempt) == (b"1", 2)
        again.ack()
        (last,) = group.take_batch()
        assert last.message.payload == b"2"
        last.ack()


def test_writers_that_are_folded_away_leave_no_key_waiting(topic: Path) -> None:
    """The removed queue had the key's last message, so other members cannot look it up."""
    TopicGroup(topic, "w", order="key", key=by_key, wait_for_queue=True).close()
    with join(topic) as stays:
        for round_ in range(5):
            with open_writer(topic, shared=True, retention=Retention()) as writer:
                writer.append(b"%d" % round_, key=b"a")
            delivery = take(stays)
            assert delivery.message.payload == b"%d" % round_
            delivery.ack()
            for queue in (topic / "queue").iterdir():  # as folding may at any moment
                shutil.rmtree(queue)


def test_a_member_that_never_saw_the_folded_queue_goes_on(topic: Path) -> None:
    with open_writer(topic, shared="one") as one:
        one.append(b"1", key=b"a")
        with join(topic) as first:
            (delivery,) = first.take_batch()
            delivery.ack()
            shutil.rmtree(topic / "queue" / "one")
            with open_writer(topic, shared="two") as two, join(topic) as late:
                two.append(b"2", key=b"a")
                eventually(lambda: late.wait(0))
                (last,) = late.take_batch()
                assert last.message.payload == b"2"
                last.ack()


def test_a_queue_that_cannot_be_joined_holds_up_only_keys_that_wait_for_it(topic: Path) -> None:
    with (
        open_writer(topic, shared=True) as two,
        join(topic) as late,
        open_writer(topic, shared=True) as one,
        join(topic) as knows,
    ):
        one.append(b"a1", key=b"a")
        one.append(b"b1", key=b"b")
        two.append(b"a2", key=b"a")
        two.append(b"b2", key=b"b")
        b1 = a1 = None
        for delivery in knows.take_batch():
            a1, b1 = (delivery, b1) if delivery.message.key == b"a" else (a1, delivery)
        assert a1
        assert b1
        a1.ack()
        position = Path(one.path) / "readers" / "w.meta"
        whole = position.read_bytes()
        position.write_bytes(b"\xff" * len(whole))
        eventually(lambda: late.wait(0))
        (a2,) = late.take_batch()
        assert a2.message.payload == b"a2"
        a2.ack()
        assert isinstance(late, TopicGroup)
        assert list(late.problems) == [one.path]
        assert not late.wait(0.2)
        b1.ack()
        eventually(lambda: late.wait(0))
        (b2,) = late.take_batch()
        assert b2.message.payload == b"b2"
        b2.ack()
        position.write_bytes(whole)


@pytest.mark.parametrize(
    "keys",
    [
        [b"a", b"b"],
        ["a", "ü", "\ud800"],
        [1, True, 2, -3],
        [None],
        [("a", 1), ("a", 2), (("a",), None, b"")],
    ],
)
def test_keys_of_a_topic(topic: Path, keys: list[Any]) -> None:
    with open_writer(topic, shared=True) as writer:
        for i in range(len(keys)):
            writer.append(b"%d" % i)
        with join(topic, key=lambda message: keys[int(message.payload)]) as group:
            assert len(group.take_batch()) == len(set(keys))


@pytest.mark.parametrize("key", [1.5, ["a"], {"a"}, object()])
def test_keys_that_differ_between_processes_are_refused(topic: Path, key: object) -> None:
    with open_writer(topic, shared=True) as writer, join(topic, key=lambda _: key) as group:
        writer.append(b"")
        with pytest.raises(errors.InvalidArgument, match="same in every process"):
            group.poll()


def test_a_key_function_that_fails_or_uses_the_group(topic: Path, writers: list[Writer]) -> None:
    fails = True

    def key(message: Message) -> bytes:
        if fails:
            raise LookupError("no key")
        return message.payload

    for writer in writers:
        writer.append(b"a")
    with join(topic, key=key) as group:
        for _ in range(3):
            with pytest.raises(LookupError):
                group.poll()
        fails = False
        (delivery,) = group.take_batch()
        delivery.ack()
    groups: list[aiochronicle.Group[Any]] = []
    with join(topic, key=lambda _: groups[0].poll()) as group:
        groups.append(group)
        with pytest.raises(RuntimeError, match="uses"):
            group.poll()


def test_threads_share_a_member(topic: Path, writers: list[Writer]) -> None:
    messages = 600
    for i in range(messages):
        writers[i % 3].append(b"%d" % i, key=b"%d" % (i % 4))
    seen: dict[int, list[int]] = {key: [] for key in range(4)}
    failures: list[BaseException] = []

    def work(group: aiochronicle.Group[Any]) -> None:
        try:
            while sum(map(len, seen.values())) < messages:
                delivery = group.poll()
                if delivery is not None:
                    number = int(delivery.message.payload)
                    seen[number % 4].append(number)
                    delivery.ack()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    with join(topic) as group:
        threads = [threading.Thread(target=work, args=(group,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failures
    assert seen == {key: list(range(key, messages, 4)) for key in range(4)}


def test_settings_have_to_agree(topic: Path, writers: list[Writer]) -> None:
    with join(topic):
        with pytest.raises(errors.GroupInUse, match="order"):
            open_group(topic, "w")
        # A group on a single queue cannot join: its members would not wait for turns.
        with pytest.raises(errors.GroupInUse, match="order"):
            open_group(writers[0].path, "w", order="key", key=by_key)
        with pytest.raises(errors.ReaderBusy):
            forget_reader(topic, "w")
    wrongs: list[dict[str, Any]] = [{"key": None}, {"order": "any", "key": by_key}, {"key": 5}]
    for wrong in wrongs:
        with pytest.raises(errors.InvalidArgument):
            open_group(topic, "w", **{"order": "key", **wrong})


def test_forgetting_the_group_of_a_topic_without_writers(topic: Path) -> None:
    with TopicGroup(topic, "w", order="key", key=by_key, wait_for_queue=True) as group:
        assert group.poll() is None
        with pytest.raises(errors.ReaderBusy):
            forget_reader(topic, "w")
    forget_reader(topic, "w")
    assert not list((topic / "readers").iterdir())
    with TopicReader(topic, "w"):  # the name is free
        pass


def test_a_damaged_file_of_turns(topic: Path, writers: list[Writer]) -> None:
    turns = topic / "readers" / ".w.turns"
    writers[0].append(b"1", key=b"a")
    with join(topic) as group:
        assert len(group.take_batch()) == 1
        size = turns.stat().st_size
        with turns.open("r+b") as file:  # writable by others: every value is harmless
            file.seek(4096)
            file.write(os.urandom(size - 4096))
        group.poll()
        with turns.open("r+b") as file:
            file.write(b"\xff" * 64)
        with pytest.raises(errors.CorruptionError, match="close them"):
            join(topic)
    turns.write_bytes(b"rubbish")
    with join(topic) as group:
        assert group.wait(30)
        (delivery,) = group.take_batch()
        delivery.ack()


def test_after_fork_the_child_has_no_member(topic: Path, writers: list[Writer]) -> None:
    writers[0].append(b"1", key=b"a")
    with join(topic) as group:
        (delivery,) = group.take_batch()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                group.poll()
            except errors.ForkedError:
                group.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        delivery.ack()


def _lines(server: subprocess.Popen[str]) -> Callable[[str], int]:
    def ask(line: str) -> int:
        assert server.stdin
        assert server.stdout
        server.stdin.write(f"{line}\n")
        server.stdin.flush()
        return int(server.stdout.readline())

    return ask


@pytest.mark.timeout(180)
def test_killed_members_keep_the_order_of_keys(
    topic: Path, writers: list[Writer], rng: random.Random, tmp_path: Path
) -> None:
    """This holds with full windows too: all members see all queues, and all writers share one clock."""
    notes = Notes(tmp_path / "notes")
    counts = [0] * KEYS
    kills = 60
    command = [sys.executable, str(WORKER), str(topic), str(tmp_path / "notes")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        ask = _lines(server)
        lives = list(range(3))
        pids = [ask(f"start {life} {rng.getrandbits(60)}") for life in lives]
        eventually(lambda: [len(group.members) for group in list_groups(topic)] == [3])
        for life in range(3, 3 + kills):
            until = time.monotonic() + rng.uniform(0, 0.06)
            while time.monotonic() < until:
                key = rng.randrange(KEYS)
                if counts[key] - notes.done[key] < 20:
                    rng.choice(writers).append(b"%d:%d" % (key, counts[key]))
                    counts[key] += 1
            which = rng.randrange(3)
            notes.doomed[lives[which]] = 1
            ask(f"kill {pids[which]}")
            lives[which] = life
            pids[which] = ask(f"start {life} {rng.getrandbits(60)}")
        eventually(lambda: inspect_group(topic, "work").pending == 0, 60)
        assert list(notes.done) == counts
        for life, pid in zip(lives, pids, strict=True):
            notes.doomed[life] = 1
            ask(f"kill {pid}")
        assert server.stdin
        server.stdin.close()
        assert server.wait(30) == 0
    assert sum(counts) > kills
