"""``ls``, ``info``, ``who``, ``topics``: queues and their state."""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.text import Text

import aiochronicle
from aiochronicle import GroupInfo, GroupMember, QueueInfo, ReaderInfo, WriterInfo
from aiochronicle._base.printable import printable
from aiochronicle._core.queue import refused_settings
from aiochronicle._core.topic_settings import TopicSettings
from aiochronicle._layout import BACKUP, SETTINGS
from aiochronicle._maintenance.generations import read_manifest
from aiochronicle._services.shared import SharedTopic, is_shared
from aiochronicle.cli.arguments import Directory, Json, QueuePath
from aiochronicle.cli.disk import usage_of
from aiochronicle.cli.finding import find_queues, say_unreadable, short_path
from aiochronicle.cli.output import Column, Output
from aiochronicle.cli.processes import pids_using, process_of, program_of
from aiochronicle.cli.readers import damaged_readers, groups_of
from aiochronicle.cli.settings import capacity_of, flush_of, retention_of
from aiochronicle.cli.states import STYLES, state_of
from aiochronicle.cli.units import age, amount, many, rate, seq_text, since, when
from aiochronicle.errors import ChronicleError, QueueNotFound

__all__ = ["info", "ls", "topics", "who"]


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who has a queue open: ``state`` is that of WriterInfo or "open"; ``stopped`` is that of its process.

    ``role`` is "writer", "reader" or "member" (of the group ``name``); of a Java queue "holds lock" or
    "has open".
    """

    role: str
    name: str | None
    state: str
    stopped: bool
    silent_s: float | None
    pid: int
    user: str | None
    since_ns: int | None
    command: str | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A queue on one line. ``problem`` says why there is nothing else."""

    path: str
    format: str | None = None
    backup: bool = False
    writer_state: str | None = None
    writer_stopped: bool | None = None
    writer_silent_s: float | None = None
    writer_pid: int | None = None
    writer_command: str | None = None
    writer_since_ns: int | None = None
    next_seq: int | None = None
    rate_per_s: float | None = None
    readers: int | None = None
    readers_open: int | None = None
    worst_lag_messages: int | None = None
    worst_lag_reader: str | None = None
    groups: int | None = None
    group_pending: int | None = None
    group_in_flight: int | None = None
    segments: int | None = None
    disk_bytes: int | None = None
    oldest_ns: int | None = None
    last_message_ns: int | None = None
    problem: str | None = None


class BackupOf(msgspec.Struct, frozen=True, kw_only=True):
    """What ``info`` says of a backup; ``problem`` is why its backup.json cannot be used.

    ``verified_from`` is the first segment that was read back when it was made; None if that was not noted.
    The older ones were, when an earlier backup copied them.
    """

    number: int
    queue: str | None = None
    queue_id: int | None = None
    created_ns: int | None = None
    verified_from: int | None = None
    corrupt: int | None = None
    left_out: dict[str, str] | None = None
    problem: str | None = None


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of a bus: what its configuration says, and its queues, many if ``shared``.

    ``problem`` says why there are none.
    """

    topic: str
    path: str
    settings: TopicSettings
    shared: bool
    queues: list[QueueInfo]
    problem: str | None


def ls(root: Directory = Path(), /, *, json: Json = False) -> int:
    """List the queues in or below a directory.

    Directories and queues that cannot be read are reported, and decide the exit status.

    Example: aioc ls /var/lib/feeds

    Parameters
    ----------
    root
        where to look
    """
    closed: dict[str, Exception] = {}
    found = [_summary(path, closed) for path in find_queues(root, unreadable=closed.__setitem__)]
    known = {entry.path for entry in found}
    found += [
        Summary(path=path, problem=getattr(error, "strerror", None) or str(error))
        for path, error in closed.items()
        if path not in known
    ]
    found.sort(key=lambda entry: entry.path)
    has_groups = any(entry.groups for entry in found)
    now_ns = time.time_ns()
    out = Output(as_json=json)
    out.table(
        found,
        [
            Column("QUEUE", least=12, ends=True),
            Column("WRITER", rank=3, least=14),
            Column("SINCE", right=True, rank=8),
            Column("NEXT SEQ", right=True, rank=1),
            Column("RATE", right=True, rank=1),
            Column("READERS", right=True, rank=4),
            Column("WORST LAG", right=True, rank=2),
            *([Column("IN FLIGHT", right=True, rank=5)] if has_groups else []),
            Column("SEGMENTS", right=True, rank=7),
            Column("DISK", right=True, rank=5),
            Column("OLDEST", right=True, rank=9),
            Column("LAST MESSAGE", right=True, rank=6),
        ],
        [_row(entry, root, now_ns, has_groups) for entry in found],
        empty=f"there are no queues in or below {printable(root)}",
    )
    out.flush()
    return say_unreadable(closed, root)


def _look(path: Path) -> QueueInfo | ChronicleError:
    try:
        return aiochronicle.inspect(path)
    except ChronicleError as error:
        return error


def _summary(path: Path, closed: dict[str, Exception]) -> Summary:
    info = _look(path)
    if isinstance(info, ChronicleError):
        if not isinstance(info, QueueNotFound):  # removed or created during the search
            closed[str(path)] = info
        return Summary(path=str(path), problem=info.detail)
    readers: list[ReaderInfo] = []
    groups: list[GroupInfo] = []
    problem = None
    try:
        readers = aiochronicle.list_readers(path)
        groups = groups_of(path)
        for _, damage in damaged_readers(path).values():
            closed[str(path)], problem = damage, damage.detail
    except ChronicleError as error:
        closed[str(path)] = error
        problem = error.detail
    worst = max(readers, key=lambda reader: reader.lag.messages, default=None)
    writer = info.writer
    return Summary(
        path=str(path),
        format=info.format,
        backup=os.path.lexists(path / BACKUP),
        writer_state=None if writer is None else writer.state,
        writer_stopped=None if writer is None else writer.stopped,
        writer_silent_s=None if writer is None else writer.silent_s,
        writer_pid=None if writer is None else writer.pid,
        writer_command=None if writer is None else writer.command,
        writer_since_ns=None if writer is None else writer.since_ns,
        next_seq=info.next_seq,
        rate_per_s=None if writer is None or writer.published_ns is None else writer.rate,
        readers=len(readers),
        readers_open=sum(reader.live for reader in readers),
        worst_lag_messages=None if worst is None else worst.lag.messages,
        worst_lag_reader=None if worst is None else worst.name,
        groups=len(groups),
        group_pending=sum(group.pending for group in groups) if groups else None,
        group_in_flight=sum(group.in_flight for group in groups) if groups else None,
        segments=info.segments,
        disk_bytes=info.disk_bytes,
        oldest_ns=info.oldest_ns,
        last_message_ns=info.last_timestamp_ns or None,
        problem=problem,
    )


def _row(entry: Summary, root: Path, now_ns: int, has_groups: bool) -> list[str | Text]:
    name = short_path(entry.path, root)
    if entry.next_seq is None:
        return [name, Text("unusable", "red"), *[""] * (9 + has_groups)]
    lag: str | Text = "–" if entry.worst_lag_messages is None else f"{entry.worst_lag_messages:,}"
    open_, known = entry.readers_open or 0, entry.readers or 0
    return [
        name,
        _writer(entry),
        since(entry.writer_since_ns, now_ns) if entry.writer_state == "open" else "",
        seq_text(entry.next_seq, entry.format or "native"),
        rate(entry.rate_per_s),
        "–" if not known else f"{known}" if entry.format == "cq4" else f"{open_} of {known}",
        lag,
        *([_in_flight(entry)] if has_groups else []),
        f"{entry.segments:,}",
        amount(entry.disk_bytes),
        since(entry.oldest_ns, now_ns),
        # Messages of a Java queue have the time at which their file began.
        "–" if entry.format == "cq4" else since(entry.last_message_ns, now_ns),
    ]


def _in_flight(entry: Summary) -> str:
    if not entry.groups:
        return "–"
    return f"{entry.group_in_flight or 0:,} of {entry.group_pending or 0:,}"


def _writer(entry: Summary) -> str | Text:
    if entry.backup:
        return Text("backup", "dim")
    if entry.format == "cq4":
        return Text("Java queue", "dim")
    if entry.writer_stopped:
        return Text(f"{entry.writer_pid} stopped", STYLES["stopped"])
    if entry.writer_silent_s is not None:
        return Text(f"{entry.writer_pid} silent for {age(entry.writer_silent_s)}", STYLES["silent"])
    if entry.writer_state == "open":
        return f"{entry.writer_pid or '?'} {program_of(entry.writer_command)}".rstrip()
    if entry.writer_state == "died":
        return Text(f"{entry.writer_pid or '?'} died", STYLES["died"])
    return Text(entry.writer_state or "–", "dim")


def info(queue: QueuePath, /, *, json: Json = False) -> int:
    """Describe a queue: its state, its size, and who uses it.

    Example: aioc info /var/lib/feeds/trades
    """
    found = aiochronicle.inspect(queue)
    readers = aiochronicle.list_readers(queue)
    usage, unreadable = usage_of(queue)
    types = _types_of(queue)
    refused = refused_settings(queue) if found.format == "native" else None
    of_backup = _backup_of(queue)
    worst = max(readers, key=lambda reader: reader.lag.messages, default=None)
    record: dict[str, Any] = {
        "path": str(queue),
        **msgspec.structs.asdict(found),
        "usage": usage,
        "types": types,
        "readers": len(readers),
        "readers_open": sum(reader.live for reader in readers),
        "unreadable": sorted(unreadable),
        "settings_problem": None if refused is None else refused.detail,
        "backup": of_backup,
    }
    now_ns = time.time_ns()
    Output(as_json=json).record(
        record,
        [
            ("queue", str(queue)),
            *([] if of_backup is None else _of_backup(of_backup, found.first_segment, now_ns)),
            *_of_format(found),
            *(
                _of_writer(found.writer, now_ns)
                if found.format == "native" and of_backup is None
                else []
            ),
            *([] if refused is None else [(SETTINGS, Text(printable(refused.detail), "red"))]),
            ("next seq", seq_text(found.next_seq, found.format)),
            *_of_times(found, now_ns),
            (
                "segments",
                f"{found.segments:,} of {amount(found.segment_size)},"
                f" {found.first_segment} to {found.last_segment}"
                if found.format == "native"
                else f"{many(found.segments, 'cycle')}, {found.first_segment} to {found.last_segment}",
            ),
            ("end", f"segment {found.current_segment}, offset {found.write_offset:,}"),
            ("disk", amount(usage.total_bytes)),
            ("types", ", ".join(f"{one['type_id']} {one['name']}" for one in types) or "none"),
            (
                "readers",
                f"{len(readers)}, {record['readers_open']} open"
                if found.format == "native"
                else many(len(readers), "named tailer"),
            ),
            (
                "worst lag",
                "–" if worst is None else f"{many(worst.lag.messages, 'message')} ({worst.name})",
            ),
        ],
    )
    damaged = {place: error for place, (_, error) in damaged_readers(queue).items()}
    return say_unreadable({**unreadable, **damaged}, queue)


def _backup_of(queue: Path) -> BackupOf | None:
    """Return what a backup says of itself; None for any other queue."""
    if not os.path.lexists(queue / BACKUP):
        return None
    name = Path(os.path.abspath(queue)).name
    number = int(name) if name.isdecimal() else 0
    try:
        found = read_manifest(queue)
    except (ChronicleError, OSError) as error:
        why = error.detail if isinstance(error, ChronicleError) else error.strerror or str(error)
        return BackupOf(number=number, problem=why)
    return BackupOf(
        number=number,
        queue=found.queue,
        queue_id=found.queue_id,
        created_ns=found.created_ns,
        verified_from=found.verified_from,
        corrupt=found.corrupt,
        left_out=found.left_out,
    )


def _of_backup(backup: BackupOf, first: int, now_ns: int) -> list[tuple[str, str | Text]]:
    if backup.problem is not None:
        return [("backup", Text(printable(f"number {backup.number}; {backup.problem}"), "red"))]
    verified = "when it was made"
    if backup.verified_from is not None and backup.verified_from > first:
        verified += (
            f", from segment {backup.verified_from} on; those before when they were copied, by earlier"
            " backups"
        )
    lines: list[tuple[str, str | Text]] = [
        ("backup", f"number {backup.number} of {backup.queue}"),
        ("made", _moment(backup.created_ns, now_ns)),
        ("verified", verified),
    ]
    if backup.corrupt:
        lines.append(("damaged", Text(f"{many(backup.corrupt, 'place')}, kept as it was", "red")))
    left_out = backup.left_out or {}
    return lines + [("left out", f"reader {name}: {why}") for name, why in left_out.items()]


def _of_format(found: QueueInfo) -> list[tuple[str, str | Text]]:
    if found.format == "native":
        return [("id", f"{found.queue_id:016x}")]
    holder = "free" if found.holder_pid is None else f"held by pid {found.holder_pid}"
    return [
        ("format", f"Java Chronicle Queue, {found.roll_cycle or 'a roll cycle of its own'}"),
        ("write lock", f"{holder} at this moment"),
    ]


def _of_times(found: QueueInfo, now_ns: int) -> list[tuple[str, str | Text]]:
    """Return when messages were written; those of a Java queue have the time of their file."""
    what = ("oldest message", "last message")
    if found.format == "cq4":
        what = ("oldest cycle", "newest cycle")
    times_ns = (found.oldest_ns, found.last_timestamp_ns or None)
    return [(name, _moment(time_ns, now_ns)) for name, time_ns in zip(what, times_ns, strict=True)]


def _of_writer(writer: WriterInfo | None, now_ns: int) -> list[tuple[str, str | Text]]:
    if writer is None:
        return [("writer", "nobody is known")]
    state = state_of(writer)
    who = (
        f"pid {writer.pid}, {program_of(writer.command)}" if writer.command else f"pid {writer.pid}"
    )
    lines: list[tuple[str, str | Text]] = [
        ("writer", Text.assemble((state, STYLES.get(state, "")), f", {printable(who)}")),
        ("opened", _moment(writer.since_ns, now_ns)),
    ]
    if writer.silent_s is not None:
        lines.append(("sign of life", Text(f"none for {age(writer.silent_s)}", STYLES[state])))
    if writer.state == "closed":
        lines.append(("closed", _moment(writer.closed_ns, now_ns)))
    elif writer.state == "died":
        lines.append(("last heartbeat", _moment(writer.heartbeat_ns, now_ns)))
    if writer.published_ns is None:
        return lines
    lines += [
        ("rate", f"{rate(writer.rate)}, {amount(writer.rate_bytes)}/s of records"),
        ("flush", flush_of(writer.flush)),
        ("retention", retention_of(writer.retention)),
        ("capacity", capacity_of(writer.capacity)),
    ]
    for slow in writer.slow_appends[-3:]:
        text = f"{age(slow.duration_ns / 1e9)} at seq {slow.seq:,}: {slow.cause}"
        lines.append(("slow append", f"{text}, {since(slow.time_ns, now_ns)} ago"))
    for error in writer.errors[-3:]:
        text = (
            f"{error.text} ({many(error.count, 'time')}, last {since(error.last_ns, now_ns)} ago)"
        )
        lines.append(("error", Text(printable(text), "red")))
    return lines


def _moment(moment_ns: int | None, now_ns: int) -> str:
    return "–" if not moment_ns else f"{when(moment_ns)} ({since(moment_ns, now_ns)} ago)"


def _types_of(queue: Path) -> list[dict[str, Any]]:
    try:
        registry = aiochronicle.Registry.load(queue)
    except ChronicleError:
        return []
    return [
        {"type_id": entry.type_id, "name": entry.name, "format": entry.format} for entry in registry
    ]


def who(queue: QueuePath, /, *, json: Json = False) -> None:
    """Show the processes that have a queue open: its writer, its named readers, members of its groups.

    For a Java queue: who holds its lock, and who has its files open, as far as this user may see.

    Example: aioc who /var/lib/feeds/trades
    """
    found: list[Holder] = []
    info = aiochronicle.inspect(queue)
    groups = {group.name: group for group in groups_of(queue)}
    writer = info.writer
    if info.format == "cq4":
        found += _users_of_java(queue, info.holder_pid)
    if writer is not None:
        holder = _holder("writer", None, writer.state, writer.pid, writer.command, writer.since_ns)
        found.append(
            msgspec.structs.replace(holder, stopped=writer.stopped, silent_s=writer.silent_s)
        )
    found += [
        _holder("reader", reader.name, "open", reader.pid or 0, reader.command, None)
        for reader in aiochronicle.list_readers(queue)
        if reader.live and reader.name not in groups
    ]
    found += [
        _holder("member", name, _state_of(member), member.pid, None, member.since_ns)
        for name, group in groups.items()
        for member in group.members
    ]
    now_ns = time.time_ns()
    Output(as_json=json).table(
        found,
        [
            Column("ROLE"),
            Column("NAME", least=20, ends=True),
            Column("STATE"),
            Column("PID", right=True),
            Column("USER", rank=1),
            Column("SINCE", right=True, rank=2),
            Column("COMMAND", least=20),
        ],
        [
            [
                one.role,
                one.name or "–",
                Text(state := _word_of(one), STYLES.get(state, "")),
                str(one.pid) if one.pid else "–",
                one.user or "–",
                since(one.since_ns, now_ns),
                program_of(one.command) or "–",
            ]
            for one in found
        ],
        empty="nobody has it open",
    )


def _word_of(holder: Holder) -> str:
    if holder.stopped:
        return "stopped"
    return holder.state if holder.silent_s is None else "silent"


def _state_of(member: GroupMember) -> str:
    return "open" if member.alive else "died"


def _users_of_java(queue: Path, holder_pid: int | None) -> list[Holder]:
    """Return who holds the lock, and who has files of the queue open, which Java does not say."""
    found: list[Holder] = []
    if holder_pid is not None:
        state = "open" if process_of(holder_pid) is not None else "died"
        found.append(_holder("holds lock", None, state, holder_pid, None, None))
    found += [_holder("has open", None, "open", pid, None, None) for pid in pids_using(queue)]
    return found


def _holder(
    role: str, name: str | None, state: str, pid: int, command: str | None, since_ns: int | None
) -> Holder:
    """Add what the kernel knows about a live process."""
    process = process_of(pid) if pid and state == "open" else None
    return Holder(
        role=role,
        name=name,
        state=state,
        stopped=process is not None and process.stopped,
        silent_s=None,
        pid=pid,
        user=None if process is None else process.user,
        since_ns=since_ns or (None if process is None else process.started_ns),
        command=command or (None if process is None else process.command),
    )


def topics(
    root: Directory | None = None,
    /,
    *,
    namespace: Annotated[
        str | None, Parameter(help="part of the bus; default: $AIOCHRONICLE_NAMESPACE")
    ] = None,
    json: Json = False,
) -> int:
    """List the topics of a bus, with the settings in force.

    ``settings`` of --json are those of the bus, for the writers that it opens. Topics that cannot be read
    are reported, and decide the exit status.

    Example: aioc topics /var/lib/desk --namespace risk

    Parameters
    ----------
    root
        directory of the bus; default: $AIOCHRONICLE_DATA_DIR
    """
    closed: dict[str, Exception] = {}
    with aiochronicle.Bus(root, namespace=namespace) as bus:
        directory = Path(bus.root, bus.namespace)
        found = [
            _topic(name, bus.path(name), bus.settings(name), closed)
            for name in _topic_names(bus, directory, closed)
        ]
    out = Output(as_json=json)
    out.table(
        found,
        [
            Column("TOPIC", least=8, ends=True),
            Column("NEXT SEQ", right=True),
            Column("SEGMENT SIZE", right=True, rank=2),
            Column("FLUSH", rank=1),
            Column("RETENTION", rank=1, least=12),
            Column("CAPACITY", right=True, rank=3),
        ],
        [_topic_row(one) for one in found],
        empty=f"there are no topics in {printable(directory)}",
    )
    out.flush()
    return say_unreadable(closed, directory)


def _topic_names(bus: aiochronicle.Bus, directory: Path, closed: dict[str, Exception]) -> list[str]:
    """Return the topics, and the directories that cannot be listed but may be topics."""
    refused: dict[str, OSError] = {}
    for _ in find_queues(directory, 2, unreadable=refused.__setitem__):
        pass
    names = {Path(path).name for path in refused if Path(path).parent == directory}
    closed |= {str(directory / name): refused[str(directory / name)] for name in names}
    return sorted({*bus.topics(), *names})


def _topic(name: str, path: str, settings: TopicSettings, closed: dict[str, Exception]) -> Topic:
    """Describe a topic, which has one queue, or one per writer."""
    found: list[QueueInfo] = []
    shared = False
    try:
        shared = path not in closed and is_shared(path)
        queues = [path]
        if shared:
            topic = SharedTopic(path)
            queues = [topic.queue(writer) for writer in topic.writers()]
        for queue in queues if path not in closed else ():
            try:
                found.append(aiochronicle.inspect(queue))
            except QueueNotFound:  # removed, or folded into another, while we looked
                continue
    except ChronicleError as error:
        closed[path] = error
    problem = closed.get(path)
    return Topic(
        topic=name,
        path=path,
        settings=settings,
        shared=shared,
        queues=found,
        problem=None if problem is None else getattr(problem, "detail", None) or str(problem),
    )


def _topic_row(topic: Topic) -> list[str | Text]:
    if topic.problem is not None:
        return [topic.topic, Text("unusable", "red"), "", "", "", ""]
    # What the writers have published is in force; the bus's settings are those of its next writer.
    known = [one.writer for one in topic.queues if one.writer and one.writer.published_ns]
    flushes = [writer.flush for writer in known] or [topic.settings.flush]
    rules = [writer.retention for writer in known] or [topic.settings.retention]
    capacities = [writer.capacity for writer in known] or [topic.settings.capacity]
    return [
        topic.topic,
        _next_seq(topic),
        _common(
            amount(one.segment_size) if one.format == "native" else "–" for one in topic.queues
        ),
        _common(map(flush_of, flushes)),
        _common(map(retention_of, rules)),
        _common(map(capacity_of, capacities)),
    ]


def _next_seq(topic: Topic) -> str:
    if topic.shared:  # each of its writers counts its own
        return (
            f"{sum(one.next_seq for one in topic.queues):,} in {many(len(topic.queues), 'queue')}"
        )
    return next((seq_text(one.next_seq, one.format) for one in topic.queues), "–")


def _common(texts: Iterable[str]) -> str:
    """Return what all queues of a topic have in common."""
    different = set(texts)
    return different.pop() if len(different) == 1 else "various" if different else "–"
