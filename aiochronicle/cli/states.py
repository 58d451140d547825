"""States of writers in one word, and their colours."""

from aiochronicle._core.writer_info import WriterInfo

__all__ = ["STYLES", "state_of"]

STYLES = {"open": "green", "stopped": "red", "silent": "yellow", "died": "red"}


def state_of(writer: WriterInfo) -> str:
    """Return the state of a writer; an open one may be "stopped", or "silent" without a sign of life."""
    if writer.stopped:
        return "stopped"
    return writer.state if writer.silent_s is None else "silent"
