"""Readers of Java queues: queues of ten years of Java versions, positions, times, and layers above."""

import asyncio
import os
import shutil
import struct
import tarfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aiochronicle
from aiochronicle import FanIn, Position, Queue, cq4, open_reader, open_writer, replay
from aiochronicle.errors import (
    CorruptionError,
    InvalidArgument,
    NotSupported,
    PositionLost,
    QueueGone,
    QueueNotFound,
    TimestampUnknown,
    UnknownType,
)

_DATA = Path(__file__).parent.parent / "data" / "cq4"
_NAMES = sorted(path.name.removesuffix(".tar.xz") for path in _DATA.glob("*.tar.xz"))
_LISTED = [name for name in _NAMES if name != "j26-noeof"]
SECOND_NS = 1_000_000_000


def unpack(name: str, where: Path) -> Path:
    with tarfile.open(_DATA / f"{name}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(where)
    return where / name


@pytest.fixture
def recorded(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Unpack the queue of the test's parameter; Java's listing is beside it."""
    return unpack(request.param, tmp_path)


def expected(queue: Path) -> list[tuple[int, bytes]]:
    lines = queue.with_name(f"{queue.name}.expected.txt").read_text().splitlines()
    pairs = [line.split() for line in lines if not line.startswith("#")]
    return [(int(pair[0], 16), bytes.fromhex("".join(pair[1:]))) for pair in pairs]


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


def write_cycles(path: Path, cycles: int, per_cycle: int) -> list[int]:
    """Write messages whose field ``at`` counts seconds, spread over several files."""
    clock = Clock(1_700_000_000 * SECOND_NS)
    indexes: list[int] = []
    with open_writer(path, format="cq4", roll_cycle="TEST_SECONDLY", clock=clock) as writer:
        for cycle in range(cycles):
            clock.now_ns = (1_700_000_000 + 2 * cycle) * SECOND_NS
            for number in range(per_cycle):
                at = clock.now_ns + number * 1000
                indexes.append(writer.send(cq4.Fields({"at": at, "number": len(indexes)})))
    return indexes


# queues that Java wrote


@pytest.mark.parametrize("recorded", _LISTED, indirect=True)
def test_gives_what_java_gives(recorded: Path) -> None:
    wanted = expected(recorded)
    with open_reader(recorded) as reader:
        assert reader.lag.messages == len(wanted)
        assert [(message.seq, message.payload) for message in reader] == wanted
        assert reader.lag.messages == 0
        assert reader.statistics().messages == len(wanted)


@pytest.mark.parametrize("recorded", _LISTED, indirect=True)
def test_positions_and_seqs_lead_to_the_same_message(recorded: Path) -> None:
    with open_reader(recorded) as reader, open_reader(recorded) as scout:
        for message in list(reader)[:200]:
            scout.seek(message.seq)
            assert scout.position == message.position
            assert scout.seq_at(message.position) == message.seq
            scout.seek_position(message.position)
            found = scout.poll()
            assert found is not None
            assert (found.seq, found.payload) == (message.seq, message.payload)
        scout.seek(2**63 - 1)
        assert scout.poll() is None


@pytest.mark.parametrize("recorded", _LISTED, indirect=True)
def test_columns_and_ranges(recorded: Path) -> None:
    wanted = expected(recorded)
    with Queue(recorded) as queue:
        table = queue.slice().to_arrow(["seq", "payload"])
        assert table.column("seq").to_pylist() == [seq for seq, _ in wanted]
        assert table.column("payload").to_pylist() == [payload for _, payload in wanted]
        middle = queue.slice(wanted[1][0], wanted[-1][0])
        assert middle.count == len(wanted) - 2
        assert [message.seq for message in middle] == [seq for seq, _ in wanted[1:-1]]


@pytest.mark.parametrize("recorded", ["j26-noeof"], indirect=True)
def test_goes_on_without_end_mark(recorded: Path) -> None:
    with open_reader(recorded) as reader:
        assert len(list(reader)) == 10


@pytest.mark.parametrize("recorded", ["j26-named"], indirect=True)
def test_resumes_where_a_tailer_of_java_stopped(recorded: Path) -> None:
    seqs = [seq for seq, _ in expected(recorded)]
    names = {info.name: info for info in aiochronicle.list_readers(recorded)}
    assert names["alpha"].committed_seq == seqs[5]
    assert names["alpha"].lag.messages == len(seqs) - 5
    with open_reader(recorded, "ALPHA") as reader:  # Java ignores case in names
        assert reader.committed_seq == seqs[5]
        assert [message.seq for message in reader] == seqs[5:]
        reader.commit()
    with open_reader(recorded, "alpha") as reader:
        assert reader.poll() is None
    with pytest.raises(NotSupported, match="never loses"):
        aiochronicle.forget_reader(recorded, "alpha")


@pytest.mark.parametrize("recorded", ["j416-v4", "j5161-twotables"], indirect=True)
def test_old_queues_have_no_named_tailers(recorded: Path) -> None:
    with pytest.raises(NotSupported, match="without a name"):
        open_reader(recorded, "audit")


@pytest.mark.parametrize("recorded", ["j26-methods"], indirect=True)
def test_decodes_what_java_wrote(recorded: Path) -> None:
    with open_reader(recorded) as reader:
        first = reader.poll()
        assert first is not None
        assert first.decode() == cq4.decode(first.payload)
        assert first.queue_id == first.type_id == first.epoch == 0
        assert first.cause is None
        assert first.expires_ns is None
        kinds = {type(message.decode()) for message in reader}
        assert cq4.Call in kinds


def test_needs_read_permission_only(tmp_path: Path) -> None:
    queue = unpack("j26-roll", tmp_path)
    for file in queue.iterdir():
        file.chmod(0o400)
    queue.chmod(0o500)
    before = sorted(queue.iterdir())
    try:
        with open_reader(queue) as reader:
            assert len(list(reader)) == len(expected(queue))
            assert not reader.wait(0.01)
        assert sorted(queue.iterdir()) == before
    finally:
        queue.chmod(0o700)


# codecs


class Tick(msgspec.Struct):
    at: int
    number: int


class Other(msgspec.Struct):
    name: str


def test_struct_types(queue_path: Path) -> None:
    write_cycles(queue_path, 1, 2)
    with open_reader(queue_path, codec=Tick) as reader:
        assert [message.decode().number for message in reader] == [0, 1]
    with open_reader(queue_path, codec=[Tick, Other]) as several:
        message = several.poll()
        assert message is not None
        with pytest.raises(UnknownType, match="one type"):
            message.decode()
        assert message.decode(Tick).number == 0
    with open_reader(queue_path) as plain:
        message = plain.poll()
        assert message is not None
        assert message.decode(Tick).number == 0
        assert message.decode()["number"] == 0
        with pytest.raises(aiochronicle.errors.DecodeError, match=r"\.cq4"):
            message.decode(Other)


# times


def at_of(payload: bytes) -> int:
    return int(cq4.decode(payload)["at"])


def test_without_anything_the_time_is_that_of_the_cycle(queue_path: Path) -> None:
    write_cycles(queue_path, 3, 2)
    with open_reader(queue_path) as reader:
        times = [message.timestamp_ns // SECOND_NS - 1_700_000_000 for message in reader]
        assert times == [0, 0, 2, 2, 4, 4]
        reader.seek_time(1_700_000_001 * SECOND_NS)
        message = reader.poll()
        assert message is not None
        assert message.decode()["number"] == 2
        reader.seek_time(1_700_000_005 * SECOND_NS)
        assert reader.poll() is None


@pytest.mark.parametrize("timestamp", ["at", cq4.Timestamp("at"), at_of], ids=str)
def test_seeks_by_the_time_in_the_message(queue_path: Path, timestamp: Any) -> None:
    write_cycles(queue_path, 5, 40)
    with open_reader(queue_path, timestamp=timestamp) as reader:
        messages = list(reader)
        assert all(message.timestamp_ns == message.decode()["at"] for message in messages)
        for number, message in enumerate(messages):
            for before_ns in (0, 1):
                reader.seek_time(message.timestamp_ns - before_ns)
                found = reader.poll()
                assert found is not None
                assert found.decode()["number"] == number
        reader.seek_time(messages[-1].timestamp_ns + 1)
        assert reader.poll() is None
    with Queue(queue_path, timestamp=timestamp) as queue:
        part = queue.slice_time(messages[3].timestamp_ns, messages[150].timestamp_ns)
        assert part.count == 147
        assert part.to_arrow(["timestamp_ns"]).column(0)[0].as_py() == messages[3].timestamp_ns


def test_units_and_dates(queue_path: Path) -> None:
    moment = "2026-01-31T12:30:00.5"
    with open_writer(queue_path, format="cq4") as writer:
        writer.send(cq4.Fields({"ms": 1_700_000_000_123, "at": cq4.Typed("x", 5)}))
        writer.method("tick", cq4.Fields({"sent": 7}), cq4.Fields({"us": 1_700_000_000_000_001}))
        writer.append(b"\xc4when\xb4" + bytes([len(moment)]) + moment.encode())
    with open_reader(queue_path, timestamp=cq4.Timestamp("ms", "ms")) as reader:
        first = reader.poll()
        assert first is not None
        assert first.timestamp_ns == 1_700_000_000_123_000_000
    with open_reader(queue_path, timestamp=cq4.Timestamp("us", "us")) as reader:
        reader.seek(first.seq + 1)
        call = reader.poll()
        assert call is not None
        assert call.timestamp_ns == 1_700_000_000_000_001_000
    with open_reader(queue_path, timestamp="when") as reader:
        reader.seek(first.seq + 2)
        dated = reader.poll()
        assert dated is not None
        assert dated.timestamp_ns == 1_769_862_600_500_000_000


def test_a_message_without_its_time_is_told_of_and_not_lost(queue_path: Path) -> None:
    with open_writer(queue_path, format="cq4") as writer:
        for fields in ({"at": 1}, {"no": 2}, {"at": 3}):
            writer.send(cq4.Fields(fields))

    def function(payload: bytes) -> int:
        return at_of(payload)

    for timestamp in ("at", function):
        with open_reader(queue_path, timestamp=timestamp) as reader:
            first = reader.poll()
            assert first is not None
            for _ in range(2):
                with pytest.raises(TimestampUnknown) as failed:
                    reader.poll()
                assert failed.value.path is not None
                assert failed.value.path.endswith(".cq4")
                assert isinstance(failed.value.__cause__, KeyError) == callable(timestamp)
            reader.step_over()
            third = reader.poll()
            assert third is not None
            assert (first.timestamp_ns, third.timestamp_ns) == (1, 3)
            assert reader.statistics().skipped_records == 1


def _answer(answer: Any, _: bytes) -> int:
    return answer  # type: ignore[no-any-return]


def test_a_timestamp_function_may_be_interrupted_and_return_nonsense(queue_path: Path) -> None:
    write_cycles(queue_path, 1, 1)

    def interrupted(payload: bytes) -> int:
        raise KeyboardInterrupt

    with open_reader(queue_path, timestamp=interrupted) as reader, pytest.raises(KeyboardInterrupt):
        reader.poll()
    answers: list[Any] = ["now", -1, 1 << 63, None]
    for answer in answers:
        with open_reader(queue_path, timestamp=partial(_answer, answer)) as reader:
            with pytest.raises(TimestampUnknown) as failed:
                reader.poll()
            assert "Unix nanoseconds" in str(failed.value.__cause__)


def test_a_timestamp_function_may_use_the_reader(queue_path: Path) -> None:
    write_cycles(queue_path, 1, 10)
    readers: list[Any] = []

    def closes(payload: bytes) -> int:
        readers[0].close()
        return 1

    readers.append(open_reader(queue_path, timestamp=closes))
    with pytest.raises(aiochronicle.errors.ClosedError):
        readers[0].poll()

    calls = 0

    def seeks(payload: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            readers[0].seek_first()
        return calls

    with open_reader(queue_path, timestamp=seeks) as reader:
        readers[0] = reader
        numbers = [message.decode()["number"] for message in reader]
    assert numbers == [0, 1, *range(10)]


def test_wrong_timestamps_are_refused(queue: Path, queue_path: Path) -> None:
    write_cycles(queue_path, 1, 1)
    wrongs: list[Any] = [5, "", "a\0b", cq4.Timestamp("at", "h"), b"at"]  # type: ignore[arg-type]
    for wrong in wrongs:
        with pytest.raises(InvalidArgument):
            open_reader(queue_path, timestamp=wrong)
    with pytest.raises(InvalidArgument, match="characters"):
        open_reader(queue_path, timestamp="€")
    with pytest.raises(NotSupported, match="have their times"):
        open_reader(queue, timestamp="at")


# layers above readers


def test_fan_in_of_both_kinds_by_time(tmp_path: Path) -> None:
    write_cycles(tmp_path / "java", 3, 4)
    with open_writer(tmp_path / "native", segment_size=1 << 16) as writer:
        for cycle in range(3):
            for number in range(4):
                at = (1_700_000_000 + 2 * cycle) * SECOND_NS + number * 1000 + 500
                writer.append(b"n", timestamp_ns=at)
    with (
        open_reader(tmp_path / "java", "merge", timestamp="at") as java,
        open_reader(tmp_path / "native", "merge") as native,
        FanIn([java, native], order="strict", max_wait=0) as fan_in,
    ):
        times = [message.timestamp_ns for message in fan_in.read_batch(10)]
        fan_in.commit()
        assert fan_in.lag.messages == 14
        times += [message.timestamp_ns for message in fan_in]
        assert len(times) == 24
        assert times == sorted(times)
    with open_reader(tmp_path / "java", "merge", timestamp="at") as java:
        assert len(list(java)) == 7
    with (
        open_reader(tmp_path / "java", timestamp="at") as java,
        replay([str(tmp_path / "native"), java]) as both,
    ):
        assert [message.timestamp_ns for message in both] == times


def test_batches_of_a_fan_in_are_given_back_whole(tmp_path: Path) -> None:
    write_cycles(tmp_path / "java", 2, 50)
    with open_reader(tmp_path / "java") as reader, FanIn([reader]) as fan_in:
        numbers: list[int] = []
        while batch := fan_in.read_batch(1000, max_bytes=100):
            numbers += [message.decode()["number"] for message in batch]
        assert numbers == list(range(100))
    with open_reader(tmp_path / "java") as reader:
        numbers = []
        while batch := reader.read_batch(1000, max_bytes=100):
            numbers += [message.decode()["number"] for message in batch]
        assert numbers == list(range(100))
        reader.seek_first()
        latest = {message.decode()["number"] for message in reader.conflate(lambda _: 0)}
        assert latest == {99}


def test_a_directory_with_both_kinds_is_replayed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    write_cycles(root / "java", 1, 3)
    with open_writer(root / "native", segment_size=1 << 16) as writer:
        writer.append(b"n")
    with replay(root) as history:
        assert len(list(history)) == 4


def test_discovery_finds_a_java_queue_that_is_ready(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    write_cycles(root / "java", 1, 3)
    open_writer(root / "java", ready=True).close()

    async def main() -> list[int]:
        async with aiochronicle.Router(root, name="router") as router, asyncio.timeout(20):
            seen: list[int] = []
            async for message in router:
                seen.append(message.decode()["number"])
                if len(seen) == 3:
                    router.commit()
                    return seen
            return seen

    assert asyncio.run(main()) == [0, 1, 2]
    with open_reader(root / "java", "router") as reader:
        assert reader.poll() is None


def test_no_arrays(queue_path: Path) -> None:
    write_cycles(queue_path, 1, 3)
    with Queue(queue_path) as queue, pytest.raises(NotSupported, match="no array"):
        queue.slice().to_numpy("u1")


# waiting


def test_waits_for_a_queue_that_is_made_later(queue_path: Path) -> None:
    async def main() -> None:
        with open_reader(queue_path, "late", wait_for_queue=True) as reader:
            waiting = asyncio.create_task(reader.next(20))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            with pytest.raises(QueueNotFound):
                reader.seek_first()
            await asyncio.to_thread(write_cycles, queue_path, 2, 2)
            assert (await waiting).decode()["number"] == 0
            assert len(list(reader)) == 3

    asyncio.run(main())


def test_a_task_sees_what_another_process_appends(queue_path: Path) -> None:
    async def main() -> None:
        with (
            open_writer(queue_path, format="cq4") as writer,
            open_reader(queue_path, poll_max_us=1_000_000) as reader,
        ):
            for number in range(5):
                waiting = asyncio.create_task(reader.next(20))
                await asyncio.sleep(0.01)
                writer.append(b"%d" % number)
                assert (await waiting).payload == b"%d" % number
            waiting = asyncio.create_task(reader.next(20))
            await asyncio.sleep(0.01)
            reader.close()
            with pytest.raises(aiochronicle.errors.ClosedError):
                await waiting

    asyncio.run(main())


def test_our_writers_ring_our_readers(queue_path: Path) -> None:
    """The word says that a reader sleeps; a writer clears it when it wakes the reader."""

    async def main() -> None:
        with (
            open_writer(queue_path, format="cq4") as one,
            open_writer(queue_path, format="cq4") as two,
            open_reader(queue_path, poll_max_us=1_000_000) as reader,
        ):
            waiting = asyncio.create_task(reader.next(20))
            deadline = time.monotonic() + 20
            while not reader.attended and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            assert reader.attended
            parked = queue_path / ".aiochronicle" / "parked"
            for writer in (one, two):
                await asyncio.sleep(0.01)
                assert parked.read_bytes()[0] == 1
                writer.append(b"x")
                assert parked.read_bytes()[0] == 0
                await waiting
                waiting = asyncio.create_task(reader.next(20))
            waiting.cancel()

    asyncio.run(main())


def test_a_thread_waits(queue_path: Path) -> None:
    with open_writer(queue_path, format="cq4") as writer, open_reader(queue_path) as reader:
        timer = threading.Timer(0.05, writer.append, (b"x",))
        timer.start()
        assert reader.wait(20)
        timer.join()
        assert reader.poll() is not None


def test_a_queue_that_is_removed(queue_path: Path) -> None:
    write_cycles(queue_path, 1, 2)
    with open_reader(queue_path, "audit") as reader:
        list(reader)
        shutil.rmtree(queue_path)
        with pytest.raises(QueueGone):
            reader.commit()
        deadline = time.monotonic() + 20
        with pytest.raises(QueueGone):
            while time.monotonic() < deadline:
                reader.wait(0.05)
                reader.poll()
        with pytest.raises(QueueGone):
            _ = reader.lag


# positions


def test_a_cycle_that_is_removed_loses_the_position(queue_path: Path) -> None:
    indexes = write_cycles(queue_path, 3, 3)
    with open_reader(queue_path, "audit") as reader:
        for _ in range(2):
            reader.poll()
        reader.commit()
        assert reader.committed_seq == indexes[2]
    sorted(queue_path.glob("*.cq4"))[0].unlink()
    with pytest.raises(PositionLost) as lost:
        open_reader(queue_path, "audit")
    with open_reader(queue_path, "audit", start="first") as reader:
        assert reader.position == lost.value.nearest
        assert len(list(reader)) == 6


def test_positions_that_are_none(queue_path: Path) -> None:
    write_cycles(queue_path, 2, 3)
    with open_reader(queue_path, "audit") as reader:
        messages = list(reader)
        first = messages[0].position
        for wrong in (
            Position(first.segment, first.offset + 4),
            Position(first.segment, 1 << 40),
            Position(first.segment + 1, first.offset),
        ):
            with pytest.raises(PositionLost):
                reader.seek_position(wrong)
            with pytest.raises(InvalidArgument):
                reader.commit_position(wrong)
        with pytest.raises(InvalidArgument):
            reader.seek_position(Position(1 << 40, 0))
        assert reader.poll() is None
        reader.commit_position(messages[4].position)
        assert reader.committed == messages[4].position
        reader.commit(messages[4])
        assert reader.committed_seq == messages[5].seq


# damage


def overwrite(file: Path, offset: int, value: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(struct.pack("<I", value))


def test_damage_is_raised_and_stepped_over(queue_path: Path) -> None:
    write_cycles(queue_path, 2, 20)
    with open_reader(queue_path) as reader:
        sixth = list(reader)[5]
    overwrite(sorted(queue_path.glob("*.cq4"))[0], sixth.position.offset, 0x3FFFFFFF)
    del sixth
    with open_reader(queue_path) as reader:
        with pytest.raises(CorruptionError) as damage:
            list(reader)
        assert damage.value.path is not None
        assert damage.value.path.endswith(".cq4")
        with pytest.raises(CorruptionError):
            reader.poll()
        reader.step_over()
        found = [message.decode()["number"] for message in reader]
    assert found == list(range(8, 40))  # the index has every fourth message
    with open_reader(queue_path, on_corrupt="skip") as reader:
        assert [message.decode()["number"] for message in reader] == [*range(5), *found]
        assert reader.statistics().skipped_records == 1
    report = aiochronicle.verify(queue_path)
    assert (report.corrupt, report.records) == (1, 37)


def test_a_file_that_cannot_be_opened(queue_path: Path) -> None:
    write_cycles(queue_path, 3, 3)
    file = sorted(queue_path.glob("*.cq4"))[1]
    with file.open("r+b") as opened:
        opened.seek(8)
        opened.write(b"\xff" * 64)
    with open_reader(queue_path) as reader:
        with pytest.raises(CorruptionError):
            list(reader)
        reader.step_over()
        assert [message.decode()["number"] for message in reader] == [6, 7, 8]
    with open_reader(queue_path, on_corrupt="skip") as reader:
        assert [message.decode()["number"] for message in reader] == [0, 1, 2, 6, 7, 8]
        assert reader.lag.messages == 0


def test_a_forked_child_has_a_closed_reader(queue_path: Path) -> None:
    write_cycles(queue_path, 1, 2)
    with open_reader(queue_path, "audit") as reader:
        reader.poll()
        pid = os.fork()
        if pid == 0:
            try:
                reader.poll()
            except aiochronicle.errors.ForkedError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert reader.poll() is not None
