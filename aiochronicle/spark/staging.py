"""Where the tasks of a sink leave their runs for the driver, and who deletes them.

    ROOT/.staging/WRITER@BATCH/ATTEMPT/….arrow

What is staged belongs to one batch of one writer (or to a stream, which has one at a time) and is
deleted by whoever publishes or gives up that batch. Drivers that die before leave it for a day.
"""

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from aiochronicle._directories import sync_directory
from aiochronicle.spark.arrow import pa
from aiochronicle.spark.runs import Run, checksum

__all__ = ["Place", "attempts", "discard", "lost", "sweep_old", "sync_names"]

STAGING = ".staging"
OLD_S = 86_400.0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a writer stages a batch; a stream, which has no ``batch``, all that it has in hand.

    No writer's id has an ``@``, so nobody's place is another's.
    """

    root: str
    writer_id: str
    batch: int | None = None

    @property
    def path(self) -> Path:
        """The directory, which is there only while something is staged."""
        batch = "stream" if self.batch is None else self.batch
        # The next driver, which may need what is here, can have another working directory.
        return Path(os.path.abspath(self.root)) / STAGING / f"{self.writer_id}@{batch}"

    def new_directory(self) -> str:
        """Return where the tasks of one attempt put their runs."""
        return str(self.path / uuid.uuid4().hex)

    def sweep(self) -> None:
        """Delete all that is staged here: dead tasks and drivers leave some, too."""
        discard(self.path.glob("*"))


def lost(runs: Iterable[Run]) -> list[str]:
    """Return the paths of runs that are not there any more, or not whole."""
    return [run.path for run in runs if not _is_whole(run)]


def _is_whole(run: Run) -> bool:
    try:
        if run.checksum is not None:
            return checksum(Path(run.path)) == run.checksum
        with pa.memory_map(run.path) as file:
            pa.ipc.open_file(file)  # looks for the end, which is written last
    except PermissionError:
        return True  # for all we know: it may be somebody else's, who can read it
    except (pa.ArrowInvalid, OSError):
        return False
    return True


def sync_names(runs: Iterable[Run]) -> None:
    """Wait until the names of runs are on disk, as what is in them is, up to that of STAGING."""
    places = {place for path in attempts(runs) for place in (path, *path.parents[:3])}
    for directory in places:
        sync_directory(directory)


def attempts(runs: Iterable[Run]) -> set[Path]:
    """Return the directories of runs."""
    return {Path(run.path).parent for run in runs}


def discard(directories: Iterable[Path]) -> None:
    """Delete what attempts have staged, and nothing that somebody else stages for the same batch."""
    for attempt in directories:
        _remove(attempt)
        with contextlib.suppress(OSError):  # others are at it
            attempt.parent.rmdir()


def _remove(attempt: Path) -> None:
    """Delete a directory; tasks that are still at work find it gone first, and put nothing into it."""
    aside = attempt.with_name(f"{attempt.name}-given-up")
    with contextlib.suppress(OSError):  # somebody else was quicker
        attempt.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def sweep_old(root: str, spared: Collection[str]) -> None:
    """Delete what dead drivers staged long ago, but for that of some writers."""
    for place in (Path(root) / STAGING).glob("*"):
        with contextlib.suppress(FileNotFoundError):  # its owner was quicker
            newest_s = max(path.stat().st_mtime for path in (place, *place.glob("*")))
            if place.name.rpartition("@")[0] not in spared and time.time() - newest_s > OLD_S:
                shutil.rmtree(place, ignore_errors=True)
