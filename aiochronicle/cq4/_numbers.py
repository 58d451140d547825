"""Encodes numbers in the smallest form, by Java's rules.

The form of a number depends on its Java type: 70000 is an INT_32 as a long, and a FLOAT_32 as a double. Java
reads every form into every type.
"""

import math
import struct
from collections.abc import Callable

from aiochronicle.errors import EncodeError

from . import _codes as code
from ._text import encode_stop_bit

_I64_MAX = (1 << 63) - 1

_Forms = tuple[tuple[int, int, str, int], ...]  # lowest, highest, struct format, code

_INTEGERS: _Forms = (
    (0, 0xFF, "<BB", code.UINT_8),
    (0, 0x7FFF, "<Bh", code.INT_16),
    (0, 0xFFFF, "<BH", code.UINT_16),
    (0, 0x7FFFFFFF, "<Bi", code.INT_32),
    (0, 0xFFFFFFFF, "<BI", code.UINT_32),
    (-0x80, -1, "<Bb", code.INT_8),
    (-0x8000, -1, "<Bh", code.INT_16),
    (-0x80000000, -1, "<Bi", code.INT_32),
)
_SHORT_WHOLES: _Forms = (
    (0, 0xFF, "<BB", code.UINT_8),
    (0, 0xFFFF, "<BH", code.UINT_16),
    (-0x80, -1, "<Bb", code.INT_8),
    (-0x8000, -1, "<Bh", code.INT_16),
)
_LONG_WHOLES: _Forms = (
    (0, 0xFFFFFFFF, "<BI", code.UINT_32),
    (-0x80000000, -1, "<Bi", code.INT_32),
)
_DECIMALS = (
    (code.FLOAT_STOP_2, 10_000, 1e2),
    (code.FLOAT_STOP_4, 100, 1e4),
    (code.FLOAT_STOP_6, 1, 1e6),
)
_NAN = struct.pack("<BI", code.FLOAT_32, 0x7FC00000)


def encode_integer(value: int) -> bytes:
    """Encode a long. The largest long becomes the float 2^63, which Java reads as the largest long again.

    >>> [encode_integer(number).hex() for number in (5, 300, -1, 1 << 40, (1 << 63) - 1)]
    ['a105', 'a52c01', 'a4ff', '9000008053', '900000005f']
    """
    found = _pack(value, _INTEGERS)
    if found is not None:
        return found
    if not ~_I64_MAX <= value <= _I64_MAX:
        raise EncodeError(f"{value} does not fit into 64 bits")
    single = _nearest_single(float(value))
    if int(single) == value or value == _I64_MAX:
        return struct.pack("<Bf", code.FLOAT_32, single)
    return struct.pack("<Bq", code.INT_64, value)


def encode_double(value: float) -> bytes:
    """Encode a double.

    >>> [encode_double(number).hex() for number in (1.0, 1.5, 70000.0, 1e-9)]
    ['a101', '929601', '9000b88847', '9195d626e80b2e113e']
    """
    if math.isnan(value):
        return _NAN
    if _is_whole(value):
        found = _pack(int(value), _SHORT_WHOLES)
        if found is None and _nearest_single(value) != value:
            found = _pack(int(value), _LONG_WHOLES)
    else:
        found = _decimal(value, float, -(1 << 35), 1 << 42)
    if found is not None:
        return found
    if _nearest_single(value) == value:
        return struct.pack("<Bf", code.FLOAT_32, value)
    return struct.pack("<Bd", code.FLOAT_64, value)


def encode_single(value: float) -> bytes:
    """Encode a float.

    >>> [encode_single(number).hex() for number in (1.0, 1.5, 2.5)]
    ['a101', '929601', '9000002040']
    """
    if math.isnan(value):
        return _NAN
    single = _nearest_single(value)
    if math.isinf(single) and not math.isinf(value):
        raise EncodeError(f"{float(value)!r} does not fit into 32 bits")
    if _is_whole(single):
        found = _pack(int(single), _SHORT_WHOLES)
    else:
        found = _decimal(single, _nearest_single, -(1 << 14), 1 << 21)
    return struct.pack("<Bf", code.FLOAT_32, single) if found is None else found


def _pack(value: int, forms: _Forms) -> bytes | None:
    for low, high, form, number in forms:
        if low <= value <= high:
            return struct.pack(form, number, value)
    return None


def _is_whole(value: float) -> bool:
    return abs(value) <= 1 << 63 and value.is_integer()


def _nearest_single(value: float) -> float:
    """Return the nearest 32-bit float, which may be infinite."""
    try:
        nearest: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return nearest


def _decimal(value: float, rounded: Callable[[float], float], low: int, high: int) -> bytes | None:
    """Encode as hundredths, ten thousandths or millionths, if that is exact and within limits, or None.

    ``rounded`` rounds to the precision of Java's calculation.
    """
    scaled = value * 1e6
    if not low - 1 < scaled < high:
        return None
    below = math.floor(scaled)
    millionths = below + (scaled - below >= 0.5)
    if rounded(millionths / 1e6) != value or not low < millionths < high:
        return None
    for number, step, unit in _DECIMALS:
        shorter = abs(millionths) // step * (1 if millionths >= 0 else -1)
        if rounded(shorter / unit) == value:
            return bytes([number]) + encode_stop_bit(shorter)
    return None
