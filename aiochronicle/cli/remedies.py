"""What ``doctor`` finds, with remedies."""

from typing import Literal

import msgspec

__all__ = ["Finding", "Level"]

Level = Literal["error", "warning", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding. ``check`` is a stable word for programs."""

    level: Level
    check: str
    subject: str
    detail: str
    remedy: str
