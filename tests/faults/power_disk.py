"""Work out from a recording what a power cut may leave of a directory.

While a program runs, a Recording reads the directory before each system call of the engine and at every
mark. From the differences it keeps the versions of each file's bytes, the creations, renames and removals in
each directory, and the time of each sync.

After a power cut at time ``t`` a disk may hold
 - of each 512-byte sector any version since the last sync that covered it (msync covers its pages
   only); of a mapped file also a mixture of two successive versions, because the disk may fetch a
   page while it is written to, but never a commit word ahead of what the program stored before it;
 - of each file any size since its last fdatasync, zeros where nothing had been written;
 - of the directory operations since the directory was synced any subset in which each operation
   finds what it depends on.

A Crash lists these choices; one option of each makes an image.
"""

import itertools
import os
import random
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .system_calls import Call

__all__ = ["Crash", "Image", "Recording"]

SECTOR = 512
PAGE = 4096
RECORD_ALIGNMENT = 64
_WORDS = struct.Struct(f"<{SECTOR // 8}Q")

Image = dict[str, bytes | None]  # path below the root -> content; None is a directory


class _Operation(NamedTuple):
    """A change of a name. ``source`` is None for a creation, ``target`` is None for a removal."""

    time: int
    source: str | None
    target: str | None
    inode: int

    @property
    def directories(self) -> set[str]:
        names = (name for name in (self.source, self.target) if name is not None)
        return {name.rpartition("/")[0] for name in names}

    def depends_on(self, earlier: "_Operation") -> bool:
        if earlier.inode == self.inode:
            return True
        mine = {self.source, self.target} - {None}
        theirs = {earlier.source, earlier.target} - {None}
        return bool(mine & theirs) or earlier.target in self.directories


class _Sync(NamedTuple):
    time: int
    start: int
    end: int | None  # None: the whole file and its size


class Recording:
    """The history of the files below ``root``. Existing files count as synced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.time = 0
        self.versions: dict[int, list[tuple[int, bytes | None]]] = {}
        self.names: dict[str, int] = {}
        self.operations: list[_Operation] = []
        self.file_syncs: dict[int, list[_Sync]] = {}
        self.directory_syncs: dict[str, list[int]] = {}
        self._look()
        self.first_names = dict(self.names)

    def mark(self) -> int:
        """Record the directory as it is now; return the time, which is unique to this event."""
        self.time += 1
        self._look()
        return self.time

    def before_call(self, call: Call) -> int:
        """Answer the engine's hook: record what the last call did and what this one syncs."""
        now = self.mark()
        if call.name == "sync":
            self._synced(os.fstat(call.fd).st_ino, _Sync(now, 0, None))
        elif call.name == "sync_map":
            end = -(-(call.offset + call.length) // PAGE) * PAGE
            self._synced(self._mapped_inode(call), _Sync(now, call.offset, end))
        elif call.name == "sync_dir":
            directory = Path(f"/proc/self/fd/{call.fd}").readlink()
            name = "" if directory == self.root else str(directory.relative_to(self.root))
            self.directory_syncs.setdefault(name, []).append(now)
        return 0

    def _synced(self, inode: int, sync: _Sync) -> None:
        self.file_syncs.setdefault(inode, []).append(sync)

    def _mapped_inode(self, call: Call) -> int:
        if call.fd >= 0:
            return os.fstat(call.fd).st_ino
        # The engine keeps no fd of these two files; their sizes distinguish them.
        suffix = "control.meta" if call.length == 512 else ".meta"
        found = [
            inode
            for name, inode in self.names.items()
            if name.endswith(suffix) and (call.length == 512 or "readers/" in name)
        ]
        (inode,) = found
        return inode

    def _scan(self) -> dict[str, int]:
        names: dict[str, int] = {}
        pending = [""]
        while pending:
            directory = pending.pop()
            with os.scandir(f"{self.root}/{directory}") as entries:
                for entry in entries:
                    name = f"{directory}/{entry.name}" if directory else entry.name
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISSOCK(info.st_mode):
                        continue
                    names[name] = info.st_ino
                    if stat.S_ISDIR(info.st_mode):
                        pending.append(name)
                        content = None
                    else:
                        content = _content(entry.path, info.st_size)
                    history = self.versions.setdefault(info.st_ino, [])
                    if not history or history[-1][1] != content:
                        history.append((self.time, content))
        return names

    def _look(self) -> None:
        names = self._scan()
        gone = {name: inode for name, inode in self.names.items() if names.get(name) != inode}
        came = {name: inode for name, inode in names.items() if self.names.get(name) != inode}
        for name, inode in came.items():
            source = next((old for old, number in gone.items() if number == inode), None)
            if source is not None:
                del gone[source]
            gone.pop(name, None)  # replaced
            self.operations.append(_Operation(self.time, source, name, inode))
        for name, inode in gone.items():
            self.operations.append(_Operation(self.time, name, None, inode))
        self.names = names


def _content(path: str, size: int) -> bytes:
    # Three times as fast as Path.read_bytes; a program calls this a hundred times.
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def _tear(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """Mix two versions of a sector by words; a record's commit word comes after its header."""
    before = _WORDS.unpack(old)
    after = list(_WORDS.unpack(new))
    mixed = [rng.choice(pair) for pair in zip(before, after, strict=True)]
    per_record = RECORD_ALIGNMENT // 8
    for start in range(0, len(mixed), per_record):
        if mixed[start : start + per_record] != after[start : start + per_record]:
            mixed[start] = before[start]
    return _WORDS.pack(*mixed)


class _File(NamedTuple):
    inode: int
    sizes: list[int]
    sectors: list[list[bytes]]  # options of each, oldest first


class Crash:
    """A power cut at ``time``: the choices that are open."""

    def __init__(self, recording: Recording, time: int) -> None:
        self._recording = recording
        self._time = time
        done = [operation for operation in recording.operations if operation.time <= time]
        kept = [self._is_durable(operation) for operation in done]
        for later in range(len(done) - 1, -1, -1):
            for earlier in range(later):
                kept[earlier] |= kept[later] and done[later].depends_on(done[earlier])
        self._done = done
        self._durable = kept
        self._optional = [index for index, durable in enumerate(kept) if not durable]
        self._files: dict[int, _File | None] = {}
        for inode, history in recording.versions.items():
            if history[0][0] <= time:
                self._files[inode] = self._choices(inode, history)

    def _is_durable(self, operation: _Operation) -> bool:
        syncs = self._recording.directory_syncs
        return all(
            any(operation.time <= sync < self._time for sync in syncs.get(directory, ()))
            for directory in operation.directories
        )

    def _choices(self, inode: int, history: list[tuple[int, bytes | None]]) -> _File | None:
        if history[0][1] is None:
            return None
        syncs = [
            sync for sync in self._recording.file_syncs.get(inode, ()) if sync.time < self._time
        ]
        whole = max((sync.time for sync in syncs if sync.end is None), default=0)
        past = [(when, content or b"") for when, content in history if when <= self._time]
        sizes = list(dict.fromkeys(len(content) for content in _since(past, whole)))
        sectors = []
        for start in range(0, max(sizes), SECTOR):
            covered = max(
                (s.time for s in syncs if s.end is None or s.start <= start < s.end), default=0
            )
            options = (
                content[start : start + SECTOR].ljust(SECTOR, b"\0")
                for content in _since(past, covered)
            )
            sectors.append(list(dict.fromkeys(options)))
        return _File(inode, sizes, sectors)

    def names(self, kept: list[bool]) -> dict[str, int] | None:
        """Apply the chosen operations; return None if one of them lacks its precondition."""
        names = dict(self._recording.first_names)
        for index, operation in enumerate(self._done):
            if not kept[index]:
                continue
            if any(
                not kept[earlier] and operation.depends_on(self._done[earlier])
                for earlier in range(index)
            ):
                return None
            if operation.source is not None:
                names.pop(operation.source, None)
            if operation.target is not None:
                names[operation.target] = operation.inode
        return names

    def random_image(self, rng: random.Random) -> Image:
        """Return one random image. The amount and the age of what is lost are random per image, too."""
        chance = rng.choice((0.0, 0.5, 0.5, 1.0))
        kept = list(self._durable)
        for index in self._optional:
            depends = any(
                not kept[earlier] and self._done[index].depends_on(self._done[earlier])
                for earlier in range(index)
            )
            kept[index] = not depends and rng.random() < chance
        names = self.names(kept)
        assert names is not None
        freshness = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0, None))
        torn = rng.choice((0.0, 0.0, 0.2))
        image: Image = {}
        for name, inode in names.items():
            file = self._files[inode]
            image[name] = (
                None if file is None else _random_content(name, file, freshness, torn, rng)
            )
        return image

    def choices(self) -> int:
        """Return how many combinations there are (some of them inconsistent)."""
        count = 1 << len(self._optional)
        for file in self._files.values():
            if file is not None:
                count *= len(file.sizes)
                for options in file.sectors:
                    count *= len(options)
        return count

    def all_images(self) -> Iterator[Image]:
        """Yield every image of whole sectors."""
        for answers in itertools.product((False, True), repeat=len(self._optional)):
            kept = list(self._durable)
            for index, answer in zip(self._optional, answers, strict=True):
                kept[index] = answer
            names = self.names(kept)
            if names is None:
                continue
            files = [(name, self._files[inode]) for name, inode in names.items()]
            directories: Image = {name: None for name, file in files if file is None}
            contents = [
                [(name, content) for content in _all_contents(file)]
                for name, file in files
                if file is not None
            ]
            for combination in itertools.product(*contents):
                yield {**directories, **dict(combination)}


def _since(past: list[tuple[int, bytes]], sync: int) -> list[bytes]:
    """Return the synced version and all later ones."""
    base = max((index for index, (when, _) in enumerate(past) if when <= sync), default=0)
    return [content for _, content in past[base:]]


def _all_contents(file: _File) -> Iterator[bytes]:
    for size in file.sizes:
        for sectors in itertools.product(*file.sectors):
            yield b"".join(sectors)[:size]


def _two_stores(name: str, old: bytes, new: bytes) -> bool:
    """Return whether a heartbeat came between two recordings of a position: then no single store is torn."""
    slots = "readers/" in name
    return slots and old[:40] != new[:40] and old[40:80] != new[40:80]


def _random_content(
    name: str, file: _File, freshness: float | None, torn: float, rng: random.Random
) -> bytes:
    mapped = name.endswith(".q") or (name.endswith(".meta") and not name.endswith("index.meta"))
    parts = []
    for options in file.sectors:
        if len(options) == 1:
            parts.append(options[0])
        elif mapped and rng.random() < torn:
            index = rng.randrange(len(options) - 1)
            old, new = options[index], options[index + 1]
            parts.append(new if _two_stores(name, old, new) else _tear(old, new, rng))
        elif freshness is None:
            parts.append(rng.choice(options))
        elif rng.random() < freshness:
            parts.append(options[-1])
        else:
            parts.append(options[rng.randrange(len(options) - 1)])
    size = file.sizes[0] if len(file.sizes) == 1 else rng.choice(file.sizes)
    return b"".join(parts)[:size]
