"""Records of the corrupt messages that tasks have skipped: their number, seqs, place and cause.

    BAD_RECORDS_PATH/QUEUE-FIRST-END.json       of one task, a line of JSON for each stretch
    BAD_RECORDS_PATH/QUEUE-unopened.json        of what no task was given, since it cannot be opened

A repeated task replaces its notes, so each finding of a query is there once; Spark reads the directory
as JSON.
"""

import os
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from aiochronicle._base.locations import local_path
from aiochronicle._base.prepared import prepared
from aiochronicle._files import read_small_file
from aiochronicle.errors import ChronicleError, ExportFailed, StorageError
from aiochronicle.spark.private_files import replacing

__all__ = ["BadRecords", "bad_records", "keep"]

FILE_BYTES_MAX = 256 << 20


@prepared
class BadRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a queue, from ``first_seq`` to before ``end_seq``, that could not be read.

    ``file`` and ``offset`` are the place of the first of them, as far as known. If the two seqs are equal,
    the messages are unknown: a queue, or a day of an archive, could not be opened.
    """

    source: str
    first_seq: int
    end_seq: int
    file: str
    offset: int
    reason: str

    @property
    def place(self) -> str:
        """The place of the first of them."""
        return self.file if self.offset == 0 else f"{self.file} at offset {self.offset}"

    @classmethod
    def between(
        cls, source: str, place: str, first: int, end: int, cause: ChronicleError | None
    ) -> "BadRecords":
        """Return the note about messages that are missing for this reason, if it is known."""
        return cls(
            source=source,
            first_seq=first,
            end_seq=end,
            file=place if cause is None or cause.path is None else cause.path,
            offset=0 if cause is None or cause.offset is None else cause.offset,
            reason="could not be read" if cause is None else cause.detail,
        )


def bad_records(directory: str | os.PathLike[str]) -> list[BadRecords]:
    """Read the notes from the directory of option badRecordsPath, in order.

    StorageError for a file that does not contain notes, which others may have put there.

    >>> bad_records(tmp_path)
    []
    """
    decoder = msgspec.json.Decoder(BadRecords)
    files = Path(local_path(os.fspath(directory))).glob("*.json")
    notes: list[BadRecords] = []
    for file in files:
        try:
            notes += decoder.decode_lines(read_small_file(str(file), FILE_BYTES_MAX) or b"")
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            advice = "Remove it, if it should not be there."
            raise StorageError(f"not notes: {error}", path=str(file), advice=advice) from error
    return sorted(notes, key=lambda note: (note.source, note.first_seq))


def keep(directory: str, task: str, notes: Sequence[BadRecords]) -> None:
    """Write the notes of a task, replacing those it has taken before; ExportFailed if that fails."""
    target = Path(directory)
    name = f"{urllib.parse.quote(notes[0].source, safe='')}-{task}.json"
    try:
        target.mkdir(parents=True, exist_ok=True)
        with replacing(target / name) as file:
            file.write(msgspec.json.Encoder().encode_lines(notes))
    except OSError as error:
        raise ExportFailed(
            f"cannot note which messages are corrupt: {error.strerror}",
            path=directory,
            errno=error.errno,
        ) from error
