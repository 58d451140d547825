"""Rows of the table: one per queue, and below it one per reader."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
from rich.text import Text

from aiochronicle._core.group import GroupInfo
from aiochronicle._core.queue import ReaderInfo
from aiochronicle.cli.states import STYLES, state_of
from aiochronicle.cli.units import age, amount, many, rate, seq_text, since
from aiochronicle.monitor.history import History
from aiochronicle.monitor.records import Alarm, QueueState, Snapshot
from aiochronicle.monitor.stalls import Stall, stalls_of

__all__ = [
    "COLUMNS",
    "ORDERS",
    "WARNING",
    "Column",
    "Order",
    "Row",
    "rows_of",
    "sparkline",
    "style_of",
]

Order = Literal["name", "rate", "lag", "disk", "last"]
ORDERS: tuple[Order, ...] = ("name", "rate", "lag", "disk", "last")

WARNING = "#b36b00"  # to be read on light and on dark, which yellow is not

_BARS = " ▁▂▃▄▅▆▇█"


class Column(msgspec.Struct, frozen=True):
    """A column of the table, and the width of the terminal from which on it is shown."""

    title: str
    width: int
    least: int = 0
    right: bool = False


COLUMNS = (
    Column("QUEUE / READER", 20),
    Column("STATE", 9),
    Column("PID", 7, 100, right=True),
    Column("RATE", 8, right=True),
    Column("LAST MINUTE", 12),
    Column("LAG", 11, right=True),
    Column("AGE", 8, 86, right=True),
    Column("NEXT SEQ", 17, 116, right=True),
    Column("DISK", 9, 127, right=True),
    Column("LAST", 8, 137, right=True),
    Column("WARNING", 20, 152),
)


class Row(msgspec.Struct, frozen=True):
    """One row of the table. ``key`` identifies it; ``cells`` are in the order of COLUMNS."""

    key: str
    queue: int
    cells: tuple[Text, ...]


def sparkline(values: list[float], width: int) -> str:
    """Return the newest values as blocks, the largest as a full one.

    >>> sparkline([0, 1, 2, 4], 6)
    '   ▂▄█'
    """
    shown = [value if value == value else 0.0 for value in values[-width:]]
    most = max(shown, default=0.0)
    bars = (_BARS[round(value / most * 8)] if most else " " for value in shown)
    return "".join(bars).rjust(width)


def _lag(queue: QueueState) -> int:
    return 0 if queue.worst is None else queue.worst.lag.messages


_SORTING: dict[Order, Callable[[QueueState], Any]] = {
    "name": lambda queue: queue.name,
    "rate": lambda queue: (-queue.rate, queue.name),
    "lag": lambda queue: (-_lag(queue), queue.name),
    "disk": lambda queue: (-(queue.info.disk_bytes if queue.info else 0), queue.name),
    "last": lambda queue: (-(queue.info.last_timestamp_ns if queue.info else 0), queue.name),
}


def _last_message(queue: QueueState) -> str:
    """Return the age of the last message. For a Java queue it is unknown: its messages have no time."""
    if queue.info is None or queue.format == "java":
        return "–"
    return since(queue.info.last_timestamp_ns, queue.looked_ns)


def rows_of(
    snapshot: Snapshot,
    history: History,
    *,
    order: Order = "name",
    reverse: bool = False,
    wanted: str = "",
    readers: bool = True,
) -> list[Row]:
    """Return the rows of a snapshot, in order: queues whose name contains ``wanted``, and their readers."""
    stalls = {(stall.pid, stall.reader): stall for stall in stalls_of(snapshot)}
    alarms: dict[int, Alarm] = {}
    for alarm in reversed(snapshot.alarms):  # the worst first, so that it stays
        if alarm.queue is not None:
            alarms[alarm.queue] = alarm
    shown = [queue for queue in snapshot.queues if wanted.lower() in queue.name.lower()]
    shown.sort(key=_SORTING[order], reverse=reverse)
    found: list[Row] = []
    for queue in shown:
        found.append(_of_queue(queue, history, alarms.get(queue.number)))
        if readers:
            found += _of_readers(queue, stalls)
    return found


def style_of(alarm: Alarm) -> str:
    """Return the colour of an alarm."""
    return "bold red" if alarm.level == "critical" else WARNING


def _of_queue(queue: QueueState, history: History, alarm: Alarm | None) -> Row:
    info = queue.info
    writer = queue.writer
    state, style = "–", "dim"
    if queue.problem is not None:
        state, style = "unusable", "bold red"
    elif queue.format == "java":
        state = "Java"
    elif writer is not None:
        state = state_of(writer)
        style = {**STYLES, "stopped": "bold red", "died": "bold red"}.get(state, "dim")
    worst = queue.worst
    cells = (
        Text(queue.name, "bold red" if style == "bold red" else "bold"),
        Text(state, style),
        Text(str(writer.pid) if writer is not None and writer.state == "open" else ""),
        Text(rate(queue.rate) if queue.problem is None else "–"),
        Text(sparkline(history.series("rate", queue.number).values[-60:][::-5][::-1], 12), "cyan"),
        Text("" if worst is None else f"{worst.lag.messages:,}", "dim"),
        Text(""),
        Text(seq_text(queue.next_seq, "cq4" if queue.format == "java" else "native")),
        Text(amount(None if info is None else info.disk_bytes)),
        Text(_last_message(queue)),
        Text("") if alarm is None else Text(alarm.text, style_of(alarm)),
    )
    return Row(f"q{queue.number}", queue.number, cells)


def _of_readers(queue: QueueState, stalls: dict[tuple[int, str], Stall]) -> Iterator[Row]:
    groups = {group.name: group for group in queue.groups}
    for reader in queue.readers:
        stall = None if reader.pid is None else stalls.get((reader.pid, reader.name))
        yield _of_reader(queue, reader, stall, groups.get(reader.name))


def _of_reader(
    queue: QueueState, reader: ReaderInfo, stall: Stall | None, group: GroupInfo | None
) -> Row:
    state, style = ("open", "green") if reader.live else ("away", "dim")
    if queue.format == "java":
        state, style = "–", "dim"
    if reader.stopped:
        state, style = "stopped", "bold red"
    warning = ""
    if group is not None:
        alive = sum(member.alive for member in group.members)
        state, style = ("group", "green" if alive else "dim")
        warning = (
            f"{many(alive, 'member')}, {group.in_flight:,} in flight, {group.retried:,} redelivered"
        )
    if stall is not None:
        state, style = "stalled", WARNING
        warning = f"waits for {stall.name}, if its order is strict"
    if reader.lost:
        state, style = "lost", "bold red"
    is_java = queue.format == "java"  # whose messages have the time at which their file began
    late = WARNING if reader.live and reader.lag.seconds > 60 and not is_java else ""
    cells = (
        Text(f"  {reader.name}"),
        Text(state, style),
        Text("" if reader.pid is None else str(reader.pid)),
        Text(""),
        Text(""),
        Text(f"{reader.lag.messages:,}", late),
        Text(age(reader.lag.seconds) if reader.lag.messages and not is_java else "–", late),
        Text(seq_text(reader.committed_seq, "cq4" if queue.format == "java" else "native"), "dim"),
        Text(f"{reader.keeps_segments} seg" if reader.keeps_segments else "", "dim"),
        Text(age(reader.heartbeat_age_s), "dim"),
        Text(warning, WARNING if stall else "dim"),
    )
    return Row(f"q{queue.number}/{reader.name}", queue.number, cells)
