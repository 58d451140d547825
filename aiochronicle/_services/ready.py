"""Reads READY, the file that announces a queue."""

from typing import Annotated, Any

import msgspec

from aiochronicle._base.prepared import prepared
from aiochronicle._files import parse_json, read_small_file
from aiochronicle._layout import READY

__all__ = ["READY_BYTES_MAX", "Ready", "load_ready", "parse_ready"]

SUPPORTED_VERSION = 1
READY_BYTES_MAX = 65536
VERSION_MAX = 10**9


@prepared
class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a READY file; ``extra`` holds all other keys."""

    version: Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)]
    pid: int | None = None
    created_at: str | None = None
    extra: dict[str, Any] = {}


def parse_ready(content: bytes) -> Ready:
    """Parse a READY file: JSON, or ``version=N`` on the first line; otherwise ValueError."""
    text = content.decode("utf-8")
    first = text.strip().splitlines()[0] if text.strip() else ""
    if first.startswith("version="):
        number = first.removeprefix("version=").strip()
        if not number.isascii() or not number.isdigit() or len(number) >= len(str(VERSION_MAX)):
            raise ValueError("the version is not a number, or is too large")
        return Ready(version=int(number))
    try:
        fields: dict[str, Any] = parse_json(content, dict[str, Any])
    except ValueError as error:
        raise ValueError(f"neither JSON nor version=N: {error}") from error
    names = ("version", "pid", "created_at")
    known: dict[str, Any] = {name: fields.pop(name) for name in names if name in fields}
    try:
        return msgspec.convert({**known, "extra": fields}, Ready)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def load_ready(directory: int) -> Ready | None:
    """Read the READY file of a directory; None if there is none, ValueError if it cannot be used."""
    content = read_small_file(READY, READY_BYTES_MAX, directory=directory)
    if content is None:
        return None
    try:
        ready = parse_ready(content)
    except ValueError as error:
        raise ValueError(f"READY cannot be read: {error}") from error
    if ready.version > SUPPORTED_VERSION:
        raise ValueError(
            f"READY has version {ready.version}, but this program knows {SUPPORTED_VERSION}"
        )
    return ready
