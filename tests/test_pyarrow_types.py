"""typings/pyarrow, which type checkers rely on, matches the real pyarrow."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

TYPINGS = Path(__file__).parent.parent / "typings" / "pyarrow"
MODULES = ("lib", "types", "compute", "ipc", "parquet")

Described = ast.FunctionDef | ast.ClassDef


def described(body: list[ast.stmt], place: str) -> Iterator[tuple[str, Described]]:
    for node in body:
        if isinstance(node, Described) and not (
            node.name.startswith("_") and not node.name.endswith("__")
        ):
            yield f"{place}.{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from described(node.body, f"{place}.{node.name}")


def is_property(node: Described) -> bool:
    return any(isinstance(by, ast.Name) and by.id == "property" for by in node.decorator_list)


def misfits(function: Any, node: ast.FunctionDef) -> Iterator[str]:
    """Yield the differences between the described parameters and the real ones."""
    there = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    names = [one.name for one in there]
    given = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    given = [name for name in given if name not in ("self", "cls")]
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in there)  # or C has no signature
    if not takes_any and given != names[: len(given)]:
        yield f"{given} are described, and there are {names}"
    for keyword in node.args.kwonlyargs:
        if not takes_any and keyword.arg not in names:
            yield f"there is no {keyword.arg}"
    mentioned = {*given, *(one.arg for one in node.args.kwonlyargs)}
    for one in there:
        is_named = one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        if is_named and one.default is one.empty and one.name not in mentioned:
            yield f"{one.name} must be given"


@pytest.mark.parametrize("module", MODULES)
def test_what_is_described_is_there(module: str) -> None:
    body = ast.parse((TYPINGS / f"{module}.pyi").read_text(encoding="utf-8")).body
    wrong: list[str] = []
    for place, node in described(body, module):
        found: Any = importlib.import_module(f"pyarrow.{module}")
        for name in place.split(".")[1:]:
            found = getattr(found, name, None)
        if place.endswith(".__buffer__"):  # not visible in Python 3.11
            memoryview(pa.py_buffer(b"content"))
        elif found is None:
            wrong.append(f"{place} is not there")
        elif isinstance(node, ast.ClassDef):
            wrong += [] if inspect.isclass(found) else [f"{place} is no class"]
        elif is_property(node):
            wrong += [f"{place} is a method"] if inspect.isroutine(found) else []
        elif not (node.name.startswith("__") and node.name != "__init__"):
            wrong += [f"{place}: {what}" for what in misfits(found, node)]
    assert wrong == []


def test_classes_are_as_described() -> None:
    assert isinstance(pa.array([True], pa.bool_()), pa.BooleanArray)
    assert isinstance(pa.repeat(False, 2), pa.BooleanArray)
    assert isinstance(pa.allocate_buffer(8, resizable=True), pa.ResizableBuffer)
    assert not isinstance(pa.allocate_buffer(8), pa.ResizableBuffer)
    assert issubclass(pa.MapArray, pa.ListArray)
    kinds = [pa.list_(pa.int64()), pa.struct([]), pa.map_(pa.utf8(), pa.utf8())]
    assert [type(kind) for kind in kinds] == [pa.ListType, pa.StructType, pa.MapType]
    columns = [pa.nulls(1, kind) for kind in kinds]
    assert [type(column) for column in columns] == [pa.ListArray, pa.StructArray, pa.MapArray]
