"""``aioc top``, driven by textual's pilot over real queues of other processes."""

import asyncio
import html
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli.running import Terminal, started
from monitor.processes import READER, WRITER, program
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, RichLog, Static

from aiochronicle import FanIn, open_group, open_reader, open_writer
from aiochronicle.top.application import Top
from aiochronicle.top.screens import EventsScreen, QueueScreen, TailScreen, WhyScreen


class Item(msgspec.Struct):
    symbol: str
    price: float


def table(app: Top) -> "DataTable[Any]":
    return app.query_one("#queues", DataTable)


def lines(app: Top) -> list[list[str]]:
    found = table(app)
    return [
        [str(cell).strip() for cell in found.get_row_at(number)]
        for number in range(found.row_count)
    ]


def names(app: Top) -> list[str]:
    return [line[0] for line in lines(app)]


def text_of(app: Top, selector: str) -> str:
    return str(app.screen.query_one(selector, Static).render())


def text_of_screen(app: Top) -> str:
    """Return the visible text, taken from a screenshot."""
    picture = html.unescape(app.export_screenshot()).replace("\xa0", " ")
    lines: dict[float, str] = {}
    for y, text in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>([^<]*)</text>', picture):
        lines[float(y)] = f"{lines.get(float(y), '')} {text}"
    return "\n".join(lines[y] for y in sorted(lines))


def log_of(app: Top) -> str:
    return "\n".join(line.text for line in app.screen.query_one("#messages", RichLog).lines)


async def until(pilot: Pilot[None], found: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + 30
    while not found():
        assert time.monotonic() < until_s, what
        await pilot.pause(0.02)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, count in (("alfa", 1), ("bravo", 30), ("charlie", 5)):
        with open_writer(tmp_path / name, codec=Item) as writer:
            for number in range(count):
                writer.send(Item(name.upper(), float(number)))
    open_reader(tmp_path / "bravo", "audit", start="first").close()
    open_reader(tmp_path / "charlie", "risk", start="first").close()
    return tmp_path


async def test_queues_and_readers_are_rows(root: Path) -> None:
    app = Top(root)
    async with app.run_test(size=(160, 40)) as pilot:
        await until(pilot, lambda: len(names(app)) == 5, "no rows")
        assert names(app) == ["alfa", "bravo", "audit", "charlie", "risk"]
        lag = [str(column.label) for column in table(app).ordered_columns].index("LAG")
        assert [line[lag] for line in lines(app)] == ["", "30", "30", "5", "5"]


async def test_rates_sparklines_and_a_killed_writer(tmp_path: Path) -> None:
    app = Top(tmp_path, interval_s=0.2)
    with program(WRITER, tmp_path / "a", 200) as writer:
        async with app.run_test(size=(160, 40)) as pilot:
            await until(pilot, lambda: names(app) == ["a"], "no row")
            await until(pilot, lambda: set(lines(app)[0][4]) & set("▅▆▇█"), "no sparkline")
            assert lines(app)[0][1] == "open"
            assert lines(app)[0][2] == str(writer.pid)
            writer.kill()
            await until(pilot, lambda: lines(app)[0][1] == "died", "still alive")
            assert "ended without closing" in text_of(app, "#warning")
            assert "1 critical" in text_of(app, "#totals")


async def test_keys_sort_and_reverse(root: Path) -> None:
    app = Top(root)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: len(names(app)) == 5, "no rows")
        await pilot.press("x")
        assert names(app) == ["alfa", "bravo", "charlie"]
        await pilot.press("r")
        assert names(app) == ["charlie", "bravo", "alfa"]
        await pilot.press("r", "s", "s")
        assert app.order == "lag"
        assert names(app) == ["bravo", "charlie", "alfa"]


async def test_the_filter_shows_what_matches(root: Path) -> None:
    app = Top(root)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: len(names(app)) == 5, "no rows")
        await pilot.press("slash", *"BRA")
        await until(pilot, lambda: names(app) == ["bravo", "audit"], "not filtered")
        await pilot.press("enter")
        assert not app.query_one("#filter", Input).has_class("shown")
        assert names(app) == ["bravo", "audit"]
        assert "filter: BRA" in text_of(app, "#totals")
        await pilot.press("escape")
        await until(pilot, lambda: len(names(app)) == 5, "still filtered")
        assert "filter: " not in text_of(app, "#totals")
        await pilot.press("slash", *"BRA", "escape")
        await until(pilot, lambda: len(names(app)) == 5, "still filtered")


@pytest.mark.parametrize("keys", [[], ["slash"], ["enter"]], ids=["table", "filter", "queue"])
async def test_ctrl_c_quits(root: Path, keys: list[str]) -> None:
    app = Top(root)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: len(names(app)) == 5, "no rows")
        await pilot.press(*keys, "ctrl+c")
        await until(pilot, lambda: not app.is_running, "still running")


async def test_enter_opens_a_queue_and_escape_leaves(root: Path) -> None:
    app = Top(root)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: len(names(app)) == 5, "no rows")
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(app.screen, QueueScreen), "not opened")
        assert str(root / "bravo") in text_of(app, "#about").replace("\n", "")
        assert "audit" in text_of(app, "#about")
        await pilot.press("escape")
        assert not isinstance(app.screen, QueueScreen)


async def test_t_follows_the_messages(root: Path) -> None:
    app = Top(root)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: len(names(app)) == 5, "no rows")
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, TailScreen), "not opened")
        await until(pilot, lambda: "Item symbol=ALFA price=0" in log_of(app), "no message")
        with open_writer(root / "alfa", codec=Item) as writer:
            writer.send(Item("FRESH", 2.5))
            await until(pilot, lambda: "Item symbol=FRESH price=2.5" in log_of(app), "not followed")
        await pilot.press("escape")


async def test_w_explains_why_it_is_kept(root: Path) -> None:
    app = Top(root)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: len(names(app)) == 5, "no rows")
        await pilot.press("w")
        await until(pilot, lambda: isinstance(app.screen, WhyScreen), "not opened")
        await until(pilot, lambda: "is being written" in text_of(app, "#why"), "no reason")


async def test_e_shows_events_and_alarms(root: Path) -> None:
    app = Top(root)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: len(names(app)) == 5, "no rows")
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, EventsScreen), "not opened")
        assert "no alarms" in text_of(app, "#alarms")
        seen = [line.split() for line in text_of_screen(app).splitlines()]
        times = [words[0] for words in seen if len(words) > 2 and words[1] in ("opened", "closed")]
        assert len(times) >= 3
        assert times == sorted(times, reverse=True)
        await pilot.press("t")
        assert isinstance(app.screen, EventsScreen), "a key of the table works here"


async def test_a_silent_source_of_a_fan_in_is_named(tmp_path: Path) -> None:
    for name in ("silent", "lively"):
        with open_writer(tmp_path / name) as writer:
            writer.append(b"x")
    with (
        open_writer(tmp_path / "silent"),
        open_writer(tmp_path / "lively") as lively,
        open_reader(tmp_path / "silent", "merge", start="last") as quiet,
        open_reader(tmp_path / "lively", "merge", start="last") as behind,
    ):
        quiet.commit()
        behind.commit()
        lively.append(b"waits")
        app = Top(tmp_path, interval_s=0.2)
        async with app.run_test(size=(180, 40)) as pilot:
            await until(pilot, lambda: len(names(app)) == 4, "no rows")
            await until(pilot, lambda: "stalled" in [line[1] for line in lines(app)], "no stall")
            assert "waits for silent" in text_of(app, "#warning")


async def test_a_source_with_uncommitted_messages_is_named_as_well(tmp_path: Path) -> None:
    """Fan-ins commit periodically, so the silent source's last messages may be read but uncommitted."""
    with open_writer(tmp_path / "silent") as silent, open_writer(tmp_path / "lively") as lively:
        readers = [open_reader(tmp_path / name, "merge") for name in ("silent", "lively")]
        with FanIn(readers, order="strict") as merge:
            silent.append(b"x")
            lively.append(b"x")
            assert merge.poll() is not None
            app = Top(tmp_path, interval_s=0.2)
            async with app.run_test(size=(180, 40)) as pilot:

                def is_stalled() -> bool:
                    lively.append(b"waits")
                    return "stalled" in [line[1] for line in lines(app)]

                await until(pilot, is_stalled, "no stall")
                assert "waits for silent" in text_of(app, "#warning")
        for reader in readers:
            reader.close()


async def test_groups_show_members_and_what_is_in_flight(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a") as writer:
        writer.append_many([b"x"] * 3)
    with open_group(tmp_path / "a", "workers") as group:
        taken = group.take_batch(2)
        app = Top(tmp_path)
        async with app.run_test(size=(180, 40)) as pilot:
            await until(pilot, lambda: len(names(app)) == 2, "no rows")
            assert lines(app)[1][1] == "group"
            assert lines(app)[1][-1] == "1 member, 2 in flight, 0 redelivered"
            await pilot.press("enter")
            await until(pilot, lambda: "Group workers" in text_of(app, "#about"), "no group")
        while taken:
            taken.pop().ack()


@pytest.mark.parametrize("width", [80, 100, 160])
async def test_nothing_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    with open_writer(tmp_path / ("long-name-" * 8)) as writer:
        writer.append(b"x")
    app = Top(tmp_path)
    async with app.run_test(size=(width, 24)) as pilot:
        await until(pilot, lambda: table(app).row_count == 1, "no rows")
        assert table(app).virtual_size.width <= width


async def test_hostile_names_are_no_markup(tmp_path: Path) -> None:
    hostile = "[red]x[∕red]" + os.fsdecode(b"\x1b[2J\xff")
    open_writer(tmp_path / hostile).close()
    app = Top(tmp_path)
    async with app.run_test(size=(120, 24)) as pilot:
        await until(pilot, lambda: table(app).row_count == 1, "no rows")
        assert names(app)[0].startswith("[red]x[∕red]\\x1b[2J")


async def test_damage_is_a_row(root: Path) -> None:
    (root / "bravo" / "control.meta").write_bytes(b"\xff" * 10)
    app = Top(root)
    async with app.run_test(size=(120, 24)) as pilot:
        await until(pilot, lambda: "unusable" in [line[1] for line in lines(app)], "no damage")
        for key in ("t", "w", "enter"):
            await pilot.press("down", key)
            await pilot.pause(0.1)
            await pilot.press("escape")


async def test_files_are_let_go(root: Path) -> None:
    app = Top(root)
    async with app.run_test() as pilot:
        await until(pilot, lambda: table(app).row_count == 5, "no rows")
        await pilot.press("t")
        await asyncio.sleep(0.2)
    # tests/conftest.py fails a test that leaves files of a queue open


def test_a_pipe_is_refused(root: Path) -> None:
    done = started("top", root)
    assert done.status == 2
    assert "needs a terminal" in done.err
    assert started("top", root / "none").status == 3


def test_in_a_terminal_it_starts_and_q_ends_it(root: Path) -> None:
    with program(READER, "live", root / "alfa"):
        terminal = Terminal(100, ["top", root])
        try:
            terminal.read_until("charlie", 60)
            terminal.type("q")
            assert terminal.end() == 0
        finally:
            terminal.kill()
    assert "Traceback" not in terminal.output
