"""`import aiochronicle` is quick, and brings nothing along that was not asked for."""

import subprocess
import sys

ATTEMPTS = 9
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
    run(TIMED)  # so that bytecode is there
    taken = [(int(run(TIMED)), int(run(TIMED_ASYNCIO))) for _ in range(ATTEMPTS)]
    ours, yardstick = (min(times) for times in zip(*taken, strict=True))
    assert ours < yardstick, f"{ours / 1e6:.1f} ms, {yardstick / 1e6:.1f} ms for asyncio"


def test_import_leaves_optional_dependencies_alone() -> None:
    imported = run("import sys, aiochronicle; print(*sys.modules)").split()
    assert not set(OPTIONAL) & set(imported)
