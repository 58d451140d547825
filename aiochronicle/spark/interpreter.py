"""The Python that Spark starts on this machine.

Spark puts its own Python sources in front of the path, as an archive. Python keeps no compiled code for
an archive, so each process that Spark starts compiles all of it again: most of a second for every
stream, and for each step of planning in the first query. The same sources lie, compiled, where PySpark
is installed. A script in place of the interpreter leaves the archive out, and they are found there.

It also has those who plan queries start from our daemon; Spark's setting for that is for tasks only.
"""

import contextlib
import os
import shlex
import site
import sys
import zlib
from collections.abc import Generator
from pathlib import Path

import pyspark

from aiochronicle.spark.standins import stand_in

__all__ = ["DAEMON", "chosen_interpreter"]

VARIABLE = "PYSPARK_PYTHON"
OURS = "spark-python-"
DAEMON = "aiochronicle.spark.daemon"

# The archive may be there more than once, and other entries are none of our business.
SCRIPT = """#!/bin/sh
archive={archive}
path=:$PYTHONPATH:
while [ "$path" != "${{path#*":$archive:"}}" ]; do
    path=${{path%%":$archive:"*}}:${{path#*":$archive:"}}
done
path=${{path#:}}
export PYTHONPATH="${{path%:}}"
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -m {daemon} "$@"
fi
exec {python} "$@"
"""


@contextlib.contextmanager
def chosen_interpreter(*, is_local: bool) -> Generator[None]:
    """Have the Spark that starts meanwhile use the Python that is running.

    Unless $PYSPARK_PYTHON names another; afterwards it does name one.
    """
    named = os.environ.setdefault(VARIABLE, sys.executable)
    # Other machines have no such script.
    if is_local and named == sys.executable:
        os.environ[VARIABLE] = str(_without_archive() or named)
    try:
        yield
    finally:
        os.environ[VARIABLE] = named


def _without_archive() -> Path | None:
    """Return the script; None if there can be none, or PySpark is not where any Python looks for it."""
    home = Path(pyspark.__file__).parent
    if str(home.parent) not in site.getsitepackages():
        return None
    archive = home / "python" / "lib" / "pyspark.zip"
    python = shlex.quote(sys.executable)
    script = SCRIPT.format(archive=shlex.quote(str(archive)), daemon=DAEMON, python=python)
    # Others may run with another Python, and processes are started for as long as a session lives.
    name = f"{OURS}{zlib.crc32(script.encode()):08x}"
    # If that is read-only, full, or there is no home, things are slower, and no worse.
    with contextlib.suppress(OSError, RuntimeError):
        path = stand_in(name, script)
        if os.access(path, os.X_OK):  # which it is not on a disk without programs
            return path
    return None
