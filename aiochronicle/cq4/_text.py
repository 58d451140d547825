"""Encodes and decodes texts, names and stop-bit numbers.

Java's strings are UTF-16, and it writes each half of a surrogate pair as three bytes (CESU-8). Names have
one byte per character (Latin-1). A stop-bit number has seven bits per byte, lowest bits first, and the top
bit set in all bytes except the last. If the last byte is 0, the other bytes have the complement of a
negative number.
"""

import re

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


def encode_cesu8(text: str) -> bytes:
    """Encode a text as Java does.

    >>> encode_cesu8("é😀").hex(" ")
    'c3 a9 ed a0 bd ed b8 80'
    """
    if _ASTRAL.search(text):
        text = _ASTRAL.sub(_surrogates, text)
    return text.encode("utf-8", "surrogatepass")


def _surrogates(found: re.Match[str]) -> str:
    above = ord(found[0]) - 0x10000
    return chr(0xD800 + (above >> 10)) + chr(0xDC00 + (above & 0x3FF))


def decode_cesu8(encoded: bytes) -> str:
    """Decode CESU-8, plain UTF-8 (of other writers), or ``C0 80`` as NUL; UnicodeDecodeError if invalid.

    >>> decode_cesu8(bytes.fromhex("c3a9eda0bdedb880"))
    'é😀'
    """
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        halves = encoded.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    return halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def encode_stop_bit(number: int) -> bytes:
    """Encode a stop-bit number.

    >>> [encode_stop_bit(number).hex() for number in (5, 300, -1, -150)]
    ['05', 'ac02', '8000', '958100']
    """
    left = ~number if number < 0 else number
    encoded = bytearray()
    while left > 0x7F or (number < 0 and (left or not encoded)):
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)
