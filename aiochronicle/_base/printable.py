"""Text from outside (names of files, contents of files) in the log and in error texts.

A name may hold newlines, which forge lines of a log, escapes, which a terminal obeys, marks that
turn the direction of writing, and bytes that are no UTF-8, which many a log file refuses.
"""

__all__ = ["printable", "utf8_name"]


def printable(text: object) -> str:
    r"""Return the text (of a path, an error, anything) on one line that is safe to print.

    What cannot be printed is escaped as in a Python string, and bytes of a name that are no UTF-8 as a
    shell takes them: ``\xff``. What was escaped before stays as it is.

    >>> print(printable("ticks\n2026 root: all is well\x1b[2J"))
    ticks\n2026 root: all is well\x1b[2J
    >>> printable("/data/zürich")
    '/data/zürich'
    """
    text = str(text)
    if text.isprintable():  # nearly always
        return text
    return "".join(map(_escape, text))


def utf8_name(name: str) -> str:
    r"""Return the name of a file as text that every encoder takes: bytes that are no UTF-8 are escaped.

    >>> print(utf8_name("caf\udce9"))
    caf\xe9
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    if not character.isprintable():
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character
