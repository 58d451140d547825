"""The examples in docstrings of aiochronicle.cq4 run; importing aiochronicle does not import cq4."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import msgspec
import pytest

import aiochronicle.cq4


def docstring_examples() -> list[doctest.DocTest]:
    names = [found.name for found in pkgutil.iter_modules(aiochronicle.cq4.__path__)]
    modules = [importlib.import_module(f"aiochronicle.cq4.{name}") for name in names]
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for module in (aiochronicle.cq4, *modules) for test in finder.find(module)]
    return sorted((test for test in found if test.examples), key=lambda test: test.name)


@pytest.mark.parametrize("test", docstring_examples(), ids=lambda test: test.name)
def test_docstring(test: doctest.DocTest) -> None:
    report: list[str] = []
    public = {name: getattr(aiochronicle.cq4, name) for name in aiochronicle.cq4.__all__}
    test.globs.update(public, msgspec=msgspec)
    result = doctest.DocTestRunner().run(test, out=report.append)
    assert result.failed == 0, "".join(report)


def test_there_are_examples() -> None:
    documented = {test.name.rpartition(".")[2] for test in docstring_examples()}
    assert {"decode", "encode", "encode_call", "decode_as", "MethodReader"} <= documented


def test_importing_aiochronicle_does_not_import_it() -> None:
    program = "import sys, aiochronicle; sys.exit('aiochronicle.cq4' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
