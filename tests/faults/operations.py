"""The operations on a writer, as values that can be drawn, sent to another process and replayed."""

import msgspec

from aiochronicle import Writer

__all__ = ["Abort", "Append", "AppendMany", "Flush", "Heartbeat", "Operation", "Reserve", "apply"]


class Append(msgspec.Struct, frozen=True, tag=True):
    """One message."""

    payload: bytes
    type_id: int = 0


class AppendMany(msgspec.Struct, frozen=True, tag=True):
    """Several messages that become visible together."""

    payloads: tuple[bytes, ...]


class Reserve(msgspec.Struct, frozen=True, tag=True):
    """One message written in place."""

    payload: bytes


class Abort(msgspec.Struct, frozen=True, tag=True):
    """A reservation that is filled and then given up."""

    payload: bytes


class Flush(msgspec.Struct, frozen=True, tag=True):
    """Make everything so far durable."""


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Promise that no older message follows."""


Operation = Append | AppendMany | Reserve | Abort | Flush | Heartbeat


class _GivenUpError(Exception):
    pass


def _abort(writer: Writer, payload: bytes) -> None:
    try:
        with writer.reserve(len(payload)) as room:
            room[:] = payload
            raise _GivenUpError
    except _GivenUpError:
        return


def apply(writer: Writer, operation: Operation) -> list[tuple[bytes, int]]:
    """Apply the operation; return (payload, type_id) of each message that it added."""
    match operation:
        case Append(payload, type_id):
            writer.append(payload, type_id=type_id)
            return [(payload, type_id)]
        case AppendMany(payloads):
            writer.append_many(payloads)
            return [(payload, 0) for payload in payloads]
        case Reserve(payload):
            with writer.reserve(len(payload)) as room:
                room[:] = payload
            return [(payload, 0)]
        case Abort(payload):
            _abort(writer, payload)
        case Flush():
            writer.flush_now()
        case Heartbeat():
            writer.heartbeat()
    return []
