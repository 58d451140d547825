"""The documentation builds as a site: all links and anchors resolve, every public name is included."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import aiochronicle

ROOT = Path(__file__).parent.parent
FIGURES = ["architecture", "record", "recovery", "spark", "strict-fan-in", "wake"]


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "-f", str(config), "-d", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the site is built by mkdocs: the extra 'docs'")
    directory = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.mark.timeout(300)
def test_every_public_name_has_an_entry_in_the_reference(site: Path) -> None:
    pages = (site / "reference" / "api").glob("*.html")
    ids = {found for page in pages for found in re.findall(r'id="([\w.]+)"', page.read_text())}
    names = {f"aiochronicle.{name}" for name in aiochronicle.__all__ if name != "ChronicleError"}
    errors = {f"aiochronicle.errors.{name}" for name in aiochronicle.errors.__all__}
    assert (names | errors) - ids == set()
    assert {"aiochronicle.Message.payload", "aiochronicle.Writer.append"} <= ids


@pytest.mark.timeout(300)
def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = re.sub(r"<(?:pre|code).*?</(?:pre|code)>", "", page.read_text(), flags=re.DOTALL)
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]*)', text)
        loaded += re.findall(
            r'<link rel="(?:stylesheet|preconnect)"[^>]* href="(https?:[^"]*)', text
        )
        assert loaded == [], page


@pytest.mark.timeout(300)
def test_pictures_take_the_colours_of_the_page(site: Path) -> None:
    page = (site / "explanation" / "architecture.html").read_text()
    assert page.count('<svg class="figure"') == len(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_picture_has_a_title_and_both_colour_schemes(name: str) -> None:
    text = (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert root.attrib["aria-label"] == root.findtext("{http://www.w3.org/2000/svg}title")
    assert "prefers-color-scheme:dark" in text
    assert re.findall(r'(?:fill|stroke)="#', text) == []


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    """Without this test, strict mode could be off unnoticed."""
    pytest.importorskip("mkdocs", reason="the site is built by mkdocs: the extra 'docs'")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[b](index.md#missing)\n")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    kept = [settings[: settings.index("docs_dir")]]
    kept += re.findall(r"^strict:.*\n|^validation:\n(?:  .*\n)+", settings, re.MULTILINE)
    (tmp_path / "mkdocs.yml").write_text("".join(kept))
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "#missing" in done.stderr + done.stdout
