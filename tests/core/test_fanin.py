"""The merge against its reference: random sources, ties, heartbeats, queues that come and go.

Every step of a random history is applied to real queues and to tests/reference/merge.py; then the output of
both is compared, message by message.
"""

import functools
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from helpers.fanin_machine import FIRST_NS, SEGMENT_BYTES, Machine
from reference.format import ForeignWriter
from reference.merge import CLOSED, ReferenceMerge

import aiochronicle
from aiochronicle import FanIn, Message, Position, Reader, Writer, open_reader

# A segment is allocated when it is created: test queues of the default size would fill the disk.
open_writer = functools.partial(aiochronicle.open_writer, segment_size=1 << 20)


@pytest.mark.parametrize(
    ("order", "queues"), [("available", 3), ("available", 8)] + [("strict", n) for n in (2, 5, 40)]
)
def test_every_step_of_a_random_history_is_merged_like_the_reference(
    order: str, queues: int, seed: int, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, seed, strict=order == "strict", queues=queues)
    try:
        for queue in range(queues):
            machine.attach(queue)
        for _ in range(3_000):
            machine.step()
        machine.finish()
        assert machine.delivered > 1_000
    finally:
        machine.close()


class Plan:
    """The timestamps and heartbeats of each queue, chosen in advance, with many ties."""

    def __init__(self, chance: random.Random, queues: int, messages: int) -> None:
        self.steps: list[list[tuple[bool, int]]] = []  # (is a heartbeat, time)
        for _ in range(queues):
            times = sorted(chance.randrange(FIRST_NS, FIRST_NS + messages) for _ in range(messages))
            self.steps.append([(chance.random() < 0.3, time_ns) for time_ns in times])

    def expected(self) -> list[tuple[int, int]]:
        return sorted(
            (time_ns, queue)
            for queue, steps in enumerate(self.steps)
            for is_heartbeat, time_ns in steps
            if not is_heartbeat
        )


def merge_as_it_arrives(root: Path, plan: Plan, chance: random.Random) -> list[tuple[int, int]]:
    """Execute the plan in a random interleaving, polling at random moments."""
    left = [iter(steps) for steps in plan.steps]
    output: list[tuple[int, int]] = []
    with ExitStack() as stack:
        writers = [
            stack.enter_context(open_writer(root / f"{queue}", segment_size=SEGMENT_BYTES))
            for queue in range(len(left))
        ]
        fan_in = stack.enter_context(FanIn(order="strict"))
        for queue in range(len(left)):
            fan_in.attach(stack.enter_context(open_reader(root / f"{queue}")))
        open_queues = [*range(len(left))]
        while open_queues:
            queue = chance.choice(open_queues)
            for _ in range(chance.choice((1, 1, 3, 50))):
                step = next(left[queue], None)
                if step is None:
                    open_queues.remove(queue)
                    writers[queue].close()
                    break
                if step[0]:
                    writers[queue].heartbeat(step[1])
                else:
                    writers[queue].append(b"", timestamp_ns=step[1])
            for _ in range(chance.choice((0, 1, 10, 1000))):
                message = fan_in.poll()
                if message is None:
                    break
                assert not message.late
                output.append((message.timestamp_ns, int(message.source)))
        output += [(message.timestamp_ns, int(message.source)) for message in fan_in]
        assert fan_in.statistics().late == 0
    return output


def test_strict_order_does_not_depend_on_arrival(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    plan = Plan(chance, queues=5, messages=400)
    expected = plan.expected()
    assert len({time_ns for time_ns, _ in expected}) < len(expected)  # there are ties
    for trial in range(25):
        root = tmp_path / f"{trial}"
        root.mkdir()
        assert merge_as_it_arrives(root, plan, chance) == expected
        shutil.rmtree(root)


@pytest.mark.parametrize("order", ["available", "strict"])
def test_a_large_merge_is_a_sort(order: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    queues, messages = 64, 2_500
    reference = ReferenceMerge(strict=False)
    with ExitStack() as stack:
        fan_in = stack.enter_context(FanIn(order="strict" if order == "strict" else "available"))
        for queue in range(queues):
            times = sorted(chance.randrange(10**6) for _ in range(messages))
            with open_writer(tmp_path / f"{queue}", segment_size=1 << 17) as writer:
                for first in range(0, messages, 500):
                    writer.append_many([b"x" * 20] * 500, timestamps_ns=times[first : first + 500])
            reader = stack.enter_context(open_reader(tmp_path / f"{queue}"))
            source = fan_in.attach(reader)
            reference.attach(source, [*zip(times, range(messages), strict=True)], CLOSED)
        for message in fan_in:
            expected = reference.poll()
            assert expected is not None
            assert (message.timestamp_ns, int(message.source)) == expected[:2]
            assert message.seq == expected.seq
        assert reference.poll() is None
        assert fan_in.statistics().delivered == queues * messages


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Writer, Writer, Reader, Reader]]:
    with ExitStack() as stack:
        writers = [stack.enter_context(open_writer(tmp_path / name)) for name in "ab"]
        readers = [stack.enter_context(open_reader(tmp_path / name, "test")) for name in "ab"]
        yield writers[0], writers[1], readers[0], readers[1]


Pair = tuple[Writer, Writer, Reader, Reader]


def payloads(fan_in: FanIn) -> list[bytes]:
    return [message.payload for message in fan_in]


def test_strict_waits_for_a_silent_source_and_says_so(pair: Pair) -> None:
    a, b, reader_a, reader_b = pair
    with FanIn([reader_a, reader_b], order="strict") as fan_in:
        a.append(b"1", timestamp_ns=100)
        assert payloads(fan_in) == []
        statistics = fan_in.statistics()
        assert statistics.blocked_by == 1
        assert fan_in.source_statistics(1).silent_s > 0
        assert fan_in.statistics().blocked_s > statistics.blocked_s
        assert fan_in.source_statistics(0).has_message
        b.heartbeat(99)
        assert payloads(fan_in) == []
        b.heartbeat(100)
        assert payloads(fan_in) == [b"1"]
        assert fan_in.statistics().blocked_by is None
        assert fan_in.source_statistics(1).watermark_ns == 100


def test_among_equal_times_strict_waits_for_the_source_that_comes_first(pair: Pair) -> None:
    a, b, reader_a, reader_b = pair
    with FanIn([reader_a, reader_b], order="strict") as fan_in:
        b.append(b"b", timestamp_ns=100)
        a.heartbeat(100)  # it may still append at 100, which comes before b's message
        assert payloads(fan_in) == []
        a.append(b"a", timestamp_ns=100)
        assert payloads(fan_in) == [b"a"]
        a.heartbeat(101)
        assert payloads(fan_in) == [b"b"]


def test_a_closed_writer_holds_nothing_up_and_a_new_one_does_again(
    pair: Pair, tmp_path: Path
) -> None:
    a, b, reader_a, reader_b = pair
    with FanIn([reader_a, reader_b], order="strict") as fan_in:
        a.append(b"1", timestamp_ns=100)
        assert payloads(fan_in) == []
        b.close()
        assert payloads(fan_in) == [b"1"]
        with open_writer(tmp_path / "b") as b:
            a.append(b"2", timestamp_ns=200)
            assert payloads(fan_in) == []
            b.append(b"3", timestamp_ns=300)
            assert payloads(fan_in) == [b"2"]


def test_detaching_the_silent_source_lets_the_others_go_on(pair: Pair) -> None:
    a, _, reader_a, reader_b = pair
    with FanIn([reader_a, reader_b], order="strict") as fan_in:
        a.append(b"1", timestamp_ns=100)
        assert payloads(fan_in) == []
        fan_in.detach(1)
        assert payloads(fan_in) == [b"1"]


def wait_for(fan_in: FanIn) -> Message:
    assert fan_in.wait(timeout=10)
    message = fan_in.poll()
    assert message is not None
    return message


def test_max_wait_bounds_the_delay_and_marks_what_is_late(pair: Pair) -> None:
    a, b, reader_a, reader_b = pair
    with FanIn([reader_a, reader_b], order="strict", max_wait=0.05) as fan_in:
        a.append(b"1", timestamp_ns=100)
        started = time.monotonic()
        assert fan_in.poll() is None
        message = wait_for(fan_in)
        assert time.monotonic() - started >= 0.05
        assert (message.payload, message.late) == (b"1", False)
        a.append(b"2", timestamp_ns=150)
        assert payloads(fan_in) == [b"2"]  # the other source is still silent
        assert fan_in.statistics().left_out == 1
        b.append(b"late", timestamp_ns=120)
        a.append(b"3", timestamp_ns=200)
        message = wait_for(fan_in)
        assert (message.payload, message.late) == (b"late", True)
        assert fan_in.statistics().late == fan_in.source_statistics(1).late == 1
        # It has written, so the merge waits for it again.
        assert fan_in.statistics().left_out == 0
        assert fan_in.poll() is None
        assert fan_in.statistics().blocked_by == 1
        assert (wait_for(fan_in).payload, fan_in.source_statistics(0).late) == (b"3", 0)


def test_one_dead_source_does_not_end_the_order_of_the_others(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b, dead = (
            stack.enter_context(open_writer(tmp_path / name)) for name in ("a", "b", "dead")
        )
        readers = [stack.enter_context(open_reader(tmp_path / n)) for n in ("a", "b", "dead")]
        fan_in = stack.enter_context(FanIn(readers, order="strict", max_wait=0.05))
        a.append(b"1", timestamp_ns=100)
        b.heartbeat(100)
        assert wait_for(fan_in).payload == b"1"
        assert fan_in.statistics().left_out == 1
        a.append(b"3", timestamp_ns=300)
        assert fan_in.poll() is None  # b is alive and may still append an older message
        assert fan_in.statistics().blocked_by == 1
        b.append(b"2", timestamp_ns=200)
        b.heartbeat(300)
        assert payloads(fan_in) == [b"2", b"3"]
        dead.heartbeat(400)
        a.append(b"4", timestamp_ns=400)
        b.heartbeat(400)
        assert payloads(fan_in) == [b"4"]
        assert fan_in.statistics().left_out == 0


def test_no_message_is_held_longer_than_max_wait_by_older_ones(pair: Pair) -> None:
    a, b, reader_a, reader_b = pair
    with FanIn([reader_a, reader_b], order="strict", max_wait=0.1) as fan_in:
        a.append(b"held", timestamp_ns=10**9)
        started = time.monotonic()
        assert fan_in.poll() is None
        timestamp_ns, received = 0, b""
        while received != b"held":
            assert time.monotonic() - started < 10
            timestamp_ns += 1
            b.append(b"older", timestamp_ns=timestamp_ns)
            assert wait_for(fan_in).payload == b"older"
            message = fan_in.poll()
            received = b"" if message is None else message.payload
        assert time.monotonic() - started >= 0.1


def test_sources_of_another_program_may_go_back_in_time(tmp_path: Path) -> None:
    with ForeignWriter(tmp_path / "foreign") as foreign, open_writer(tmp_path / "ours") as ours:
        for timestamp_ns in (100, 50, 200, 10, 300):
            foreign.append(b"%d" % timestamp_ns, 0, timestamp_ns)
        for timestamp_ns in (75, 150, 250):
            ours.append(b"%d" % timestamp_ns, timestamp_ns=timestamp_ns)
        with (
            open_reader(tmp_path / "foreign") as reader,
            open_reader(tmp_path / "ours") as other,
            FanIn([reader, other]) as fan_in,
        ):
            received = [(message.payload, message.late) for message in fan_in]
            # In file order per source; a message whose time goes back is delivered at once and marked late.
            assert received == [
                (b"75", False),
                (b"100", False),
                (b"50", True),
                (b"150", False),
                (b"200", False),
                (b"10", True),
                (b"250", False),
                (b"300", False),
            ]
            assert fan_in.source_statistics(0).late == 2
            assert reader.statistics().timestamp_returns == 2


def test_the_same_queue_by_another_path_is_refused(pair: Pair, tmp_path: Path) -> None:
    a, _, reader_a, _ = pair
    (tmp_path / "link").symlink_to(tmp_path / "a")
    a.append(b"1")
    with open_reader(tmp_path / "link") as again, FanIn([reader_a]) as fan_in:
        with pytest.raises(
            aiochronicle.errors.InvalidArgument, match="attached already, as source 0"
        ):
            fan_in.attach(again)
        assert [message.payload for message in again] == [b"1"]  # and is unaffected
        assert payloads(fan_in) == [b"1"]


def test_a_queue_deleted_while_merged_gives_what_it_had(pair: Pair, tmp_path: Path) -> None:
    a, b, reader_a, reader_b = pair
    with FanIn([reader_a, reader_b]) as fan_in:
        for number in range(10):
            a.append(b"a%d" % number, timestamp_ns=number)
            b.append(b"b%d" % number, timestamp_ns=number)
        assert fan_in.poll() is not None
        a.close()
        shutil.rmtree(tmp_path / "a")
        received = payloads(fan_in)
        assert len(received) == 19
        b.append(b"more")
        assert payloads(fan_in) == [b"more"]
        fan_in.detach(0).close()


def corrupt(path: Path) -> None:
    """Flip a byte of the second payload."""
    segment = path / "000000000.q"
    content = bytearray(segment.read_bytes())
    content[64 + 128 + 64] ^= 1
    segment.write_bytes(content)


def test_a_source_that_fails_is_reported_once_and_the_others_go_on(
    pair: Pair, tmp_path: Path
) -> None:
    a, b, reader_a, reader_b = pair
    for number in range(3):
        a.append(b"a%d" % number, timestamp_ns=number)
        b.append(b"b%d" % number, timestamp_ns=number)
    corrupt(tmp_path / "a")
    with FanIn([reader_a, reader_b]) as fan_in:
        received = [wait_for(fan_in).payload]
        with pytest.raises(aiochronicle.errors.CorruptionError) as caught:
            received += [message.payload for message in fan_in]
        assert "/a/" in str(caught.value)
        fan_in._check()
        received += payloads(fan_in)
        assert received == [b"a0", b"b0", b"b1", b"b2"]
        assert fan_in.statistics().failed == 1
        assert fan_in.source_statistics(0).failed
        fan_in.commit(0)
        assert fan_in.detach(0) is reader_a
        assert reader_a.committed == reader_a.position
        fan_in._check()


def test_a_failure_behind_a_batch_is_raised_by_the_next_one(pair: Pair, tmp_path: Path) -> None:
    a, b, reader_a, reader_b = pair
    for number in range(3):
        a.append(b"a%d" % number, timestamp_ns=number)
        b.append(b"b%d" % number, timestamp_ns=number)
    corrupt(tmp_path / "a")
    with FanIn([reader_a, reader_b]) as fan_in:
        assert [message.payload for message in fan_in.read_batch()] == [b"a0"]
        assert fan_in.wait(timeout=10)
        with pytest.raises(aiochronicle.errors.CorruptionError):
            fan_in.read_batch()
        assert [message.payload for message in fan_in.read_batch(2)] == [b"b0", b"b1"]
        assert [message.payload for message in fan_in.read_batch(max_bytes=1)] == [b"b2"]
        with pytest.raises(ValueError, match="positive"):
            fan_in.read_batch(0)


def test_a_batch_keeps_within_its_bytes_beyond_the_first_message(pair: Pair) -> None:
    a, b, reader_a, reader_b = pair
    for number in range(4):
        a.append(bytes(10), timestamp_ns=number)
        b.append(bytes(25), timestamp_ns=number)
    with FanIn([reader_a, reader_b]) as fan_in:
        sizes: list[list[int]] = []
        while batch := fan_in.read_batch(max_bytes=36):
            sizes.append([len(message) for message in batch])
            fan_in._check()
        assert sizes == [[10, 25]] * 4
        assert fan_in.statistics().delivered == 8
        assert fan_in.statistics().late == 0
    for number in range(4, 8):
        a.append(bytes(10), timestamp_ns=number)
        b.append(bytes(25), timestamp_ns=number)
    with FanIn([reader_a, reader_b]) as fan_in:
        sizes = []
        while batch := fan_in.read_batch(max_bytes=20):
            sizes.append([len(message) for message in batch])
        assert sizes == [[10], [25]] * 4


def test_what_did_not_fit_into_a_batch_makes_nothing_late(pair: Pair) -> None:
    """The message was read but not delivered: an older message that comes next is in order."""
    a, b, reader_a, reader_b = pair
    with FanIn([reader_a, reader_b]) as fan_in:
        for timestamp_ns in (100, 300):
            a.append(b"a" * 60, timestamp_ns=timestamp_ns)
        assert [message.timestamp_ns for message in fan_in.read_batch(max_bytes=100)] == [100]
        b.append(b"b", timestamp_ns=200)
        rest = [(message.timestamp_ns, message.late) for message in fan_in]
        assert rest == [(200, False), (300, False)]
        assert (fan_in.statistics().late, fan_in.statistics().last_timestamp_ns) == (0, 300)


@pytest.mark.parametrize("attached", [1, 2])
def test_what_did_not_fit_into_a_batch_does_not_count_as_delivered(
    attached: int, pair: Pair
) -> None:
    """This holds for a single source and for a source beside a silent one."""
    a, _, *readers = pair
    with FanIn() as fan_in:
        source, *_ = [fan_in.attach(reader) for reader in readers[:attached]]
        for timestamp_ns in (100, 200, 300):
            a.append(b"a" * 60, timestamp_ns=timestamp_ns)
        for delivered, timestamp_ns in enumerate((100, 200, 300), start=1):
            assert len(fan_in.read_batch(max_bytes=100)) == 1
            told = fan_in.source_statistics(source)
            assert (told.delivered, told.last_timestamp_ns) == (delivered, timestamp_ns)


def test_on_error_is_told_and_may_detach(pair: Pair, tmp_path: Path) -> None:
    a, b, reader_a, reader_b = pair
    for number in range(3):
        a.append(b"a%d" % number, timestamp_ns=number)
        b.append(b"b%d" % number, timestamp_ns=number)
    corrupt(tmp_path / "a")
    failures: list[tuple[int, Exception]] = []

    def on_error(source: int, error: Exception) -> None:
        failures.append((source, error))
        fan_in.detach(source)

    with FanIn([reader_a, reader_b], on_error=on_error) as fan_in:
        assert payloads(fan_in) == [b"a0", b"b0", b"b1", b"b2"]
        assert [source for source, _ in failures] == [0]
        assert isinstance(failures[0][1], aiochronicle.errors.CorruptionError)
        assert [*fan_in.sources()] == [1]


def test_on_error_that_raises_is_heard(pair: Pair, tmp_path: Path) -> None:
    a, _, reader_a, _ = pair
    a.append_many([b"1", b"2"])
    corrupt(tmp_path / "a")

    def on_error(source: int, error: Exception) -> None:
        raise LookupError(source) from error

    with FanIn([reader_a], on_error=on_error) as fan_in, pytest.raises(LookupError):
        payloads(fan_in)


def test_a_reader_closed_while_attached_is_an_error_not_a_crash(pair: Pair) -> None:
    a, b, reader_a, reader_b = pair
    for number in range(3):
        a.append(b"a%d" % number, timestamp_ns=number)
        b.append(b"b%d" % number, timestamp_ns=number)
    with FanIn([reader_a, reader_b]) as fan_in:
        first = fan_in.poll()
        second = fan_in.poll()
        reader_a.close()
        with pytest.raises(aiochronicle.errors.ClosedError):
            payloads(fan_in)
        assert first is not None
        assert second is not None
        assert (first.payload, second.payload) == (b"a0", b"b0")
        assert payloads(fan_in) == [b"b1", b"b2"]
        fan_in._check()


def test_asking_an_attached_reader_does_not_disturb_the_merge(tmp_path: Path) -> None:
    """Lag and readiness may move the reader to the next segment while its head is in this one."""
    with ExitStack() as stack:
        writer = stack.enter_context(open_writer(tmp_path / "a", segment_size=4096))
        other = stack.enter_context(open_writer(tmp_path / "b"))
        reader = stack.enter_context(open_reader(tmp_path / "a", "test"))
        fan_in = stack.enter_context(FanIn([reader]))
        fan_in.attach(stack.enter_context(open_reader(tmp_path / "b")))
        other.append(b"other", timestamp_ns=1)
        for number in range(200):
            writer.append(b"%d" % number, timestamp_ns=number + 1)
        assert payloads(fan_in)[:3] == [b"0", b"other", b"1"]
        for number in range(200, 400):
            writer.append(b"%d" % number, timestamp_ns=number + 1)
        received: list[bytes] = []
        while len(received) < 200:
            left = 200 - len(received)
            assert fan_in.source_statistics(0).lag_messages == left
            assert reader.lag.messages in (left, left - 1)
            message = wait_for(fan_in)
            assert message.view == message.payload
            received.append(message.payload)
            fan_in.commit()
            with open_reader(tmp_path / "a") as check:
                check.seek_position(reader.committed)
                following = check.poll()
                found = None if following is None else following.payload
                assert found == (b"%d" % (200 + len(received)) if len(received) < 200 else None)
        assert received == [b"%d" % number for number in range(200, 400)]


def test_a_forked_child_has_no_fan_in(pair: Pair) -> None:
    a, _, reader_a, reader_b = pair
    a.append_many([b"1", b"2", b"3"])
    with FanIn([reader_a, reader_b]) as fan_in:
        assert wait_for(fan_in).payload == b"1"
        fan_in.source_statistics(0)
        assert fan_in.wait(timeout=0)  # the next one has been read ahead
        child = os.fork()
        if child == 0:
            status = 1
            try:
                fan_in.poll()
            except aiochronicle.ChronicleError as error:
                status = 0 if "fork" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert payloads(fan_in) == [b"2", b"3"]


def test_commit_and_resume(tmp_path: Path) -> None:
    with ExitStack() as stack:
        writers = [stack.enter_context(open_writer(tmp_path / f"{n}")) for n in range(4)]
        for number in range(400):
            writers[number % 4].append(b"%d" % number, timestamp_ns=number)
        received: list[bytes] = []
        for _ in range(4):
            with ExitStack() as life:
                readers = [
                    life.enter_context(open_reader(tmp_path / f"{n}", "router")) for n in range(4)
                ]
                fan_in = life.enter_context(FanIn(readers))
                received += [message.payload for message in fan_in.read_batch(101)]
                fan_in.commit()
                fan_in.read_batch(50)  # not committed: comes again
        assert received == [b"%d" % number for number in range(400)]


def test_one_source_can_be_committed_alone(pair: Pair, tmp_path: Path) -> None:
    a, b, reader_a, reader_b = pair
    a.append_many([b"a0", b"a1"], timestamps_ns=[1, 3])
    b.append_many([b"b0", b"b1"], timestamps_ns=[2, 4])
    with FanIn([reader_a, reader_b]) as fan_in:
        assert payloads(fan_in) == [b"a0", b"b0", b"a1", b"b1"]
        fan_in.commit(1)
        with pytest.raises(KeyError):
            fan_in.commit(2)
    reader_a.close()
    reader_b.close()
    with open_reader(tmp_path / "a", "test") as again, open_reader(tmp_path / "b", "test") as done:
        assert (again.lag.messages, done.lag.messages) == (2, 0)


def test_anonymous_readers_are_left_out_of_commit_all(pair: Pair, tmp_path: Path) -> None:
    a, b, reader_a, _ = pair
    a.append(b"a")
    b.append(b"b")
    with open_reader(tmp_path / "b") as anonymous, FanIn([reader_a, anonymous]) as fan_in:
        assert len(payloads(fan_in)) == 2
        fan_in.commit()
        assert reader_a.committed == reader_a.position
        with pytest.raises(aiochronicle.errors.InvalidArgument, match="anonymous"):
            fan_in.commit(1)


def test_a_reader_that_is_attached_stands_behind_what_was_delivered_from_it(
    tmp_path: Path,
) -> None:
    with open_writer(tmp_path / "a") as a, open_writer(tmp_path / "b") as b:
        for at_ns in (1, 3, 5):
            a.append(b"a", timestamp_ns=at_ns)
            b.append(b"b", timestamp_ns=at_ns + 1)
        for delivered in range(7):
            with (
                open_reader(tmp_path / "a", f"after-{delivered}") as reader_a,
                open_reader(tmp_path / "b", f"after-{delivered}") as reader_b,
                FanIn([reader_a, reader_b]) as fan_in,
            ):
                assert all(fan_in.poll() for _ in range(delivered))
                fan_in.wait(0)  # looks ahead
                reader_a.commit()
                reader_b.commit_position(reader_b.position)
            with (
                open_reader(tmp_path / "a", f"after-{delivered}") as reader_a,
                open_reader(tmp_path / "b", f"after-{delivered}") as reader_b,
                FanIn([reader_a, reader_b]) as fan_in,
            ):
                assert [m.timestamp_ns for m in fan_in] == list(range(delivered + 1, 7))


def test_asking_an_attached_reader_for_its_lag_loses_nothing(tmp_path: Path) -> None:
    with (
        open_writer(tmp_path / "a", roll=aiochronicle.Roll(messages=1)) as a,
        open_writer(tmp_path / "b") as b,
        open_reader(tmp_path / "a") as reader_a,
        open_reader(tmp_path / "b") as reader_b,
        FanIn([reader_a, reader_b]) as fan_in,
    ):
        b.append(b"b", timestamp_ns=1)
        a.append(b"a0", timestamp_ns=2)
        a.append(b"a1", timestamp_ns=3)
        assert [message.payload for message in fan_in.read_batch(1)] == [b"b"]
        assert reader_a.lag.messages == 2  # what the fan-in has read ahead was not delivered
        assert [message.payload for message in fan_in.detach(0)] == [b"a0", b"a1"]


@pytest.mark.parametrize(("every", "delivered", "committed"), [(1, 3, 2), (3, 3, 0), (3, 4, 3)])
def test_readers_that_commit_by_themselves_do_so_in_a_fan_in(
    every: int, delivered: int, committed: int, tmp_path: Path
) -> None:
    with open_writer(tmp_path / "a") as writer:
        writer.append_many([b"%d" % number for number in range(10)])
        with open_reader(tmp_path / "a", "auto", commit=every) as reader, FanIn([reader]) as fan_in:
            assert all(fan_in.poll() for _ in range(delivered))
        with open_reader(tmp_path / "a", "auto") as again:
            message = again.poll()
            assert message is not None
            assert message.seq == committed


def test_waiting_commits_what_was_dealt_with(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a") as writer:
        writer.append_many([b"1", b"2"])
        with (
            open_reader(tmp_path / "a", "auto", commit="auto") as reader,
            FanIn([reader]) as fan_in,
        ):
            first = reader.committed
            assert len(fan_in.read_batch()) == 2
            assert not fan_in.wait(0)
            assert reader.committed == first
            assert not fan_in.wait(0.001)
            assert reader.committed == reader.position


def test_waiting_on_an_attached_reader_commits_nothing_that_was_only_read_ahead(
    tmp_path: Path,
) -> None:
    with open_writer(tmp_path / "a") as writer:
        writer.append_many([b"0", b"1", b"2"])
        with (
            open_reader(tmp_path / "a", "auto", commit="auto") as reader,
            FanIn([reader]) as fan_in,
        ):
            assert fan_in.poll() is not None
            assert fan_in.wait(0)  # looks ahead
            reader.wait(0.001)
            assert reader.committed == reader.position
        with open_reader(tmp_path / "a", "auto") as again:
            assert [message.payload for message in again] == [b"1", b"2"]


def test_nothing_of_a_batch_is_committed_before_the_caller_has_seen_it(tmp_path: Path) -> None:
    def committed(name: str) -> int:
        with open_reader(tmp_path / name, "auto") as again:
            message = again.poll()
            return -1 if message is None else message.seq

    for batches, expected in ((1, [0, 0]), (2, [2, 1])):
        with ExitStack() as stack:
            readers = []
            for name in "ab":
                shutil.rmtree(tmp_path / name, ignore_errors=True)
                writer = stack.enter_context(open_writer(tmp_path / name))
                for at_ns in range(5):
                    writer.append(b"", timestamp_ns=at_ns)
                readers.append(
                    stack.enter_context(open_reader(tmp_path / name, "auto", commit="auto"))
                )
            fan_in = stack.enter_context(FanIn(readers))
            for _ in range(batches):
                assert len(fan_in.read_batch(3)) == 3
        assert [committed(name) for name in "ab"] == expected


def test_messages_outlive_their_source(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a") as writer, open_reader(tmp_path / "a") as reader:
        writer.append_many([b"1" * 100, b"2" * 100])
        with FanIn([reader]) as fan_in:
            first, second = fan_in
            fan_in.detach(0).close()
        assert (first.payload, bytes(second.view)) == (b"1" * 100, b"2" * 100)


def test_ids_are_not_used_again(pair: Pair) -> None:
    _, _, reader_a, reader_b = pair
    with FanIn() as fan_in:
        assert fan_in.attach(reader_a) == 0
        assert fan_in.attach(reader_b) == 1
        fan_in.detach(0)
        assert fan_in.attach(reader_a) == 2
        assert fan_in.sources() == {1: reader_b, 2: reader_a}
        with pytest.raises(KeyError):
            fan_in.source_statistics(0)


def test_what_cannot_be_is_refused(pair: Pair) -> None:
    _, _, reader_a, _ = pair
    wrongs: list[dict[str, Any]]
    wrongs = [{"order": "sorted"}, {"max_wait": -1}, {"burst": 0}, {"poll_max_us": 1}]
    for wrong in wrongs:
        with pytest.raises(aiochronicle.errors.InvalidArgument):
            FanIn(**wrong)
    with FanIn() as fan_in:
        with pytest.raises(TypeError, match="Reader"):
            fan_in.attach(b"reader")
        with pytest.raises(aiochronicle.errors.InvalidArgument):
            fan_in.wait(-1)
        assert fan_in.poll() is None
        assert not fan_in.wait(timeout=0)
        assert "sources=0" in repr(fan_in)
        fan_in.attach(reader_a)
        reader_a.close()
        with pytest.raises(aiochronicle.errors.ClosedError):
            fan_in.poll()
    assert "closed" in repr(fan_in)
    for call in (fan_in.poll, fan_in.read_batch, fan_in.commit, fan_in.wait):
        with pytest.raises(aiochronicle.errors.ClosedError):
            call()
    with pytest.raises(aiochronicle.errors.ClosedError):
        fan_in.attach(reader_a)
    with FanIn() as fan_in, pytest.raises(aiochronicle.errors.ClosedError):
        fan_in.attach(reader_a)


def test_a_reader_is_in_one_fan_in_only(pair: tuple[Writer, Writer, Reader, Reader]) -> None:
    _, _, reader, other = pair
    with FanIn([reader]) as first, FanIn([other]) as second:
        with pytest.raises(aiochronicle.errors.InvalidArgument, match="another fan-in"):
            second.attach(reader)
        (source,) = first.sources()
        first.detach(source=source)
        second.attach(reader=reader)
    with pytest.raises(aiochronicle.errors.InvalidArgument, match="iterable"):
        FanIn(reader)  # type: ignore[arg-type]


def test_commit_behind_a_message_of_another_program(tmp_path: Path) -> None:
    """Queues of other programs have no id: the message itself identifies its source."""
    with ExitStack() as stack:
        for name in ("0", "1"):
            foreign = stack.enter_context(ForeignWriter(tmp_path / name))
            foreign.append(name.encode(), 0, 100 + int(name))
        readers = [stack.enter_context(open_reader(tmp_path / name, "r")) for name in ("0", "1")]
        fan_in = stack.enter_context(FanIn(readers))
        start = readers[0].committed
        _, second = list(fan_in)
        fan_in.commit(second)
        assert [reader.committed for reader in readers] == [start, readers[1].position]
        readers[1].close()
        with pytest.raises(aiochronicle.errors.ClosedError):
            fan_in.commit(second)


def test_commit_behind_a_message(tmp_path: Path) -> None:
    with open_writer(tmp_path / "0") as writer, open_reader(tmp_path / "0", "name") as reader:
        writer.append_many([b"1", b"2", b"3"])
        with FanIn([reader]) as fan_in:
            first, *_ = list(fan_in)
            fan_in.commit(first)
    with open_reader(tmp_path / "0", "name") as reader:
        assert [message.payload for message in reader] == [b"2", b"3"]


@pytest.mark.parametrize("first", [0, 1])
def test_commit_of_a_message_is_that_of_its_own_source_among_copies(
    first: int, tmp_path: Path
) -> None:
    """Copies of one directory have one queue id."""
    with open_writer(tmp_path / "0", segment_size=SEGMENT_BYTES) as writer:
        for number in range(4):
            writer.append(b"%d" % number, timestamp_ns=number)
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    readers = [open_reader(tmp_path / name, "merge") for name in ("0", "1")]
    try:
        start = readers[0].committed
        with FanIn(readers) as fan_in:
            messages = {(m.source, m.seq): m for m in fan_in}
            own, other = (str(first), str(1 - first))
            fan_in.commit(messages[own, 1])
            assert readers[first].committed == Position(*messages[own, 2].position)
            assert readers[1 - first].committed == start
            fan_in.detach(first)
            with pytest.raises(KeyError):
                fan_in.commit(messages[own, 2])
            assert readers[1 - first].committed == start
            fan_in.commit(messages[other, 2])
            assert readers[1 - first].committed == Position(*messages[other, 3].position)
    finally:
        for reader in readers:
            reader.close()
