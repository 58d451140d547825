"""Groups of a queue, and of a topic with many writers: opening, and seen from outside.

Importing this module, and with it ``topic_group.py``, makes ``open_group`` know topics.
"""

import os
from pathlib import Path

from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._core.group import (
    GroupInfo,
    aopen_group,
    group_names,
    inspect_queue_group,
    open_group,
)
from aiochronicle._layout import READERS
from aiochronicle._services.shared import is_shared
from aiochronicle._services.topic_group import inspect_topic_group, list_topic_groups

__all__ = ["aopen_group", "inspect_group", "list_groups", "open_group"]


def inspect_group(path: str | os.PathLike[str], name: str) -> GroupInfo:
    """Describe a group without joining it. ReaderNotFound if there is none. Never writes.

    For a topic with many writers, over all of them: ``low_seq`` and ``next_seq`` are sums.

    >>> open_group(queue, "workers").close()
    >>> inspect_group(queue, "workers").pending
    1
    """
    directory = os.fsdecode(encode_path(path))
    if is_shared(directory):
        return inspect_topic_group(directory, name)
    return inspect_queue_group(directory, name)


def list_groups(path: str | os.PathLike[str]) -> list[GroupInfo]:
    """Describe all groups of a queue, by name. Never writes.

    >>> open_group(queue, "workers").close()
    >>> [group.name for group in list_groups(queue)]
    ['workers']
    """
    directory = os.fsdecode(encode_path(path))
    if is_shared(directory):
        return list_topic_groups(directory)
    inspect_nothing = ffi.new("ac_queue_info_t *")
    error = new_error()
    check(lib.ac_queue_info(encode_path(path), inspect_nothing, error), error)
    names = sorted(group_names(Path(directory) / READERS))
    return [inspect_queue_group(directory, name) for name in names]
