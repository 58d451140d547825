"""The codes of Java's BinaryWire: the first byte of every name and value.

``00``–``7F`` are the numbers 0 to 127 (only older versions write them), ``C0``–``DF`` names and
``E0``–``FF`` texts of 0 to 31 bytes. All numbers are little-endian. Lengths of names and texts are stop-bit
numbers, see `_text`.
"""

LENGTH_8 = 0x80  # a block of values or of names and values: its length in bytes, then these
LENGTH_16 = 0x81
LENGTH_32 = 0x82
HISTORY = 0x86
U8_ARRAY = 0x8A  # up to the end of its block
I64_ARRAY = 0x8D  # capacity, used, values
PADDING_32 = 0x8E
PADDING = 0x8F
FLOAT_32 = 0x90
FLOAT_64 = 0x91
FLOAT_STOP_2 = 0x92  # a stop-bit number of hundredths …
FLOAT_STOP_4 = 0x94
FLOAT_STOP_6 = 0x96
UUID = 0xA0
UINT_8 = 0xA1
UINT_16 = 0xA2
UINT_32 = 0xA3
INT_8 = 0xA4
INT_16 = 0xA5
INT_32 = 0xA6
INT_64 = 0xA7
SET_LOW_INT_8 = 0xA8
SET_LOW_INT_16 = 0xA9
INT_64_HEX = 0xAF
FALSE = 0xB0
TRUE = 0xB1
TIME = 0xB2
DATE = 0xB3
DATE_TIME = 0xB4
ZONED_DATE_TIME = 0xB5
TYPE_PREFIX = 0xB6
FIELD_NAME = 0xB7
TEXT = 0xB8
EVENT_NAME = 0xB9
FIELD_NUMBER = 0xBA
NULL = 0xBB
TYPE_LITERAL = 0xBC
EVENT_OBJECT = 0xBD  # a key that is not text
COMMENT = 0xBE
FIELD_NAME_0 = 0xC0
TEXT_0 = 0xE0

SHORT_LENGTHS = 0x20
"""The code of shorter names and texts contains their length."""

HISTORY_ID = -1
"""The event "history" has this number instead of a name."""


def is_name(code: int) -> bool:
    """Return whether a name begins here, followed by a value."""
    return FIELD_NAME_0 <= code < TEXT_0 or code in _LONG_NAMES


_LONG_NAMES = frozenset((FIELD_NAME, EVENT_NAME, FIELD_NUMBER, EVENT_OBJECT))
