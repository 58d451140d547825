"""The examples in docstrings run and give the shown results."""

import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

import aiochronicle


def modules() -> Iterator[ModuleType]:
    """Yield the modules that need only the core dependencies."""
    yield aiochronicle
    for found in pkgutil.iter_modules(aiochronicle.__path__, "aiochronicle."):
        name = found.name.rpartition(".")[2]
        if not found.ispkg and name != "__main__":
            yield importlib.import_module(found.name)
        elif found.ispkg and (name.startswith("_") or name == "testing"):
            package = importlib.import_module(found.name)
            for inner in pkgutil.iter_modules(package.__path__, f"{found.name}."):
                yield importlib.import_module(inner.name)


def docstring_examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for module in modules() for test in finder.find(module) if test.examples]
    return sorted(found, key=lambda test: test.name)


def run(test: doctest.DocTest, names: dict[str, object]) -> None:
    report: list[str] = []
    test.globs.update(names)
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert result.failed == 0, "".join(report)


@pytest.mark.parametrize("test", docstring_examples(), ids=lambda test: test.name)
def test_docstring(test: doctest.DocTest, namespace: dict[str, object]) -> None:
    run(test, namespace)


def test_a_wrong_example_is_noticed() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    with pytest.raises(AssertionError, match="Expected"):
        run(wrong, {})


def test_examples_of_all_sub_packages_are_found() -> None:
    names = {test.name for test in docstring_examples()}
    assert {
        "aiochronicle._core.stream.Stream.conflate",
        "aiochronicle._core.writer_sending.SendingWriter.send",
        "aiochronicle._services.bus.Bus",
        "aiochronicle._maintenance.backups.backup",
    } <= names
