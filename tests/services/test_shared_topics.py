"""Topics with many writers: each writer has its own queue, and readers follow all as one stream."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from asynchronous.both_loops import on_both_loops
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import Bus, Retention, Roll, TopicReader, open_writer
from aiochronicle._services.shared import SharedTopic
from aiochronicle.errors import (
    AccessDenied,
    CorruptionError,
    InvalidArgument,
    InvalidName,
    LockedError,
    NotAQueue,
    QueueNotFound,
    ReaderBusy,
    ReaderNotFound,
    UnsupportedVersion,
    WrongType,
)

SMALL = 65536
WRITER = """
import sys, aiochronicle
topic, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with aiochronicle.open_writer(topic, shared=True, segment_size=65536) as writer:
    for number in range(count):
        writer.append(f"{name} {number}".encode())
    print(writer.path, flush=True)
    if len(sys.argv) > 4:
        sys.stdin.read()
"""


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def writer_process(topic: Path, name: str, count: int, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(topic), name, str(count), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def next_payload(reader: "TopicReader[None]") -> bytes:
    """Poll until there is a message; return its payload."""
    found: list[bytes] = []

    def poll() -> bool:
        message = reader.poll()
        if message is not None:
            found.append(message.payload)
        return bool(found)

    eventually(poll)
    return found[0]


def queues(topic: Path) -> list[str]:
    return SharedTopic(topic).writers()


def check_streams(payloads: list[bytes], writers: int, count: int) -> None:
    """Check that all messages of every writer came, once and in order."""
    streams: dict[str, list[int]] = {}
    for payload in payloads:
        name, number = payload.decode().split()
        streams.setdefault(name, []).append(int(number))
    assert len(streams) == writers
    assert all(numbers == list(range(count)) for numbers in streams.values())


def test_two_writers_at_once_and_one_reader(topic: Path) -> None:
    with open_writer(topic, shared=True) as one, open_writer(topic, shared=True) as two:
        assert Path(one.path).parent == topic / "queue"
        assert one.path != two.path
        one.append(b"buy", timestamp_ns=1)
        two.append(b"sell", timestamp_ns=2)
        one.append(b"cancel", timestamp_ns=3)
        with TopicReader(topic, "risk") as reader:
            assert [message.payload for message in reader] == [b"buy", b"sell", b"cancel"]
            reader.commit()
        two.append(b"more")
        with TopicReader(topic, "risk") as reader:
            assert [message.payload for message in reader] == [b"more"]
            assert {Path(one.path).name, Path(two.path).name} == {
                Path(path).name for path in reader.paths().values()
            }


@on_both_loops
async def test_writers_in_processes_come_while_a_reader_follows(topic: Path) -> None:
    received: list[bytes] = []
    reader = TopicReader(topic, "risk", wait_for_queue=True)
    processes: list[subprocess.Popen[str]] = []
    async with asyncio.timeout(60), reader:
        for number in range(2):
            processes.append(writer_process(topic, f"a{number}", 500))
        async for message in reader:
            received.append(message.payload)
            if len(received) == 600:  # both writers of the first round have started
                processes.extend(writer_process(topic, f"b{number}", 500) for number in range(2))
            if len(received) == 2000:
                break
        reader.commit()
        assert reader.lag.messages == 0
    for process in processes:
        assert process.wait(30) == 0
        process.communicate()
    check_streams(received, 4, 500)


def test_blocking_reader_meets_writers_that_come(topic: Path) -> None:
    received: list[bytes] = []
    with TopicReader(topic, "risk", wait_for_queue=True) as reader:
        assert not reader.wait(0.01)
        process = writer_process(topic, "late", 200)
        end_s = time.monotonic() + 30
        while len(received) < 200 and time.monotonic() < end_s:
            if reader.wait(1):
                received += [message.payload for message in reader.read_batch()]
        process.communicate(timeout=30)
    check_streams(received, 1, 200)


def test_poll_meets_a_new_writer(topic: Path) -> None:
    with TopicReader(topic, wait_for_queue=True) as reader, open_writer(topic, shared=True) as one:
        assert one.append(b"x") == 0
        assert next_payload(reader) == b"x"


def test_killed_writer_loses_nothing_and_its_queue_is_taken_over(topic: Path) -> None:
    process = writer_process(topic, "killed", 300, "stay")
    assert process.stdout is not None
    path = process.stdout.readline().strip()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with open_writer(topic, shared=True) as writer:
        assert writer.path == path
        assert writer.next_seq == 300
        writer.append(b"killed 300")
    with TopicReader(topic) as reader:
        check_streams([message.payload for message in reader], 1, 301)


def test_named_writer_keeps_its_queue(topic: Path) -> None:
    with open_writer(topic, shared="gateway-1") as writer:
        assert Path(writer.path).name == "gateway-1"
        cause = (7, 41)
        writer.append(b"order", cause=cause)
        with pytest.raises(LockedError):
            open_writer(topic, shared="gateway-1")
        with open_writer(topic, shared=True) as other:
            assert other.path != writer.path
    with open_writer(topic, shared=True) as other:
        assert Path(other.path).name != "gateway-1"
    with open_writer(topic, shared="gateway-1") as writer:
        assert writer.next_seq == 1


def test_reader_that_is_away_misses_no_writer(topic: Path) -> None:
    """Messages of a writer that comes and goes while a reader is away are kept for that reader."""
    retention = Retention()
    with TopicReader(topic, "slow", wait_for_queue=True):
        pass
    with open_writer(
        topic, shared=True, segment_size=SMALL, roll=Roll(messages=10), retention=retention
    ) as writer:
        for number in range(50):
            writer.append(b"w %d" % number)
        with TopicReader(topic, "quick") as quick:
            assert len(list(quick)) == 50
            quick.commit()
        writer.retain_now()
    for _ in range(3):  # each looks for queues to fold away
        open_writer(topic, shared=True, retention=retention).close()
    with TopicReader(topic, "slow") as slow:
        check_streams([message.payload for message in slow], 1, 50)


def test_queues_that_were_read_are_folded_away(topic: Path) -> None:
    retention = Retention()
    with open_writer(topic, shared=True) as one, open_writer(topic, shared=True) as two:
        one.append(b"1")
        two.append(b"2")
        open_writer(topic, shared="named").close()
        before = queues(topic)
    with TopicReader(topic, "risk") as reader:
        assert len(list(reader)) == 2
        with open_writer(topic, shared=True):  # keeps everything, and takes one of them over
            assert queues(topic) == before
        with open_writer(topic, shared=True, retention=retention):  # not committed yet
            assert queues(topic) == before
        reader.commit()
        with open_writer(topic, shared=True, retention=retention) as three:
            assert set(queues(topic)) == {Path(three.path).name, "named"}
            three.append(b"3")
            assert next_payload(reader) == b"3"
        assert not list(topic.glob(".folded*"))


def test_folding_waits_for_a_reader_that_was_never_there(topic: Path) -> None:
    retention = Retention(wait_for="archive")
    with open_writer(topic, shared=True) as writer:
        writer.append(b"1")
    with TopicReader(topic, "risk") as reader:
        list(reader)
        reader.commit()
    before = queues(topic)
    open_writer(topic, shared="other", retention=retention).close()
    with open_writer(topic, shared=True, retention=retention) as taken:
        assert set(queues(topic)) == {*before, "other"}
        assert taken.next_seq == 1


def test_queue_of_a_live_writer_is_never_folded(topic: Path) -> None:
    with open_writer(topic, shared=True) as writer:
        SharedTopic(topic).remove_drained({"retention": Retention(), "mode": 0o600})
        assert writer.append(b"still there") == 0
    with TopicReader(topic) as reader:
        assert len(list(reader)) == 1


def test_many_threads_open_at_once(topic: Path) -> None:
    """Concurrent taking over, folding and creating: no two writers share a queue, nothing is lost."""
    retention = Retention()
    failures: list[BaseException] = []
    count, rounds, threads = 20, 6, 6

    def work(name: int) -> None:
        try:
            for turn in range(rounds):
                with open_writer(
                    topic, shared=True, segment_size=SMALL, retention=retention
                ) as writer:
                    for number in range(count):
                        writer.append(f"{name}.{turn} {number}".encode())
        except BaseException as error:  # noqa: BLE001 - the test fails by it
            failures.append(error)

    with TopicReader(topic, "risk", wait_for_queue=True) as reader:
        workers = [threading.Thread(target=work, args=(name,)) for name in range(threads)]
        for worker in workers:
            worker.start()
        received: list[bytes] = []
        while any(worker.is_alive() for worker in workers):
            received += [message.payload for message in reader.read_batch()]
            reader.commit()
        received += [message.payload for message in reader]
    assert not failures
    check_streams(received, threads * rounds, count)


def test_start_last_skips_what_is_there_and_no_later_writer(topic: Path) -> None:
    with open_writer(topic, shared=True) as one:
        one.append(b"old")
        with TopicReader(topic, start="last") as reader:
            one.append(b"new")
            with open_writer(topic, shared=True) as two:
                two.append(b"other")
                assert [message.payload for message in reader] == [b"new", b"other"]


def test_commit_auto(topic: Path) -> None:
    with open_writer(topic, shared=True) as one:
        one.append_many([b"1", b"2", b"3"])
        with TopicReader(topic, "risk", commit="auto") as reader:
            assert reader.poll()
            assert reader.poll()
        with TopicReader(topic, "risk") as reader:
            assert [message.payload for message in reader] == [b"2", b"3"]


def test_damaged_queue_is_raised_once_and_others_go_on(topic: Path) -> None:
    with open_writer(topic, shared="bad") as bad, open_writer(topic, shared="good") as good:
        bad.append(b"x" * 100)
        good.append(b"fine", timestamp_ns=2**62)
    segment = topic / "queue" / "bad" / "000000000.q"
    content = bytearray(segment.read_bytes())
    content[64 + 64 + 10] ^= 1
    segment.write_bytes(content)
    with TopicReader(topic, "risk") as reader:
        with pytest.raises(CorruptionError):
            reader.poll()
        assert [message.payload for message in reader] == [b"fine"]
        assert [Path(path).name for path in reader.problems] == ["bad"]


def test_forget_reader(topic: Path) -> None:
    with open_writer(topic, shared=True) as writer:
        writer.append(b"1")
        with TopicReader(topic, "risk"), pytest.raises(ReaderBusy):
            aiochronicle.forget_reader(topic, "risk")
        aiochronicle.forget_reader(topic, "risk")
        assert SharedTopic(topic).names() == []
        assert aiochronicle.list_readers(writer.path) == []
        with pytest.raises(ReaderNotFound):
            aiochronicle.forget_reader(topic, "risk")


def test_archives_of_queues_are_apart(topic: Path, tmp_path: Path) -> None:
    retention = Retention(archive=str(tmp_path / "archive"))
    with TopicReader(topic, "risk", wait_for_queue=True) as reader:
        for name in ("a", "b"):
            with open_writer(
                topic, shared=name, segment_size=SMALL, roll=Roll(messages=1), retention=retention
            ) as writer:
                writer.append_many([b"1"])
                writer.append_many([b"2"])
                assert len(list(reader)) == 2
                reader.commit()
                eventually(partial(has_archived, writer))
    assert len(list((tmp_path / "archive").glob("[ab]/*/*/*/000000000.q"))) == 2


def has_archived(writer: aiochronicle.Writer) -> bool:
    """Return whether a segment was archived, which happens after a thread has sealed it."""
    writer.retain_now()
    return writer.statistics().segments_archived == 1


# ---- of a bus ----


def test_bus_follows_all_writers_of_a_topic(tmp_path: Path) -> None:
    with Bus(tmp_path) as one, Bus(tmp_path) as two:
        one.writer("orders", shared=True).append(b"1", timestamp_ns=1)
        two.writer("orders", shared=True).append(b"2", timestamp_ns=2)
        assert one.topics() == ["orders"]
        reader = two.reader("orders", "risk")  # the bus detects a topic with many writers
        assert type(reader).__name__ == "TopicReader"
        assert two.reader("orders", "risk") is reader
        assert [m.payload for m in two.read_batch("orders", "risk", peek=True)] == [b"1", b"2"]
        assert [m.payload for m in two.read_batch("orders", "risk", 1)] == [b"1"]
        assert [m.payload for m in two.read_batch("orders", "risk", 1)] == [b"2"]
        (info,) = two.readers("orders")
        assert (info.name, info.lag.messages, info.live) == ("risk", 1, True)
        two.commit("orders", "risk")
        (info,) = two.readers("orders")
        assert info.lag.messages == 0
        assert two.healthy
        statistics = two.statistics().readers["orders", "risk"]
        assert isinstance(statistics, aiochronicle.RouterStatistics)
        assert statistics.delivered == 4
        assert two.flush_now() == {"orders": 1}


def test_bus_takes_shared_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[topics.orders]\nshared = true\nsegment_size = 65536\n")
    with Bus(tmp_path) as one, Bus(tmp_path) as two:
        reader = one.reader("orders", "risk")  # before there is any writer
        assert type(reader).__name__ == "TopicReader"
        one.append("orders", b"1")
        two.append("orders", b"2")
        assert sorted(message.payload for message in reader) == [b"1", b"2"]


@on_both_loops
async def test_bus_reader_may_come_first(tmp_path: Path) -> None:
    async with Bus(tmp_path, namespace="fx/london") as bus, asyncio.timeout(30):
        reader = await bus.areader("orders", "risk", shared=True)
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0.05)
        async with Bus(tmp_path, namespace="fx/london") as other:
            writer = await other.awriter("orders", shared=True)
            writer.append(b"1")
            assert (await waiting).payload == b"1"
            writer.append_many([b"2", b"3"])
            async for batch in reader.batches(max_messages=2):
                assert [message.payload for message in batch] == [b"2", b"3"]
                break


def test_bus_makes_no_namespace_of_a_shared_topic(tmp_path: Path) -> None:
    with Bus(tmp_path) as bus:
        bus.writer("orders", shared=True)
        with Bus(tmp_path, namespace="orders") as inside, pytest.raises(InvalidName):
            inside.append("queue", b"x")


def test_bus_writers_that_start_together_all_get_the_new_topic(tmp_path: Path) -> None:
    for number in range(20):
        together = threading.Barrier(4)

        def start(root: Path, together: threading.Barrier) -> None:
            with Bus(root) as bus:
                together.wait()
                bus.writer("orders", shared=True, segment_size=1 << 16).append(b"x")

        with ThreadPoolExecutor(4) as pool:
            root = tmp_path / str(number)
            started = [pool.submit(start, root, together) for _ in range(4)]
            for one in started:
                one.result()


# ---- bad input ----


def test_queue_and_topic_are_not_taken_for_each_other(topic: Path, tmp_path: Path) -> None:
    open_writer(topic, shared=True).close()
    with pytest.raises(NotAQueue, match="shared=True"):
        open_writer(topic)
    with pytest.raises(NotAQueue, match="TopicReader"):
        aiochronicle.open_reader(topic)
    open_writer(tmp_path / "plain").close()
    with pytest.raises(NotAQueue, match="without shared"):
        open_writer(tmp_path / "plain", shared=True)
    with pytest.raises(QueueNotFound, match="shared=True"):
        TopicReader(tmp_path / "plain")
    assert not (tmp_path / "plain" / "queue").exists()


def test_waiting_reader_of_a_queue_finds_out_that_it_is_a_topic(topic: Path) -> None:
    with aiochronicle.open_reader(topic, "risk", wait_for_queue=True) as reader:
        assert not reader.wait(0)
        with open_writer(topic, shared=True), pytest.raises(NotAQueue):
            eventually(lambda: reader.poll() is not None)


def test_bad_arguments(topic: Path) -> None:
    with pytest.raises(WrongType):
        open_writer(topic, shared=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        open_writer(topic, shared="../escape")
    with pytest.raises(InvalidName):
        open_writer(topic, shared="auto-20260101T000000-00000000")
    with pytest.raises(InvalidArgument):
        open_writer(topic, shared=True, format="cq4")
    assert not topic.exists()
    with pytest.raises(InvalidArgument):
        TopicReader(topic, start=5, wait_for_queue=True)
    with pytest.raises(InvalidName):
        TopicReader(topic, "no/name", wait_for_queue=True)
    with pytest.raises(QueueNotFound):
        TopicReader(topic)
    assert not topic.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": "x"}', b"\xff" * 9000])
def test_damaged_mark(topic: Path, content: bytes) -> None:
    open_writer(topic, shared=True).close()
    (topic / "shared.json").write_bytes(content)
    with pytest.raises(CorruptionError, match=r"shared\.json"):
        open_writer(topic, shared=True)
    with pytest.raises(CorruptionError, match=r"shared\.json"):
        TopicReader(topic)


def test_newer_version(topic: Path) -> None:
    open_writer(topic, shared=True).close()
    (topic / "shared.json").write_bytes(b'{"version": 2}')
    with pytest.raises(UnsupportedVersion):
        open_writer(topic, shared=True)


def test_links_are_not_followed(topic: Path, tmp_path: Path) -> None:
    open_writer(topic, shared="real").close()
    (tmp_path / "elsewhere").mkdir()
    (topic / "queue" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AccessDenied):
        open_writer(topic, shared="link")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_topic_that_was_half_made_is_completed(topic: Path) -> None:
    topic.mkdir()
    (topic / "shared.json").write_bytes(b'{"version":1}')
    with open_writer(topic, shared=True) as writer:
        writer.append(b"x")
    (topic / "queue" / "auto-20200101T000000-00000000").mkdir()  # killed before its control block
    (topic / ".folded-auto-1").mkdir()  # killed while it was removed
    with open_writer(topic, shared=True) as writer:
        assert Path(writer.path).name == "auto-20200101T000000-00000000"
    assert not (topic / ".folded-auto-1").exists()
