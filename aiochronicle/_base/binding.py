"""Calls the engine: encodes paths, checks results, and turns error records into exceptions."""

import os
from typing import Any

from aiochronicle import _hot, errors
from aiochronicle._base import arguments
from aiochronicle._base.engine_errors import from_engine
from aiochronicle._engine import ffi, lib

__all__ = ["check", "encode_path", "exception", "ffi", "lib", "new_error"]

_hot.set_error_factory(from_engine)
_hot.set_refusals(arguments.wrong_value, arguments.wrong_type)


def new_error() -> Any:
    """Return an empty error record for the engine to fill."""
    return ffi.new("ac_error_t *")


def exception(error: Any) -> errors.ChronicleError:
    """Return the exception for a filled error record."""
    return from_engine(
        error.code,
        error.sys_errno,
        ffi.string(error.path),
        error.offset,
        ffi.string(error.detail),
        (error.wanted_segment, error.wanted_offset),
        (error.first_segment, error.first_offset),
        error.seq,
        (error.holder_pid, ffi.string(error.holder_command), error.holder_since_ns),
    )


def check(result: int, error: Any) -> int:
    """Return the result of an engine call, or raise the exception for its error record."""
    if result >= 0:
        return result
    raise exception(error)


def encode_path(path: str | os.PathLike[str]) -> bytes:
    """Return a path as bytes for the engine."""
    return os.fsencode(arguments.pathname("path", path))
