"""A driver of the archive job that dies around the commit of a table."""

import sys
from collections.abc import Callable
from typing import Any

import aiochronicle.spark.jobs  # noqa: F401 - makes it known
from aiochronicle.spark.archive.tables import commit_tables

__all__ = ["JOB", "killed", "killed_when_fresh"]

JOB = sys.modules["aiochronicle.spark.jobs.archive"]  # the package has a function of this name


def killed(*_: object, **__: object) -> None:
    """Die."""
    raise KeyboardInterrupt


def killed_when_fresh() -> Callable[..., None]:
    """Return a commit function that completes an earlier driver's commit and dies before its own."""
    calls: list[None] = []

    def commit(*given: Any, **named: Any) -> None:
        calls.append(None)
        if len(calls) > 1:
            raise KeyboardInterrupt
        commit_tables(*given, **named)

    return commit
