"""The target queues of a batch: finding them, checking that the batch fits, and opening them.

Errors that can be detected in advance are raised before the first queue is created or the first row appended.
"""

import contextlib
import os
import re
from collections.abc import Generator, Sequence
from pathlib import Path

import msgspec

from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._files import make_directory
from aiochronicle._layout import CONTROL, JAVA_TABLES
from aiochronicle.config import Batch
from aiochronicle.errors import (
    DiskFull,
    InvalidArgument,
    MessageTooLarge,
    NotSupported,
    TimestampOrder,
)
from aiochronicle.spark.options import WriteOptions
from aiochronicle.spark.private_files import (
    DIRECTORY_MODE,
    made_below,
    refuse_links_of_others,
    safe_path,
)
from aiochronicle.spark.sink.append import RECORD_OVERHEAD_BYTES, TOGETHER_BYTES_MAX
from aiochronicle.spark.sink.runs import Run
from aiochronicle.spark.source.found import has_file, naming
from aiochronicle.spark.source.queues import (
    DEPTH_MAX,
    is_java_queue,
    is_queue,
)

__all__ = ["open_all", "open_to_begin", "refuse_java_queue"]

SEGMENT_BYTES = 128 << 20
SEGMENT_BYTES_MAX = 1 << 32

# A batch is flushed at its end; by then the disk should have written most of it.
FLUSH = Batch(bytes=256 << 20, seconds=0.02)


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a batch for one queue."""

    rows: int
    first_ns: int
    record_bytes: int
    payload_bytes_max: int


def open_all(
    options: WriteOptions, runs: Sequence[Run]
) -> contextlib.AbstractContextManager[dict[str, Writer]]:
    """Open the queues of an unfinished batch; LockedError if one of them has a writer."""
    return _open_target(options, {name: _path(options, name) for name in _parts(runs)}, {})


@contextlib.contextmanager
def open_to_begin(options: WriteOptions, runs: Sequence[Run]) -> Generator[dict[str, Writer]]:
    """Open the queues of a batch, and create new ones, if all of it can be written.

    Otherwise raise InvalidArgument, LockedError, TimestampOrder, MessageTooLarge or DiskFull, and create no
    queue.
    """
    parts = _parts(runs)
    paths = {name: _path(options, name) for name in parts}
    _refuse_queues_in_queues(options, paths)
    there = {name: path for name, path in paths.items() if is_queue(path)}
    sizes = {name: _segment_bytes(options, part) for name, part in parts.items()}
    with _open_target(options, there, {}) as existing:
        needed_bytes: dict[Path, int] = {}
        for name, part in parts.items():
            if name in existing:
                more = _fits(options, existing[name], part)
            else:
                _check_payloads(part, sizes[name], str(paths[name]), "give option segmentSize")
                more = sizes[name] * max(1, _segments(part, part.record_bytes, sizes[name]))
            where = next(path for path in (paths[name], *paths[name].parents) if path.exists())
            needed_bytes[where] = needed_bytes.get(where, 0) + more
        _check_room(options, needed_bytes)
        new = {name: path for name, path in paths.items() if name not in there}
        with _open_target(options, new, sizes) as made:
            yield existing | made


def _parts(runs: Sequence[Run]) -> dict[str, _Part]:
    parts: dict[str, _Part] = {}
    for name in sorted({share.queue for run in runs for share in run.shares}):
        shares = [share for run in runs for share in run.shares if share.queue == name]
        parts[name] = _Part(
            rows=sum(share.rows for share in shares),
            first_ns=min(share.first_ns for share in shares),
            record_bytes=sum(share.record_bytes for share in shares),
            payload_bytes_max=max(share.payload_bytes_max for share in shares),
        )
    return parts


def _path(options: WriteOptions, queue: str) -> Path:
    """Return the directory of a queue, after checking that Spark will find it there, below the root."""
    root = Path(options.path)
    if queue == "" and is_queue(root):
        return root
    parts = queue.split("/")
    if any(part.startswith(".") or part == "" or "\0" in part for part in parts):
        raise InvalidArgument(f"{queue!r} cannot be the name of a queue")
    if re.search(r"(^|/)\d{4}/\d\d/\d\d$", queue):
        raise InvalidArgument(
            f"{queue!r} cannot be the name of a queue: directories of days are an archive's"
        )
    if len(parts) > DEPTH_MAX:
        raise InvalidArgument(
            f"{queue!r} cannot be the name of a queue: they are looked for {DEPTH_MAX} levels deep"
        )
    refuse_links_of_others(root, parts)
    path = root.joinpath(*parts)
    refuse_java_queue(path)
    return path


def refuse_java_queue(path: Path) -> None:
    """Raise NotSupported for a Java queue: it cannot take a batch atomically, exactly once and with its
    times."""
    if is_java_queue(path):
        raise NotSupported(
            "is a Java queue, in which a batch cannot be distinguished from messages that others append",
            path=str(path),
            advice="Nothing was written. Write to another queue, and copy from there with a reader and"
            " a writer.",
        )


def _refuse_queues_in_queues(options: WriteOptions, paths: dict[str, Path]) -> None:
    root = Path(options.path)
    for name, path in paths.items():
        above = [place for place in path.parents if place != root and place.is_relative_to(root)]
        files = [] if is_queue(path) else [CONTROL, *JAVA_TABLES]
        below = [found.parent for file in files for found in path.rglob(file)]
        for place in above + below:
            if is_queue(place) or is_java_queue(place) or place in paths.values():
                raise InvalidArgument(
                    f"{name!r} cannot be the name of a queue: nobody looks for one inside another",
                    path=str(place),
                )


def _segment_bytes(options: WriteOptions, part: _Part) -> int:
    """Choose the segment size of a new queue."""
    if options.segment_size is not None:
        return options.segment_size
    size = SEGMENT_BYTES
    while size < part.payload_bytes_max + RECORD_OVERHEAD_BYTES and size < SEGMENT_BYTES_MAX:
        size *= 2
    return size


def _fits(options: WriteOptions, writer: Writer, part: _Part) -> int:
    """Check that a queue can take its rows; return by how many bytes it will grow."""
    statistics = writer.statistics()
    if part.first_ns < statistics.last_timestamp_ns and not options.hold_late:
        raise TimestampOrder(
            f"the batch begins at {part.first_ns}, the queue is at {statistics.last_timestamp_ns};"
            " option late=hold writes late rows with the time of the last message",
            path=writer.path,
        )
    size = statistics.segment_size
    _check_payloads(part, size, writer.path, "a queue keeps the size it was made with")
    over = part.record_bytes - (size - statistics.offset)
    return size * _segments(part, over, size) if over > 0 else 0


def _check_payloads(part: _Part, segment_bytes: int, path: str, advice: str) -> None:
    if part.payload_bytes_max + RECORD_OVERHEAD_BYTES > segment_bytes:
        raise MessageTooLarge(
            f"a payload of {part.payload_bytes_max} bytes does not fit into a segment of"
            f" {segment_bytes}; {advice}",
            path=path,
        )


def _segments(part: _Part, record_bytes: int, segment_bytes: int) -> int:
    """Count the segments for this many bytes of records; the end of each segment may stay empty."""
    together = min(TOGETHER_BYTES_MAX, segment_bytes // 2)
    wasted = max(together, part.payload_bytes_max + RECORD_OVERHEAD_BYTES)
    return min(part.rows, -(-record_bytes // max(segment_bytes - wasted, 1)))


def _check_room(options: WriteOptions, needed_bytes: dict[Path, int]) -> None:
    by_disk: dict[int, int] = {}
    for path, more in needed_bytes.items():
        disk = path.stat().st_dev
        by_disk[disk] = by_disk.get(disk, 0) + more
        if by_disk[disk] > (free := free_bytes(path)):
            raise DiskFull(
                f"the segments of this batch need {by_disk[disk]} bytes, and {free} are free",
                path=options.path,
                advice="Nothing was written. Free some space, then write it again.",
            )


def free_bytes(path: Path) -> int:
    """Return the space left on a file system, as far as it reports it."""
    there = os.statvfs(path)
    return there.f_bavail * there.f_frsize


@contextlib.contextmanager
def _open_target(
    options: WriteOptions, paths: dict[str, Path], sizes: dict[str, int]
) -> Generator[dict[str, Writer]]:
    root = Path(options.path)
    with contextlib.ExitStack() as opened:
        yield {
            name: opened.enter_context(_open(root, path, sizes.get(name, SEGMENT_BYTES)))
            for name, path in paths.items()
        }


@contextlib.contextmanager
def _open(root: Path, path: Path, segment_bytes: int) -> Generator[Writer]:
    """Open a queue below the root, in its existing directory or in a new one."""
    make_directory(root, DIRECTORY_MODE)
    names = path.relative_to(root).parts
    with made_below(root, names) as directory, naming(f"/proc/self/fd/{directory}", str(path)):
        ready = not has_file(directory, CONTROL)
        place = safe_path(directory)
        with open_writer(place, segment_size=segment_bytes, flush=FLUSH, ready=ready) as writer:
            yield writer
