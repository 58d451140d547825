"""How a terminal and a notebook show results."""

from pathlib import Path

from helpers.html import texts

from aiochronicle._base.report import HtmlList
from aiochronicle.digest import Block
from aiochronicle.spark import QueueProgress, StreamProgress
from aiochronicle.spark.jobs import Archived, Audit, Picture, Replayed

SCREEN = 25 * 80
BLOCKS = tuple(Block(1_795_000_000 + second, second % 100, b"x" * 32) for second in range(40_000))
AUDIT = Audit(sources=("a", "b"), messages=5, digest="ab", blocks=BLOCKS)


def test_texts_of_results_fit_on_a_screen() -> None:
    assert len(repr(AUDIT)) < SCREEN
    assert "… 39,997 more)" in repr(AUDIT)
    one = Archived(source="md", rows=1, files=1, bytes=9, next_seq=1)
    few: HtmlList[Archived] = HtmlList([one])
    assert repr(few) == "[Archived(source='md', rows=1, files=1, bytes=9, next_seq=1, payloads=0)]"
    assert few == [one]
    many = HtmlList(Replayed(source=f"q{n}", rows=n, first_seq=0) for n in range(500))
    assert len(repr(many)) < SCREEN
    assert repr(many).endswith("… 497 more]")
    queue = QueueProgress(name="q", start=0, end=1, latest=1, messages=1, behind=0)
    progress = StreamProgress(
        query="q",
        batch=0,
        time="",
        duration_ms=1,
        messages=1,
        behind=0,
        behind_max=0,
        queues=(queue,) * 1000,
    )
    assert len(repr(progress)) < SCREEN


def test_a_notebook_shows_results_as_tables() -> None:
    shown = texts(AUDIT)
    assert shown[:3] == ["Audit", "sources", "a"]
    assert shown[-2:] == ["blocks", "40,000"]
    many = HtmlList(Replayed(source=f"<q{n}>", rows=5000, first_seq=0) for n in range(500))
    shown = texts(many)
    assert shown[:6] == ["source", "rows", "first_seq", "<q0>", "5,000", "0"]
    assert shown[-1] == "… and 400 more"
    assert texts(HtmlList[Replayed]()) == []


def test_a_notebook_shows_pictures(tmp_path: Path) -> None:
    for audit in (AUDIT, Audit(sources=(), messages=0, digest="", blocks=())):
        picture = audit.plot(tmp_path / "audit.png")
        assert isinstance(picture, Picture)
        for content in (picture._repr_png_(), (tmp_path / "audit.png").read_bytes()):
            assert content.startswith(b"\x89PNG")
        assert repr(picture).startswith("<Picture of 990 by 330 pixels")
