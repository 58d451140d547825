"""Texts that an installed package prints are usable without the repository."""

import ast
from collections.abc import Iterator
from pathlib import Path

import aiochronicle

PACKAGE = Path(aiochronicle.__file__).parent


def printed(file: Path) -> Iterator[str]:
    """Yield the strings of a module except docstrings, in which the site makes links."""
    tree = ast.parse(file.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield str(node.value)


def test_no_text_points_to_a_page_of_the_repository() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 200
    found = {
        f"{file.relative_to(PACKAGE)}: {text}"
        for file in files
        for text in printed(file)
        if "docs/" in text or text.endswith(".md")
    }
    assert found == set()
