"""An extension of griffe: what the API reference shows beyond the sources.

Docstrings of the C types; examples and trees as blocks of code; public parameters only, and none of classes
that programs do not call; the parameters of an ``aopen`` function, which are those of its ``open`` function.
"""

import re
from collections.abc import Iterator
from typing import Any

import griffe

import aiochronicle

EXAMPLE = re.compile(r"((?:^[ ]*(?:>>>|\.\.\.).*\n(?:^[ ]*(?!>>>)\S.*\n)*)+)", re.MULTILINE)

TREE = re.compile(r"^[^\n]+\n(?:[├│└ ].*\n)+", re.MULTILINE)
GUIDE = re.compile(r"docs/(guide/[\w-]+)\.md")
NOT_CALLED = re.compile(r"\b(?:Created|Returned|Made) by\b")
PARAMETERS_OF = re.compile(r"with_parameters_of\((\w+)\)")


def to_markdown(text: str) -> str:
    """Make blocks of code of examples and trees, and links of the names of pages."""
    text = EXAMPLE.sub(r"\n```pycon\n\1```\n", text + "\n")
    if "├──" in text:
        text = TREE.sub(r"```text\n\g<0>```\n", text, count=1)
    return GUIDE.sub(r"[\g<0>](../../\1.md)", text).rstrip()


def runtime_docstring(path: str) -> str | None:
    found: Any = aiochronicle._hot
    for name in path.split(".")[2:]:
        found = getattr(found, name, None)
    return getattr(found, "__doc__", None)


class Docstrings(griffe.Extension):
    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in list(func.parameters):
            if parameter.name.startswith("_"):
                del func.parameters[parameter.name]
            elif parameter.name.endswith("mode") and str(parameter.default).isdecimal():
                parameter.default = oct(int(str(parameter.default)))  # permissions

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        text = runtime_docstring(obj.path) if obj.path.startswith("aiochronicle._hot.") else None
        if obj.docstring is None and text:
            obj.docstring = griffe.Docstring(text, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for module in modules_of(pkg):
            for function in module.functions.values():
                if not function.is_alias:
                    copy_parameters(function, module)
            for class_ in module.classes.values():
                if not class_.is_alias:
                    hide_constructor(class_)


def modules_of(module: griffe.Module) -> Iterator[griffe.Module]:
    yield module
    for inner in module.modules.values():
        if not inner.is_alias:
            yield from modules_of(inner)


def copy_parameters(function: griffe.Function, module: griffe.Module) -> None:
    for decorator in function.decorators:
        if found := PARAMETERS_OF.search(str(decorator.value)):
            original = module[found[1]]
            function.parameters = original.parameters
            function.returns = f"Opening[{original.returns}]"


def hide_constructor(class_: griffe.Class) -> None:
    if class_.docstring is None or not NOT_CALLED.search(class_.docstring.value.split("\n")[0]):
        return
    private = [base for base in class_.mro() if "._" in base.path]
    for one in (class_, *private):
        one.members.pop("__init__", None)
