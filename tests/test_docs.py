"""The documentation is correct: its code runs, its links have targets, its names exist.

All ```python blocks of a page run in order in one namespace, in an empty directory. A block that contains
``>>>`` is a doctest: its output must match.
"""

import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.mark.structures import ParameterSet
from helpers.nautilus import REASON, has_nautilus

import aiochronicle

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
PAGES += [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "README.md"]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)\s]+)?\)")


class Block(NamedTuple):
    line: int
    code: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start(2)), found[2])
        for found in FENCE.finditer(text)
        if found[1] == "python"
    ]


def run_block(page: Path, block: Block, names: dict[str, Any]) -> None:
    if ">>>" in block.code:
        parser = doctest.DocTestParser()
        test = parser.get_doctest(block.code, {}, name_of(page), str(page), block.line)
        test.globs = names  # not a copy, which would keep the page's objects alive
        result = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(
            test, clear_globs=False
        )
        assert result.failed == 0, f"{name_of(page)}:{block.line + 1}"
    else:
        # Prepend blank lines, so that a traceback shows the line of the page.
        source = "\n" * block.line + block.code
        exec(compile(source, str(page), "exec"), names)


def with_what_it_needs(page: Path) -> ParameterSet:
    """Return the page as a test parameter: longer timeout if it starts Spark, skipped without nautilus."""
    code = "".join(block.code for block in python_blocks(page))
    marks = [pytest.mark.timeout(600)] if "aiochronicle.spark" in code else []
    if "nautilus_trader" in code:
        marks.append(pytest.mark.skipif(not has_nautilus(), reason=REASON))
    return pytest.param(page, marks=marks, id=name_of(page))


@pytest.mark.parametrize(
    "page", [with_what_it_needs(page) for page in PAGES if python_blocks(page)]
)
def test_code_of_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "documentation"}
    try:
        for block in python_blocks(page):
            run_block(page, block, names)
            assert capsys.readouterr().err == ""
    finally:
        # Since Python 3.14, an annotated class holds the namespace in which it was created. A message, which
        # the garbage collector cannot traverse, holds the type it is decoded to. If the message is in that
        # namespace, it keeps itself alive.
        names.clear()


def test_the_pages_that_should_have_code_have_it() -> None:
    """Without this, a page whose code fences are not found would pass unnoticed."""
    with_code = {name_of(page) for page in PAGES if python_blocks(page)}
    guides = {name_of(page) for page in (ROOT / "docs" / "guide").glob("*.md")}
    assert {"README.md", "docs/quickstart.md", *guides} - {"docs/guide/commands.md"} <= with_code
    for page in PAGES:
        assert page.read_text(encoding="utf-8").count("```") % 2 == 0, name_of(page)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str | None]]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in LINK.findall(text):
        if not target.startswith(("http:", "https:")):
            yield (page.parent / target).resolve(), anchor[1:] or None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_page_lead_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{name_of(page)} links to {target}"
        if anchor is not None:
            assert anchor in anchors(target), f"{name_of(page)} links to #{anchor} of {target}"


def test_every_page_can_be_reached_from_the_index() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        waiting += [target for target, _ in links(page)]
    assert {*(ROOT / "docs").rglob("*.md")} <= reached


def test_every_public_name_is_documented() -> None:
    guide = "\n".join(
        page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "guide").glob("*.md")
    )
    missing = [name for name in aiochronicle.__all__ if not re.search(rf"\b{name}\b", guide)]
    assert missing == []


def test_every_error_is_documented() -> None:
    page = (ROOT / "docs" / "guide" / "errors.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    assert set(aiochronicle.errors.__all__) <= named


def test_every_parameter_is_documented() -> None:
    for function, page in (
        (aiochronicle.open_writer, "writing.md"),
        (aiochronicle.open_reader, "reading.md"),
    ):
        text = (ROOT / "docs" / "guide" / page).read_text(encoding="utf-8")
        parameters = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
            and not parameter.name.startswith("_")
        ]
        assert len(parameters) > 5
        assert [name for name in parameters if f"`{name}`" not in text] == []


def test_make_targets_in_the_documentation_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    for page in PAGES:
        used = re.findall(
            r"\bmake ([a-z][a-z-]*)(?![\w/-])", " ".join(re.findall(r"`[^`]*`", page.read_text()))
        )
        assert set(used) <= targets, name_of(page)


def test_files_named_in_the_internals_exist() -> None:
    for page in (ROOT / "docs" / "internals").glob("*.md"):
        for path in re.findall(
            r"`((?:csrc|aiochronicle|tests)/[\w/.]+\.(?:c|h|py))`", page.read_text()
        ):
            assert (ROOT / path).exists(), f"{name_of(page)} names {path}"
