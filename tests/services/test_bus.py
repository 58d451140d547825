"""Topics by name."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from asynchronous.both_loops import on_both_loops
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import Bus, Capacity, ReaderStatistics, Retention, Roll
from aiochronicle.errors import (
    AccessDenied,
    ClosedError,
    InvalidArgument,
    InvalidConfiguration,
    InvalidName,
    LockedError,
    QueueFull,
    QueueNotFound,
    ReaderBusy,
    StorageError,
    WrongType,
)

SMALL = "[defaults]\nsegment_size = 65_536\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a bus with small segments."""
    (tmp_path / "bus").mkdir()
    (tmp_path / "bus" / "config.toml").write_text(SMALL)
    return tmp_path / "bus"


def payloads(messages: list[aiochronicle.Message]) -> list[bytes]:
    return [message.payload for message in messages]


def test_append_and_read_by_topic(root: Path) -> None:
    with Bus(root) as bus:
        assert bus.append("orders", b"first") == 0
        assert bus.append("orders", b"second", type_id=7, timestamp_ns=2**62) == 1
        assert bus.append_many("fills", [b"a", b"b", b"c"], type_id=3) == range(3)
        assert bus.topics() == ["fills", "orders"]
        first, second = bus.read_batch("orders", "audit")
        assert (first.payload, first.source) == (b"first", "orders")
        assert (second.type_id, second.timestamp_ns) == (7, 2**62)
        assert payloads(bus.read_batch("fills", "audit")) == [b"a", b"b", b"c"]
        assert bus.read_batch("fills", "audit") == []
        assert bus.writer("orders") is bus.writer("orders")
        assert bus.reader("orders", "audit") is bus.reader("orders", "audit")
        cause = bus.append("fills", b"d", cause=first)
        assert bus.read_batch("fills", "audit")[0].cause == (first.queue_id, first.seq)
        assert cause == 3


def test_the_environment_names_root_and_namespace(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIOCHRONICLE_DATA_DIR", raising=False)
    with pytest.raises(InvalidArgument, match=r"Bus\(root\), or set \$AIOCHRONICLE_DATA_DIR"):
        Bus()
    monkeypatch.setenv("AIOCHRONICLE_DATA_DIR", str(root))
    with Bus() as bus:
        assert (bus.root, bus.namespace) == (str(root), "")
    monkeypatch.setenv("AIOCHRONICLE_NAMESPACE", "desk")
    with Bus() as bus:
        assert bus.path("orders") == str(root / "desk" / "orders")
    with Bus(root / "other", namespace="") as bus:
        assert bus.path("orders") == str(root / "other" / "orders")


def test_namespaces_keep_topics_apart(root: Path) -> None:
    with Bus(root) as all_, Bus(root, namespace="desk") as desk, Bus(root, namespace="a/b") as deep:
        for bus in (all_, desk, deep):
            bus.append("orders", bus.namespace.encode())
            bus.append(f"own{len(bus.namespace)}", b"")
        assert all_.topics() == ["orders", "own0"]
        assert desk.topics() == ["orders", "own4"]
        assert payloads(deep.read_batch("orders", "r")) == [b"a/b"]
        assert (root / "a" / "b" / "orders").is_dir()
        assert desk.writer("orders").statistics().segment_size == 65_536, "the root's settings"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "../a", "-a", ".a", "a b", "a\0", "é", "x" * 65, "a\n", "config.toml"],
)
def test_names_are_checked(root: Path, name: str) -> None:
    with Bus(root) as bus:
        for use in (bus.writer, bus.reader, bus.readers, bus.path, bus.settings):
            with pytest.raises(InvalidName):
                use(name)
        with pytest.raises(InvalidName):
            bus.append(name, b"")
        assert bus.topics() == []
    if name not in ("", "a/b"):
        with pytest.raises(InvalidName):
            Bus(root, namespace=name)
    with pytest.raises(InvalidName):
        Bus(root, namespace=f"a/{name}/b/")


def test_a_topic_is_no_namespace_and_a_namespace_no_topic(root: Path) -> None:
    with Bus(root) as bus, Bus(root, namespace="desk/fx") as inner:
        inner.append("orders", b"")
        with pytest.raises(InvalidName, match="/desk: this is a namespace, not a topic"):
            bus.append("desk", b"")
        bus.append("ticks", b"")
        with (
            Bus(root, namespace="ticks/fx") as wrong,
            pytest.raises(InvalidName, match="/ticks: this is a topic, not a namespace"),
        ):
            wrong.append("orders", b"")


def test_other_directories_are_no_topics(root: Path) -> None:
    (root / "notes").mkdir()
    (root / "file").write_text("")
    with Bus(root) as bus, Bus(root / "not-yet") as missing:
        assert bus.topics() == []
        assert missing.topics() == []
        assert not (root / "not-yet").exists()
        with pytest.raises(QueueNotFound):
            bus.readers("orders")


def test_directories_are_made_for_those_who_may_read(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        with Bus(tmp_path / "new" / "bus", namespace="desk") as bus:
            bus.writer("orders", segment_size=65_536, mode=0o640)
    finally:
        os.umask(mask)
    for directory in ("new", "new/bus", "new/bus/desk", "new/bus/desk/orders"):
        assert (tmp_path / directory).stat().st_mode & 0o777 == 0o750, directory


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_root_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with Bus(tmp_path / "locked" / "bus") as bus, pytest.raises(AccessDenied):
        bus.append("orders", b"")


def test_a_file_in_the_way_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        Bus(tmp_path / "file" / "bus") as bus,
        pytest.raises(StorageError, match="cannot create the directory"),
    ):
        bus.append("orders", b"")


def test_settings_reach_the_writer(root: Path) -> None:
    (root / "config.toml").write_text(
        SMALL
        + """
        [topics.small]
        capacity = 4096
        mode = 0o640
        [topics."rolled-*"]
        roll = { messages = 10 }
        retention = { archive = "old", check_interval_s = 0.01 }
        """
    )
    with Bus(root) as bus:
        bus.writer("small")
        assert (root / "small" / "control.meta").stat().st_mode & 0o777 == 0o640
        bus.reader("small", "slow")
        with pytest.raises(QueueFull):
            for _ in range(1000):
                bus.append("small", b"x" * 100)
        assert bus.settings("rolled-a").retention == Retention(
            archive=str(root / "old" / "rolled-a"), check_interval_s=0.01
        )
        for topic in ("rolled-a", "rolled-b"):  # segments of the same names
            for _ in range(25):
                bus.append(topic, b"x")
            bus.read_batch(topic, "r", commit="before")
        eventually(lambda: len(list((root / "old").glob("rolled-*/*/*/*/*.q"))) == 4, 10)


def test_options_of_the_first_call_go_before_the_file(root: Path) -> None:
    with Bus(root) as bus:
        writer = bus.writer("orders", segment_size=1 << 20, roll=Roll(messages=5))
        assert writer.statistics().segment_size == 1 << 20
        with pytest.raises(InvalidArgument, match="pass options in the first call only"):
            bus.writer("orders", flush="sync")
        assert bus.writer("orders") is writer
        writer.close()
        again = bus.writer("orders", capacity=Capacity(5000))
        assert again is not writer
        assert again.append(b"open again") == 0


def test_another_configuration_file(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[defaults]\nsegment_size = 131_072\n")
    with Bus(root, config=other) as bus:
        assert bus.settings("orders").segment_size == 131_072
    with pytest.raises(InvalidConfiguration, match=r"typo.toml: cannot be read: No such file"):
        Bus(root, config=tmp_path / "typo.toml")


def test_positions_persist_and_are_each_readers_own(root: Path) -> None:
    with Bus(root) as bus:
        bus.append_many("orders", [b"%d" % number for number in range(10)])
        assert len(bus.read_batch("orders", "a", 4, commit="before")) == 4
        assert len(bus.read_batch("orders", "b", 7, commit="manual")) == 7
        bus.commit("orders", "b")
    with Bus(root) as bus:
        assert payloads(bus.read_batch("orders", "a", 1)) == [b"4"]
        assert payloads(bus.read_batch("orders", "b", 1)) == [b"7"]
        assert payloads(bus.read_batch("orders", "c", 1)) == [b"0"]


def resumes_at(root: Path, name: str) -> int:
    """Return the seq at which another process would resume with a reader of this name."""
    queue = root / "orders"
    info = next(one for one in aiochronicle.list_readers(queue) if one.name == name)
    return 100 - info.lag.messages


def test_delivery_modes(root: Path) -> None:
    with Bus(root) as bus:
        bus.append_many("orders", [b"x"] * 100)
        for _ in range(2):
            bus.read_batch("orders", "before", 5, commit="before")
            bus.read_batch("orders", "after", 5, commit="after")
            bus.read_batch("orders", "manual", 5, commit="manual")
        assert resumes_at(root, "before") == 10
        assert resumes_at(root, "after") == 5
        assert resumes_at(root, "manual") == 0
        stored: list[int] = []
        for _ in range(6):
            bus.read_batch("orders", "every", 5, commit=12)
            stored.append(resumes_at(root, "every"))
        assert stored == [0, 0, 0, 15, 15, 15]
        third = bus.read_batch("orders", "manual", 5, commit="manual")[2]
        bus.commit("orders", "manual", third)
        assert resumes_at(root, "manual") == 13
        bus.read_batch("orders", "after", 100)
        bus.read_batch("orders", "after", 100)
        assert resumes_at(root, "after") == 100, "asking again is the sign that all was dealt with"


@pytest.mark.parametrize("commit", ["auto", 0, -1, True, 1.5, None])
def test_unknown_delivery_modes_are_refused(root: Path, commit: object) -> None:
    with Bus(root) as bus, pytest.raises(InvalidArgument, match="commit must be"):
        bus.read_batch("orders", "r", commit=commit)  # type: ignore[arg-type]


def test_peeking_moves_nothing(root: Path) -> None:
    with Bus(root) as bus:
        assert bus.read_batch("orders", "r", peek=True) == []
        for number in range(2000):  # over a roll
            bus.append("orders", b"%d" % number)
        bus.read_batch("orders", "r", 3)
        for _ in range(2):
            assert payloads(bus.read_batch("orders", "r", 2, peek=True)) == [b"3", b"4"]
            assert len(bus.read_batch("orders", "r", 10_000, peek=True)) == 1997
        assert resumes_at(root, "r") == 100 - 2000, "not even what was delivered before"
        assert payloads(bus.read_batch("orders", "r", 1)) == [b"3"]


def test_byte_budgets(root: Path) -> None:
    with Bus(root) as bus:
        bus.append_many("orders", [b"x" * size for size in (50, 50, 200, 10, 10, 10)])
        sizes = [
            [len(message) for message in bus.read_batch("orders", "r", max_bytes=100)]
            for _ in range(4)
        ]
        assert sizes == [[50, 50], [200], [10, 10, 10], []]
        for wrong in (0, -1):
            with pytest.raises(ValueError, match="must be a positive int"):
                bus.read_batch("orders", "r", max_bytes=wrong)
            with pytest.raises(ValueError, match="must be a positive int"):
                bus.read_batch("orders", "r", wrong)


def test_readers_are_listed_with_their_lag(root: Path) -> None:
    with Bus(root) as bus:
        bus.append_many("orders", [b"x"] * 10)
        assert bus.readers("orders") == []
        with Bus(root) as other:
            other.read_batch("orders", "gone", 4, commit="before")
            assert bus.readers("orders")[0].live
        bus.read_batch("orders", "audit", 7, commit="before")
        audit, gone = bus.readers("orders")
        assert (audit.name, audit.lag.messages, audit.live) == ("audit", 3, True)
        assert (gone.name, gone.lag.messages, gone.live) == ("gone", 6, False)
        assert gone.lag.bytes > audit.lag.bytes > 0
        assert gone.lag.seconds > 0
        assert gone.heartbeat_age_s > audit.heartbeat_age_s >= 0
        assert not any(one.lost for one in (audit, gone))
        assert audit.committed == bus.reader("orders", "audit").committed


def test_a_lost_position_is_listed_as_lost(root: Path) -> None:
    (root / "config.toml").write_text(
        SMALL + "retention = { max_bytes = 65_536, reader_ttl_s = 0.05 }\n"
    )
    with Bus(root) as bus:
        bus.append("orders", b"x")
        with Bus(root) as other:
            other.reader("orders", "late")
        eventually(lambda: bus.readers("orders")[0].heartbeat_age_s > 0.05, 10)
        for _ in range(2000):
            bus.append("orders", b"x" * 100)

        def lost() -> bool:
            bus.writer("orders").retain_now()
            return bus.readers("orders")[0].lost

        eventually(lost, 10)
        (late,) = bus.readers("orders")
        assert not late.live
        assert 0 < late.lag.messages < 2001


def test_more_readers_than_the_first_guess(root: Path) -> None:
    with Bus(root) as bus:
        bus.append("orders", b"x")
        for number in range(40):
            bus.reader("orders", f"r{number:02}")
        assert [one.name for one in bus.readers("orders")] == [f"r{n:02}" for n in range(40)]


def test_positions_are_kept_under_names_only(root: Path) -> None:
    with Bus(root) as bus:
        bus.append("orders", b"x")
        for call in (bus.read_batch, bus.commit):
            with pytest.raises(WrongType, match="name must be the name of a reader, not None"):
                call("orders", None)  # type: ignore[arg-type]
        assert bus.statistics().readers == {}


def test_a_name_belongs_to_one_reader_with_one_set_of_options(root: Path) -> None:
    with Bus(root) as bus, Bus(root) as other:
        bus.append("orders", b"x")
        reader = bus.reader("orders", "audit", commit="auto")
        assert bus.reader("orders", "audit", commit="auto") is reader
        assert bus.reader("orders", "audit") is reader
        with pytest.raises(InvalidArgument, match="'audit' is already open with other options"):
            bus.reader("orders", "audit", commit=5)
        with pytest.raises(ReaderBusy):
            other.reader("orders", "audit")
        with pytest.raises(LockedError):
            other.append("orders", b"y")
        reader.close()
        assert bus.reader("orders", "audit", commit=5) is not reader


def test_anonymous_readers_are_all_different(root: Path) -> None:
    with Bus(root) as bus:
        bus.append("orders", b"x")
        first, second = bus.reader("orders"), bus.reader("orders", start="last")
        assert first is not second
        assert (len(list(first)), len(list(second))) == (1, 0)
        assert bus.readers("orders") == []
    assert first.closed
    assert second.closed


def test_a_topic_may_be_read_before_it_is_written(root: Path) -> None:
    with Bus(root) as bus:
        assert bus.read_batch("later", "r") == []
        assert bus.topics() == []
        with pytest.raises(QueueNotFound):
            bus.reader("never", "r", wait_for_queue=False)
        bus.append("later", b"here")
        assert payloads(bus.read_batch("later", "r")) == [b"here"]


@on_both_loops
async def test_in_an_event_loop(root: Path) -> None:
    async with Bus(root) as bus:
        await bus.prepare("orders", "fills")

        async def consume() -> list[bytes]:
            received: list[bytes] = []
            async for message in bus.reader("orders", "r", commit="auto"):
                received.append(message.payload)
                if len(received) == 100:
                    break
            return received

        consuming = asyncio.create_task(consume())
        for number in range(100):
            bus.append("orders", b"%d" % number)
            bus.append("fills", b"x")
            if number % 10 == 0:
                assert await bus.flush() == {"orders": number + 1, "fills": number + 1}
        assert await asyncio.wait_for(consuming, 10) == [b"%d" % n for n in range(100)]
    assert bus.closed
    assert repr(bus).endswith("closed>")


@on_both_loops
async def test_concurrent_flushes_share_syncs(root: Path) -> None:
    async with Bus(root) as bus:
        await bus.prepare("a", "b")
        before = bus.statistics().syncs

        async def work(number: int) -> None:
            topic = "ab"[number % 2]
            seq = bus.append(topic, b"x")
            durable = await bus.flush()
            assert durable[topic] > seq
            assert bus.writer(topic).statistics().durable_seq > seq

        async with asyncio.TaskGroup() as group:
            for number in range(500):
                group.create_task(work(number))
        assert bus.statistics().syncs - before <= 10


@on_both_loops
async def test_cancelled_flush_and_close_lose_nothing(root: Path) -> None:
    bus = Bus(root)
    await bus.prepare("orders")
    bus.append("orders", b"x")
    flushing = asyncio.create_task(bus.flush())
    await asyncio.sleep(0)
    flushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    bus.append("orders", b"y")
    assert await bus.flush() == {"orders": 2}
    writer, reader = bus.writer("orders"), bus.reader("orders", "r")
    closing = asyncio.create_task(bus.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    while not (reader.closed and writer.closed):
        await asyncio.sleep(0.001)
    assert aiochronicle.inspect(root / "orders").next_seq == 2


def test_many_queues_are_flushed_in_one_go(root: Path) -> None:
    with Bus(root) as bus:
        asyncio.run(bus.prepare(*(f"t{number}" for number in range(70))))
        for number in range(70):
            bus.append(f"t{number}", b"x")
        assert bus.flush_now() == {f"t{number}": 1 for number in range(70)}
        assert all(one.durable_seq == 1 for one in bus.statistics().writers.values())
        syncs = bus.statistics().syncs
        assert len(bus.flush_now()) == 70
        assert bus.statistics().syncs == syncs, "nothing was appended meanwhile"


def test_closed(root: Path) -> None:
    bus = Bus(root)
    bus.append("orders", b"x")
    bus.reader("orders", "r")
    bus.close()
    bus.close()
    for use in (
        lambda: bus.writer("orders"),
        lambda: bus.append("orders", b"y"),
        lambda: bus.reader("orders", "r"),
        lambda: bus.read_batch("orders", "r"),
        bus.flush_now,
        lambda: asyncio.run(bus.flush()),
    ):
        with pytest.raises(ClosedError, match="the bus is closed"):
            use()
    assert bus.topics() == ["orders"]
    with aiochronicle.open_writer(root / "orders") as writer:
        assert writer.recovery.clean


def test_a_bus_that_opened_nothing_leaves_nothing(tmp_path: Path) -> None:
    with Bus(tmp_path / "bus") as bus:
        assert bus.flush_now() == {}
        assert bus.statistics().messages == 0
    assert not (tmp_path / "bus").exists()


class Trade(msgspec.Struct, frozen=True):
    symbol: str
    price: float


def test_typed_topics(root: Path) -> None:
    with Bus(root) as bus:
        bus.writer("trades", codec=Trade).send(Trade("ALFA", 1.5))
        with pytest.raises(InvalidArgument, match="pass options in the first call only"):
            bus.writer("trades", codec=Trade)
        reader = bus.reader("trades", "risk", codec=Trade)
        assert [message.decode().price for message in reader] == [1.5]
        assert bus.reader("trades", "risk", codec=Trade) is reader
        with pytest.raises(InvalidArgument, match="is already open with other options"):
            bus.reader("trades", "risk", codec=int)


def test_statistics(root: Path) -> None:
    with Bus(root) as bus:
        bus.append_many("orders", [b"12345"] * 4)
        bus.append("fills", b"123")
        bus.read_batch("orders", "r", 3)
        bus.flush_now()
        statistics = bus.statistics()
        assert (statistics.messages, statistics.payload_bytes) == (5, 23)
        assert (statistics.syncs, statistics.sync_errors) == (2, 0)
        assert statistics.writers["orders"].batches == 1
        of_reader = statistics.readers["orders", "r"]
        assert isinstance(of_reader, ReaderStatistics)
        assert of_reader.messages == 3
        assert repr(bus) == f"<Bus {str(root)!r} 2 writers>"


def test_threads_that_want_the_same_topic_get_the_same_writer(root: Path) -> None:
    with Bus(root) as bus:
        start = threading.Barrier(8)
        writers: list[aiochronicle.Writer] = []

        def work() -> None:
            start.wait()
            for number in range(10):
                writers.append(bus.writer(f"t{number}"))
                bus.append(f"t{number}", b"x")
                bus.flush_now()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(writer) for writer in writers}) == 10
        assert bus.flush_now() == {f"t{number}": 8 for number in range(10)}


FORK = """
import os, sys
from aiochronicle import Bus, errors, open_writer
with Bus(sys.argv[1]) as bus:
    bus.append("orders", b"x")
    bus.reader("orders", "r")
    bus.writer("closed").close()
    other = open_writer(bus.path("closed"))
    pid = os.fork()
    if pid == 0:
        try:
            bus.append("orders", b"y")
        except errors.ForkedError as error:
            assert f"pid {os.getppid()} " in str(error.__cause__), error
            try:
                bus.read_batch("orders", "r")
            except errors.ForkedError:
                pass
            else:
                os._exit(2)
            try:
                bus.append("closed", b"y")
            except errors.LockedError:  # the parent had closed it; another process has it now
                pass
            else:
                os._exit(3)
            bus.append("child", b"own")
            assert bus.flush_now() == {"child": 1}
            bus.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert bus.append("orders", b"z") == 1
    assert bus.flush_now() == {"orders": 2}
    other.close()
"""


def test_a_forked_child_has_topics_of_its_own_only(root: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORK, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, "")


@on_both_loops
async def test_the_asynchronous_calls_do_what_the_others_do(root: Path) -> None:
    async with Bus(root, namespace="fx") as bus:
        assert await bus.aappend("orders", b"x", type_id=7, timestamp_ns=1) == 0
        assert await bus.aappend("orders", b"y") == 1
        writer = await bus.awriter("orders")
        assert writer is bus.writer("orders")
        with pytest.raises(InvalidArgument, match="pass options in the first call only"):
            await bus.awriter("orders", segment_size=1 << 20)
        trades = await bus.awriter("trades", codec=Trade, segment_size=1 << 20)
        assert trades.send(Trade("A", 1.5)) == 0
        assert trades.statistics().segment_size == 1 << 20
        reader = await bus.areader("trades", "risk", codec=Trade, start="first")
        assert reader is bus.reader("trades", "risk")
        assert reader is await bus.areader("trades", "risk", codec=Trade, start="first")
        with pytest.raises(InvalidArgument, match="already open with other options"):
            await bus.areader("trades", "risk", start="last")
        assert (await reader.next()).decode() == Trade("A", 1.5)
        anonymous = await bus.areader("orders")
        async with await bus.areader("orders") as another:
            assert anonymous is not another
        assert [(m.payload, m.type_id) for m in anonymous] == [(b"x", 7), (b"y", 0)]
        with pytest.raises(QueueNotFound):
            await bus.areader("nothing", wait_for_queue=False)
        for wrong in (bus.awriter("../x"), bus.areader("../x"), bus.aappend("../x", b"")):
            with pytest.raises(InvalidName):
                await wrong
    for late in (bus.awriter("new"), bus.areader("new", "name"), bus.aappend("new", b"")):
        with pytest.raises(ClosedError):
            await late
    assert writer.closed
    assert reader.closed
    assert anonymous.closed


@on_both_loops
async def test_many_tasks_open_one_topic(root: Path) -> None:
    async with Bus(root) as bus:
        seqs = await asyncio.gather(*(bus.aappend("orders", b"%d" % n) for n in range(100)))
        assert sorted(seqs) == list(range(100))
        read = payloads(bus.read_batch("orders", "reader"))
        assert set(read) == {b"%d" % n for n in range(100)}


@on_both_loops
async def test_what_a_cancelled_task_was_opening_belongs_to_the_bus(root: Path) -> None:
    async with Bus(root) as bus:
        opening = [
            asyncio.ensure_future(one)
            for one in (
                bus.awriter("a"),
                bus.areader("a", "r"),
                bus.areader("a"),
                bus.aappend("b", b"x"),
            )
        ]
        await asyncio.sleep(0)
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        await bus.aappend("b", b"y")  # waits for the call that opens it
        assert payloads(bus.read_batch("b", "reader")) == [b"y"]
    gc.collect()  # an unreferenced anonymous reader was closed
    for topic in ("a", "b"):  # closed with the bus, or by it a moment later
        aiochronicle.open_writer(root / topic, lock_timeout=30).close()


@on_both_loops
async def test_tasks_wait_for_the_lock_of_a_topic_without_a_thread(root: Path) -> None:
    async with Bus(root) as first, Bus(root) as second:
        await first.awriter("orders")
        with pytest.raises(LockedError):
            await second.awriter("orders", lock_timeout=0.02)
        waiting = [
            asyncio.ensure_future(second.awriter("orders", lock_timeout=300)) for _ in range(40)
        ]
        async with asyncio.timeout(60):
            await first.aappend("orders", b"x")
            assert await first.flush() == {"orders": 1}
        for task in waiting[1:]:
            task.cancel()
        await first.aclose()
        assert (await asyncio.wait_for(waiting[0], 60)).append(b"y") == 1
        await asyncio.gather(*waiting, return_exceptions=True)
