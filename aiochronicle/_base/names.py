"""Checks names of readers and topics by the engine's rule, before the engine is called."""

import re

from aiochronicle._base.arguments import expect
from aiochronicle.errors import InvalidName

__all__ = ["check_name", "is_name"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_name(name: str) -> bool:
    """Return whether this is a legal name of a reader or topic."""
    return _NAME.fullmatch(name) is not None


def check_name(what: str, name: str) -> None:
    """Raise InvalidName unless this is a legal name of a reader or topic; ``what`` names the argument."""
    if not is_name(expect(what, "a str", str, name)):
        raise InvalidName(f"{what}: a name must match {_NAME.pattern}")
