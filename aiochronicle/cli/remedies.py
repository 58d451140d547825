"""What ``doctor`` finds: something to look at, with its remedy."""

from typing import Literal

import msgspec

__all__ = ["Finding", "Level"]

Level = Literal["error", "warning", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something to look at. ``check`` is a word that stays the same, for programs."""

    level: Level
    check: str
    subject: str
    detail: str
    remedy: str
