"""Messages for people and programs: decoded by the queue's schema.json, without the user's classes."""

import base64
import os
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from aiochronicle import Codec, Registry
from aiochronicle._binding import lib
from aiochronicle._printable import printable
from aiochronicle.cli.exits import NOT_FOUND, Refused
from aiochronicle.cli.output import builtins_of, to_json
from aiochronicle.cli.units import when
from aiochronicle.errors import DecodeError, SchemaNotFound

__all__ = ["Decoder"]

_HEX_BYTES_PER_LINE = 16


class Shown(Protocol):
    """What is shown of a message; one that was set aside has it, too."""

    @property
    def seq(self) -> int: ...
    @property
    def timestamp_ns(self) -> int: ...
    @property
    def type_id(self) -> int: ...
    @property
    def payload(self) -> bytes: ...


class Decoder:
    """What the messages of one queue mean."""

    def __init__(self, queue: Path) -> None:
        self._queue = queue
        self._is_java = lib.ac_queue_format(os.fsencode(queue)) == lib.AC_FORMAT_CQ4
        self._codecs: dict[int, Codec[Any]] = {}
        self._load()

    def _load(self) -> None:
        try:
            registry = Registry.load(self._queue)
        except SchemaNotFound:
            return
        self._codecs = {entry.type_id: entry.codec for entry in registry}

    def codec(self, type_id: int) -> Codec[Any] | None:
        """Return the codec for a type; a writer may have added it since the schema was read."""
        if type_id not in self._codecs and type_id != 0:
            self._load()
            self._codecs.setdefault(type_id, None)  # type: ignore[arg-type]
        return self._codecs.get(type_id)

    def type_id_of(self, wanted: str) -> int:
        """Return the type_id for a name of the schema, or a number."""
        if wanted.isdecimal():
            return int(wanted)
        named = {codec.name: type_id for type_id, codec in self._codecs.items()}
        if wanted not in named:
            known = ", ".join(sorted(named)) or "none, for it has no schema.json"
            raise Refused(
                f"{self._queue}: there is no type {wanted!r}; its types are {known}.", NOT_FOUND
            )
        return named[wanted]

    def record(self, message: Shown) -> dict[str, Any]:
        """Return a message for JSON; one of value, text and base64 is the payload."""
        codec = self.codec(message.type_id)
        payload = message.payload
        found: dict[str, Any] = {
            "seq": message.seq,
            "timestamp_ns": message.timestamp_ns,
            "time": when(message.timestamp_ns),
            "type_id": message.type_id,
            "type": None if codec is None else codec.name,
            "bytes": len(payload),
        }
        if codec is not None:
            try:
                # Through JSON: NaN, bytes, dates and sets become what JSON has.
                return {
                    **found,
                    "value": msgspec.json.decode(msgspec.json.encode(codec.decode(payload))),
                }
            except (DecodeError, msgspec.MsgspecError, TypeError, ValueError) as error:
                found["error"] = printable(error)
        if self._is_java and not payload.isascii():
            try:
                return {**found, **_java(payload)}
            except (DecodeError, msgspec.MsgspecError, TypeError, ValueError):
                pass  # nothing in the file says that these are raw bytes
        text = _text_of(payload)
        if text is not None:
            return {**found, "text": text}
        return {**found, "base64": base64.b64encode(payload).decode()}

    def json_line(self, message: Shown) -> str:
        """Return a message as one line of JSON."""
        return to_json(self.record(message))

    def line(self, message: Shown) -> str:
        """Return a message as one line for people."""
        record = self.record(message)
        head = f"{record['seq']:>8}  {record['time']}  "
        if "value" in record:
            kind = "" if record["type"] is None else f"{printable(record['type'])} "
            return f"{head}{kind}{_fields(record['value'])}"
        kind = f"#{record['type_id']} " if record["type_id"] else ""
        error = f" ({record['error']})" if "error" in record else ""
        if "text" in record:
            return f"{head}{kind}{printable(record['text'])}{error}"
        shown = message.payload[:48].hex(" ", 2)
        return f"{head}{kind}<{record['bytes']:,} bytes> {shown}{' …' if record['bytes'] > 48 else ''}{error}"

    def hex_lines(self, message: Shown) -> str:
        """Return a message with its payload as a dump."""
        payload = message.payload
        lines = [
            f"{message.seq:>8}  {when(message.timestamp_ns)}  #{message.type_id}  {len(payload):,} bytes"
        ]
        for offset in range(0, len(payload), _HEX_BYTES_PER_LINE):
            part = payload[offset : offset + _HEX_BYTES_PER_LINE]
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
            lines.append(f"  {offset:08x}  {part.hex(' '):<47}  {text}")
        return "\n".join(lines)


def _java(payload: bytes) -> dict[str, Any]:
    """Return what a Java program wrote: text, a value, or a call with the name of its method as type."""
    from aiochronicle import cq4

    found = cq4.decode(payload)
    if isinstance(found, str):
        return {"text": found}
    if isinstance(found, cq4.Call):
        return {"type": str(found.name), "value": builtins_of(list(found.args))}
    return {"value": builtins_of(found)}


def _text_of(payload: bytes) -> str | None:
    """Return a payload that is text; control characters are escaped when it is shown."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _fields(value: Any) -> str:
    value = builtins_of(value)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return " ".join(f"{printable(name)}={_shown(entry)}" for name, entry in fields.items())
    return _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return printable(value) if value and " " not in value else printable(repr(value))
    return printable(msgspec.json.encode(value).decode())
