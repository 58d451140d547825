"""Order by key over all writers of a topic: the directory handling for csrc/group_turns.c."""

import binascii
import contextlib
from collections.abc import Callable
from typing import Any

from aiochronicle import _hot
from aiochronicle._base.binding import check, encode_path, ffi, lib, new_error
from aiochronicle._core.group import Key
from aiochronicle._core.queue import inspect
from aiochronicle._hot import Message
from aiochronicle._services.shared import SharedTopic
from aiochronicle.errors import ChronicleError, InvalidArgument, QueueGone, QueueNotFound

__all__ = ["TopicTurns", "number_of"]

_KEYS = 65536
_QUEUES_MANY = lib.AC_TURNS_QUEUES * 3 // 4


def number_of(key: Key) -> Callable[[Message[Any]], int]:
    """Return a function that returns the number of a message's key, the same in every process."""

    def number(message: Message[Any]) -> int:
        return binascii.crc32(_encode(key(message))) % _KEYS

    return number


def _encode(key: object) -> bytes:
    """Return bytes that are the same for equal keys. hash() differs from process to process."""
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, int):
        return b"i%d" % key
    if key is None:
        return b"n"
    if isinstance(key, tuple):
        parts = [_encode(part) for part in key]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return b"t" + b"".join(b"%d:%b" % (len(part), part) for part in parts)
    raise InvalidArgument(
        "the key of a message in a topic must be bytes, a str, an int, None, or a tuple of those, so that"
        f" it is the same in every process; not {key!r}"
    )


class TopicTurns:
    """The turns of one member, in all queues of a topic."""

    def __init__(self, topic: SharedTopic, name: str, mode: int) -> None:
        self._topic = topic
        self._name = name
        self._unknown: set[int] = set()
        handle = ffi.new("ac_turns_t **")
        error = new_error()
        encoded = name.encode()
        check(lib.ac_turns_open(encode_path(topic.path), encoded, mode, handle, error), error)
        self.handle = _hot.Turns(int(ffi.cast("uintptr_t", handle[0])))

    def make_room(self) -> None:
        """Free the places of queues that are gone, if few places are left."""
        known = self.handle.queues()  # before listing the queues
        if len(known) < _QUEUES_MANY:
            return
        there = self._queues()
        if there is not None:
            for queue_id in set(known) - set(there):
                self.handle.forget(queue_id)

    def is_waiting(self) -> bool:
        """Return whether keys wait for messages of queues that are not joined."""
        self._unknown.update(self.handle.unknown())
        return bool(self._unknown)

    def settle_unknown(self) -> None:
        """Stop keys from waiting for messages that are done or whose queue is gone."""
        if not self.is_waiting():
            return
        unknown, self._unknown = self._unknown, set()
        there = self._queues()
        if there is None:
            return
        for queue_id in unknown:
            if queue_id not in there:
                self.handle.forget(queue_id)
                continue
            with contextlib.suppress(
                ChronicleError
            ):  # then the keys wait until the queue is repaired or gone
                self.handle.settle(encode_path(there[queue_id]), self._name.encode())

    def _queues(self) -> dict[int, str] | None:
        """Return the queues of the topic by id; None if one cannot be inspected."""
        queues: dict[int, str] = {}
        for writer in self._topic.writers():
            path = self._topic.queue(writer)
            try:
                queues[inspect(path).queue_id] = path
            except (QueueNotFound, QueueGone):  # being created, or folded away
                continue
            except ChronicleError:
                return None
        return queues

    def close(self) -> None:
        """Close the turns. Call it after the groups of all queues are closed."""
        with contextlib.suppress(
            RuntimeError
        ):  # a thread is still joining, and closes what it has opened
            self.handle.close()
