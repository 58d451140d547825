"""Queue events are logged: opening, rolling, retention, closing, and the death of a peer."""

import asyncio
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.waiting import eventually

from aiochronicle import (
    Retention,
    Roll,
    Router,
    forget_reader,
    open_reader,
    open_writer,
)

SEGMENT = 1 << 16
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "errors.md"


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aiochronicle")


def logged(caplog: pytest.LogCaptureFixture, logger: str) -> list[tuple[str, str]]:
    records = [one for one in list(caplog.records) if one.name == f"aiochronicle.{logger}"]
    return [(one.levelname, one.getMessage()) for one in records]


def test_opening_and_closing(queue_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_writer(queue_path) as writer:
        writer.append(b"x")
        with open_reader(queue_path, "audit"):
            pass
        writer.close()
    assert logged(caplog, "writer") == [
        ("DEBUG", f"{queue_path}: opened for writing, next seq 0"),
        ("DEBUG", f"{queue_path}: closed, next seq 1"),
    ]
    where = f"<Reader 'audit' of {str(queue_path)!r}"
    assert logged(caplog, "reader") == [
        ("DEBUG", f"opened: {where} segment=0 offset=64>"),
        ("DEBUG", f"closed: {where} closed>"),
    ]


def test_rolling_and_retention(queue_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    retention = Retention(max_bytes=1, check_interval_s=3600)
    with open_writer(
        queue_path, segment_size=SEGMENT, roll=Roll(messages=1), retention=retention
    ) as writer:
        writer.append_many([b"1"])
        writer.append(b"2")
        eventually(lambda: writer.statistics().seals == 1)
        writer.retain_now()
    found = logged(caplog, "engine")
    assert ("DEBUG", f"{queue_path}: rolled to segment 1") in found
    assert ("DEBUG", f"{queue_path}: retention: 1 segments deleted") in found


def test_ordinary_events_are_not_made_unless_somebody_listens(
    queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiochronicle")
    with open_writer(queue_path, segment_size=SEGMENT, roll=Roll(messages=1)) as writer:
        for _ in range(300):  # more than the engine has room for
            writer.append(b"x")
        assert writer.statistics().rolls > 256
    assert logged(caplog, "engine") == logged(caplog, "writer") == []


PEER = """
import sys
from aiochronicle import open_reader, open_writer
if sys.argv[2] == "writer":
    opened = open_writer(sys.argv[1])
    opened.append(b"x")
else:
    opened = open_reader(sys.argv[1], "audit", start="last")
print("ready", flush=True)
if sys.argv[2] == "reader":
    opened.wait()
sys.stdin.read()
"""


def kill(peer: "subprocess.Popen[str]") -> None:
    peer.send_signal(signal.SIGKILL)
    peer.wait()


def start(queue: Path, kind: str) -> "subprocess.Popen[str]":
    peer = subprocess.Popen(
        [sys.executable, "-c", PEER, str(queue), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert peer.stdout is not None
    assert peer.stdout.readline() == "ready\n"
    return peer


def test_a_killed_writer_is_noticed_by_its_reader_and_by_the_next_writer(
    queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start(queue_path, "writer") as peer, open_reader(queue_path, "audit") as reader:
        reader.poll()
        reader.wait(0.01)
        eventually(lambda: reader.attended)
        kill(peer)
        text = f"{queue_path}: the writer of reader 'audit' has closed the queue or died"
        eventually(lambda: ("DEBUG", text) in logged(caplog, "engine"))
        with open_writer(queue_path):
            pass
    levels = [text for level, text in logged(caplog, "writer") if level == "INFO"]
    assert levels == [f"{queue_path}: not closed cleanly; checked 1 records, nothing was lost"]


def test_a_killed_reader_is_noticed_by_the_writer(
    queue_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_writer(queue_path) as writer, start(queue_path, "reader") as peer:
        eventually(lambda: writer.statistics().readers_connected == 1)
        kill(peer)
        text = f"{queue_path}: reader 'audit' was closed or died"
        eventually(lambda: ("DEBUG", text) in logged(caplog, "engine"))


def test_forgetting_a_reader(queue: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_reader(queue, "last-year").close()
    forget_reader(queue, "last-year")
    assert logged(caplog, "queue") == [("INFO", f"{queue}: reader 'last-year' was forgotten")]


async def test_a_router_logs_what_comes_goes_fails_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name in ("bad", "good"):
        with open_writer(root / name, ready=True) as writer:
            writer.append(b"x")
    with (root / "bad" / "000000000.q").open("r+b") as segment:
        segment.seek(72)
        segment.write(b"\xff")
    async with Router(root, name="router", rescan_s=0.2) as router:
        async with asyncio.timeout(30):
            while not any(
                "retried without success" in text for _, text in logged(caplog, "router")
            ):
                router.poll()
                await asyncio.sleep(0.01)
    found = logged(caplog, "router")
    assert ("DEBUG", f"following {root} as router") in found
    assert ("INFO", f"attached: {root / 'good'}") in found
    assert any(level == "WARNING" and "bad" in text for level, text in found)
    assert found[-1] == ("DEBUG", f"leaving {root} with 1 queues attached")


def test_every_logger_is_in_the_table_of_the_guide() -> None:
    source = Path(__file__).parents[2] / "aiochronicle"
    named: set[str] = set()
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "getLogger(__name__)" in text:
            module = ".".join(path.relative_to(source.parent).with_suffix("").parts)
            named.add("aiochronicle.spark" if ".spark." in module else module)
        for line in text.splitlines():
            _, found, rest = line.partition('getLogger("')
            if found:
                named.add(rest.partition('"')[0])
    table = GUIDE.read_text(encoding="utf-8")
    ours = {name for name in named if name.startswith("aiochronicle")}
    assert {name for name in ours if f"`{name}`" not in table} == set()


def test_names_of_queues_cannot_forge_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evil = tmp_path / "evil\nname"
    with start(evil, "writer") as peer:
        kill(peer)
    with open_writer(evil), open_reader(evil):
        pass
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) >= 5
    assert all(text.isprintable() for text in texts)
