"""Writers of Java queues: opening, indexes, cycles, concurrent writers, send and method."""

import asyncio
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aiochronicle
from aiochronicle import Bus, cq4, open_reader, open_writer
from aiochronicle.errors import EncodeError, InvalidArgument, NotSupported

DAY_MS = 86_400_000
SECOND_NS = 1_000_000_000


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("*.cq4"))


def seqs(path: Path) -> list[int]:
    with open_reader(path) as reader:
        return [message.seq for message in reader]


# opening


def test_new_queue_is_recognised_by_both_sides(queue_path: Path) -> None:
    with open_writer(queue_path, format="cq4") as writer:
        assert writer.format == "cq4"
        index = writer.append(b"one")
    with open_writer(queue_path) as writer:
        assert writer.format == "cq4"
        assert writer.next_seq == index + 1
        assert writer.append(b"two") == index + 1
    assert seqs(queue_path) == [index, index + 1]
    assert (queue_path / "metadata.cq4t").exists()


def test_the_other_format_is_refused(tmp_path: Path) -> None:
    open_writer(tmp_path / "native", segment_size=1 << 16).close()
    open_writer(tmp_path / "java", format="cq4").close()
    with pytest.raises(InvalidArgument, match="a native queue is there"):
        open_writer(tmp_path / "native", format="cq4")
    with pytest.raises(InvalidArgument, match="a Java Chronicle Queue is there"):
        open_writer(tmp_path / "java", format="native")
    with pytest.raises(InvalidArgument, match=r'format must be "native", "cq4" or None'):
        open_writer(tmp_path / "new", format="java")  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_a_directory_of_java_queues_is_no_queue(tmp_path: Path) -> None:
    open_writer(tmp_path / "java", format="cq4").close()
    with pytest.raises(
        aiochronicle.errors.NotAQueue, match="directory of queues, for instance 'java'"
    ):
        open_writer(tmp_path)


@pytest.mark.parametrize("options", [{"roll_cycle": "FAST_DAILY"}, {"epoch": 0}])
def test_what_only_java_queues_have(queue_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match='add format="cq4"'):
        open_writer(queue_path, **options)
    assert not queue_path.exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"roll_cycle": "SOMETIMES"}, "SOMETIMES"),
        ({"roll_cycle": 5}, "roll_cycle must be"),
        ({"epoch": "now"}, "epoch must be"),
        ({"epoch": 1 << 60}, "epoch must be"),
        ({"lock_timeout": -1}, "lock_timeout must be"),
        ({"clock": lambda: -1}, "what the clock returns"),
        ({"clock": lambda: None}, "what the clock returns"),
    ],
)
def test_options_of_a_new_queue_are_checked(
    queue_path: Path, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(InvalidArgument, match=error):
        open_writer(queue_path, format="cq4", **options)
    assert not queue_path.exists()


def test_an_existing_queue_keeps_its_settings(queue_path: Path) -> None:
    open_writer(queue_path, format="cq4", roll_cycle="FAST_HOURLY", epoch=DAY_MS).close()
    open_writer(queue_path, roll_cycle="FAST_HOURLY", epoch=DAY_MS).close()
    open_writer(queue_path).close()
    others: list[dict[str, Any]] = [{"roll_cycle": "FAST_DAILY"}, {"epoch": 0}]
    for other in others:
        with pytest.raises(InvalidArgument):
            open_writer(queue_path, **other)


async def test_opening_in_a_loop(queue_path: Path) -> None:
    async with aiochronicle.aopen_writer(queue_path, format="cq4", lock_timeout=5.0) as writer:
        index = writer.append(b"one")
        assert await writer.append_durable(b"two") == index + 1
        assert await writer.flush() == index + 2


# cycles


def test_the_clock_says_which_cycle_it_is(queue_path: Path) -> None:
    clock = Clock(100 * SECOND_NS)
    with open_writer(queue_path, format="cq4", roll_cycle="TEST_SECONDLY", clock=clock) as writer:
        indexes = []
        for second in (100, 100, 101, 105):
            clock.now_ns = second * SECOND_NS
            indexes.append(writer.append(b"x"))
            assert writer.position.segment == second
        assert writer.statistics().rolls == 2
    assert [index >> 32 for index in indexes] == [100, 100, 101, 105]
    assert [index & 0xFFFFFFFF for index in indexes] == [0, 1, 0, 0]
    assert seqs(queue_path) == indexes
    assert files(queue_path) == [
        "19700101-000140T.cq4",
        "19700101-000141T.cq4",
        "19700101-000145T.cq4",
    ]
    with open_reader(queue_path) as reader:
        stamps = [message.timestamp_ns // SECOND_NS for message in reader]
    assert stamps == [100, 100, 101, 105]


def test_the_epoch_moves_the_cycles(queue_path: Path) -> None:
    clock = Clock(3 * DAY_MS * 1_000_000)
    with open_writer(queue_path, format="cq4", epoch=2 * DAY_MS, clock=clock) as writer:
        assert writer.append(b"x") == 1 << 32
    assert files(queue_path) == ["19700104F.cq4"]


def test_a_clock_that_appends_or_raises(queue_path: Path) -> None:
    answers: list[Any] = []

    def clock() -> int:
        if answers:
            answers.pop()()
        return 100 * SECOND_NS

    with open_writer(queue_path, format="cq4", clock=clock) as writer:
        answers.append(lambda: writer.append(b"within"))
        assert writer.append(b"around") == 1
        answers.append(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            writer.append(b"never")
        answers.append(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            writer.append_many([b"never"])
        assert writer.append_many([b"a", b"b"]) == range(2, 4)
    with open_reader(queue_path) as reader:
        assert [message.payload for message in reader] == [b"within", b"around", b"a", b"b"]


def test_a_batch_goes_by_one_reading_of_the_clock(queue_path: Path) -> None:
    clock = Clock(100 * SECOND_NS)
    with open_writer(queue_path, format="cq4", roll_cycle="TEST_SECONDLY", clock=clock) as writer:
        assert writer.append_many([b"a", b"b"]) == range(100 << 32, (100 << 32) + 2)
        clock.now_ns += SECOND_NS
        assert writer.append_many(iter([b"c"])) == range(101 << 32, (101 << 32) + 1)
        assert writer.append_many([]) == range((101 << 32) + 1, (101 << 32) + 1)


# many writers


def test_threads_with_writers_of_their_own(queue_path: Path) -> None:
    threads, each = 4, 2000
    returned: list[list[int]] = [[] for _ in range(threads)]
    open_writer(queue_path, format="cq4").close()

    def work(mine: int) -> None:
        with open_writer(queue_path) as writer:
            for number in range(each):
                returned[mine].append(writer.append(b"%d %d" % (mine, number)))

    workers = [threading.Thread(target=work, args=(mine,)) for mine in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with open_reader(queue_path) as reader:
        found = {message.seq: message.payload for message in reader}
    first = min(found)
    assert sorted(found) == list(range(first, first + threads * each))
    for mine in range(threads):
        assert returned[mine] == sorted(returned[mine])
        expected = [b"%d %d" % (mine, number) for number in range(each)]
        assert [found[index] for index in returned[mine]] == expected


APPENDER = """
import sys
from aiochronicle import open_writer
path, name, count, roll_cycle = sys.argv[1:]
with open_writer(path, format="cq4", roll_cycle=roll_cycle) as writer:
    for number in range(int(count)):
        writer.append(f"{name} {number}".encode())
        if number % 100 == 0:
            batch = [f"{name}b {number + i}".encode() for i in range(3)]
            assert len(writer.append_many(batch)) >= 3
"""


@pytest.mark.parametrize("roll_cycle", ["FAST_DAILY", "TEST_SECONDLY"])
def test_processes_append_at_once(queue_path: Path, roll_cycle: str) -> None:
    """They also create the queue concurrently. No message is lost, and each process's order is kept."""
    count = 5000
    children = [
        subprocess.Popen([sys.executable, "-c", APPENDER, queue_path, name, str(count), roll_cycle])
        for name in "abc"
    ]
    for child in children:
        assert child.wait(60) == 0
    with open_reader(queue_path) as reader:
        found = [(message.seq, message.payload.split()) for message in reader]
    for before, after in pairwise(found):
        gap = after[0] - before[0]
        assert gap == 1 or after[0] & 0xFFFFFFFF == 0, (before, after)
    for name in (b"a", b"b", b"c"):
        numbers = [int(number) for _, (whose, number) in found if whose == name]
        assert numbers == list(range(count))
        batches = [int(number) for _, (whose, number) in found if whose == name + b"b"]
        assert batches == [n + i for n in range(0, count, 100) for i in range(3)]


def test_a_reader_follows_several_writers(queue_path: Path) -> None:
    with (
        open_writer(queue_path, format="cq4") as one,
        open_writer(queue_path) as two,
        open_reader(queue_path) as reader,
    ):
        expected = []
        for number in range(100):
            (one if number % 3 else two).append(b"%d" % number)
            expected.append(b"%d" % number)
            if number % 7 == 0:
                assert [message.payload for message in reader] == expected
                expected = []


# appended messages


class Quote(msgspec.Struct):
    symbol: str
    price: float


class Other(msgspec.Struct):
    name: str


OBJECTS: list[Any] = [
    "text",
    "",
    "é😀",
    5,
    -5,
    1.5,
    True,
    None,
    b"bytes",
    [1, "x", None],
    {"a": 1, "b": [2.5]},
    cq4.Fields({"symbol": "EURUSD", "price": 1.25}),
    cq4.Call("note", "hi"),
    [cq4.Call("to", "one"), cq4.Call("say", "hi")],
    cq4.Typed("market.Side", "BUY"),
]


@pytest.mark.parametrize("obj", OBJECTS, ids=repr)
def test_what_is_sent_is_decoded(queue_path: Path, obj: Any) -> None:
    with open_writer(queue_path, format="cq4") as writer, open_reader(queue_path) as reader:
        index = writer.send(obj)
        message = reader.poll()
        assert message is not None
        assert message.seq == index
        decoded = message.decode()
        assert decoded == obj
        assert type(decoded) is type(obj)


def test_a_struct_is_a_document_with_its_fields(queue_path: Path) -> None:
    quote = Quote("EURUSD", 1.25)
    with open_writer(queue_path, format="cq4") as writer:
        writer.send(quote)
        with pytest.raises(EncodeError):
            writer.send(object())
    with open_reader(queue_path) as reader:
        message = reader.poll()
        assert message is not None
        assert message.payload == cq4.encode_fields(quote)
        assert message.decode() == {"symbol": "EURUSD", "price": 1.25}
        assert message.decode(Quote) == quote
    with open_reader(queue_path, codec=Quote) as typed:
        message = typed.poll()
        assert message is not None
        assert message.decode() == quote


def test_a_codec_says_what_is_taken(queue_path: Path) -> None:
    with open_writer(queue_path, format="cq4", codec=[Quote]) as writer:
        writer.send(Quote("EURUSD", 1.25))
        with pytest.raises(EncodeError, match="Other is not a type of the writer, which has Quote"):
            writer.send(Other("x"))
        writer.register([Other])
        writer.send(Other("x"))
        with pytest.raises(NotSupported, match="codec"):
            writer.register(aiochronicle.Codec(Other, "json"))
    assert not (queue_path / "schema.json").exists()


def test_sending_what_has_no_place(queue_path: Path) -> None:
    with open_writer(queue_path, format="cq4") as writer:
        refused: list[dict[str, Any]] = [{"timestamp_ns": 1}, {"cause": (1, 2)}, {"expires_ns": 5}]
        for options in refused:
            with pytest.raises(NotSupported):
                writer.send("x", **options)
        assert writer.statistics().messages == 0


def test_methods(queue_path: Path) -> None:
    class Prices:
        def price(self, symbol: str, price: float) -> None: ...

    with open_writer(queue_path, format="cq4") as writer:
        index = writer.method("price", "EURUSD", 1.25)
        cq4.method_writer(Prices, writer).price("EURUSD", 1.26)
        assert writer.method(5) == index + 2
    with open_reader(queue_path) as reader:
        calls = [message.decode() for message in reader]
    assert [(call.name, call.args) for call in calls] == [
        ("price", ("EURUSD", 1.25)),
        ("price", ("EURUSD", 1.26)),
        (5, ()),
    ]


def test_native_queues_have_no_methods(queue_path: Path) -> None:
    class Prices:
        def price(self, symbol: str) -> None: ...

    with open_writer(queue_path, segment_size=1 << 16) as writer:
        with pytest.raises(NotSupported, match=r'format="cq4"'):
            writer.method("price", 1.25)
        with pytest.raises(NotSupported, match="Java queues"):
            cq4.method_writer(Prices, writer)
        with open_reader(queue_path) as reader, pytest.raises(NotSupported, match="Java queue"):
            reader.on("price")


# topics


def test_topics_of_a_bus_may_be_java_queues(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[topics.ticks]\nformat = "cq4"\nroll_cycle = "FAST_HOURLY"\n'
    )
    with Bus(tmp_path) as bus:
        index = bus.append("ticks", b"one")
        assert bus.writer("ticks").format == "cq4"
        bus.writer("quotes", format="cq4", epoch=DAY_MS).send("two")
        bus.append("orders", b"three")
        assert bus.topics() == ["orders", "quotes", "ticks"]
        flushed = bus.flush_now()
        assert flushed["ticks"] == index + 1
        assert [message.payload for message in bus.read_batch("ticks", "audit")] == [b"one"]
        assert bus.statistics().messages == 3
    assert files(tmp_path / "ticks")[0].endswith("F.cq4")
    with Bus(tmp_path) as bus:
        assert asyncio.run(bus.aappend("ticks", b"two")) == index + 1


# closing


def test_two_writers_closed_one_after_the_other(queue_path: Path) -> None:
    with open_writer(queue_path, format="cq4") as one:
        with open_writer(queue_path) as two:
            two.append(b"x")
        assert two.closed
        assert "closed" in repr(two)
        index = one.append(b"y")
        assert f"next_seq={index + 1}" in repr(one)
        assert one.recovery.clean
        assert one.flush_now() == index + 1
        assert one.statistics().durable_seq == index + 1
