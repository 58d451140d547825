"""An extension of griffe: docstrings of the C types, examples as blocks of code, public parameters only."""

import re
from typing import Any

import griffe

import aiochronicle

EXAMPLE = re.compile(r"((?:^[ ]*(?:>>>|\.\.\.).*\n(?:^[ ]*(?!>>>)\S.*\n)*)+)", re.MULTILINE)


def fence_examples(text: str) -> str:
    return EXAMPLE.sub(r"\n```pycon\n\1```\n", text + "\n").rstrip()


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
            obj.docstring.value = fence_examples(obj.docstring.value)
