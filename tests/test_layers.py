"""Dependencies point one way: no module imports one of a higher layer, and there are no import cycles.

Every import counts: at module level, in functions, and for type checkers only.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import aiochronicle

PACKAGE = Path(aiochronicle.__file__).parent

# From bottom to top. A name is a module or a sub-package. Modules of one layer may import each other without
# cycles.
LAYERS: list[set[str]] = [
    {"_hot", "_engine"},
    {"_base", "_command", "_files", "_layout", "config", "errors"},
    {"codec", "cq4", "digest"},
    {"_typed"},
    {"_columns"},
    {"_core"},
    {"_services"},
    {"_maintenance"},
    {"__init__", "otel", "testing"},
    {"cli", "demo", "faststream", "monitor", "nautilus", "spark", "top"},
    {"__main__"},
]
SPARK_LAYERS: list[set[str]] = [
    {"arrow", "carried", "failures", "filters", "options", "private_files", "tasks"},
    {"source"},
    {"sink"},
    {"data_source"},
    {"runtime", "stream_progress"},
    {"archive"},
    {"jobs"},
    {"__init__", "pack"},
    {"__main__"},
]


def modules() -> dict[str, Path]:
    """Return the modules of the package, by name without the package's own."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts)] = path
    return found


MODULES = modules()
COMPILED = {"_hot", "_engine"}


def resolve(name: str) -> str | None:
    """Return the module that an import of this name loads, None if it is not ours."""
    for candidate in (name, f"{name}.__init__" if name else "__init__"):
        if candidate in MODULES or candidate in COMPILED:
            return candidate
    return None


def imported(module: str) -> Iterator[str]:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = ["aiochronicle", *module.split(".")][: -node.level]
                base = ".".join([*above, base] if base else above)
            names = [(base, alias.name) for alias in node.names]
        else:
            continue
        for source, name in names:
            if source.split(".")[0] != "aiochronicle":
                continue
            inner = source.removeprefix("aiochronicle").lstrip(".")
            as_module = resolve(f"{inner}.{name}" if inner else name) if name else None
            target = as_module or resolve(inner)
            assert target is not None, f"{module} imports {source}, which is not there"
            if target != module:
                yield target


GRAPH = {module: set(imported(module)) for module in MODULES}


def rank_in(layers: list[set[str]], name: str) -> int:
    (rank,) = [rank for rank, layer in enumerate(layers) if name in layer]
    return rank


def test_layers_are_those_of_the_package() -> None:
    tops = {module.split(".")[0] for module in MODULES} | COMPILED
    assert tops <= set[str]().union(*LAYERS), "a new part belongs into a layer"


def test_no_module_imports_one_of_a_higher_layer() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in GRAPH.items()
        for target in targets
        if rank_in(LAYERS, target.split(".")[0]) > rank_in(LAYERS, module.split(".")[0])
    ]
    assert wrong == []


def test_the_pipeline_has_layers_too() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in GRAPH.items()
        for target in targets
        if module.startswith("spark.") and target.startswith("spark.")
        if rank_in(SPARK_LAYERS, target.split(".")[1]) > rank_in(SPARK_LAYERS, module.split(".")[1])
    ]
    assert wrong == []


def test_no_module_imports_itself_by_a_detour() -> None:
    assert cycles(GRAPH) == []


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return groups of modules that import each other (strongly connected, by Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for target in sorted(graph.get(module, ())):
            if target not in order:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], order[target])
        if low[module] == order[module]:
            at = stack.index(module)
            if len(group := stack[at:]) > 1:
                found.append(sorted(group))
            del stack[at:]

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return found


def test_this_test_finds_cycles() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
