"""The columns of messages, and their names.

============== =========================== ====================================================
column         Arrow type
============== =========================== ====================================================
source         utf8                        name of the queue
seq            int64
timestamp_ns   int64                       the exact time
timestamp      timestamp[us, UTC]          the same in microseconds, for windows and for display
type_id        int32
payload        binary                      read and checked only if requested
late           bool                        on request; always false, because one queue has no late messages
cause          struct<queue_id, seq>       on request; null for messages without a cause. Both are
                                           int64: ids of 2**63 and more appear as negative
key            binary                      on request; null for messages without a key
headers        map<utf8, binary>           on request; empty for messages without headers
============== =========================== ====================================================
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from aiochronicle import _hot
from aiochronicle._base.arguments import expect_several
from aiochronicle._base.binding import ffi
from aiochronicle.errors import InvalidArgument

__all__ = [
    "BATCH_ROWS",
    "COLUMNS",
    "MAY_BE_FIELDS",
    "ON_REQUEST",
    "PAYLOAD_BYTES_MAX",
    "check_columns",
    "handle_of",
    "require_arrow",
    "without_shadowed",
]

COLUMNS = ("source", "seq", "timestamp_ns", "timestamp", "type_id", "payload")
ON_REQUEST = ("late", "cause", "key", "headers")

PAYLOAD_BYTES_MAX = 2**31 - 1  # Arrow's binary type has 32-bit offsets
BATCH_ROWS = 8192

MAY_BE_FIELDS = (
    "key",
    "headers",
)  # users' types had fields of these names before the columns existed


def require_arrow() -> None:
    """Raise ImportError, with the command that installs it, if pyarrow is missing."""
    try:
        import pyarrow as pyarrow
    except ImportError as error:
        raise ImportError(
            'Arrow columns need pyarrow: pip install "aiochronicle[arrow]"', name="pyarrow"
        ) from error


def check_columns(
    columns: Sequence[str] | None,
    usual: Sequence[str] = COLUMNS,
    on_request: Sequence[str] = ON_REQUEST,
) -> tuple[str, ...]:
    """Return the names of the requested columns; InvalidArgument lists those that exist."""
    if columns is None:
        return tuple(usual)
    expect_several("columns", "a list of names", columns)
    known = (*usual, *on_request)
    names = tuple(columns)
    unknown = [name for name in names if name not in known]
    if unknown or not names or len(set(names)) != len(names):
        wrong = f"there is no column {unknown[0]!r}" if unknown else f"columns are {list(names)!r}"
        raise InvalidArgument(f"{wrong}: give one or more, each once, of {', '.join(known)}")
    return names


def without_shadowed(columns: Iterable[str], fields: Collection[str]) -> tuple[str, ...]:
    """Return the columns without ``key`` and ``headers`` if a field of the type has that name.

    Any other clash of names is resolved by renaming the field.
    """
    return tuple(name for name in columns if name not in MAY_BE_FIELDS or name not in fields)


def handle_of(reader: _hot.Reader) -> Any:
    """Return the engine's handle of a reader."""
    return ffi.cast("ac_reader_t *", reader._address)
