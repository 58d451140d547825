"""Where the tasks of a sink leave their runs for the driver, and how they are deleted.

    ROOT/.staging/WRITER@BATCH/ATTEMPT/….arrow

What is staged belongs to one batch of one writer (or to a stream, which has one at a time) and is
deleted by the driver that publishes or gives up that batch. Dead drivers' files are deleted after a day.
All of these directories are their owner's alone, and refused if others could have changed them.
"""

import contextlib
import os
import time
import uuid
from collections.abc import Collection, Generator, Iterable, Sequence
from pathlib import Path

import msgspec

from aiochronicle._files import sync_directory
from aiochronicle.errors import AccessDenied
from aiochronicle.spark.arrow import pa
from aiochronicle.spark.private_files import Location, PrivateDirectory
from aiochronicle.spark.sink.runs import Run, checksum

__all__ = [
    "Place",
    "attempts",
    "check_path",
    "discard",
    "find_lost_runs",
    "open_runs",
    "sweep_old",
    "sync_names",
]

STAGING = ".staging"
STREAM = "stream"
OLD_S = 86_400.0
_REMOVALS_MAX = 20
_REMOVAL_PAUSE_S = 0.01


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a writer stages a batch; a stream, without ``batch``, stages everything there.

    No writer's id contains ``@``, so no two writers share a place.
    """

    root: str
    writer_id: str
    batch: int | None = None

    @property
    def location(self) -> Location:
        """The directory, which exists only while something is staged."""
        batch = STREAM if self.batch is None else self.batch
        # The next driver, which may need these files, can have another working directory.
        root = os.path.abspath(self.root)
        return Location(root=root, names=(STAGING, f"{self.writer_id}@{batch}"))

    @property
    def path(self) -> Path:
        """Where it is, for messages."""
        return self.location.path

    def new_attempt(self) -> Location:
        """Return the directory for the runs of one attempt."""
        return self.location.child(uuid.uuid4().hex)

    def sweep(self) -> None:
        """Delete everything staged here, including leftovers of dead tasks and drivers."""
        with contextlib.suppress(FileNotFoundError):
            with self.location.open() as place:
                names = place.names()
            discard([self.location.child(name) for name in names])


def check_path(path: str, writer_id: str, batch_id: int) -> tuple[str, ...]:
    """Return the parts of the path of a run below the root; ValueError if it is of another batch."""
    parts = tuple(path.split("/"))
    places = [f"{writer_id}@{batch}" for batch in (STREAM, batch_id)]
    is_one = len(parts) == 4 and parts[0] == STAGING and parts[1] in places
    if not is_one or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"rows of batch {batch_id} at {path!r}, not below {STAGING}/{places[0]}")
    return parts


def _attempt(root: str, run: Run) -> Location:
    """Return the directory of a run below this root, even if the root was renamed."""
    place, attempt = Path(run.path).parts[-3:-1]
    return Location(root=os.path.abspath(root), names=(STAGING, place, attempt))


def attempts(root: str, runs: Iterable[Run]) -> set[Location]:
    """Return the directories of runs."""
    return {_attempt(root, run) for run in runs}


@contextlib.contextmanager
def open_runs(root: str, runs: Sequence[Run]) -> Generator[list[Run]]:
    """Yield the runs with paths that stay valid in the block, even if directories are renamed.

    FileNotFoundError if a directory is gone, AccessDenied if a file is not ours or others could have
    changed it.
    """
    with contextlib.ExitStack() as stack:
        directories: dict[Location, PrivateDirectory] = {}
        for location in attempts(root, runs):
            directories[location] = stack.enter_context(location.open())
        found: list[Run] = []
        for run in runs:
            directory, name = directories[_attempt(root, run)], Path(run.path).name
            directory.check_file(name)
            found.append(msgspec.structs.replace(run, path=directory.pinned(name)))
        yield found


def find_lost_runs(root: str, runs: Sequence[Run]) -> list[str]:
    """Return the paths of runs that are missing or incomplete."""
    try:
        with open_runs(root, runs) as found:
            return [
                run.path for run, there in zip(runs, found, strict=True) if not _is_whole(there)
            ]
    except FileNotFoundError:
        return [run.path for run in runs if not _attempt(root, run).path.exists()]


def _is_whole(run: Run) -> bool:
    try:
        if run.checksum is not None:
            return checksum(Path(run.path)) == run.checksum
        with pa.memory_map(run.path) as file:
            pa.ipc.open_file(file)  # checks the end of the file, which is written last
    except (pa.ArrowInvalid, OSError):
        return False
    return True


def sync_names(root: str, runs: Iterable[Run]) -> None:
    """Sync the names of runs, whose content is on disk already, up to that of STAGING."""
    locations = attempts(root, runs)
    above = {Location(root=at.root, names=at.names[:end]) for at in locations for end in (1, 2)}
    for location in locations | above:
        with location.open() as directory:
            directory.sync()
    if locations:
        sync_directory(Path(root))


def discard(directories: Iterable[Location]) -> None:
    """Delete what these attempts have staged, but not what others stage for the same batch."""
    for attempt in directories:
        above = Location(root=attempt.root, names=attempt.names[:-1])
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            with above.open() as place:
                _remove(place, attempt.names[-1])
            with Location(root=above.root, names=above.names[:-1]).open() as staging:
                staging.remove_empty(above.names[-1])


def _remove(place: PrivateDirectory, attempt: str) -> None:
    """Delete a directory; its name goes first, so that running tasks put nothing into it."""
    aside = f"{attempt}-given-up"
    with contextlib.suppress(OSError):  # another process was quicker
        place.rename(attempt, aside)
    for _ in range(_REMOVALS_MAX):
        place.remove_tree(aside)
        if place.find(aside) is None:
            return
        time.sleep(
            _REMOVAL_PAUSE_S
        )  # a task that had opened it before has just created a file in it


def sweep_old(root: str, spared: Collection[str]) -> None:
    """Delete what dead drivers staged long ago, except for some writers."""
    staging = Location(root=os.path.abspath(root), names=(STAGING,))
    with contextlib.suppress(FileNotFoundError), staging.open() as places:
        for name in places.names():
            with contextlib.suppress(FileNotFoundError, AccessDenied):  # gone, or none of ours
                with staging.child(name).open() as place:
                    times_s = [os.fstat(place.descriptor).st_mtime]
                    found = [place.find(attempt) for attempt in place.names()]
                times_s += [attempt.st_mtime for attempt in found if attempt is not None]
                if name.rpartition("@")[0] not in spared and time.time() - max(times_s) > OLD_S:
                    places.remove_tree(name)
