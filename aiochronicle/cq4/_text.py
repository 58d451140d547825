"""Texts, names and stop-bit numbers.

Java counts text in UTF-16 and writes each half of a surrogate pair as three bytes (CESU-8). Names have
one byte per character (Latin-1). A stop-bit number has seven bits per byte, the lowest first, and the
top bit set in all bytes but the last; a last byte of 0 means that the complement was written.
"""

import re

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


def encode_cesu8(text: str) -> bytes:
    """
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
    """Raises UnicodeDecodeError. Plain UTF-8, which other writers use, is read too, and ``C0 80`` as NUL.

    >>> decode_cesu8(bytes.fromhex("c3a9eda0bdedb880"))
    'é😀'
    """
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        halves = encoded.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    return halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def encode_stop_bit(number: int) -> bytes:
    """
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
