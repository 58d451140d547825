"""``why-kept`` and ``retention``: what keeps old segments, and which rules remove them."""

from aiochronicle.cli.arguments import Json, QueuePath

__all__ = ["retention", "why_kept"]


def why_kept(queue: QueuePath, /, *, json: Json = False) -> None:
    """Say."""


def retention(queue: QueuePath, /, *, json: Json = False) -> None:
    """Say."""
