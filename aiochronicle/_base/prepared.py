"""Prepares types for msgspec, in one thread at a time.

msgspec builds its description of a Struct type when it first decodes the type, and attaches the description
to the class while it is still incomplete. If a second thread decodes the type at that moment, the process
dies of a segmentation fault (seen with msgspec 0.22).
"""

import os
import threading
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from typing import TypeVar

    AnyType = TypeVar("AnyType", bound=type)

__all__ = ["prepared"]

# Reentrant: evaluating annotations runs the user's code, which may call prepared() again.
_one_at_a_time = threading.RLock()

# A forked child must not inherit an incomplete description: the thread that builds it is gone there.
os.register_at_fork(
    before=_one_at_a_time.acquire,
    after_in_parent=_one_at_a_time.release,
    after_in_child=_one_at_a_time.release,
)


def prepared(cls: "AnyType") -> "AnyType":
    """Decorate a Struct type so that any thread can decode it safely.

    >>> @prepared
    ... class Version(msgspec.Struct):
    ...     version: int
    >>> msgspec.json.decode(b'{"version": 1}', type=Version)
    Version(version=1)
    """
    with _one_at_a_time:
        msgspec.msgpack.Decoder(cls)  # prepares everything that JSON needs, too
    return cls
