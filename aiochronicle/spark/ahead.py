"""Making the next of several things while the last one is being used."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["ahead"]

Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Generator[Item]:
    """Yield the items, of which a thread makes each while its predecessor is in use.

    That pays where both give up the interpreter lock: as reading and appending columns do.
    """
    nothing_left: Any = object()
    with ThreadPoolExecutor(1, "ahead") as thread:
        following = thread.submit(next, items, nothing_left)
        while (item := following.result()) is not nothing_left:
            following = thread.submit(next, items, nothing_left)
            yield item
