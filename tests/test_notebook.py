"""The display of objects in notebooks, and the example notebook, run in a real kernel."""

import shutil
from pathlib import Path

import nbformat
import pytest
from helpers.html import texts
from nbclient import NotebookClient

from aiochronicle import (
    Bus,
    FanIn,
    Health,
    Position,
    Queue,
    ReaderInfo,
    WriterStatistics,
    inspect,
    open_reader,
    open_writer,
    verify,
)
from aiochronicle._core.stream import Lag

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))
HOSTILE = "<img src=x onerror=alert(1)>&amp;\"'\n\x1b[2J\u202e"


def test_a_queue_shows_what_it_has_and_who_reads_it(queue: Path) -> None:
    with open_reader(queue, "audit") as reader, Queue(queue) as whole:
        reader.poll()
        shown = texts(whole)
        assert f"Queue {queue}" in shown
        assert shown[shown.index("segment_size") + 1] == "1,048,576 (1 MiB)"
        assert shown[shown.index("audit") + 1 :][:4] == ["yes", "segment 0, offset 64", "0", "1"]
        shutil.rmtree(queue)
        assert "problem" in texts(whole)
    assert texts(whole) == [f"<Queue {str(queue)!r} closed>"]


def test_a_slice_shows_its_first_messages(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(b"<script>alert(1)</script>", timestamp_ns=1_700_000_000_123_456_789)
        writer.append(b"x" * 1000)
        writer.append_many([b"y"] * 5)
    with Queue(tmp_path / "q") as whole:
        shown = texts(whole.slice())
        assert f"Slice of {tmp_path / 'q'}: 7 messages" in shown
        assert "b'<script>alert(1)</script>'" in shown
        assert "2023-11-14 22:13:20.123456789Z" in shown
        assert f"{b'x' * 64!r} … 1,000 bytes" in shown
        assert shown[-1] == "… and 2 more"
        assert texts(whole.slice(100)) == [f"Slice of {tmp_path / 'q'}: 0 messages"]
        part = whole.slice()
    assert any("closed" in text for text in texts(part))


def test_a_reader_shows_where_it_stands(queue: Path) -> None:
    with open_reader(queue, "audit") as reader:
        shown = texts(reader)
        assert shown[shown.index("name") + 1] == "audit"
        assert shown[shown.index("healthy") + 1] == "yes"
        shutil.rmtree(queue)
        shown = texts(reader)
        assert "removed" in shown[shown.index("problem") + 1]
    assert "closed" in texts(reader)[0]


def test_statistics_of_all_kinds(tmp_path: Path) -> None:
    with Bus(tmp_path) as bus:
        bus.append("orders", b"1")
        bus.read_batch("orders", "audit")
        assert {"BusStatistics", "orders audit"} <= {*texts(bus.statistics())}
        writer: WriterStatistics = bus.writer("orders").statistics()
        shown = texts(writer)
        assert shown[shown.index("epoch") + 1] == str(writer.epoch)  # no separators in names
        assert shown[shown.index("clean") + 1] == "yes"
        assert texts(bus.healthy) == ["Health", "ok", "yes", "reasons", "–"]
        for report in (inspect(tmp_path / "orders"), verify(tmp_path / "orders")):
            assert texts(report)[0] == type(report).__name__
        with open_reader(tmp_path / "orders") as reader, FanIn([reader]) as fan_in:
            assert texts(fan_in.statistics())[0] == "FanInStatistics"
            assert texts(fan_in.source_statistics(0))[0] == "SourceStatistics"


def test_hostile_names_and_texts_are_escaped(tmp_path: Path) -> None:
    info = ReaderInfo(
        name=HOSTILE,
        committed=Position(0, 64),
        committed_seq=None,
        lag=Lag(1, 2, 3.0),
        live=False,
        lost=False,
        heartbeat_age_s=0.0,
    )
    assert any("onerror" in text for text in texts(info))
    assert any("onerror" in text for text in texts(Health(ok=False, reasons=(HOSTILE,))))
    evil = tmp_path / "<b>\n\udcff"
    with open_writer(evil) as writer:
        writer.append(b"x")
    with Queue(evil) as whole, open_reader(evil) as reader:
        assert texts(whole)[0].endswith("<b>\\n\\xff")
        assert any(text.endswith("<b>\\n\\xff") for text in texts(reader))
        assert texts(whole.slice())


def test_long_lists_are_cut() -> None:
    shown = texts(Health(ok=False, reasons=tuple(str(number) for number in range(5000))))
    assert len(shown) < 200


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_notebook_runs_and_was_committed_without_outputs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    client = NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    shown = [
        output.data["text/html"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "text/html" in output.get("data", {})
    ]
    assert any("Queue " in html for html in shown)
    assert any("Slice of " in html for html in shown)
    assert any("WriterStatistics" in html for html in shown)
    assert all("NotebookTrusted" not in html for html in shown)


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
    listed = (NOTEBOOKS[0].parent / "README.md").read_text()
    assert all(f"]({path.name})" in listed for path in NOTEBOOKS)
