"""Text from outside (names of files, contents of files) in the log and in error texts.

A name may hold newlines, which forge lines of a log, escapes, which a terminal obeys, marks that
turn the direction of writing, and bytes that are no UTF-8, which many a log file refuses.
"""

__all__ = ["printable"]


def printable(text: object) -> str:
    r"""Return the text (of a path, an error, anything) on one line that is safe to print.

    What cannot be printed is escaped as in a Python string. What was escaped before stays as it is.

    >>> print(printable("ticks\n2026 root: all is well\x1b[2J"))
    ticks\n2026 root: all is well\x1b[2J
    >>> printable("/data/zürich")
    '/data/zürich'
    """
    text = str(text)
    if text.isprintable():  # nearly always
        return text
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if not character.isprintable():
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character
