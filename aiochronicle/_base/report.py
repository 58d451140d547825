"""Shows statistics and other results with named values as tables in notebooks.

Untrusted text (names of queues and readers, error texts) is escaped. Colours are those of the notebook, light
or dark.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import msgspec

from aiochronicle._base.position import Position
from aiochronicle._base.printable import printable

__all__ = ["HtmlList", "HtmlStruct", "table", "titled"]

T = TypeVar("T")

_CELL = "text-align:left;vertical-align:top;padding:0.15em 1em 0.15em 0;background:transparent"
_NUMBER = (
    "text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;"
    + _CELL.partition(";")[2]
)
_PLAIN = {
    "epoch",
    "queue_id",
    "id",
    "writer_epoch",
    "segment",
    "offset",
    "pid",
    "user",
    "monotonic_ns",
}
_ROWS_MAX = 100
_ITEMS_MAX = 10  # a repr cuts a longer list ...
_ITEMS_SHOWN = 3  # ... to its first items


class HtmlStruct(msgspec.Struct, frozen=True):
    """A struct that a notebook shows as a table, and whose repr shortens long lists."""

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}={_short(getattr(self, name))}" for name in self.__struct_fields__
        )
        return f"{type(self).__name__}({fields})"

    def _repr_html_(self) -> str:
        names = self.__struct_fields__
        return titled(type(self).__name__, table((name, getattr(self, name)) for name in names))


class HtmlList(list[T]):
    """A list of structs of one type, shown as a table with a row for each."""

    def __repr__(self) -> str:
        return _short(self)

    def _repr_html_(self) -> str:
        headings: tuple[str, ...] = getattr(self[0], "__struct_fields__", ()) if self else ()
        return table([[getattr(one, name) for name in headings] for one in self], headings)


def _short(value: Any) -> str:
    """Return the repr of a value, short enough for a screen."""
    if not isinstance(value, tuple | list | dict):
        return repr(value)
    whole = cast("Sequence[Any] | dict[Any, Any]", value)
    if len(whole) <= _ITEMS_MAX:
        return f"[{', '.join(map(repr, whole))}]" if isinstance(whole, list) else repr(whole)
    more = f"… {len(whole) - _ITEMS_SHOWN:,} more"
    if isinstance(whole, dict):
        pairs = list(whole.items())[:_ITEMS_SHOWN]
        return "{" + ", ".join([*(f"{key!r}: {one!r}" for key, one in pairs), more]) + "}"
    opening, closing = "()" if isinstance(whole, tuple) else "[]"
    return opening + ", ".join([*map(repr, whole[:_ITEMS_SHOWN]), more]) + closing


def titled(title: str, *parts: str) -> str:
    """Return HTML with parts, which are HTML, under a title, which is text."""
    return f"<div><strong>{_text(title)}</strong>{''.join(parts)}</div>"


def table(rows: Iterable[Sequence[Any]], headings: Sequence[str] = ()) -> str:
    """Return an HTML table. The first value of a row is its heading."""
    listed = list(rows)
    head = "".join(f'<th style="{_CELL};font-weight:600">{_text(name)}</th>' for name in headings)
    body = "".join(_row(row, headings) for row in listed[:_ROWS_MAX])
    if len(listed) > _ROWS_MAX:
        body += f'<tr><td style="{_CELL}">… and {len(listed) - _ROWS_MAX:,} more</td></tr>'
    return (
        '<table style="border-collapse:collapse;color:inherit">'
        f"{f'<thead><tr>{head}</tr></thead>' if headings else ''}<tbody>{body}</tbody></table>"
    )


def _row(row: Sequence[Any], headings: Sequence[str]) -> str:
    first, *values = row
    names = headings[1:] or [first]
    cells = "".join(_cell(str(name), value) for name, value in zip(names, values, strict=True))
    return f'<tr><th style="{_CELL};font-weight:normal">{_text(first)}</th>{cells}</tr>'


def _cell(name: str, value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f'<td style="{_NUMBER if is_number else _CELL}">{_show_value(name, value)}</td>'


def _show_value(name: str, value: Any) -> str:
    """Return the HTML of a value, in the unit that its name ends with."""
    match value:
        case None | "":
            return "–"
        case bool():
            return "yes" if value else "no"
        case msgspec.Struct():
            fields = value.__struct_fields__
            return table((field, getattr(value, field)) for field in fields)
        case int():
            return _integer(name, value)
        case float():
            return f"{value:,.3f}"
        case Position():
            return f"segment {value.segment}, offset {value.offset:,}"
        case _:
            return _several(value)


def _several(value: Any) -> str:
    if isinstance(value, dict):
        pairs = cast("Mapping[Any, Any]", value).items()
        return table((_key(key), one) for key, one in pairs) if value else "–"
    if isinstance(value, tuple | list):
        values = cast("Sequence[Any]", value)[:_ROWS_MAX]
        return "<br>".join(_show_value("", one) for one in values) or "–"
    return _text(value)


def _integer(name: str, value: int) -> str:
    if name.rpartition(".")[2] in _PLAIN:
        return str(value)
    if name.endswith("_ns") and value:
        return _text(_time(value))
    if name.endswith(("bytes", "segment_size", "disk")) and value >= 1 << 10:
        return f"{value:,} ({_size(value)})"
    return f"{value:,}"


def _time(nanoseconds: int) -> str:
    try:
        whole = datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC)
    except (OverflowError, ValueError):
        return str(nanoseconds)
    return f"{whole:%Y-%m-%d %H:%M:%S}.{nanoseconds % 1_000_000_000:09d}Z"


def _size(count: int) -> str:
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _key(key: Any) -> str:
    return " ".join(map(str, cast("Sequence[Any]", key))) if isinstance(key, tuple) else str(key)


def _text(value: object) -> str:
    from html import escape  # here, because it takes a millisecond and only notebooks need it

    return escape(printable(value))
