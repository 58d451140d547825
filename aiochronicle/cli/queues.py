"""``ls``, ``info``, ``who``, ``topics``: which queues there are, and how they are."""

import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.text import Text

import aiochronicle
from aiochronicle import QueueInfo, ReaderInfo
from aiochronicle._printable import printable
from aiochronicle.cli.arguments import Directory, Json, QueuePath, Seconds
from aiochronicle.cli.disk import usage_of
from aiochronicle.cli.finding import find_queues
from aiochronicle.cli.output import Column, Output
from aiochronicle.cli.processes import Process, holder_of, lock_holders, process_of
from aiochronicle.cli.units import age, amount, rate, since, when
from aiochronicle.errors import ChronicleError

__all__ = ["info", "ls", "topics", "who"]


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has a queue open: ``role`` is "writer" or "reader"."""

    role: str
    name: str | None
    process: Process


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A queue on one line. ``problem`` says why there is nothing else."""

    path: str
    writer: Process | None = None
    next_seq: int | None = None
    rate_per_s: float | None = None
    readers: int | None = None
    readers_open: int | None = None
    worst_lag_messages: int | None = None
    worst_lag_reader: str | None = None
    segments: int | None = None
    disk_bytes: int | None = None
    oldest_ns: int | None = None
    last_message_ns: int | None = None
    problem: str | None = None


def holders_of(path: Path, holders: dict[tuple[int, int, int], int] | None = None) -> list[Holder]:
    """Return the processes that have a queue open, the writer first."""
    holders = lock_holders() if holders is None else holders
    found: list[Holder] = []
    files = [("writer", None, path / "writer.lock")]
    try:
        metas = sorted((path / "readers").glob("*.meta"))
    except OSError:
        metas = []
    files += [("reader", meta.stem, meta) for meta in metas]
    for role, name, file in files:
        pid = holder_of(file, holders)
        process = None if pid is None else process_of(pid)
        if process is not None:
            found.append(Holder(role=role, name=name, process=process))
    return found


def oldest_ns(path: Path) -> int | None:
    """Return the time of the oldest message; None if there is none, or it cannot be read."""
    try:
        with aiochronicle.open_reader(path, start="first", verify=False) as reader:
            message = reader.poll()
            return None if message is None else message.timestamp_ns
    except ChronicleError:
        return None


def ls(
    root: Directory = Path(),
    /,
    *,
    sample: Annotated[Seconds, Parameter(help="how long to look for the rates")] = 0.5,
    json: Json = False,
) -> None:
    """List the queues in or below a directory.

    Example: aioc ls /var/lib/feeds

    Parameters
    ----------
    root
        where to look
    """
    out = Output(as_json=json)
    paths = list(find_queues(root))
    first = {path: _look(path) for path in paths}
    began_s = time.monotonic()
    if sample > 0 and any(isinstance(found, QueueInfo) for found in first.values()):
        time.sleep(sample)
    passed_s = time.monotonic() - began_s
    holders = lock_holders()
    found = [_summary(path, first[path], passed_s if sample > 0 else None, holders) for path in paths]
    now_ns = time.time_ns()
    out.table(
        found,
        [
            Column("QUEUE", least=12),
            Column("WRITER", rank=3, least=12),
            Column("SINCE", right=True, rank=8),
            Column("NEXT SEQ", right=True, rank=1),
            Column("RATE", right=True, rank=1),
            Column("READERS", right=True, rank=4),
            Column("WORST LAG", right=True, rank=2),
            Column("SEGMENTS", right=True, rank=7),
            Column("DISK", right=True, rank=5),
            Column("OLDEST", right=True, rank=9),
            Column("LAST MESSAGE", right=True, rank=6),
        ],
        [_row(entry, root, now_ns) for entry in found],
        empty=f"there are no queues in or below {printable(root)}",
    )


def _look(path: Path) -> QueueInfo | str:
    try:
        return aiochronicle.inspect(path)
    except ChronicleError as error:
        return str(error)


def _summary(
    path: Path,
    before: QueueInfo | str,
    passed_s: float | None,
    holders: dict[tuple[int, int, int], int],
) -> Summary:
    now = _look(path)
    if isinstance(now, str):
        return Summary(path=str(path), problem=now)
    per_second = None
    if passed_s and isinstance(before, QueueInfo):
        per_second = max(0, now.next_seq - before.next_seq) / passed_s
    readers: list[ReaderInfo] = []
    problem = None
    try:
        readers = aiochronicle.list_readers(path)
    except ChronicleError as error:
        problem = str(error)
    worst = max(readers, key=lambda reader: reader.lag.messages, default=None)
    writer = next((one.process for one in holders_of(path, holders) if one.role == "writer"), None)
    return Summary(
        path=str(path),
        writer=writer,
        next_seq=now.next_seq,
        rate_per_s=per_second,
        readers=len(readers),
        readers_open=sum(reader.live for reader in readers),
        worst_lag_messages=None if worst is None else worst.lag.messages,
        worst_lag_reader=None if worst is None else worst.name,
        segments=now.segments,
        disk_bytes=usage_of(path).total_bytes,
        oldest_ns=oldest_ns(path),
        last_message_ns=now.last_timestamp_ns or None,
        problem=problem,
    )


def _row(entry: Summary, root: Path, now_ns: int) -> list[str | Text]:
    path = Path(entry.path)
    name = str(path.relative_to(root)) if path != root and path.is_relative_to(root) else str(path)
    if entry.next_seq is None:
        return [name, Text(printable(entry.problem or ""), "red"), *[""] * 9]
    lag: str | Text = "–" if entry.worst_lag_messages is None else f"{entry.worst_lag_messages:,}"
    writer: str | Text = Text("–", "dim")
    if entry.writer is not None:
        writer = f"{entry.writer.pid} {_short(entry.writer.command)}"
    open_, known = entry.readers_open or 0, entry.readers or 0
    return [
        name,
        writer,
        "" if entry.writer is None else since(entry.writer.started_ns, now_ns),
        f"{entry.next_seq:,}",
        rate(entry.rate_per_s),
        f"{open_} of {known}" if known else "–",
        lag,
        f"{entry.segments:,}",
        amount(entry.disk_bytes),
        since(entry.oldest_ns, now_ns),
        since(entry.last_message_ns, now_ns),
    ]


def _short(command: str | None) -> str:
    """Return a command line without the directories of the program."""
    if not command:
        return ""
    program, _, rest = command.partition(" ")
    return f"{program.rpartition('/')[2]} {rest}".strip()


def info(queue: QueuePath, /, *, json: Json = False) -> None:
    """Describe a queue: where it stands, what it takes, who uses it.

    Example: aioc info /var/lib/feeds/trades
    """
    found = aiochronicle.inspect(queue)
    holders = holders_of(queue)
    readers = aiochronicle.list_readers(queue)
    usage = usage_of(queue)
    types = _types_of(queue)
    oldest = oldest_ns(queue)
    record: dict[str, Any] = {
        "path": str(queue),
        **msgspec.structs.asdict(found),
        "oldest_ns": oldest,
        "disk": usage,
        "types": types,
        "readers": len(readers),
        "readers_open": sum(reader.live for reader in readers),
        "writer": next((one.process for one in holders if one.role == "writer"), None),
    }
    writer = record["writer"]
    now_ns = time.time_ns()
    worst = max(readers, key=lambda reader: reader.lag.messages, default=None)
    Output(as_json=json).record(
        record,
        [
            ("queue", str(queue)),
            ("id", f"{found.queue_id:016x}"),
            ("writer", "none" if writer is None else _described(writer, now_ns)),
            ("next seq", f"{found.next_seq:,}"),
            ("oldest message", _moment(oldest, now_ns)),
            ("last message", _moment(found.last_timestamp_ns or None, now_ns)),
            ("segments", f"{found.segments:,} of {amount(found.segment_size)}, {found.first_segment} to {found.last_segment}"),
            ("end", f"segment {found.current_segment}, offset {found.write_offset:,}"),
            ("disk", amount(usage.total_bytes)),
            ("types", ", ".join(f"{entry['type_id']} {entry['name']}" for entry in types) or "none"),
            ("readers", f"{len(readers)}, {record['readers_open']} open"),
            ("worst lag", "–" if worst is None else f"{worst.lag.messages:,} messages ({worst.name})"),
        ],
    )


def _moment(moment_ns: int | None, now_ns: int) -> str:
    return "–" if moment_ns is None else f"{when(moment_ns)} ({since(moment_ns, now_ns)} ago)"


def _described(process: Process, now_ns: int) -> str:
    words = [f"pid {process.pid}"]
    words += [] if process.user is None else [f"user {process.user}"]
    words += [] if process.started_ns is None else [f"for {since(process.started_ns, now_ns)}"]
    words += [] if process.command is None else [process.command]
    return ", ".join(words)


def _types_of(queue: Path) -> list[dict[str, Any]]:
    try:
        registry = aiochronicle.Registry.load(queue)
    except ChronicleError:
        return []
    return [{"type_id": entry.type_id, "name": entry.name, "format": entry.format} for entry in registry]


def who(queue: QueuePath, /, *, json: Json = False) -> None:
    """Show the processes that have a queue open: its writer, and its readers that have names.

    Example: aioc who /var/lib/feeds/trades
    """
    aiochronicle.inspect(queue)  # or say that there is no such queue
    found = holders_of(queue)
    now_ns = time.time_ns()
    Output(as_json=json).table(
        found,
        [
            Column("ROLE"),
            Column("NAME", least=8),
            Column("PID", right=True),
            Column("USER", rank=1),
            Column("SINCE", right=True, rank=2),
            Column("COMMAND", least=20),
        ],
        [
            [
                one.role,
                one.name or "–",
                str(one.process.pid),
                one.process.user or "–",
                since(one.process.started_ns, now_ns),
                one.process.command or "–",
            ]
            for one in found
        ],
        empty="nobody has it open",
    )


def topics(
    root: Directory | None = None,
    /,
    *,
    namespace: Annotated[str | None, Parameter(help="part of the bus; default: $AIOCHRONICLE_NAMESPACE")] = None,
    json: Json = False,
) -> None:
    """List the topics of a bus, and what its configuration says about each.

    Example: aioc topics /var/lib/desk --namespace risk

    Parameters
    ----------
    root
        directory of the bus; default: $AIOCHRONICLE_DATA_DIR
    """
    with aiochronicle.Bus(root, namespace=namespace) as bus:
        names = bus.topics()
        found = [
            {"topic": name, "path": bus.path(name), "settings": bus.settings(name)} for name in names
        ]
        rows = [_topic_row(bus, name) for name in names]
    Output(as_json=json).table(
        found,
        [
            Column("TOPIC", least=8),
            Column("NEXT SEQ", right=True),
            Column("SEGMENT SIZE", right=True, rank=2),
            Column("FLUSH", rank=1),
            Column("RETENTION", rank=1, least=12),
            Column("CAPACITY", right=True, rank=3),
        ],
        rows,
        empty=f"there are no topics in {printable(bus.root)}",
    )


def _topic_row(bus: aiochronicle.Bus, name: str) -> list[str | Text]:
    settings = bus.settings(name)
    found = _look(Path(bus.path(name)))
    flush = settings.flush if isinstance(settings.flush, str) else f"{amount(settings.flush.bytes)}, {age(settings.flush.seconds)}"
    capacity = settings.capacity if settings.capacity is None or isinstance(settings.capacity, int) else settings.capacity.bytes
    return [
        name,
        Text("damaged", "red") if isinstance(found, str) else f"{found.next_seq:,}",
        amount(settings.segment_size),
        flush,
        _retention(settings.retention),
        amount(capacity),
    ]


def _retention(retention: aiochronicle.Retention | None) -> str:
    if retention is None:
        return "keeps everything"
    defaults = aiochronicle.Retention()
    given = {
        name: value
        for name in retention.__struct_fields__
        if (value := getattr(retention, name)) != getattr(defaults, name)
    }
    return ", ".join(f"{name}={value}" for name, value in given.items()) or "until all have read it"
