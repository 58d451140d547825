"""Returns fixed-length messages as numpy arrays over the mapped segments, without copying.

Records of one length follow each other at equal distances, so those of a segment are an array with a stride.
The segment's index shows that all records have the same length, so this costs the same for ten messages as
for a million. Payloads are not read, and therefore not checked.
"""

from typing import TYPE_CHECKING, Any

from aiochronicle import _hot
from aiochronicle._base.arguments import wrong_type
from aiochronicle._base.binding import check, ffi, lib, new_error
from aiochronicle._columns.columns import handle_of
from aiochronicle.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy

__all__ = ["arrays"]


def arrays(reader: _hot.Reader, part: Any, layout: Any) -> "list[numpy.ndarray[Any, Any]]":
    """Return a range as one array per segment, each keeping its segment mapped."""
    np = _numpy()
    rest = ffi.new("ac_range_t *", part[0])
    dtype = _dtype(np, layout)
    found: list[numpy.ndarray[Any, Any]] = []
    type_id = None
    while (stretch := _next_stretch(reader, rest)) is not None:
        where = f"in segment {len(found)} of the slice"
        if stretch.length != dtype.itemsize:
            raise InvalidArgument(
                f"messages {where} are {stretch.length} bytes long, but the layout has"
                f" {dtype.itemsize} bytes",
                path=reader.source,
            )
        if type_id not in (None, stretch.type_id):
            raise InvalidArgument(
                f"messages {where} have type_id {stretch.type_id}, but those before it have {type_id}:"
                " take a slice with one type",
                path=reader.source,
            )
        type_id = stretch.type_id
        array: numpy.ndarray[Any, Any] = np.ndarray(
            stretch.count, dtype, buffer=_memory(stretch), strides=(stretch.stride,)
        )
        found.append(array)
    return found


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ImportError(
            'to_numpy needs numpy: pip install "aiochronicle[arrow]"', name="numpy"
        ) from error
    return numpy


def _dtype(np: Any, layout: Any) -> Any:
    """Return the layout as a dtype; numpy itself would turn a class into object, and None into float."""
    given = getattr(layout, "dtype", layout)
    try:
        dtype = None if given is None else np.dtype(given)
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or dtype.hasobject:
        raise wrong_type("layout", 'a numpy dtype or a Codec of the format "struct"', layout)
    return dtype


def _next_stretch(reader: _hot.Reader, rest: Any) -> Any:
    stretch = ffi.new("ac_stretch_t *")
    error = new_error()
    more = check(lib.ac_reader_stretch(handle_of(reader), rest, stretch, error), error)
    return ffi.gc(stretch, lib.ac_stretch_release) if more else None


def _memory(stretch: Any) -> memoryview:
    """Return the bytes from the first payload to the last; they keep the stretch alive."""

    def keep_alive(_: object) -> object:
        return stretch

    length = (stretch.count - 1) * stretch.stride + stretch.length
    start = ffi.gc(ffi.cast("uint8_t *", stretch.payload), keep_alive)
    return memoryview(ffi.buffer(start, length)).toreadonly()
