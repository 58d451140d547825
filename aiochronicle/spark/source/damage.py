"""Queues with a damaged control block, which cannot be opened: an error, or left out and logged.

It is unknown whether their messages could be read, and how many there are; so they are an error unless the
user asked for whatever can be read under a root, with on_corrupt=skip.
"""

import logging
import os
from collections.abc import Mapping, Sequence

from aiochronicle.errors import ChronicleError, CorruptionError, NotAQueue
from aiochronicle.spark.options import ReadOptions
from aiochronicle.spark.source.bad_records import BadRecords, keep
from aiochronicle.spark.source.queues import Source, patience

__all__ = ["openable"]

_log = logging.getLogger(__name__)


def openable(
    sources: Mapping[str, Source],
    options: ReadOptions,
    *,
    failed: dict[str, ChronicleError] | None = None,
) -> dict[str, Source]:
    """Return the queues that can be opened; CorruptionError or NotAQueue for another.

    The error goes into ``failed`` if that is given. With on_corrupt=skip the queue is left out, as its
    damaged days are, unless it was requested by its own name or path.
    """
    good: dict[str, Source] = {}
    patient_until = patience()
    for name, source in sources.items():
        try:
            source.check(patient_until)
            good[name] = source
            _tell(source, options, source.damaged_days())
        except (CorruptionError, NotAQueue) as error:
            if failed is not None:
                failed[name] = error
            elif options.skip_corrupt and not _is_asked_for(source, options):
                _tell(source, options, [error])
            else:
                raise
    return good


def _is_asked_for(source: Source, options: ReadOptions) -> bool:
    paths = map(os.path.realpath, options.paths)
    return source.name in (options.subscribe or ()) or os.path.realpath(source.place) in paths


def _tell(source: Source, options: ReadOptions, causes: Sequence[ChronicleError]) -> None:
    """Log what is left out, and record it as messages of unknown seqs."""
    for cause in causes:
        _log.warning("left out of %s: %s: %s", source.name, cause.path, cause.detail)
    if causes and options.bad_records_path is not None:
        notes = [BadRecords.between(source.name, source.place, 0, 0, cause) for cause in causes]
        keep(options.bad_records_path, "unopened", notes)
