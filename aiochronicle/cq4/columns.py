"""Turns payloads of a Java queue into Arrow columns, one for each requested field.

Java queues have no schema, so the caller names the fields and their types. A field is a field of the
document, or a method: then its value is the argument of the call. A struct is filled by the names of its
fields or, from several arguments or a list, in their order. Two columns describe the calls themselves:
``_method`` is the name, and ``_args`` the arguments as JSON.

This module needs pyarrow, so other modules import it only when they use it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from ._decoding import decode
from ._values import Call, Fields, Typed, is_dict, is_list

__all__ = ["ARGUMENTS", "METHOD", "WireColumns"]

METHOD, ARGUMENTS = "_method", "_args"

_LONG_MAX = 2**63 - 1
_MISFITS = (pa.ArrowException, OverflowError, TypeError, ValueError)


class WireColumns:
    """Turns payloads into columns of the wanted Arrow types, by name.

    >>> import pyarrow
    >>> from aiochronicle.cq4 import encode_fields
    >>> quotes = WireColumns({"symbol": pyarrow.utf8(), "price": pyarrow.float64()})
    >>> columns, troubles = quotes.decode(pyarrow.array([encode_fields({"price": 1.25})]))
    >>> columns["price"].to_pylist(), columns["symbol"].to_pylist(), troubles
    ([1.25], [None], None)
    """

    def __init__(self, wanted: Mapping[str, pa.DataType]) -> None:
        self._wanted = dict(wanted)
        self._fields = [name for name in wanted if name not in (METHOD, ARGUMENTS)]

    def decode(self, payloads: Any) -> "tuple[dict[str, pa.Array[Any]], pa.Array[Any] | None]":
        """Return the columns, and a column with what is wrong with each row; None if all rows are fine."""
        troubles: dict[int, str] = {}
        rows = [
            self._row(row, payload, troubles) for row, payload in enumerate(payloads.to_pylist())
        ]
        columns = {
            name: _column(name, [found.get(name) for found in rows], kind, troubles)
            for name, kind in self._wanted.items()
        }
        if not troubles:
            return columns, None
        return columns, pa.array([troubles.get(row) for row in range(len(rows))], pa.utf8())

    def _row(self, row: int, payload: bytes, troubles: dict[int, str]) -> dict[str, Any]:
        """Return the values of a message by column."""
        try:
            decoded = decode(payload)
        except Exception as error:  # noqa: BLE001 - an invalid payload must not stop the others
            troubles[row] = f"not in Java's wire format: {error}"
            return {}
        calls: list[Any] = decoded if _are_calls(decoded) else [decoded]
        if isinstance(calls[0], Call):
            found: dict[str, Any] = {str(call.name): call.value for call in calls}
            found[METHOD] = str(calls[0].name)
            found[ARGUMENTS] = _json(list(calls[0].args)) if ARGUMENTS in self._wanted else None
            return found
        if isinstance(decoded, Fields):
            return decoded
        if self._fields:
            troubles[row] = (
                f"the message has neither fields nor a call, only a value: {_short(decoded)}"
            )
        return {}


def _are_calls(decoded: object) -> bool:
    return is_list(decoded) and bool(decoded) and all(isinstance(one, Call) for one in decoded)


def _column(name: str, values: list[Any], kind: pa.DataType, troubles: dict[int, str]) -> pa.Array:
    try:
        return pa.array([_fit(value, kind) for value in values], kind)
    except _MISFITS:
        kept: list[Any] = []
        for row, value in enumerate(values):
            try:
                fitted = _fit(value, kind)
                pa.scalar(fitted, kind)
                kept.append(fitted)
            except _MISFITS as error:
                kept.append(None)
                troubles.setdefault(row, f"{name} is {_short(value)}, which does not fit: {error}")
        return pa.array(kept, kind)


def _fit(value: Any, kind: pa.DataType) -> Any:
    """Return a decoded value in the form that Arrow accepts for a type."""
    if isinstance(value, Typed):
        return _fit(value.value, kind)
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return _struct(value, kind)
    if pa.types.is_list(kind):
        elements: list[Any] = value if is_list(value) else [value]
        return [_fit(element, kind.value_type) for element in elements]
    if pa.types.is_map(kind) and is_dict(value):
        return [(_text(key), _fit(each, kind.item_type)) for key, each in value.items()]
    if pa.types.is_integer(kind) and isinstance(value, float):
        return _whole(value)
    if pa.types.is_string(kind) and not isinstance(value, str):
        return _json(value)
    return value


def _whole(value: float) -> int:
    """Return the integer that Java wrote as a float; the largest long is written as a float one larger."""
    if not value.is_integer():
        raise ValueError("it is not an integer")
    return _LONG_MAX if value == _LONG_MAX + 1 else int(value)


def _struct(value: Any, kind: pa.StructType) -> dict[str, Any]:
    names: list[str] = [kind.field(number).name for number in range(kind.num_fields)]
    if is_dict(value):
        members = value
    else:
        elements: list[Any] = value if is_list(value) else [value]
        if len(elements) > len(names):
            raise ValueError(f"{len(elements)} arguments for {len(names)} fields")
        members = dict(zip(names, elements, strict=False))
    return {name: _fit(members.get(name), kind.field(name).type) for name in names}


def _text(key: object) -> str:
    return key if isinstance(key, str) else _json(key)


def _json(value: object) -> str:
    return msgspec.json.encode(_plain(value), enc_hook=str).decode()


def _plain(value: Any) -> Any:
    """Return a value without its Java types."""
    if isinstance(value, Typed):
        return _plain(value.value)
    if is_dict(value):
        return {_text(key): _plain(each) for key, each in value.items()}
    if is_list(value):
        return [_plain(each) for each in value]
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
