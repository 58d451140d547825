"""The topics of a bus: their names, directories and settings."""

import os
from pathlib import Path

import msgspec

from aiochronicle._base.arguments import expect, pathname, refuse_file
from aiochronicle._base.names import check_name, is_name
from aiochronicle._base.system_errors import storage_error
from aiochronicle._core.queue import ReaderInfo
from aiochronicle._core.topic_settings import TopicSettings
from aiochronicle._layout import BUS_CONFIGURATION, CONTROL, SHARED
from aiochronicle._services.settings import load_settings
from aiochronicle._services.shared import is_shared, list_readers
from aiochronicle._services.trusted import (
    directory_mode,
    has_queue,
    make_below,
    make_directories,
    opened_below,
    owners_of,
)
from aiochronicle.errors import InvalidArgument, InvalidName, StorageError

__all__ = ["Topics", "checked_topic"]

ROOT_VARIABLE = "AIOCHRONICLE_DATA_DIR"
NAMESPACE_VARIABLE = "AIOCHRONICLE_NAMESPACE"
_UNFINISHED = (
    f"{CONTROL}.",
    f".{SHARED}.",
)  # the first file of a queue, or topic, before it has its name


class Topics:
    """Topics by name under one root. The base of Bus, which opens them."""

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        namespace: str | None,
        config: str | os.PathLike[str] | None,
    ) -> None:
        self._root = _root_directory(root)
        self._namespace = _checked_namespace(namespace)
        self._directory = self._root / self._namespace
        self._namespace_parts = tuple(filter(None, self._namespace.split("/")))
        self._settings = (
            load_settings(self._root / BUS_CONFIGURATION, owners=owners_of(self._root))
            if config is None
            else load_settings(Path(pathname("config", config)), required=True)
        )

    @property
    def root(self) -> str:
        """Directory of the whole bus."""
        return str(self._root)

    @property
    def namespace(self) -> str:
        """Namespace of this object's topics; empty for none."""
        return self._namespace

    def path(self, topic: str) -> str:
        """Return the directory of a topic's queue, whether it exists or not."""
        return str(self._directory / checked_topic(topic))

    def settings(self, topic: str) -> TopicSettings:
        """Return the settings of a topic in the configuration file."""
        settings = self._settings.for_topic(checked_topic(topic), self._namespace)
        if settings.retention is None or settings.retention.archive is None:
            return settings
        # Each queue needs an archive of its own, because segments of all queues have the same names.
        archive = self._root / settings.retention.archive / self._namespace / topic
        retention = msgspec.structs.replace(settings.retention, archive=str(archive))
        return msgspec.structs.replace(settings, retention=retention)

    def topics(self) -> list[str]:
        """Return the sorted names of all topics that have a queue. Reads the directory.

        Omits symbolic links, and directories that this user may not read.
        """
        with opened_below(str(self._root), self._namespace_parts) as directory:
            if directory is None:
                return []
            names = _list_names(directory, str(self._directory))
        return sorted(name for name in names if is_name(name) and self._can_see_queue(name))

    def _can_see_queue(self, topic: str) -> bool:
        try:
            return self._has_queue(topic)
        except StorageError:
            return False

    def readers(self, topic: str) -> list[ReaderInfo]:
        """Return the readers that have a position in the topic, open or closed, with their lag.

        QueueNotFound if the topic has no queue yet.
        """
        path = self.path(topic)
        with opened_below(
            str(self._root), (*self._namespace_parts, topic)
        ):  # refuses symbolic links
            return list_readers(path)

    def _create_directories(self, topic: str, settings: TopicSettings) -> None:
        """Create the directories above a new queue and above its archive."""
        if self._has_queue(topic):
            return
        root = str(self._root)
        for count in range(1, len(self._namespace_parts) + 1):
            if has_queue(root, self._namespace_parts[:count]):
                path = self._root.joinpath(*self._namespace_parts[:count])
                raise InvalidName("this is a topic, not a namespace", path=str(path))
        if self._holds_others(topic) and not self._has_queue(topic):
            raise InvalidName("this is a namespace, not a topic", path=self.path(topic))
        mode = directory_mode(settings.mode)
        make_directories(root, mode)
        if settings.retention is not None and settings.retention.archive is not None:
            self._create_archive(Path(settings.retention.archive).parent, mode)

    def _holds_others(self, topic: str) -> bool:
        """Return whether the topic's directory has something in it that is not just being created."""
        with opened_below(str(self._root), (*self._namespace_parts, topic)) as found:
            if found is None:
                return False
            names = _list_names(found, self.path(topic), files=True)
        return not all(name.startswith(_UNFINISHED) for name in names)

    def _create_archive(self, path: Path, mode: int) -> None:
        if path.is_relative_to(self._root) and ".." not in path.parts:
            parts = path.relative_to(self._root).parts
            make_below(str(self._root), parts, owners_of(self._root), mode)
        else:
            make_directories(path, mode)

    def _has_queue(self, topic: str) -> bool:
        parts = (*self._namespace_parts, topic)
        return has_queue(str(self._root), parts) or is_shared(self.path(topic))


def _root_directory(root: str | os.PathLike[str] | None) -> Path:
    chosen = os.environ.get(ROOT_VARIABLE) if root is None else root
    if not chosen:
        raise InvalidArgument(
            f"a bus needs a root directory: pass Bus(root), or set ${ROOT_VARIABLE}"
        )
    path = pathname("root", chosen)
    refuse_file("root", path)
    return Path(path)


def _checked_namespace(namespace: str | None) -> str:
    chosen = os.environ.get(NAMESPACE_VARIABLE, "") if namespace is None else namespace
    if expect("namespace", "a str or None", str, chosen):
        for name in chosen.split("/"):
            _check_name(name, f"namespace {chosen!r}")
    return chosen


def checked_topic(topic: str) -> str:
    _check_name(topic, f"topic {topic!r}")
    return topic


def _check_name(name: str, what: str) -> None:
    check_name(what, name)
    if name == BUS_CONFIGURATION:
        raise InvalidName(f"{what}: {name} is the name of the configuration file")


def _list_names(directory: int, path: str, *, files: bool = False) -> list[str]:
    """Return the names of the subdirectories, and of files if requested."""
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            with os.scandir(fd) as entries:
                return [one.name for one in entries if files or one.is_dir(follow_symlinks=False)]
        finally:
            os.close(fd)
    except OSError as error:
        raise storage_error(error, f"cannot be listed: {error.strerror}", path) from error
