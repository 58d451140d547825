"""The storage of an archive: a directory of this machine, or object storage.

A job decides what to read, write and remove; this module does it. In both, a file appears completely or not
at all, and only after it was verified.
"""

import contextlib
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
from pyspark.sql import SparkSession

from aiochronicle._base.locations import archive_path, is_object_url
from aiochronicle._files import read_small_file
from aiochronicle.errors import AccessDenied
from aiochronicle.spark.archive.files import Target, failed, lock_in, regular
from aiochronicle.spark.archive.names import escape
from aiochronicle.spark.archive.objects import ObjectStore, storage_options
from aiochronicle.spark.options import MANIFESTS
from aiochronicle.spark.private_files import FILE_MODE, Location, directory_mode
from aiochronicle.spark.source.found import naming

__all__ = ["DirectoryStore", "Store", "open_store"]


class Store(Protocol):
    """An archive, as its jobs use it. Paths of files are relative to it."""

    @property
    def root(self) -> str:
        """The directory or URL."""
        ...

    def exists(self) -> bool:
        """Return whether the archive has any files."""
        ...

    def make(self, file_mode: int) -> None:
        """Give access to a new archive to those who may read files of this mode."""
        ...

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Ensure that only one job at a time writes to it; LockedError otherwise."""
        ...

    def manifests(self) -> list[str]:
        """Return the names of the files that read_any and read_own can read."""
        ...

    def read_any(self, name: str, max_bytes: int) -> bytes | None:
        """Return a small file next to the data, None if there is none."""
        ...

    def read_own(self, name: str, max_bytes: int) -> bytes | None:
        """As read_any; AccessDenied if others could have written it."""
        ...

    def replace(self, name: str, content: bytes, file_mode: int) -> None:
        """Write a small file atomically."""
        ...

    def new_file(
        self, names: tuple[str, ...], name: str, file_mode: int
    ) -> contextlib.AbstractContextManager["Target"]:
        """Yield a place for a new file, which becomes part of the archive when the context ends."""
        ...

    def mode_of(self, path: str) -> int:
        """Return the mode of a file."""
        ...

    def opened(self, path: str, advice: str) -> contextlib.AbstractContextManager[Path]:
        """Yield a path to a file for reading; CorruptionError if it is gone."""
        ...

    def clean(self, listed: Mapping[str, set[str]]) -> None:
        """Remove files of these queues that are not listed: leftovers of a failed run."""
        ...


def open_store(archive: "str | Path | Store", spark: SparkSession | None = None) -> Store:
    """Return the store of an archive; for object storage, a session may know credentials."""
    if not isinstance(archive, str | Path):
        return archive
    place = archive_path(str(archive))
    if is_object_url(place):
        return ObjectStore(url=place, options=storage_options(spark))
    return DirectoryStore(directory=str(Path(place).absolute()))


class DirectoryStore(msgspec.Struct, frozen=True):
    """An archive in a directory, which belongs to the user of the job."""

    directory: str

    @property
    def root(self) -> str:
        return self.directory

    def exists(self) -> bool:
        return Path(self.directory).exists()

    def make(self, file_mode: int) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.directory, flags)
        try:
            os.fchmod(descriptor, directory_mode(file_mode))
        finally:
            os.close(descriptor)

    @contextmanager
    def locked(self) -> Generator[None]:
        with lock_in(self._beside(), "lock", self.directory):
            yield

    def manifests(self) -> list[str]:
        return sorted(file.name for file in Path(self.directory, MANIFESTS).glob("*.json"))

    def read_any(self, name: str, max_bytes: int) -> bytes | None:
        return read_small_file(str(Path(self.directory, MANIFESTS, name)), max_bytes)

    def read_own(self, name: str, max_bytes: int) -> bytes | None:
        try:
            with self._beside().open() as directory:
                return directory.read(name, max_bytes)
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes, file_mode: int) -> None:
        target = Path(self.directory, MANIFESTS, name)
        try:
            with self._beside().make(directory_mode(file_mode)) as directory:
                directory.replace(name, content, file_mode)
        except AccessDenied:
            raise
        except OSError as error:
            raise failed(str(target), error) from error

    @contextmanager
    def new_file(self, names: tuple[str, ...], name: str, file_mode: int) -> Generator[Target]:
        location = Location(root=self.directory, names=names)
        # Held open: whatever has its name a moment later, the file is written into this one.
        with (
            location.make(directory_mode(file_mode)) as directory,
            naming(directory.pinned(), str(directory.path)),
        ):
            yield Target(Path(directory.pinned(name)), str(directory.path / name))

    def mode_of(self, path: str) -> int:
        try:
            return Path(self.directory, path).lstat().st_mode & 0o777
        except FileNotFoundError:  # the reader of the file reports it
            return FILE_MODE

    @contextmanager
    def opened(self, path: str, advice: str) -> Generator[Path]:
        with regular(Path(self.directory, path), advice) as opened:
            yield opened

    def clean(self, listed: Mapping[str, set[str]]) -> None:
        for source, paths in listed.items():
            for days in ("date=*", "*/date=*"):
                for directory in Path(self.directory).glob(f"{days}/source={escape(source)}"):
                    self._clean(directory.relative_to(self.directory).parts, paths)

    def _clean(self, names: tuple[str, ...], listed: set[str]) -> None:
        """Remove files only from a directory of ours: elsewhere, others may have put files or links."""
        with (
            contextlib.suppress(FileNotFoundError, AccessDenied),
            Location(root=self.directory, names=names).open() as directory,
        ):
            for file in directory.names():
                if "/".join((*names, file)) not in listed:
                    directory.remove(file)

    def _beside(self) -> Location:
        return Location(root=self.directory, names=(MANIFESTS,))
