"""How errors travel from tasks to the driver."""

import pytest

from aiochronicle.errors import (
    ChronicleError,
    CorruptionError,
    PositionLost,
    QueueNotFound,
    StorageError,
)
from aiochronicle.spark.failures import decode_error, encode_error

ERRORS: list[ChronicleError] = [
    ChronicleError("several queues failed"),
    StorageError("no space left", path="/data/q", errno=28),
    CorruptionError("checksum", path="/data/\udcff", offset=4096),
    QueueNotFound("no such directory", path="gone"),
    PositionLost("removed", path="q"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_it_was(error: ChronicleError) -> None:
    found = decode_error(encode_error(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert (found.detail, found.path, found.offset, found.errno) == (
        error.detail,
        error.path,
        error.offset,
        error.errno,
    )


def test_an_error_of_an_unknown_type_is_still_an_error() -> None:
    class Ours(ChronicleError):
        pass

    found = decode_error(encode_error(Ours("of a plug-in", path="q")))
    assert type(found) is ChronicleError
    assert str(found) == "q: of a plug-in"
