"""Advice about errors for operators: the texts of exceptions advise programmers."""

from contextlib import suppress
from pathlib import Path

from aiochronicle import errors
from aiochronicle._layout import SEGMENT
from aiochronicle.errors import ChronicleError

__all__ = ["is_gap", "text_for_operators"]

_ADVICE: dict[type[ChronicleError], str] = {
    errors.CorruptionError: (
        "Nothing was changed. aioc verify QUEUE counts the damage, aioc repair QUEUE --backup DIR replaces it"
        " from a backup; tail, cat, export and convert read on with --skip-corrupt."
    ),
    errors.DiskFull: "Free some space; aioc du shows what takes it.",
    errors.LockedError: (
        "A queue has one writer at a time; aioc who QUEUE names it. End it, or wait for it: append and dead"
        " retry take --lock-timeout."
    ),
    errors.NotAQueue: "aioc ls DIRECTORY lists the queues in it.",
    errors.PositionCorrupt: "aioc repair QUEUE sets it aside; the reader is then a new one.",
    errors.PositionLost: (
        "Retention has removed it meanwhile: run the command again, which begins with the oldest message."
    ),
    errors.QueueFull: "Wait until its readers have read more, or raise the capacity.",
    errors.ReaderNotFound: "aioc readers QUEUE lists its readers.",
    errors.TooManyReaders: "aioc readers forget QUEUE READER removes names that are no longer used.",
}


_GAP = (
    "A segment between others is missing. aioc verify QUEUE counts what is lost, aioc repair QUEUE --backup"
    " DIR takes it from a backup; tail, cat, export and convert read on with --skip-corrupt."
)


def is_gap(error: BaseException) -> bool:
    """Return whether reading ended at a segment that is missing between others: never due to retention."""
    if not isinstance(error, errors.PositionLost) or error.path is None:
        return False
    with suppress(OSError):
        for file in Path(error.path).iterdir():
            found = SEGMENT.fullmatch(file.name)
            if found is not None and int(found[1]) < error.wanted.segment:
                return True
    return False


def text_for_operators(error: ChronicleError) -> str:
    """Return the text of an error, with commands instead of the general advice for programs.

    Advice specific to one error stays.

    >>> text_for_operators(errors.ReaderNotFound("has no reader 'risk'", path="trades"))
    "trades: has no reader 'risk'. aioc readers QUEUE lists its readers."
    """
    text, general = str(error), type(error).advice
    advice = _GAP if is_gap(error) else _ADVICE.get(type(error))
    if advice is None or not general or not text.endswith(general):
        return text
    return text.removesuffix(general) + advice
