"""The extras in pyproject.toml contain exactly the packages that the code imports."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLACES = {
    "cli": "aiochronicle/cli",
    "top": "aiochronicle/top",
    "monitor": "aiochronicle/monitor",
    "otel": "aiochronicle/otel.py",
}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(requirements: list[str]) -> set[str]:
    """Return the packages named by the requirements, including those of our own extras."""
    found: set[str] = set()
    for requirement in requirements:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert name is not None
        extras = re.search(r"\[([^]]+)\]", requirement)
        if name[0] == PROJECT["name"] and extras is not None:
            for extra in extras[1].split(","):
                found |= names_of(PROJECT["optional-dependencies"][extra.strip()])
        else:
            found.add(normal(name[0]))
    return found


def imported(place: Path) -> set[str]:
    """Return the third-party modules that files import or look up by name."""
    found: set[str] = set()
    for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
        for node in _nodes(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "find_spec"
                and isinstance(node.args[0], ast.Constant)
            ):
                found.add(str(node.args[0].value))
    return found - {"aiochronicle"} - sys.stdlib_module_names


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not is_typing:
            yield node
            yield from _nodes(node)


@pytest.mark.parametrize("extra", PLACES)
def test_an_extra_carries_what_is_imported(extra: str) -> None:
    distributions = packages_distributions()
    place = ROOT / PLACES[extra]
    assert place.exists()
    used = {normal(name) for module in imported(place) for name in _packages(module, distributions)}
    core = names_of(PROJECT["dependencies"])
    carried = names_of(PROJECT["optional-dependencies"][extra])
    assert used - core <= carried, "an import that the extra does not carry"
    if extra in ("top", "monitor"):  # commands themselves, so they include the command line
        carried -= names_of(PROJECT["optional-dependencies"]["cli"]) - used
    assert carried == used - core, "a package that nothing imports"


def _packages(module: str, distributions: Mapping[str, list[str]]) -> set[str]:
    """Return the package of a module. If several share it, as with opentelemetry, return the API package."""
    named = set(distributions.get(module, [module]))
    shared = {name for name in named if name.endswith("-api")}
    return shared or named


def test_all_is_all() -> None:
    extras = PROJECT["optional-dependencies"]
    development = {"all", "bench", "dev", "docs", "nautilus", "peers", "spark-test"}
    assert names_of(extras["all"]) == set().union(
        *(names_of(extras[name]) for name in extras.keys() - development)
    )


def test_files_of_the_page_are_packaged() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["package-data"]["aiochronicle.monitor"] == ["static/*"]
    assert {file.suffix for file in (ROOT / "aiochronicle/monitor/static").iterdir()} == {
        ".css",
        ".html",
        ".js",
        ".svg",
    }
