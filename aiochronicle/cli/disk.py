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
from aiochronicle.cli.finding import Unreadable, find_queues, say_unreadable, short_path
from aiochronicle.cli.output import Column, Output
from aiochronicle.cli.processes import Deleted, deleted_files, process_of, program_of
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
    """The disk usage of a queue. ``deleted`` are files without a name that a process still uses.

    ``problem`` says what could not be listed; ``usage`` is None if that is all of it.
    """

    path: str
    usage: Usage | None
    deleted: list[Deleted]
    deleted_bytes: int
    problem: str | None = None


def usage_of(path: Path) -> tuple[Usage, dict[str, OSError]]:
    """Add up the disk usage of a queue's files; also return what could not be listed."""
    unreadable: dict[str, OSError] = {}
    sizes = {"segments": 0, "indexes": 0, "recovered": 0, "other": 0}
    for parts, size in _files(path, (), unreadable.__setitem__):
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
    return Usage(**named, total_bytes=sum(sizes.values())), unreadable


def _files(
    directory: Path, parts: tuple[str, ...], unreadable: Unreadable
) -> Iterator[tuple[tuple[str, ...], int]]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _files(directory / entry.name, (*parts, entry.name), unreadable)
                    continue
                with suppress(FileNotFoundError):
                    yield (*parts, entry.name), entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:  # it was removed while we looked
        return
    except OSError as error:
        unreadable(str(directory), error)


def du(root: Directory = Path(), /, *, json: Json = False) -> int:
    """Show the disk usage of queues, and which processes hold deleted files.

    Such a file takes space until the last process that uses it releases it: a reader with a large lag, or a
    program that keeps a message. Directories that cannot be listed are reported, and decide the exit status.

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
    inside: set[str] = set()  # of a queue
    for path in find_queues(root, unreadable=unreadable.__setitem__):
        prefix = f"{os.path.realpath(path)}/"
        own = [one for one in held if one.path.startswith(prefix)]
        usage, closed = usage_of(path)
        found.append(
            QueueUsage(
                path=str(path),
                usage=usage,
                deleted=own,
                deleted_bytes=sum(one.bytes for one in own),
                problem=", ".join(
                    f"{short_path(place, path)}: {error.strerror or error}"
                    for place, error in closed.items()
                )
                or None,
            )
        )
        unreadable |= closed
        inside.update(closed)
    rows = [_row(short_path(one.path, root), one) for one in found]
    if len(found) > 1:
        rows.append(_row("total", _sum_of(found)))
    columns = [
        Column("QUEUE", least=16, ends=True),
        Column("TOTAL", right=True),
        Column("SEGMENTS", right=True, rank=1),
        Column("INDEXES", right=True, rank=4),
        Column("RECOVERED", right=True, rank=2),
        Column("OTHER", right=True, rank=3),
        Column("DELETED", right=True),
    ]
    listed = [*found, *(_unlisted(*one) for one in unreadable.items() if one[0] not in inside)]
    none = "no queue could be listed" if unreadable else "there are no queues"
    out.table(listed, columns, rows, empty=f"{none} in or below {printable(root)}")
    if not json:
        _show_deleted(out, [one for entry in found for one in entry.deleted])
    return say_unreadable(unreadable, root)


def _unlisted(place: str, error: OSError) -> QueueUsage:
    problem = error.strerror or str(error)
    return QueueUsage(path=place, usage=None, deleted=[], deleted_bytes=0, problem=problem)


def _sum_of(found: list[QueueUsage]) -> QueueUsage:
    totals = {
        name: sum(getattr(one.usage, name) for one in found) for name in Usage.__struct_fields__
    }
    deleted_bytes = sum(one.deleted_bytes for one in found)
    return QueueUsage(path="", usage=Usage(**totals), deleted=[], deleted_bytes=deleted_bytes)


def _row(path: str, found: QueueUsage) -> list[str | Text]:
    usage = found.usage
    assert usage is not None
    return [
        path,
        amount(usage.total_bytes),
        amount(usage.segments_bytes),
        amount(usage.indexes_bytes),
        amount(usage.recovered_bytes),
        amount(usage.other_bytes),
        Text(amount(found.deleted_bytes), "yellow" if found.deleted_bytes else ""),
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
            command = "–" if process is None else program_of(process.command) or "–"
            rows.append([one.path, amount(one.bytes), str(pid), command])
    columns = [
        Column("FILE", least=20, ends=True),
        Column("SIZE", right=True, rank=1),
        Column("PID", right=True),
        Column("COMMAND", least=16),
    ]
    out.table(None, columns, rows)
