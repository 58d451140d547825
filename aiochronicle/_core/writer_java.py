"""Parameters of open_writer for Java Chronicle Queues."""

from collections.abc import Iterable
from typing import Any, cast

from aiochronicle._base.arguments import expect, integer, seconds
from aiochronicle._base.binding import ffi, lib
from aiochronicle.errors import InvalidArgument, NotSupported

__all__ = ["no_heartbeat", "refuse_codecs", "set_java"]

_EPOCH_MS_MAX = 2**53  # beyond any year in the name of a cycle's file


def _check_roll_cycle(name: str) -> None:
    """Raise InvalidArgument for an unknown name, also for an existing queue."""
    expect("roll_cycle", "the name of a Java roll cycle, or None", str, name)
    if name == "WEEKLY":
        raise InvalidArgument(
            "roll_cycle WEEKLY is not supported: Java itself cannot reopen such queues"
        )
    known: list[str] = []
    while (found := lib.ac_roll_cycle_name(len(known))) != ffi.NULL:
        known.append(ffi.string(found).decode())
    if name not in known:
        shown = ", ".join(one for one in known if not one.startswith("TEST"))
        raise InvalidArgument(f"roll_cycle {name[:40]!r} is unknown: give one of {shown}")


def set_java(
    config: Any, roll_cycle: str | None, epoch: int | None, lock_timeout: float | None
) -> list[Any]:
    """Set the parameters of a Java queue; the returned objects must live as long as the configuration."""
    keep: list[Any] = []
    if roll_cycle is not None:
        _check_roll_cycle(roll_cycle)
        keep.append(ffi.new("char[]", roll_cycle.encode()))
        config.roll_cycle = keep[-1]
    if epoch is not None:
        config.epoch_ms = integer("epoch", epoch, -_EPOCH_MS_MAX, _EPOCH_MS_MAX)
        config.epoch_given = 1
    if lock_timeout is not None:
        config.lock_timeout_ns = max(
            1, round(seconds("lock_timeout", lock_timeout, zero=True) * 1e9)
        )
    return keep


def refuse_codecs(codec: object, path: str) -> None:
    """Raise NotSupported for a Codec or Registry: messages of a Java queue are encoded by Java's rules."""
    several = isinstance(codec, list | tuple)
    given: Iterable[object] = cast("Iterable[object]", codec) if several else (codec,)
    if not all(one is None or isinstance(one, type) for one in given):
        what = (
            "codec: a Java queue has neither formats nor type_ids: give the Struct types themselves"
        )
        raise NotSupported(what, path=path, advice="")


def no_heartbeat(path: str) -> NotSupported:
    what = "heartbeat: no writer can promise what other writers of a Java queue will append"
    return NotSupported(what, path=path)
