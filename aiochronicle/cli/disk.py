"""``du``: disk usage of queues, including deleted files that are still in use."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from rich.text import Text

from aiochronicle._base.printable import printable
from aiochronicle._layout import INDEX_SUFFIX, JAVA_SUFFIX, RECOVERED, SEGMENT_SUFFIX
from aiochronicle.cli.arguments import Directory, Json
from aiochronicle.cli.finding import find_queues, short_path
from aiochronicle.cli.output import Column, Output
from aiochronicle.cli.processes import Deleted, deleted_files, process_of
from aiochronicle.cli.units import amount

__all__ = ["Usage", "du", "usage_of"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on disk that the files of a queue take."""

    segments_bytes: int
    indexes_bytes: int
    recovered_bytes: int
    other_bytes: int
    total_bytes: int


class QueueUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue takes; ``deleted`` are files without a name that a process still uses."""

    path: str
    usage: Usage
    deleted: list[Deleted]
    deleted_bytes: int


def usage_of(path: Path) -> Usage:
    """Add up what the files of a queue take on disk."""
    sizes = {"segments": 0, "indexes": 0, "recovered": 0, "other": 0}
    for parts, size in _files(path, ()):
        if parts[0] == RECOVERED:
            kind = "recovered"
        else:
            kind = {
                SEGMENT_SUFFIX: "segments",
                JAVA_SUFFIX: "segments",
                INDEX_SUFFIX: "indexes",
            }.get(Path(parts[-1]).suffix, "other")
        sizes[kind] += size
    named = {f"{kind}_bytes": size for kind, size in sizes.items()}
    return Usage(**named, total_bytes=sum(sizes.values()))


def _files(directory: Path, parts: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):  # it was removed while we looked
                if entry.is_dir(follow_symlinks=False):
                    yield from _files(directory / entry.name, (*parts, entry.name))
                else:
                    yield (*parts, entry.name), entry.stat(follow_symlinks=False).st_blocks * 512


def du(root: Directory = Path(), /, *, json: Json = False) -> None:
    """Show the disk usage of queues, and which processes hold deleted files.

    Such a file takes space until the last process that uses it releases it: a reader with a large lag, or a
    program that keeps a message.

    Example: aioc du /var/lib/feeds

    Parameters
    ----------
    root
        a queue, or a directory with queues in or below it
    """
    out = Output(as_json=json)
    held = deleted_files(root)
    found: list[QueueUsage] = []
    unreadable: dict[str, OSError] = {}
    for path in find_queues(root, unreadable=unreadable.__setitem__):
        prefix = f"{os.path.realpath(path)}/"
        own = [one for one in held if one.path.startswith(prefix)]
        found.append(
            QueueUsage(
                path=str(path),
                usage=usage_of(path),
                deleted=own,
                deleted_bytes=sum(one.bytes for one in own),
            )
        )
    rows: list[list[str | Text]] = [
        _row(short_path(entry.path, root), entry.usage, entry.deleted_bytes) for entry in found
    ]
    if len(found) > 1:
        totals = {
            name: sum(getattr(entry.usage, name) for entry in found)
            for name in Usage.__struct_fields__
        }
        rows.append(_row("total", Usage(**totals), sum(entry.deleted_bytes for entry in found)))
    columns = [
        Column("QUEUE", least=16),
        Column("TOTAL", right=True),
        Column("SEGMENTS", right=True, rank=1),
        Column("INDEXES", right=True, rank=4),
        Column("RECOVERED", right=True, rank=2),
        Column("OTHER", right=True, rank=3),
        Column("DELETED", right=True),
    ]
    out.table(found, columns, rows, empty=f"there are no queues in or below {printable(root)}")
    if not json:
        for place, error in unreadable.items():
            text = f"{short_path(place, root)}: {error.strerror or error}"
            out.line(Text(printable(text), "red"))
        _show_deleted(out, [one for entry in found for one in entry.deleted])


def _row(path: str, usage: Usage, deleted_bytes: int) -> list[str | Text]:
    return [
        path,
        amount(usage.total_bytes),
        amount(usage.segments_bytes),
        amount(usage.indexes_bytes),
        amount(usage.recovered_bytes),
        amount(usage.other_bytes),
        Text(amount(deleted_bytes), "yellow" if deleted_bytes else ""),
    ]


def _show_deleted(out: Output, deleted: list[Deleted]) -> None:
    if not deleted:
        return
    out.line("")
    out.line("Deleted, but still in use; the space is free when these processes let go:")
    rows: list[list[str | Text]] = []
    for one in deleted:
        for pid in one.pids:
            process = process_of(pid)
            command = "–" if process is None else process.command or "–"
            rows.append([one.path, amount(one.bytes), str(pid), command])
    columns = [
        Column("FILE", least=20),
        Column("SIZE", right=True, rank=1),
        Column("PID", right=True),
        Column("COMMAND", least=16),
    ]
    out.table(None, columns, rows)
