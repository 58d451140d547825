"""Escapes untrusted text (file names, file contents) for logs and error texts.

A name may contain newlines, which forge log lines, escape sequences, which a terminal obeys, marks that
change the direction of writing, and bytes that are not UTF-8, which many log files refuse.
"""

__all__ = ["printable", "utf8_name"]


def printable(text: object) -> str:
    r"""Return the text of any object on one line that is safe to print.

    Unprintable characters are escaped as in a Python string, and bytes of a name that are not UTF-8 as in a
    shell: ``\xff``. Escapes that are already in the text stay as they are.

    >>> print(printable("ticks\n2026 root: all is well\x1b[2J"))
    ticks\n2026 root: all is well\x1b[2J
    >>> printable("/data/zürich")
    '/data/zürich'
    """
    text = str(text)
    if text.isprintable():  # the usual case
        return text
    return "".join(map(_escape, text))


def utf8_name(name: str) -> str:
    r"""Return a file name as text that can be encoded: bytes that are not UTF-8 are escaped.

    >>> print(utf8_name("caf\udce9"))
    caf\xe9
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    if not character.isprintable():
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character
