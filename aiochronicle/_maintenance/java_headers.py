"""Key and headers of a message as fields of a Java document, beside the payload.

A message of a Java queue is its payload. So a message that has a key or headers becomes a document of
Java's wire format with these fields, in this order:

    aiochronicle   1: what this is
    key            bytes, if there is a key
    headers        a list: name, value (bytes), name, value, …; if there are any
    payload        bytes

All others stay as they are, but for those that begin like such a document, and empty ones, which a Java queue
cannot store: they are wrapped, too, so that each comes back as it was.
"""

from typing import Any, NamedTuple, cast

from aiochronicle import cq4
from aiochronicle._hot import Message
from aiochronicle.errors import DecodeError

__all__ = ["Unwrapped", "unwrap", "wrap"]

_VERSION = 1
_BEGIN = cq4.encode_fields({"aiochronicle": _VERSION})


class Unwrapped(NamedTuple):
    """What was in a document."""

    payload: bytes
    key: bytes | None
    headers: dict[str, bytes] | None


def wrap(message: Message[Any]) -> bytes:
    """Return what is appended to the Java queue."""
    payload, key, headers = message.payload, message.key, message.headers
    if key is None and not headers and payload and not payload.startswith(_BEGIN):
        return payload
    fields: dict[str, Any] = {"aiochronicle": _VERSION}
    if key is not None:
        fields["key"] = key
    if headers:
        fields["headers"] = [part for header in headers.items() for part in header]
    return cq4.encode_fields({**fields, "payload": payload})


def unwrap(payload: bytes) -> Unwrapped:
    """Return what ``wrap`` was given; a payload that is no such document is one without key and headers."""
    if payload.startswith(_BEGIN):
        try:
            return _decode(payload)
        except (DecodeError, ValueError):
            pass  # it is another program's, and looks like ours
    return Unwrapped(payload, None, None)


def _decode(document: bytes) -> Unwrapped:
    fields = dict(cq4.decode_fields(document))
    del fields["aiochronicle"]
    payload = _bytes(fields.pop("payload", None))
    key = _bytes(fields.pop("key")) if "key" in fields else None
    parts: Any = fields.pop("headers", [])
    if fields or not isinstance(parts, list):
        raise ValueError("other fields")
    pairs = cast("list[object]", parts)
    names = [_text(name) for name in pairs[::2]]
    values = [_bytes(value) for value in pairs[1::2]]
    headers = dict(zip(names, values, strict=True))
    if len(headers) != len(names):
        raise ValueError("a name twice")
    return Unwrapped(payload, key, headers or None)


def _bytes(value: object) -> bytes:
    if isinstance(value, cq4.Typed) and value.type == "byte[]":  # as Java writes it in a list
        value = value.value
    if isinstance(value, bytes):
        return value
    raise ValueError("no bytes")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("no text")
