"""The methods of the C types have signatures: ``help``, editors and ``inspect.signature`` work."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import aiochronicle
from aiochronicle import _hot

STUB = Path(aiochronicle.__file__).parent / "_hot.pyi"
IMPLICIT = {"self", "cls"}

Parameters = list[tuple[str, int, bool]]


def c_types() -> dict[str, type]:
    found = {name: one for name, one in vars(_hot).items() if isinstance(one, type)}
    return {name: one for name, one in found.items() if one.__module__ == "aiochronicle._hot"}


def methods(of: type) -> dict[str, Any]:
    kinds = "method_descriptor", "classmethod_descriptor"
    return {name: getattr(of, name) for name, m in vars(of).items() if type(m).__name__ in kinds}


def runtime_parameters(method: Any) -> Parameters:
    parameters = inspect.signature(method).parameters.values()
    given = [p for p in parameters if p.name not in IMPLICIT]
    return [(p.name, int(p.kind), p.default is not p.empty) for p in given]


def stub_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Parameters:
    kinds, arguments = inspect.Parameter, function.args
    placed: list[tuple[str, int]] = [
        (one.arg, kinds.POSITIONAL_ONLY) for one in arguments.posonlyargs
    ]
    placed += [(one.arg, kinds.POSITIONAL_OR_KEYWORD) for one in arguments.args]
    required = len(placed) - len(arguments.defaults)
    found: Parameters = [(name, kind, at >= required) for at, (name, kind) in enumerate(placed)]
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append((one.arg, kinds.KEYWORD_ONLY, default is not None))
    return [one for one in found if one[0] not in IMPLICIT]


def stub_methods() -> dict[tuple[str, str], Parameters]:
    found: dict[tuple[str, str], Parameters] = {}
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[node.name, member.name] = stub_parameters(member)
    return found


@pytest.mark.parametrize("name", sorted(c_types()))
def test_methods_have_a_docstring_and_a_signature(name: str) -> None:
    for method_name, method in methods(c_types()[name]).items():
        assert method.__doc__, method_name
        inspect.signature(method)  # raises if the method has no signature


def test_signatures_are_those_of_the_stub() -> None:
    stub = stub_methods()
    compared = 0
    for type_name, of in c_types().items():
        for name, method in methods(of).items():
            if (type_name, name) in stub:
                assert runtime_parameters(method) == stub[type_name, name], f"{type_name}.{name}"
                compared += 1
    assert compared > 40


def test_properties_have_a_docstring() -> None:
    for of in c_types().values():
        for name, member in vars(of).items():
            if inspect.isgetsetdescriptor(member) and not name.startswith("_"):
                assert member.__doc__, f"{of.__name__}.{name}"


def test_a_writers_append_shows_its_parameters() -> None:
    shown = str(inspect.signature(aiochronicle.Writer.append))
    assert (
        shown
        == "(self, /, payload, *, type_id=0, timestamp_ns=None, cause=None, key=None, headers=None)"
    )
