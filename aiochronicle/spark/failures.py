"""Collects errors of single queues until the work on the others is done."""

from collections.abc import Generator
from contextlib import contextmanager

import msgspec

from aiochronicle import errors
from aiochronicle._base.prepared import prepared
from aiochronicle.errors import ChronicleError, StorageError

__all__ = ["Failures", "decode_error", "encode_error", "failure", "noting"]

Failures = dict[str, ChronicleError]  # by the name of the queue


@contextmanager
def noting(failed: Failures, name: str) -> Generator[None]:
    """Record the error of a queue."""
    try:
        yield
    except ChronicleError as error:
        failed[name] = error
    except OSError as error:
        what = error.strerror or str(error)
        failed[name] = StorageError(what, path=error.filename, errno=error.errno)


def failure(failed: Failures) -> ChronicleError:
    """Return one error for all of these queues."""
    if len(failed) == 1:
        return next(iter(failed.values()))
    each = " ".join(f"{name}: {error}" for name, error in sorted(failed.items()))
    return ChronicleError(f"{len(failed)} queues failed. {each}")


@prepared
class _Encoded(msgspec.Struct, frozen=True):
    """An error on its way from a task to the driver. Texts are bytes: a path need not be UTF-8."""

    kind: str
    text: bytes
    texts: dict[str, bytes]
    numbers: dict[str, int | None]


def encode_error(error: ChronicleError) -> bytes:
    """Return an error as bytes: its type, its text, and those attributes that are texts or numbers."""
    attributes = {**error.__dict__, "errno": error.errno}
    return msgspec.msgpack.encode(
        _Encoded(
            kind=type(error).__name__,
            text=_to_bytes(str(error)),
            texts={
                name: _to_bytes(one) for name, one in attributes.items() if isinstance(one, str)
            },
            numbers={
                name: one for name, one in attributes.items() if one is None or isinstance(one, int)
            },
        )
    )


def decode_error(content: bytes) -> ChronicleError:
    """Return the error that was encoded; one of an unknown type is a ChronicleError."""
    encoded = msgspec.msgpack.decode(content, type=_Encoded)
    kind = getattr(errors, encoded.kind, None) if encoded.kind in errors.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, ChronicleError)):
        kind = ChronicleError
    error = kind.__new__(kind)
    error.args = (_to_text(encoded.text),)
    for name, text in encoded.texts.items():
        setattr(error, name, _to_text(text))
    for name, number in encoded.numbers.items():
        setattr(error, name, number)
    return error


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _to_text(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")
