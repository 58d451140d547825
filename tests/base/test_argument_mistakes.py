"""Invalid arguments: every call rejects them in the same way, and a rejected call changes nothing.

A row is a call, the expected exceptions, and how their text begins. The text names the argument, says what
it must be, and shows the given value.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import aiochronicle
from aiochronicle import (
    Batch,
    Bus,
    Capacity,
    Codec,
    FanIn,
    Position,
    Queue,
    Registry,
    Requester,
    Responder,
    Retention,
    Roll,
    Router,
    SpinThenPark,
    open_reader,
    open_writer,
    replay,
)
from aiochronicle.errors import ChronicleError, InvalidArgument, InvalidName, WrongType

VALUE = InvalidArgument
TYPE = WrongType


class Trade(msgspec.Struct):
    price: float


class World(NamedTuple):
    """The objects that the calls are made on: a queue of three messages, and a directory for the rest."""

    path: Path
    writer: aiochronicle.Writer
    reader: aiochronicle.Reader[Any]
    fan_in: FanIn
    scratch: Path

    @property
    def file(self) -> Path:
        return self.scratch / "file"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    path = tmp_path / "queue"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "file").write_bytes(b"precious")
    with (
        open_writer(path, segment_size=4096) as writer,
        open_reader(path, "named") as reader,
        open_reader(path) as source,
        FanIn([source]) as fan_in,
    ):
        writer.append_many([b"0", b"1", b"2"], timestamps_ns=[10, 20, 30])
        reader.poll()
        reader.commit()
        fan_in.poll()
        yield World(path, writer, reader, fan_in, scratch)


Call = Callable[[World, Any], object]
Row = tuple[Any, type[Exception], str]
Mistake = tuple[str, Call, Any, type[Exception], str]


def mistakes(name: str, call: Call, *rows: Row) -> list[Mistake]:
    """Return the rows of one call: its argument, the expected exception, and how the text begins."""
    return [(f"{name}-{given!r}", call, *row) for row in rows for given in row[:1]]


def on_reader(method: str) -> Call:
    return lambda world, given: getattr(world.reader, method)(given)


def opening_a_writer(option: str) -> Call:
    return lambda world, given: open_writer(world.scratch / "new", **{option: given})


def opening_a_reader(option: str) -> Call:
    return lambda world, given: open_reader(world.path, "other", **{option: given})


TIMESTAMP = "timestamp_ns must be an int of Unix nanoseconds, 0 to 2**63 - 2"
TYPE_ID = "type_id must be an int from 0 to 65534"
MOMENT = "must be Unix nanoseconds, an int from 0 to 2**63 - 1, or an aware datetime after 1970"
START = 'start must be "committed", "first", "last", a seq or a datetime'
TIMEOUT = "timeout must be a number of seconds, 0 or more, or None"
MODE = "mode must be file permissions, 0 to 0o777"
LAYOUT = 'layout must be a numpy dtype or a Codec of the format "struct"'
CODEC = "codec must be a msgspec.Struct type, a Codec, or a Registry or list of them"
PATH = "must be a path, a str or os.PathLike"
BURST = "burst must be an int from 1 to 2147483647"
COMMIT = 'commit must be "manual", "auto" or a positive int'

WRITING = [
    *mistakes(
        "append",
        lambda world, given: world.writer.append(given),
        ("text", TYPE, "payload must be bytes or another buffer"),
        (None, TYPE, "payload must be bytes or another buffer"),
    ),
    *mistakes(
        "type_id",
        lambda world, given: world.writer.append(b"x", type_id=given),
        (-1, VALUE, TYPE_ID),
        (65535, VALUE, TYPE_ID),
        (1 << 70, VALUE, TYPE_ID),
        ("7", TYPE, TYPE_ID),
        (7.0, TYPE, TYPE_ID),
    ),
    *mistakes(
        "timestamp_ns",
        lambda world, given: world.writer.append(b"x", timestamp_ns=given),
        (-1, VALUE, TIMESTAMP),
        ((1 << 63) - 1, VALUE, TIMESTAMP),
        (1 << 64, VALUE, TIMESTAMP),
        (1.5, TYPE, TIMESTAMP),
    ),
    *mistakes(
        "cause",
        lambda world, given: world.writer.append(b"x", cause=given),
        (17, TYPE, "cause must be a Message or a tuple (queue_id, seq)"),
        ((0, 1), VALUE, "cause must be of a queue with an id"),
    ),
    *mistakes(
        "reserve cause",
        lambda world, given: world.writer.reserve(1, cause=given),
        (17, TYPE, "cause must be a Message or a tuple (queue_id, seq)"),
    ),
    *mistakes(
        "append_many",
        lambda world, given: world.writer.append_many(given),
        (b"one", TYPE, "payloads must be a sequence of payloads"),
        (bytearray(b"one"), TYPE, "payloads must be a sequence of payloads"),
        (17, TYPE, "payloads must be a sequence of payloads"),
        ([b"x", "y"], TYPE, "each payload must be bytes or another buffer, not 'y'"),
    ),
    *mistakes(
        "timestamps_ns",
        lambda world, given: world.writer.append_many([b"x", b"y"], timestamps_ns=given),
        ([40], VALUE, "the number of timestamps_ns must be that of the payloads, not 1"),
        ([40, -1], VALUE, "each of timestamps_ns must be an int of Unix nanoseconds"),
        ([40, None], TYPE, "each of timestamps_ns must be an int of Unix nanoseconds"),
        (40, TYPE, "timestamps_ns must be a sequence of ints"),
    ),
    *mistakes(
        "reserve",
        lambda world, given: world.writer.reserve(given),
        (-1, VALUE, "size must be an int from 0 to 2**63 - 1"),
        (1 << 70, VALUE, "size must be an int from 0 to 2**63 - 1"),
        ("10", TYPE, "size must be an int from 0 to 2**63 - 1"),
    ),
    *mistakes(
        "heartbeat",
        lambda world, given: world.writer.heartbeat(given),
        (-1, VALUE, TIMESTAMP),
        ("now", TYPE, TIMESTAMP),
    ),
    *mistakes(
        "last_cause",
        lambda world, given: world.writer.last_cause(given),
        (-1, VALUE, "source must be an int from 0 to 18446744073709551615"),
        ("queue", TYPE, "source must be a queue id or a Message"),
    ),
    *mistakes(
        "last_causes",
        lambda world, given: world.writer.last_causes(given),
        (-1, VALUE, "since_ns must be an int from 0 to"),
        (1.5, TYPE, "since_ns must be an int from 0 to"),
    ),
]

READING = [
    *mistakes(
        "read_batch",
        lambda world, given: world.reader.read_batch(given),
        (0, VALUE, "max_messages must be a positive int"),
        (1 << 70, VALUE, "max_messages must be a positive int"),
        ("3", TYPE, "max_messages must be a positive int"),
    ),
    *mistakes(
        "read_batch-bytes",
        lambda world, given: world.reader.read_batch(max_bytes=given),
        (0, VALUE, "max_bytes must be a positive int"),
        (1.5, TYPE, "max_bytes must be a positive int"),
    ),
    *mistakes(
        "batches",
        lambda world, given: world.reader.batches(*given),
        ((0,), VALUE, "max_messages must be a positive int, not 0"),
        ((1, 0), VALUE, "max_bytes must be a positive int, not 0"),
        ((1, None, -1), VALUE, "max_wait must be a number of seconds, 0 or more, not -1"),
        (("3",), TYPE, "max_messages must be a positive int, not '3'"),
        ((1, None, "1"), TYPE, "max_wait must be a number of seconds, 0 or more, not '1'"),
    ),
    *mistakes(
        "to_arrow",
        lambda world, given: world.reader.to_arrow(given),
        (0, VALUE, "max_messages must be a positive int"),
        (1.5, TYPE, "max_messages must be a positive int"),
    ),
    *[
        row
        for name, call in (
            ("wait", lambda world, given: world.reader.wait(given)),
            ("next", lambda world, given: world.reader.next(given)),
            ("fan_in.wait", lambda world, given: world.fan_in.wait(given)),
            ("fan_in.next", lambda world, given: world.fan_in.next(given)),
        )
        for row in mistakes(
            name,
            call,
            (-1, VALUE, TIMEOUT),
            (float("nan"), VALUE, TIMEOUT),
            ("1", TYPE, TIMEOUT),
        )
    ],
    *mistakes(
        "commit",
        lambda world, given: world.reader.commit(given),
        (17, TYPE, "message must be a Message"),
    ),
    *mistakes(
        "seek",
        lambda world, given: world.reader.seek(given),
        (-1, VALUE, "seq must be an int from 0 to 9223372036854775807"),
        (1 << 63, VALUE, "seq must be an int from 0 to 9223372036854775807"),
        (1.5, TYPE, "seq must be an int from 0 to 9223372036854775807"),
    ),
    *mistakes(
        "seek_time",
        lambda world, given: world.reader.seek_time(given),
        (-1, VALUE, f"moment {MOMENT}"),
        (1.5, TYPE, f"moment {MOMENT}"),
        (None, TYPE, f"moment {MOMENT}"),
        (datetime(2026, 1, 2), VALUE, "moment "),
    ),
    *[
        row
        for name in ("seek_position", "end_at", "commit_position")
        for row in mistakes(
            name,
            on_reader(name),
            ((1, 64), TYPE, "position must be a Position"),
            (Position(-1, 64), VALUE, "Position.segment must be an int from 0 to"),
            (Position(0, "64"), TYPE, "Position.offset must be an int from 0 to"),  # type: ignore[arg-type]
        )
    ],
    *mistakes(
        "conflate",
        lambda world, given: world.reader.conflate(lambda _: 0, max_keys=given),
        (0, VALUE, "max_keys must be a positive int"),
        ("many", TYPE, "max_keys must be a positive int"),
    ),
    *mistakes(
        "snapshot_now",
        lambda world, given: world.reader.snapshot_now(lambda _: 0, max_keys=given),
        (0, VALUE, "max_keys must be a positive int"),
    ),
    *mistakes(
        "conflate-key",
        lambda world, given: world.reader.conflate(given),
        ("symbol", TYPE, "key must be a function, not 'symbol'"),
    ),
    *mistakes(
        "snapshot_now-key",
        lambda world, given: world.reader.snapshot_now(given),
        (None, TYPE, "key must be a function, not None"),
    ),
    *mistakes(
        "on_error",
        lambda world, given: FanIn(on_error=given),
        ("raise", TYPE, "on_error must be a function, not 'raise'"),
    ),
    *mistakes(
        "fan_in.read_batch",
        lambda world, given: world.fan_in.read_batch(*given),
        ((0,), VALUE, "max_messages must be a positive int, not 0"),
        ((1, "2"), TYPE, "max_bytes must be a positive int, not '2'"),
    ),
    *mistakes(
        "attach",
        lambda world, given: world.fan_in.attach(given),
        ("queue", TYPE, "reader must be a Reader"),
    ),
    *mistakes(
        "detach",
        lambda world, given: world.fan_in.detach(given),
        ("queue", TYPE, "source must be the id that attach returned"),
        (1 << 70, VALUE, "source must be the id that attach returned"),
    ),
]

WRITER_OPTIONS: dict[str, list[Row]] = {
    "ready": [("yes", TYPE, "ready must be a bool"), (1, TYPE, "ready must be a bool")],
    "verify": [("yes", TYPE, "verify must be a bool"), (1 << 70, TYPE, "verify must be a bool")],
    "memlock": [(None, TYPE, "memlock must be a bool")],
    "segment_size": [
        ("1", TYPE, "segment_size must be a multiple of 64 from 4096 to 4294967296"),
        (-1, VALUE, "segment_size must be a multiple of 64 from 4096 to 4294967296"),
    ],
    "roll": [
        (5, TYPE, "roll must be a Roll or None"),
        (Roll(bytes=0), VALUE, "Roll.bytes must be a positive int, not 0"),
        (Roll(seconds=-1), VALUE, "Roll.seconds must be a positive number of seconds, not -1"),
        (Roll(messages=1.5), TYPE, "Roll.messages must be a positive int, not 1.5"),  # type: ignore[arg-type]
    ],
    "flush": [
        ("asink", VALUE, 'flush must be "async", "sync" or Batch(bytes, seconds)'),
        (0.1, TYPE, 'flush must be "async", "sync" or Batch(bytes, seconds)'),
        ([], TYPE, 'flush must be "async", "sync" or Batch(bytes, seconds)'),
        (Batch(0, 0.1), VALUE, "Batch.bytes must be a positive int, not 0"),
        (Batch(1, "1"), TYPE, "Batch.seconds must be a positive number of seconds, not '1'"),  # type: ignore[arg-type]
    ],
    "retention": [
        (7, TYPE, "retention must be a Retention or None"),
        (Retention(max_age_s=0), VALUE, "Retention.max_age_s must be a positive number of"),
        (Retention(archive=7), TYPE, f"path {PATH}, not 7"),  # type: ignore[arg-type]
        (Retention(wait_for="a/b"), InvalidName, "Retention.wait_for: a name must match"),
        (Retention(wait_for=7), TYPE, "Retention.wait_for must be a str, not 7"),  # type: ignore[arg-type]
    ],
    "capacity": [
        (0, VALUE, "Capacity.bytes must be a positive int"),
        ("1", TYPE, "capacity must be an int, a Capacity or None"),
        (Capacity(1, policy="wait"), VALUE, 'Capacity.policy must be "fail" or "block"'),  # type: ignore[arg-type]
    ],
    "clock": [(17, TYPE, "clock must be a function that returns Unix nanoseconds")],
    "heartbeat": [
        (0, VALUE, "heartbeat must be a positive number of seconds"),
        (float("inf"), VALUE, "heartbeat must be a positive number of seconds"),
        ("1", TYPE, "heartbeat must be a positive number of seconds"),
    ],
    "max_ahead_s": [
        (0, VALUE, "max_ahead_s must be a positive number of seconds"),
        ("1", TYPE, "max_ahead_s must be a positive number of seconds"),
    ],
    "codec": [
        (5, TYPE, CODEC),
        ("Trade", TYPE, CODEC),
        (int, VALUE, "a codec needs a msgspec.Struct type, not <class 'int'>"),
    ],
    "mode": [
        (0o7777, VALUE, MODE),
        (-1, VALUE, MODE),
        ("rw", TYPE, MODE),
    ],
}

READER_OPTIONS: dict[str, list[Row]] = {
    "verify": [
        ("no", TYPE, "verify must be a bool"),
        (float("nan"), TYPE, "verify must be a bool"),
    ],
    "start": [
        ("frist", VALUE, START),
        (-1, VALUE, "start must be an int from 0 to"),
        (1.5, TYPE, START),
        (None, TYPE, START),
    ],
    "commit": [
        ("always", VALUE, COMMIT),
        (0, VALUE, "commit must be a positive int"),
        (1.5, TYPE, COMMIT),
        (True, TYPE, COMMIT),
    ],
    "on_corrupt": [
        ("ignore", VALUE, 'on_corrupt must be "raise" or "skip"'),
        (True, TYPE, 'on_corrupt must be "raise" or "skip"'),
    ],
    "wait": [
        ("sleep", VALUE, 'wait must be "park", "spin" or SpinThenPark(us)'),
        (5, TYPE, 'wait must be "park", "spin" or SpinThenPark(us)'),
        (SpinThenPark(-1.0), VALUE, "SpinThenPark.us must be microseconds, 0 to 1e9"),
    ],
    "burst": [(0, VALUE, BURST), ("256", TYPE, BURST)],
    "poll_max_us": [
        (1, VALUE, "poll_max_us must be an int from 50 to 1000000"),
        (1e3, TYPE, "poll_max_us must be an int from 50 to 1000000"),
    ],
    "codec": [(5, TYPE, CODEC)],
    "mode": [(0o7777, VALUE, MODE)],
}

PATHS = [
    row
    for name, argument, call in (
        ("open_writer", "path", lambda world, given: open_writer(given)),
        ("open_reader", "path", lambda world, given: open_reader(given)),
        ("Queue", "path", lambda world, given: Queue(given)),
        ("verify", "path", lambda world, given: aiochronicle.verify(given)),
        ("inspect", "path", lambda world, given: aiochronicle.inspect(given)),
        ("Bus", "root", lambda world, given: Bus(given)),
        ("discover", "root", lambda world, given: aiochronicle.discover(given)),
        ("Router", "root", lambda world, given: Router(given, name="router")),
        ("replay", "a source", lambda world, given: replay([given])),
        ("forget_reader", "path", lambda world, given: aiochronicle.forget_reader(given, "name")),
        ("Requester", "requests", lambda world, given: Requester(given, world.scratch, "desk")),
        ("Responder", "replies", lambda world, given: Responder(world.scratch, given)),
    )
    for row in mistakes(
        name,
        call,
        (5, TYPE, f"{argument} {PATH}"),
        ("a\0b", VALUE, f"{argument} {PATH}, without a NUL character"),
        ("a\ud800", VALUE, f"{argument} {PATH}, of encodable characters"),
    )
]

POLICY = [
    *mistakes(
        "Bus-file",
        lambda world, _: Bus(world.file),
        (None, VALUE, "root must be a directory, but this is a file"),
    ),
    *mistakes(
        "discover-file",
        lambda world, _: asyncio.run(anext(aiochronicle.discover(world.file))),
        (None, VALUE, "root must be a directory, but this is a file"),
    ),
    *mistakes(
        "Requester-file",
        lambda world, _: Requester(world.file, world.scratch, "desk"),
        (None, VALUE, "requests must be a directory, but this is a file"),
    ),
    *mistakes(
        "Requester-name",
        lambda world, given: Requester(world.scratch, world.scratch, given),
        (5, TYPE, "name must be a str"),
    ),
    *mistakes(
        "Bus-namespace",
        lambda world, given: Bus(world.scratch / "bus", namespace=given),
        (5, TYPE, "namespace must be a str or None"),
        ("a b", InvalidName, "namespace 'a b': a name must match"),
    ),
    *mistakes(
        "Bus-topic",
        lambda world, given: Bus(world.scratch / "bus").writer(given),
        (5, TYPE, "topic 5 must be a str"),
        ("a b", InvalidName, "topic 'a b': a name must match"),
    ),
    *mistakes(
        "Bus-commit",
        lambda world, given: Bus(world.path.parent).read_batch("queue", "other", commit=given),
        ("auto", VALUE, 'commit must be "before", "after", "manual" or a positive int'),
        (1.5, TYPE, 'commit must be "before", "after", "manual" or a positive int'),
        (0, VALUE, "commit must be a positive int"),
    ),
    *mistakes(
        "discover-depth",
        lambda world, given: aiochronicle.discover(world.scratch, depth=given),
        (0, VALUE, "depth must be a positive int"),
        ("1", TYPE, "depth must be a positive int"),
    ),
    *mistakes(
        "discover-rescan_s",
        lambda world, given: aiochronicle.discover(world.scratch, rescan_s=given),
        (0, VALUE, "rescan_s must be a positive number of seconds"),
        ("1", TYPE, "rescan_s must be a positive number of seconds"),
    ),
    *mistakes(
        "Router-name",
        lambda world, given: Router(world.scratch, name=given),
        (5, TYPE, "reader name 5 of the router must be a str"),
    ),
    *mistakes(
        "Router-start",
        lambda world, given: Router(world.scratch, name="router", start=given),
        ("frist", VALUE, START),
    ),
    *mistakes(
        "Router-codec",
        lambda world, given: Router(world.scratch, name="router", codec=given),
        (5, TYPE, CODEC),
    ),
    *mistakes(
        "Router-reply_codec",
        lambda world, given: Router(world.scratch, name="router", reply_codec=given),
        (5, TYPE, f"reply_{CODEC}"),
    ),
    *mistakes(
        "FanIn-order",
        lambda world, given: FanIn(order=given),
        ("strickt", VALUE, 'order must be "available" or "strict"'),
        (1, TYPE, 'order must be "available" or "strict"'),
    ),
    *mistakes(
        "FanIn-max_wait",
        lambda world, given: FanIn(max_wait=given),
        (-1, VALUE, "max_wait must be a number of seconds, 0 or more"),
        ("1", TYPE, "max_wait must be a number of seconds, 0 or more"),
    ),
    *mistakes(
        "FanIn-readers",
        lambda world, given: FanIn(given),
        (5, TYPE, "readers must be a list or other iterable of readers"),
    ),
    *mistakes(
        "FanIn-burst",
        lambda world, given: FanIn(burst=given),
        (0, VALUE, BURST),
    ),
    *mistakes(
        "replay-speed",
        lambda world, given: replay(world.path, speed=given),
        (0, VALUE, "speed must be a positive number or None"),
        ("2x", TYPE, "speed must be a positive number or None"),
    ),
    *mistakes(
        "replay-sources",
        lambda world, given: replay(given),
        (5, TYPE, "sources must be a path, a reader, or several of them, not 5"),
    ),
    *mistakes(
        "send_many",
        lambda world, given: world.writer.send_many(given),
        (5, TYPE, "objects must be several objects, not 5"),
    ),
    *mistakes(
        "replay-start",
        lambda world, given: replay(world.path, start=given),
        (-1, VALUE, f"start {MOMENT}"),
        (1.5, TYPE, f"start {MOMENT}"),
    ),
    *mistakes(
        "Codec-format",
        lambda world, given: Codec(Trade, given),
        ("pickle", VALUE, 'format must be "msgpack", "json" or "struct"'),
        (5, TYPE, 'format must be "msgpack", "json" or "struct"'),
    ),
    *mistakes(
        "Codec-name",
        lambda world, given: Codec(Trade, name=given),
        (5, TYPE, "name must be a str or None"),
    ),
    *mistakes(
        "Registry",
        lambda world, given: Registry({given: Trade}),
        (65535, VALUE, TYPE_ID),
        (-1, VALUE, TYPE_ID),
        ("7", TYPE, TYPE_ID),
    ),
]


def with_queue(call: Callable[[Queue, Any], object]) -> Any:
    def called(world: World, given: Any) -> object:
        with Queue(world.path) as queue:
            return call(queue, given)

    return called


def with_slice(call: Callable[[aiochronicle.Slice, Any, Path], object]) -> Any:
    def called(world: World, given: Any) -> object:
        with Queue(world.path) as queue:
            return call(queue.slice(), given, world.scratch / "out.parquet")

    return called


SLICES = [
    *mistakes(
        "slice",
        with_queue(lambda queue, given: queue.slice(given)),
        (-1, VALUE, "start must be an int from 0 to"),
        (1.5, TYPE, "start must be a seq, an aware datetime or None"),
    ),
    *mistakes(
        "slice_time",
        with_queue(lambda queue, given: queue.slice_time(None, given)),
        (-1, VALUE, f"end_ns {MOMENT}"),
        (1.5, TYPE, f"end_ns {MOMENT}"),
    ),
    *mistakes(
        "slice-batches",
        with_slice(lambda part, given, _: part.batches(given)),
        (0, VALUE, "rows must be a positive int"),
        ("5", TYPE, "rows must be a positive int"),
    ),
    *mistakes(
        "slice-layout",
        with_slice(lambda part, given, _: part.to_numpy(given)),
        (Trade, TYPE, LAYOUT),  # for numpy, a class is the dtype of objects
        (None, TYPE, LAYOUT),
        ("nonsense", TYPE, LAYOUT),
        ([("price", "nonsense")], TYPE, LAYOUT),
    ),
    *mistakes(
        "slice-columns",
        with_slice(lambda part, given, _: part.batches(columns=given)),
        (["sequence"], VALUE, "no column 'sequence'"),
        ("seq", TYPE, "columns must be a list of names"),
        (5, TYPE, "columns must be a list of names"),
    ),
    *mistakes(
        "export-compression",
        with_slice(lambda part, given, path: part.export(path, compression=given)),
        ("zsdt", VALUE, 'compression must be "none", "snappy", "gzip", "brotli", "lz4" or "zstd"'),
        (3, TYPE, 'compression must be "none", "snappy", "gzip", "brotli", "lz4" or "zstd"'),
    ),
    *mistakes(
        "export-rows",
        with_slice(lambda part, given, path: part.export(path, row_group_rows=given)),
        (0, VALUE, "row_group_rows must be a positive int"),
    ),
    *mistakes(
        "export-path",
        with_slice(lambda part, given, _: part.export(given)),
        (5, TYPE, f"path {PATH}"),
    ),
]

OPENING = [
    *mistakes(
        "open_reader-name",
        lambda world, given: open_reader(world.path, given),
        (5, TYPE, "name must be a str or None"),
        ("a/b", InvalidName, "name"),
        ("a\0b", InvalidName, "name"),
    ),
    *[
        row
        for option, rows in WRITER_OPTIONS.items()
        for row in mistakes(f"open_writer-{option}", opening_a_writer(option), *rows)
    ],
    *[
        row
        for option, rows in READER_OPTIONS.items()
        for row in mistakes(f"open_reader-{option}", opening_a_reader(option), *rows)
    ],
]

MISTAKES = [
    *WRITING,
    *READING,
    *OPENING,
    *PATHS,
    *POLICY,
    *SLICES,
]


def everything(world: World) -> object:
    """Return the state that a rejected call must not change."""
    files = {
        file.relative_to(world.path): file.read_bytes()
        for file in world.path.rglob("*")
        if file.is_file() and file.suffix != ".meta"  # has heartbeats
    }
    return (
        files,
        world.writer.position,
        world.writer.next_seq,
        world.reader.position,
        world.reader.committed,
        world.fan_in.statistics().delivered,
        sorted(path.name for path in world.scratch.iterdir()),
        world.file.read_bytes(),
    )


@pytest.mark.parametrize(
    ("call", "given", "error", "text"),
    [row[1:] for row in MISTAKES],
    ids=[row[0] for row in MISTAKES],
)
def test_a_mistake_is_refused_and_changes_nothing(
    world: World, call: Call, given: Any, error: type[ChronicleError], text: str
) -> None:
    before = everything(world)
    with pytest.raises(error, match=re.escape(text)) as caught:
        call(world, given)
    assert isinstance(caught.value, TypeError) == (error is TYPE)
    assert isinstance(caught.value, ValueError)
    assert everything(world) == before
    assert [message.payload for message in world.reader] == [b"1", b"2"]
    assert world.writer.append(b"3") == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda world: world.writer.append(),
        lambda world: world.writer.append(b"x", b"y"),
        lambda world: world.writer.append(b"x", types=1),
        lambda world: world.writer.append(b"x", payload=b"y"),
        lambda world: world.writer.append_many(),
        lambda world: world.writer.append_many([b"x"], [b"y"]),
        lambda world: world.writer.append_many([b"x"], timestamp_ns=None),
        lambda world: world.writer.reserve(),
        lambda world: world.reader.commit(None, None),
        lambda world: world.reader.commit(messages=None),
        lambda world: world.reader.read_batch(1, 2, 3),
        lambda world: world.reader.read_batch(max_message=1),
        lambda world: world.fan_in.detach(0, 1),
        lambda world: world.fan_in.attach(source=0),
        lambda world: world.fan_in.read_batch(max_message=1),
    ],
)
def test_a_call_that_does_not_fit_the_signature(
    world: World, call: Callable[[Any], object]
) -> None:
    before = everything(world)
    with pytest.raises(TypeError) as caught:
        call(world)
    assert not isinstance(caught.value, ChronicleError)
    assert everything(world) == before


async def test_a_request_with_a_wrong_timeout_is_not_sent(tmp_path: Path) -> None:
    async with Requester(tmp_path / "asked", tmp_path / "answered", "desk") as requester:
        with pytest.raises(InvalidArgument, match=re.escape(TIMEOUT)):
            await requester.request(b"price?", timeout=-1)
        assert requester.statistics().sent == 0
    with open_reader(tmp_path / "asked" / "desk") as reader:
        assert reader.poll() is None


async def test_infinity_is_for_ever(world: World) -> None:
    world.reader.seek_first()
    assert world.reader.wait(float("inf"))
    assert (await world.reader.next(timeout=float("inf"))).seq == 0
    assert (await world.fan_in.next(timeout=1e300)).seq == 1


@pytest.mark.parametrize("given", [10**5000, "x" * 1000], ids=["int", "str"])
def test_what_came_is_shown_in_few_words(world: World, given: Any) -> None:
    with pytest.raises(InvalidArgument, match="seq must be an int") as caught:
        world.reader.seek(given)
    assert len(str(caught.value)) < 200


def test_an_exception_of_the_caller_comes_through(world: World) -> None:
    class Odd:
        def __index__(self) -> int:
            raise LookupError("mine")

    def payloads() -> Iterator[bytes]:
        yield b"x"
        raise TypeError("mine too")

    with pytest.raises(LookupError, match="mine"):
        world.writer.append(b"x", type_id=Odd())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^mine too$"):
        world.writer.append_many(payloads())
    assert world.writer.next_seq == 3
