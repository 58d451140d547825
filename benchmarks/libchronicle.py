"""The part of libchronicle, a C library for the files of Chronicle Queue, that the comparison needs.

No package registry has it. To include it, get github.com/TeaEngineering/libchronicle, build a shared library
from the C files of its folder ``native`` (with optimisation, which its own Makefile leaves out), and name
it:

    AIOCHRONICLE_BENCH_LIBCHRONICLE=/path/to/libchronicle.so make bench

It is called in cffi's ABI mode, in the fastest way that its functions allow: ``append`` with its
encoder for text, which ends at the first zero, and ``collect``, which polls without a pause until
there is a message. Its other way, a callback for all available messages, takes longer.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from cffi import FFI

__all__ = ["LIBRARY_VARIABLE", "appender", "collector", "create_queue", "library_path", "silenced"]

LIBRARY_VARIABLE = "AIOCHRONICLE_BENCH_LIBCHRONICLE"

_DECLARATIONS = """
    typedef struct { char *payload; size_t payload_bytes; uint64_t index; } collected_t;

    void *chronicle_init(const char *directory);
    void chronicle_set_version(void *queue, int version);
    int chronicle_set_roll_scheme(void *queue, const char *name);
    void chronicle_set_create(void *queue, int create);
    int chronicle_open(void *queue);
    int chronicle_cleanup(void *queue);
    const char *chronicle_strerror(void);

    uint64_t chronicle_append(void *queue, const char *text);
    void *chronicle_tailer(void *queue, void *dispatcher, void *context, uint64_t index);
    char *chronicle_collect(void *tailer, collected_t *collected);

    void free(void *);
    int fflush(void *);
"""


def library_path() -> str:
    """Return the path of the named library; empty if none was named."""
    return os.environ.get(LIBRARY_VARIABLE, "")


def create_queue(directory: Path) -> None:
    """Make an empty queue that rolls daily."""
    directory.mkdir()
    with _opened(directory, create=True):
        pass


@contextmanager
def appender(directory: Path) -> Iterator[Callable[[bytes], object]]:
    """Return the function that appends a payload, which must not contain a zero."""
    with _opened(directory) as (_, library, queue):
        yield partial(library.chronicle_append, queue)


@contextmanager
def collector(directory: Path) -> Iterator[Callable[[int], bytes]]:
    """Return the function that takes this many messages, from the first on, and returns the last.

    The function does not return before it has them all, and cannot be interrupted.
    """
    with _opened(directory) as (ffi, library, queue):
        tailer = library.chronicle_tailer(queue, ffi.NULL, ffi.NULL, 0)
        collected: Any = ffi.new("collected_t *")
        collect, unpack, free = library.chronicle_collect, ffi.unpack, ffi.dlopen(None).free

        def take(count: int) -> bytes:
            payload = b""
            for _ in repeat(None, count):
                text = collect(tailer, collected)
                payload = unpack(text, collected.payload_bytes)
                free(text)
            return payload

        yield take


@contextmanager
def silenced() -> Iterator[None]:
    """Discard the library's output, and Python's output during it."""
    ffi = _declared()
    standard_output = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        yield
    finally:
        ffi.dlopen(None).fflush(ffi.NULL)
        os.dup2(standard_output, 1)
        os.close(standard_output)


def _declared() -> Any:
    ffi = FFI()
    ffi.cdef(_DECLARATIONS)
    return ffi


@contextmanager
def _opened(directory: Path, create: bool = False) -> Iterator[tuple[Any, Any, Any]]:
    ffi = _declared()
    library = ffi.dlopen(library_path())
    queue = library.chronicle_init(os.fsencode(directory))
    if create:
        library.chronicle_set_create(queue, 1)
        library.chronicle_set_version(queue, 5)
        library.chronicle_set_roll_scheme(queue, b"FAST_DAILY")
    if library.chronicle_open(queue) != 0:
        raise RuntimeError(ffi.string(library.chronicle_strerror()).decode())
    try:
        yield ffi, library, queue
    finally:
        library.chronicle_cleanup(queue)
