"""Hooks of mkdocs: what the pages link to outside of docs/ becomes part of the site.

Pages link to each other, and to files of the repository, by relative paths, so that the links work in a
checkout as well. Files outside of docs/ get a page in the site: a Markdown file as it is, a source
file as one block of code. Pictures made for these pages are put into the page itself, so that they
follow the colours of the site.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"

LINK = re.compile(r"(\]\()(?!https?:|mailto:)([^)#\s]+)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r'<p><img alt="([^"]*)" src="[^"]*?images/([\w-]+)\.svg" ?/?></p>')
CELL_CODE = re.compile(
    r"<code>([^<]*[^<\s]{31}[^<]*)</code>(?=(?:(?!<t[dr]|</table>).)*</td>)", re.DOTALL
)
LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".toml": "toml", ".java": "java", ".sh": "bash"}


def page_of(path: Path) -> str:
    """Return where a file of the repository is in the site, as a path below docs/."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    inside = path.relative_to(ROOT).as_posix()
    return f"repository/{inside}.md" if path.suffix in LANGUAGES else f"repository/{inside}"


def outside_text(markdown: str) -> Iterator[tuple[bool, str]]:
    """Split into text, in which there are links, and blocks of code, in which there are none."""
    end = 0
    for fence in FENCE.finditer(markdown):
        yield True, markdown[end : fence.start()]
        yield False, fence[0]
        end = fence.end()
    yield True, markdown[end:]


def linked_files(path: Path) -> Iterator[Path]:
    for is_text, part in outside_text(path.read_text(encoding="utf-8")):
        if is_text:
            for link in LINK.finditer(part):
                yield Path(os.path.normpath(path.parent / link[2]))


def files_to_add() -> set[Path]:
    """Return every file outside of docs/ that a page leads to, directly or by another one."""
    found: set[Path] = set()
    waiting = sorted(DOCS.rglob("*.md"))
    while waiting:
        for target in linked_files(waiting.pop()):
            if target.is_file() and not target.is_relative_to(DOCS) and target not in found:
                found.add(target)
                if target.suffix == ".md":
                    waiting.append(target)
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(files_to_add()):
        uri, level = page_of(path), InclusionLevel.NOT_IN_NAV
        if path.suffix in LANGUAGES:
            inside = path.relative_to(ROOT).as_posix()
            code = path.read_text(encoding="utf-8")
            text = f"# {inside}\n\n````{LANGUAGES[path.suffix]}\n{code}````\n"
            file = File.generated(config, uri, content=text, inclusion=level)
        else:
            file = File.generated(config, uri, abs_src_path=str(path), inclusion=level)
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to where the files are in the site."""
    uri = page.file.src_uri
    inside = uri.removeprefix("repository/")
    if inside != uri and not (ROOT / inside).exists():
        return markdown  # code only
    here = (ROOT / inside if inside != uri else DOCS / uri).parent

    def lead(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(here / link[2]))
        if not target.is_file():
            return link[0]  # mkdocs says so
        return link[1] + os.path.relpath(page_of(target), Path(uri).parent)

    parts = outside_text(markdown)
    return "".join(LINK.sub(lead, part) if is_text else part for is_text, part in parts)


def on_page_content(html: str, **_: Any) -> str:
    """Put our own pictures into the page, and mark names in tables that are too long for one line.

    The picture of a terminal has its own colours, and stays an image.
    """

    def inline(picture: re.Match[str]) -> str:
        svg = (DOCS / "images" / f"{picture[2]}.svg").read_text(encoding="utf-8")
        if 'class="figure"' not in svg:
            return picture[0]
        return f'<div class="figure">{svg}</div>'

    return CELL_CODE.sub(r'<code class="long">\1</code>', PICTURE.sub(inline, html))
