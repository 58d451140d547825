"""`import aiochronicle` is fast and imports no optional package."""

import math
import subprocess
import sys

import pytest

ATTEMPTS = 60  # on a busy machine, even the fastest of a few is slow
OPTIONAL = ["pyarrow", "numpy", "polars", "duckdb", "pandas", "pyspark", "matplotlib"]

TIMED = """
import sys, time
sys.dont_write_bytecode = False
import asyncio
started = time.process_time_ns()
import aiochronicle
print(time.process_time_ns() - started)
"""
TIMED_ASYNCIO = """
import time
started = time.process_time_ns()
import asyncio
print(time.process_time_ns() - started)
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_costs_less_than_that_of_asyncio() -> None:
    run(TIMED)  # creates the bytecode
    ours = yardstick = math.inf
    for attempt in range(ATTEMPTS):
        ours, yardstick = min(ours, int(run(TIMED))), min(yardstick, int(run(TIMED_ASYNCIO)))
        if attempt >= 4 and ours < yardstick:
            return
    pytest.fail(f"{ours / 1e6:.1f} ms, {yardstick / 1e6:.1f} ms for asyncio")


def test_import_leaves_optional_dependencies_alone() -> None:
    imported = run("import sys, aiochronicle; print(*sys.modules)").split()
    assert not set(OPTIONAL) & set(imported)
