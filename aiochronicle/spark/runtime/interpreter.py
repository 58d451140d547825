"""The Python that Spark starts on this machine.

Spark puts its own Python sources in front of the path, as archives, and one of its Java archives, in which
there is no Python. Python keeps no compiled code for an archive, so each process that Spark starts compiles
all of it again: most of a second for every stream, and for each step of planning in the first query. And
each worker reads what is in them again: a twentieth of a second for the thousands of files of the Java one.
The same sources lie, compiled, where PySpark is installed. A script in place of the interpreter leaves the
archives out, so that Python finds these sources.

It also starts the workers that plan queries from our daemon; Spark's own setting applies to tasks only. And
it forks streams, for which Spark has no daemon.
"""

import contextlib
import importlib.util
import os
import shlex
import site
import sys
import zlib
from collections.abc import Generator
from pathlib import Path

import pyspark

from aiochronicle.spark.runtime import forkclient
from aiochronicle.spark.runtime.wrapper_scripts import wrapper_script

__all__ = ["DAEMON", "chosen_interpreter"]

VARIABLE = "PYSPARK_PYTHON"
OURS = "spark-python-"
DAEMON = "aiochronicle.spark.runtime.daemon"

# How long Arrow keeps free memory: as long as a worker waits for work, instead of a second, so that the
# pages stay in place between the batches of a stream. And how much of it the C library keeps, which has
# numpy's arrays: otherwise it would request and return them for each batch, page by page, which took a
# quarter of a task's time (bars had eleven page faults per thousand trades, and now have one).
KEPT_MS = 60_000
KEPT_BYTES = 64 << 20
ARRAY_MAX_BYTES = 32 << 20  # the C library takes no more than this

# They may occur more than once; other entries stay.
SCRIPT = """#!/bin/sh
home={home}
kept=
set -f
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
    "$home"/*) ;;
    *) kept=$kept:$entry ;;
    esac
done
unset IFS
export PYTHONPATH="${{kept#:}}"
export MIMALLOC_PURGE_DELAY="${{MIMALLOC_PURGE_DELAY-{kept_ms}}}"
export MALLOC_TRIM_THRESHOLD_="${{MALLOC_TRIM_THRESHOLD_-{kept_bytes}}}"
export MALLOC_MMAP_THRESHOLD_="${{MALLOC_MMAP_THRESHOLD_-{array_max_bytes}}}"
case "$1 $2" in
"-m pyspark.daemon")
    shift 2
    set -- -m {daemon} "$@"
    ;;
"-m {stream}")
    set -- -I -S {client}
    ;;
esac
exec {python} "$@"
"""


@contextlib.contextmanager
def chosen_interpreter(*, is_local: bool) -> Generator[None]:
    """Make a Spark that starts in this block use the Python that is running.

    Unless $PYSPARK_PYTHON names another; afterwards it does name one.
    """
    named = os.environ.setdefault(VARIABLE, sys.executable)
    # Other machines do not have the script.
    if is_local and named == sys.executable:
        os.environ[VARIABLE] = str(_without_archives() or named)
    try:
        yield
    finally:
        os.environ[VARIABLE] = named


def _without_archives() -> Path | None:
    """Return the script; None if it cannot be written, or PySpark is not in a standard place."""
    home = Path(pyspark.__file__).parent
    if not all(map(_is_installed, ("pyspark", "py4j"))):
        return None
    python = shlex.quote(sys.executable)
    script = SCRIPT.format(
        home=shlex.quote(str(home)),
        daemon=DAEMON,
        stream=forkclient.MODULE,
        client=shlex.quote(forkclient.__file__),
        python=python,
        kept_ms=KEPT_MS,
        kept_bytes=KEPT_BYTES,
        array_max_bytes=ARRAY_MAX_BYTES,
    )
    # Other sessions may use another Python, and a session starts processes during its whole life.
    name = f"{OURS}{zlib.crc32(script.encode()):08x}"
    # Without a place for it, starting is slower, but works.
    with contextlib.suppress(OSError):
        path = wrapper_script(name, script)
        if os.access(path, os.X_OK):  # which it is not on a disk without programs
            return path
    return None


def _is_installed(package: str) -> bool:
    found = importlib.util.find_spec(package)
    return (
        found is not None and str(Path(found.origin or "").parent.parent) in site.getsitepackages()
    )
