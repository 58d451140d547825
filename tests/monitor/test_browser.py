"""The page in a real browser: rows appear, charts move, a killed writer turns red within a second."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from aiochronicle import open_reader, open_writer
from monitor.browser import Browser, explain_missing
from monitor.processes import READER, WRITER, program
from monitor.serving import monitor

pytestmark = pytest.mark.skipif(explain_missing() is not None, reason=explain_missing() or "")

ROW = "document.querySelector('#queues tbody tr')"
HOSTILE = "<img src=x onerror=document.title=1><script>document.title=2<∕script>"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    chromium.log.clear()
    chromium.requests.clear()
    chromium.resize(1280, 900)
    chromium.set_dark(False)
    yield chromium
    log = list(chromium.log)
    chromium.open("about:blank")
    assert not log, "the page reported errors"


def row_of(name: str) -> str:
    return (
        "[...document.querySelectorAll('#queues tbody tr')]"
        f".find((row) => row.cells[0].textContent === {name!r})"
    )


def points_of(chart: str) -> str:
    return f"document.getElementById('chart-{chart}')?.data?.[0].y.length ?? 0"


def test_rows_appear_and_charts_move(tmp_path: Path, browser: Browser) -> None:
    with (
        program(WRITER, tmp_path / "first", 200),
        program(READER, "risk", tmp_path / "first"),
        monitor(tmp_path) as url,
    ):
        browser.open(url)
        browser.until(f"{row_of('first')}")
        browser.until(f"{row_of('first')}.cells[1].textContent === 'open'")
        open_writer(tmp_path / "second").close()
        browser.until(row_of("second"))
        before = browser.ask(points_of("rate"))
        browser.until(f"{points_of('rate')} > {before} + 2")
        browser.until("document.getElementById('chart-rate').data[0].y.at(-1) > 50")
        browser.until(f"{points_of('lag')} > 2")
        browser.until(f"{points_of('wake')} > 1")
        browser.until("document.querySelectorAll('#chart-histogram .point').length > 0")
        browser.hover("document.querySelector('#chart-rate .nsewdrag')")
        browser.until("document.querySelector('#chart-rate .hoverlayer').children.length > 0")
        browser.until("document.querySelectorAll('#topology .queue').length === 2")
        browser.until("document.querySelector('#events').textContent.includes('opened')")
        assert browser.ask("document.getElementById('health').textContent") == "healthy"
        hosts = {one.split("/")[2] for one in browser.requests if one.startswith("http")}
        assert hosts == {url.split("/")[2]}, "the page asked a foreign host"


def test_a_killed_writer_turns_red_within_a_second(tmp_path: Path, browser: Browser) -> None:
    taken: list[float] = []
    with ExitStack() as stack:
        names = [f"q{number}" for number in range(5)]
        writers = [stack.enter_context(program(WRITER, tmp_path / name, 50)) for name in names]
        browser.open(stack.enter_context(monitor(tmp_path)))
        for name in names:
            browser.until(f"{row_of(name)}?.cells[1].textContent === 'open'")
        for name, writer in zip(names, writers, strict=True):
            began_s = time.monotonic()
            writer.kill()
            browser.until(f"{row_of(name)}.classList.contains('critical')")
            taken.append(time.monotonic() - began_s)
            assert browser.ask(f"{row_of(name)}.cells[1].textContent") == "died"
            red = browser.ask(f"getComputedStyle({row_of(name)}.cells[1]).color")
            assert red == "rgb(200, 30, 30)"
            assert "critical" in browser.ask("document.getElementById('health').textContent")
            alarms = browser.ask("document.getElementById('alarms').textContent")
            assert f"pid {writer.pid}" in alarms
    print([round(one, 3) for one in taken])
    assert max(taken) < 1, taken


def test_a_queue_is_opened_with_its_messages(tmp_path: Path, browser: Browser) -> None:
    with open_writer(tmp_path / "a") as writer:
        writer.append(b"<b>hello</b> & more")
        with open_reader(tmp_path / "a", "risk"), monitor(tmp_path) as url:
            browser.open(url)
            browser.until(row_of("a"))
            browser.ask(f"{row_of('a')}.click()")
            browser.until("document.getElementById('messages')")
            assert "<b>hello</b> & more" in browser.ask(
                "document.getElementById('messages').textContent"
            )
            assert browser.ask("document.querySelector('#messages b') === null")
            browser.until("document.getElementById('detail').textContent.includes('risk')")
            browser.ask("document.getElementById('close').click()")
            assert browser.ask("document.getElementById('detail').hidden")


def test_sorting_and_filtering(tmp_path: Path, browser: Browser) -> None:
    for name, count in (("alfa", 1), ("bravo", 3), ("charlie", 2)):
        with open_writer(tmp_path / name) as writer:
            writer.append_many([b"x"] * count)
    with monitor(tmp_path) as url:
        browser.open(url)
        browser.until(row_of("alfa"))
        names = "[...document.querySelectorAll('#queues td.name')].map((one) => one.textContent)"
        browser.ask("document.querySelectorAll('#queues th')[4].click()")
        assert browser.ask(names) == ["bravo", "charlie", "alfa"]
        browser.ask("document.querySelectorAll('#queues th')[4].click()")
        assert browser.ask(names) == ["alfa", "charlie", "bravo"]
        browser.ask(
            "{const f = document.getElementById('filter'); f.value = 'RLI';"
            " f.dispatchEvent(new Event('input'))}"
        )
        assert browser.ask(names) == ["charlie"]


def test_hostile_names_and_messages_are_text(tmp_path: Path, browser: Browser) -> None:
    with open_writer(tmp_path / HOSTILE) as writer:
        writer.append(HOSTILE.encode())
        with open_reader(tmp_path / HOSTILE, "img-onerror"), monitor(tmp_path) as url:
            browser.open(url)
            browser.until(ROW)
            browser.until(f"{ROW}.cells[0].textContent.includes('onerror')")
            browser.ask(f"{ROW}.click()")
            browser.until("document.getElementById('messages')")
            browser.until("document.querySelector('#events').textContent.includes('opened')")
            assert browser.ask("document.querySelectorAll('main img, main script').length") == 0
            assert browser.ask("document.title").endswith("aioc monitor")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False)])
def test_nothing_is_wider_than_the_page(
    tmp_path: Path, browser: Browser, width: int, dark: bool
) -> None:
    with program(WRITER, tmp_path / ("long-name-" * 12), 50), monitor(tmp_path) as url:
        browser.resize(width, 900)
        browser.set_dark(dark)
        browser.open(url)
        browser.until(ROW)
        browser.until(f"{points_of('rate')} > 1")
        assert browser.ask("document.documentElement.scrollWidth") <= width
        back = browser.ask("getComputedStyle(document.body).backgroundColor")
        assert back == ("rgb(16, 21, 28)" if dark else "rgb(245, 246, 248)")


def test_a_monitor_that_is_gone_is_said(tmp_path: Path, browser: Browser) -> None:
    with monitor(tmp_path) as url:
        browser.open(url)
        browser.until("document.getElementById('health')?.textContent === 'healthy'")
    browser.until("document.getElementById('health').textContent.includes('no answer')")
    browser.log.clear()  # the failed connections are expected
