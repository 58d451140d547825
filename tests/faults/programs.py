"""Build the C programs of csrc/tests that Python drives; the Makefile compiles them with the engine."""

import os
import subprocess
from functools import cache
from pathlib import Path

__all__ = ["program"]

_ROOT = Path(__file__).parents[2]

# Do not share the job server of an outer make, and do not preload a sanitizer into the compiler.
_NOT_INHERITED = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "LD_PRELOAD")


@cache
def program(name: str) -> Path:
    """Return the path of ``csrc/tests/NAME.c``, compiled and up to date."""
    target = Path("build/ctest/plain/tests") / name
    environment = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    subprocess.run(["make", "-s", str(target)], cwd=_ROOT, env=environment, check=True)
    return _ROOT / target
