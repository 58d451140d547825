"""The Python interpreter that Spark starts, and what it imports."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from aiochronicle.spark.arrow import Batch, pa
from aiochronicle.spark.runtime.interpreter import (
    ARRAY_MAX_BYTES,
    KEPT_BYTES,
    KEPT_MS,
    VARIABLE,
    chosen_interpreter,
)
from aiochronicle.spark.runtime.wrapper_scripts import _of_this_process

INSTALLED = Path(pyspark.__file__).parent
ARCHIVE = INSTALLED / "python" / "lib" / "pyspark.zip"


@pytest.fixture(autouse=True)
def nothing_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a process that has not started Spark yet."""
    monkeypatch.setenv(VARIABLE, "")  # so that it is restored even if unset
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user's cache"))


def asked(code: str, python_path: str) -> list[str]:
    """Run code with the chosen interpreter; return the printed lines."""
    done = subprocess.run(
        [os.environ[VARIABLE], "-c", code],
        env={**os.environ, "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_pyspark_is_taken_from_where_it_is_compiled() -> None:
    code = "import sys, pyspark; print(sys.executable); print(pyspark.__file__)"
    spark_path = f"{ARCHIVE}:{ARCHIVE.parent}/py4j.zip"
    with chosen_interpreter(is_local=True):
        told = asked(code, f"{spark_path}:{spark_path}")
    assert told == [sys.executable, str(INSTALLED / "__init__.py")]
    assert os.environ[VARIABLE] == sys.executable


@pytest.mark.parametrize("given", ["{a}", "{a}:{a}", "{a}:/x y:{a}:/z", "/x y:{a}", "/x y:/z", ""])
def test_the_rest_of_the_path_stays_as_it_is(given: str) -> None:
    code = "import os; print(os.environ['PYTHONPATH'])"
    expected = ":".join(entry for entry in given.split(":") if entry != "{a}")
    with chosen_interpreter(is_local=True):
        assert asked(code, given.format(a=ARCHIVE)) == [expected]


@pytest.mark.parametrize(
    ("variable", "ours"),
    [
        ("MIMALLOC_PURGE_DELAY", KEPT_MS),
        ("MALLOC_TRIM_THRESHOLD_", KEPT_BYTES),
        ("MALLOC_MMAP_THRESHOLD_", ARRAY_MAX_BYTES),
    ],
)
def test_memory_is_kept_unless_told_otherwise(
    variable: str, ours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import os; print(os.environ['{variable}'])"
    monkeypatch.delenv(variable, raising=False)
    with chosen_interpreter(is_local=True):
        assert asked(code, "") == [str(ours)]
        monkeypatch.setenv(variable, "65536")
        assert asked(code, "") == ["65536"]


def test_arrays_get_the_pages_of_those_before_them() -> None:
    code = """
import resource
import numpy as np
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use(count):
    for _ in range(count):
        arrays = [np.ones(1 << 18) for _ in range(12)]
use(2)
before = faults()
use(10)
print(faults() - before)
"""
    with chosen_interpreter(is_local=True):
        (count,) = asked(code, "")
    assert int(count) < 6144  # the number of pages in the arrays of one round


def test_other_machines_get_the_name_of_the_interpreter() -> None:
    with chosen_interpreter(is_local=True):
        assert os.environ[VARIABLE] != sys.executable
    with chosen_interpreter(is_local=False):
        assert os.environ[VARIABLE] == sys.executable


def test_whoever_names_a_python_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/opt/python3")
    with chosen_interpreter(is_local=True):
        assert os.environ[VARIABLE] == "/opt/python3"


def test_without_a_cache_the_script_is_in_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "user's cache").write_text("not a directory")
    with chosen_interpreter(is_local=True):
        assert os.environ[VARIABLE] != sys.executable
        assert asked("print('runs')", "") == ["runs"]


def test_without_a_place_for_the_script_it_is_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user's cache").write_text("not a directory")
    _of_this_process.cache_clear()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "user's cache"))
    with chosen_interpreter(is_local=True):
        assert os.environ[VARIABLE] == sys.executable


def test_tasks_import_no_archive(spark: SparkSession) -> None:
    def where(batches: Iterator[Batch]) -> Iterator[Batch]:
        for _ in batches:
            yield pa.record_batch({"file": [sys.modules["pyspark"].__file__]})

    (row,) = spark.range(1).mapInArrow(where, "file string").collect()
    assert row.file == str(INSTALLED / "__init__.py")
