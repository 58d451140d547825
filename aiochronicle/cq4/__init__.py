"""Converts messages of Java Chronicle Queues to Python objects and back.

`decode` reads messages of Java programs. `encode`, `encode_text`, `encode_fields` and `encode_call` write
messages for them, with the same bytes as Java (wire type BINARY_LIGHT, which its queues use). `decode_as` and
`to_fields` convert Java objects to msgspec.Struct and back. `MethodReader` and `method_writer` correspond to
Java's method readers and writers.

>>> payload = encode_call("price", "EURUSD", 1.25)
>>> decode(payload).args
('EURUSD', 1.25)

`import aiochronicle` does not import this package.
"""

from aiochronicle.config import Timestamp

from ._decoding import decode, decode_calls, decode_fields
from ._encoding import (
    encode,
    encode_call,
    encode_calls,
    encode_fields,
    encode_message,
    encode_text,
    to_fields,
)
from ._methods import MethodReader, method, method_writer
from ._structs import decode_as
from ._values import Call, Fields, Float32, History, JavaFloat, Typed

__all__ = [
    "Call",
    "Fields",
    "Float32",
    "History",
    "JavaFloat",
    "MethodReader",
    "Timestamp",
    "Typed",
    "decode",
    "decode_as",
    "decode_calls",
    "decode_fields",
    "encode",
    "encode_call",
    "encode_calls",
    "encode_fields",
    "encode_message",
    "encode_text",
    "method",
    "method_writer",
    "to_fields",
]
