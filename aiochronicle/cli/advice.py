"""Advice about errors for operators: the texts of exceptions advise programmers."""

import re
from contextlib import suppress
from pathlib import Path

from aiochronicle import errors
from aiochronicle._base.engine_errors import (
    GRANT_ADVICE,
    JAVA_LOCK_ADVICE,
    POSITIONS_ADVICE,
    READ_ONLY_ADVICE,
    READABLE_ADVICE,
    TAILER_ADVICE,
)
from aiochronicle._base.printable import printable
from aiochronicle._layout import SEGMENT, SHARED
from aiochronicle.errors import CONTROL_ADVICE, ChronicleError

__all__ = ["in_commands", "is_gap", "text_for_operators"]

# In place of the general advice of a class.
_ADVICE: dict[type[ChronicleError], str] = {
    errors.BackupNotFound: "Check the path; aioc backup --list DIR lists the backups in it.",
    errors.CorruptionError: (
        "Nothing was changed. aioc verify QUEUE counts the damage, aioc repair QUEUE --backup DIR replaces it"
        " from a backup; tail, cat, export and convert read on with --skip-corrupt."
    ),
    errors.DiskFull: "Free some space; aioc du shows what takes it.",
    errors.LockedError: (
        "A queue has one writer at a time; aioc who QUEUE names it. End it, or wait for it: append and dead"
        " retry take --lock-timeout."
    ),
    errors.NotAQueue: "Give the directory of a queue; aioc ls DIRECTORY lists the queues in it.",
    errors.NotDurable: "Before you append it again, look whether it is there: aioc tail QUEUE.",
    errors.PositionCorrupt: "aioc repair QUEUE sets it aside; the reader is then a new one.",
    errors.PositionLost: (
        "Retention has removed it meanwhile: run the command again, which begins with the oldest message."
    ),
    errors.QueueFull: "Wait until its readers have read more, or raise the capacity.",
    errors.QueueGone: "Run the command again.",
    errors.ReaderNotFound: "aioc readers QUEUE lists its readers.",
    errors.SalvageRequired: (
        "Nothing was changed. aioc repair QUEUE --backup DIR replaces what is missing; with --salvage it sets"
        " aside what follows."
    ),
    errors.SchemaError: "aioc repair QUEUE --backup DIR replaces it from a backup.",
    errors.SchemaNotFound: "Programs that write typed messages write it.",
    errors.TimestampUnknown: "Give --timestamp a field that all messages have, or leave it out.",
    errors.TooManyReaders: "aioc readers forget QUEUE READER removes names that are no longer used.",
}

_READ_ONLY_IS_ENOUGH = "ls, info, tail, cat and export only read"

# In place of advice, or of other words to programmers, that fits the path or errno.
_WORDS = {
    f"{errors.NotAQueue.advice} If it is a queue: ": "If this is a queue: ",
    CONTROL_ADVICE: (
        "Nothing was changed, and the messages are in the segments. aioc repair QUEUE recreates control.meta,"
        " with the id of the queue if it is given --backup DIR."
    ),
    JAVA_LOCK_ADVICE: (
        "Nothing was appended. Writers of a Java queue normally hold its lock for microseconds: check that"
        " process; --lock-timeout sets how long an append waits."
    ),
    TAILER_ADVICE: (
        "Nothing was changed. Writers of a Java queue normally hold its lock for microseconds: check that"
        " process, then run the command again."
    ),
    READ_ONLY_ADVICE: f"The file system is mounted read-only; {_READ_ONLY_IS_ENOUGH}.",
    POSITIONS_ADVICE: f"Run aioc as its owner, or as root; {_READ_ONLY_IS_ENOUGH}.",
    READABLE_ADVICE: (
        f"It is readable but not writable: run aioc as its owner, or as root; {_READ_ONLY_IS_ENOUGH}."
    ),
    GRANT_ADVICE: "Run aioc as its owner, or as root, or let the owner grant access with chmod.",
    "; use a larger segment_size": ", and a queue keeps the segment size that it was created with",
    "; choose another name, or close that one": ". End that process, or use --force",
    'open with recover="salvage"': "use aioc repair --salvage",
    "open it, go to the first message and commit": "aioc readers seek QUEUE READER first",
}


_BOTH = re.compile(r"with \w+(?:=\S*)? \((aioc [^)]*)\)")

_GAP = (
    "A segment between others is missing. aioc verify QUEUE counts what is lost, aioc repair QUEUE --backup"
    " DIR takes it from a backup; tail, cat, export and convert read on with --skip-corrupt."
)


_TOPIC = (
    "{path}: is a topic with many writers, each with a queue of its own. Name one of its queues: aioc ls"
    " {path} lists them. aioc readers {path} lists their readers."
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
    if isinstance(error, errors.NotAQueue) and error.path is not None:
        place = Path(error.path)
        if (place / SHARED).exists():
            return _TOPIC.format(path=printable(place))
        if "not a directory" in error.detail and place.is_file():
            return f"{printable(place)}: is a file. Give the directory of a queue."
    text, general = str(error), type(error).advice
    advice = _GAP if is_gap(error) else _ADVICE.get(type(error))
    if advice is not None and general and text.endswith(general):
        text = text.removesuffix(general) + advice
    return in_commands(text)


def in_commands(text: str) -> str:
    """Return a text with commands where it names parameters as well, or advises programmers.

    >>> in_commands("or back it up with verify_all (aioc backup --verify-all)")
    'or back it up with aioc backup --verify-all'
    """
    for words, others in _WORDS.items():
        text = text.replace(words, others)
    return _BOTH.sub(r"with \1", text)
