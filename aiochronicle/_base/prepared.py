"""Registers types with msgspec, in one thread at a time.

msgspec builds its description of a Struct type when the type is first decoded, and stores it with the class
while it is still incomplete. A second thread that decodes the type at that moment takes it for complete, and
the process dies of a segmentation fault (seen with msgspec 0.22).
"""

import os
import threading
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from typing import TypeVar

    AnyType = TypeVar("AnyType", bound=type)

__all__ = ["prepared"]

# Evaluating annotations runs the user's code, which may come here again.
_one_at_a_time = threading.RLock()

# A child must not inherit a description that nobody is there to complete.
os.register_at_fork(
    before=_one_at_a_time.acquire,
    after_in_parent=_one_at_a_time.release,
    after_in_child=_one_at_a_time.release,
)


def prepared(cls: "AnyType") -> "AnyType":
    """Make a Struct type safe to be decoded by any thread; a decorator for those that are.

    >>> @prepared
    ... class Version(msgspec.Struct):
    ...     version: int
    >>> msgspec.json.decode(b'{"version": 1}', type=Version)
    Version(version=1)
    """
    with _one_at_a_time:
        msgspec.msgpack.Decoder(cls)  # takes all that JSON does, and more
    return cls
