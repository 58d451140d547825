"""Messages for people and programs: decoded by the queue's schema.json, without the user's classes."""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from aiochronicle import Codec, Registry
from aiochronicle._base.binding import lib
from aiochronicle._base.printable import printable
from aiochronicle.cli.exits import NOT_FOUND, Refused
from aiochronicle.cli.output import builtins_of, console, to_json
from aiochronicle.cli.units import many, seq_text, when
from aiochronicle.errors import DecodeError, SchemaError, SchemaNotFound

__all__ = ["Decoder"]

_HEX_BYTES_PER_LINE = 16
_HEX_BYTES_MAX = 48  # of a payload, or of a field, on one line


class Shown(Protocol):
    """The shown attributes of a message; a message that was set aside has them, too."""

    @property
    def seq(self) -> int: ...
    @property
    def timestamp_ns(self) -> int: ...
    @property
    def type_id(self) -> int: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> Mapping[str, bytes]: ...


class Decoder:
    """Decodes the messages of one queue."""

    def __init__(self, queue: Path) -> None:
        self._queue = queue
        self._is_java = lib.ac_queue_format(os.fsencode(queue)) == lib.AC_FORMAT_CQ4
        self._codecs: dict[int, Codec[Any]] = {}
        self.problem: str | None = None  # why payloads are not decoded
        self._load()

    def _load(self) -> None:
        # Registry.load would take a file for a schema; reading reports a directory without permission.
        if not self._queue.is_dir() or not os.access(self._queue, os.R_OK | os.X_OK):
            return
        try:
            registry = Registry.load(self._queue)
        except SchemaNotFound:
            return
        except SchemaError as error:  # the messages are still there
            self.problem = f"schema.json: {error.detail.removeprefix('schema.json ')}"
            return
        self.problem = None
        self._codecs = {entry.type_id: entry.codec for entry in registry}

    def tell_problem(self) -> None:
        """Report on standard error why payloads are shown undecoded, if they are."""
        if self.problem is not None:
            text = f"aioc: {self._queue}: {self.problem}: payloads are shown as they are"
            console(stderr=True).print(printable(text))

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
            known = self.problem or f"its types are {known}"
            raise Refused(f"{self._queue}: there is no type {wanted!r}; {known}.", NOT_FOUND)
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
            **_carried_fields(message),
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
                pass  # the file does not say that these are raw bytes
        text = _text_of(payload)
        if text is not None:
            return {**found, "text": text}
        return {**found, "base64": base64.b64encode(payload).decode()}

    def json_line(self, message: Shown) -> str:
        """Return a message as one line of JSON."""
        return to_json(self.record(message))

    def _seq(self, message: Shown) -> str:
        return seq_text(message.seq, "cq4") if self._is_java else str(message.seq)

    def line(self, message: Shown) -> str:
        """Return a message as one line for people."""
        record = self.record(message)
        head = f"{self._seq(message):>8}  {record['time']}  {_shown_carried(record)}"
        if "value" in record:
            kind = "" if record["type"] is None else f"{printable(record['type'])} "
            return f"{head}{kind}{_fields(self._for_people(message, record['value']))}"
        kind = f"#{record['type_id']} " if record["type_id"] else ""
        error = f" ({record['error']})" if "error" in record else ""
        if "text" in record:
            return f"{head}{kind}{printable(record['text'])}{error}"
        shown = message.payload[:_HEX_BYTES_MAX].hex(" ", 2)
        rest = " …" if record["bytes"] > _HEX_BYTES_MAX else ""
        return f"{head}{kind}<{many(record['bytes'], 'byte')}> {shown}{rest}{error}"

    def _for_people(self, message: Shown, value: Any) -> Any:
        """Return the value of a record with its bytes as people read them, instead of base64."""
        codec = self.codec(message.type_id)
        if codec is None:
            return value
        decoded = codec.decode(message.payload)
        return _with_bytes_spelled(msgspec.to_builtins(decoded, builtin_types=(bytes,)))

    def hex_lines(self, message: Shown) -> str:
        """Return a message with its payload as a dump."""
        payload = message.payload
        time = when(message.timestamp_ns)
        lines = [
            f"{self._seq(message):>8}  {time}  #{message.type_id}  {many(len(payload), 'byte')}"
            f"  {_shown_carried(_carried_fields(message))}".rstrip(),
        ]
        for offset in range(0, len(payload), _HEX_BYTES_PER_LINE):
            part = payload[offset : offset + _HEX_BYTES_PER_LINE]
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
            lines.append(f"  {offset:08x}  {part.hex(' '):<47}  {text}")
        return "\n".join(lines)


def _carried_fields(message: Shown) -> dict[str, Any]:
    """Return key and headers of a message for JSON, if it has any."""
    found: dict[str, Any] = {}
    if message.key is not None:
        found["key"] = _for_json(message.key)
    if message.headers:
        found["headers"] = {name: _for_json(value) for name, value in message.headers.items()}
    return found


def _for_json(value: bytes) -> str | dict[str, str]:
    text = _text_of(value)
    return {"base64": base64.b64encode(value).decode()} if text is None else text


def _shown_carried(record: Mapping[str, Any]) -> str:
    """Return key and headers for people: ``[key] name=value`` and a space, if there are any."""
    parts = [f"[{_shown_value(record['key'])}]"] if "key" in record else []
    for name, value in record.get("headers", {}).items():
        parts.append(f"{printable(name)}={_shown_value(value)}")
    return "".join(f"{part} " for part in parts)


def _shown_value(value: str | dict[str, str]) -> str:
    if isinstance(value, str):
        return _show(value)
    return base64.b64decode(value["base64"]).hex()


def _with_bytes_spelled(value: Any) -> Any:
    """Replace bytes by their text or, if they are not text, by hexadecimal digits."""
    if isinstance(value, bytes):
        text = _text_of(value)
        rest = "…" if len(value) > _HEX_BYTES_MAX else ""
        return f"0x{value[:_HEX_BYTES_MAX].hex()}{rest}" if text is None else text
    if isinstance(value, dict):
        fields = cast("dict[object, Any]", value)
        return {_with_bytes_spelled(name): _with_bytes_spelled(one) for name, one in fields.items()}
    if isinstance(value, list | tuple):
        return [_with_bytes_spelled(one) for one in cast("list[Any]", value)]
    return value


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
        return " ".join(f"{printable(name)}={_show(entry)}" for name, entry in fields.items())
    return _show(value)


def _show(value: Any) -> str:
    if isinstance(value, str):
        return printable(value) if value and " " not in value else printable(repr(value))
    return printable(msgspec.json.encode(value).decode())
