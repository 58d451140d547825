"""What goes wrong with one queue, kept until the work on the others is done."""

from collections.abc import Generator
from contextlib import contextmanager

from aiochronicle.errors import ChronicleError, StorageError

__all__ = ["Failures", "failure", "noting"]

Failures = dict[str, ChronicleError]  # by the name of the queue


@contextmanager
def noting(failed: Failures, name: str) -> Generator[None]:
    """Keep what is wrong with a queue."""
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
