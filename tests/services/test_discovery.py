"""Discovery of queues as they come and go, in real directories."""

import asyncio
import contextlib
import errno
import functools
import logging
import os
import shutil
import stat
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.system_calls import injected

import aiochronicle
from aiochronicle import Attached, Detached, Discovery, discover
from aiochronicle._services.ready import READY_BYTES_MAX, parse_ready
from aiochronicle.errors import InvalidArgument, StorageError

# A segment is allocated when it is created: test queues of the default size would fill the disk.
open_writer = functools.partial(aiochronicle.open_writer, segment_size=1 << 20)

WITHIN_S = 20.0
TRIALS = int(os.environ.get("AIOCHRONICLE_DISCOVERY_TRIALS") or 200)


def announce(path: Path, content: str = '{"version": 1}') -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "READY.tmp").write_text(content)
    (path / "READY.tmp").rename(path / "READY")


@pytest.fixture(autouse=True, params=["nudge", "watchfiles alone"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """How discovery notices changes: with the engine's watch, or with watchfiles alone if that fails."""
    with contextlib.ExitStack() as hooks:
        if request.param == "watchfiles alone":
            hooks.enter_context(injected("watch", errno.EMFILE))
        yield request.param


async def take(discovery: Discovery) -> Attached | Detached:
    async with asyncio.timeout(WITHIN_S):
        return await anext(discovery)


async def quiet(discovery: Discovery, path: Path) -> None:
    """Check that there are no other events: announce a queue and expect it as the next event."""
    announce(path)
    assert (await take(discovery)).path == str(path)


async def test_what_is_there_is_found_first_and_then_what_comes(tmp_path: Path) -> None:
    announce(tmp_path / "a", '{"version": 1, "pid": 7, "created_at": "now", "venue": "X"}')
    announce(tmp_path / "b", "version=1\n")
    (tmp_path / "unready").mkdir()
    (tmp_path / "file").write_text("")
    async with discover(tmp_path, rescan_s=60) as discovery:
        first, second = await take(discovery), await take(discovery)
        assert isinstance(first, Attached)
        assert isinstance(second, Attached)
        assert (first.path, second.path) == (str(tmp_path / "a"), str(tmp_path / "b"))
        assert (first.ready.pid, first.ready.created_at) == (7, "now")
        assert first.ready.extra == {"venue": "X"}
        assert second.ready.version == 1
        announce(tmp_path / "unready")
        assert (await take(discovery)).path == str(tmp_path / "unready")
        announce(tmp_path / "a")  # once more, as a restarted writer does
        shutil.rmtree(tmp_path / "b")
        assert await take(discovery) == Detached(str(tmp_path / "b"))
        await quiet(discovery, tmp_path / "c")


async def test_a_real_writer_is_found_and_its_directory_is_what_counts(tmp_path: Path) -> None:
    async with discover(tmp_path, rescan_s=60) as discovery:
        with open_writer(tmp_path / "queue") as writer:
            writer.mark_ready(venue="XETR")
            event = await take(discovery)
            assert isinstance(event, Attached)
            assert event.ready.pid == os.getpid()
            assert event.ready.extra == {"venue": "XETR"}
        (tmp_path / "queue" / "READY").unlink()
        await quiet(discovery, tmp_path / "other")


CREATOR = """
import os, sys, time
for name in sys.stdin:
    path = os.path.join(sys.argv[1], name.strip())
    temporary, final = os.path.join(path, "READY.tmp"), os.path.join(path, "READY")
    os.mkdir(path)
    with open(temporary, "w") as file:
        file.write('{"version": 1}')
    os.rename(temporary, final)
    print(time.monotonic_ns(), flush=True)
"""


async def test_every_queue_that_is_ready_at_once_is_found_at_once(tmp_path: Path) -> None:
    """Recursive watching alone misses about one in six of these queues."""
    latencies_ms: list[float] = []
    creator = subprocess.Popen(
        [sys.executable, "-c", CREATOR, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert creator.stdin is not None
    assert creator.stdout is not None
    async with discover(tmp_path, rescan_s=600) as discovery:  # no rescans to catch missed queues
        await quiet(discovery, tmp_path / "first")
        for trial in range(TRIALS):
            creator.stdin.write(f"{trial}\n")
            creator.stdin.flush()
            event = await take(discovery)
            found_ns = time.monotonic_ns()
            assert event.path == str(tmp_path / f"{trial}")
            latencies_ms.append((found_ns - int(creator.stdout.readline())) / 1e6)
    creator.stdin.close()
    creator.stdout.close()
    creator.wait()
    median_ms = statistics.median(latencies_ms)
    print(f"median {median_ms:.1f} ms, longest {max(latencies_ms):.1f} ms")
    assert median_ms < 50


async def test_bursts_are_found_completely(tmp_path: Path) -> None:
    async with discover(tmp_path, rescan_s=600) as discovery:
        await quiet(discovery, tmp_path / "first")

        def create() -> None:
            for number in range(300):
                announce(tmp_path / f"{number}")

        thread = threading.Thread(target=create)
        thread.start()
        found = {(await take(discovery)).path for _ in range(300)}
        thread.join()
        assert found == {str(tmp_path / f"{number}") for number in range(300)}


def make_link(path: Path) -> None:
    (path.parent / "target").write_text('{"version": 1}')
    path.symlink_to(path.parent / "target")


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "newer": (lambda path: path.write_text('{"version": 2}'), "version 2"),
    "newer, old style": (lambda path: path.write_text("version=9"), "version 9"),
    "garbage": (lambda path: path.write_bytes(b"\x00\xff\xfe garbage"), "cannot be read"),
    "empty": (lambda path: path.write_text(""), "neither JSON nor version=N"),
    "no version": (lambda path: path.write_text('{"pid": 1}'), "version"),
    "not an object": (lambda path: path.write_text("[1, 2]"), "neither JSON"),
    "version of a wrong type": (lambda path: path.write_text('{"version": "1"}'), "int"),
    "not a number": (lambda path: path.write_text("version=one"), "cannot be read"),
    "deep": (lambda path: path.write_text("[" * 60_000), "cannot be read"),
    "deep, in an object": (
        lambda path: path.write_text('{"version": 1, "x": ' + "[" * 40_000),
        "nested more than 64 levels deep",
    ),
    "a version of 5,000 digits": (
        lambda path: path.write_text(f"version=1{'0' * 5000}"),
        "not a number, or is too large",
    ),
    "a version of 5,000 digits in JSON": (
        lambda path: path.write_text('{"version": 1%s}' % ("0" * 5000)),
        "cannot be read",
    ),
    "a negative version": (lambda path: path.write_text('{"version": -1}'), "cannot be read"),
    "a socket": (lambda path: os.mknod(path, stat.S_IFSOCK | 0o600), "not a regular file"),
    "too large": (lambda path: path.write_text(" " * (READY_BYTES_MAX + 1)), "larger than"),
    "a directory": (lambda path: path.mkdir(), "not a regular file"),
    "a link": (make_link, "cannot be opened"),
    "a dangling link": (lambda path: path.symlink_to("nowhere"), "cannot be opened"),
    "a pipe": (os.mkfifo, "not a regular file"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_marker_is_skipped_with_one_warning(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, complaint = BROKEN[name]
    root = tmp_path / "root"
    (root / "broken").mkdir(parents=True)
    make(root / "broken" / "READY")
    with caplog.at_level(logging.WARNING):
        async with discover(root, rescan_s=0.02) as discovery:
            await quiet(discovery, root / "good")
            await asyncio.sleep(0.1)  # several scans
            messages = [record.getMessage() for record in caplog.records]
            (message,) = [text for text in messages if str(root / "broken") in text]
            assert complaint in message
            # Once repaired, the queue is found.
            shutil.rmtree(root / "broken")
            await quiet(discovery, root / "broken")


async def test_linked_directories_are_not_followed(tmp_path: Path) -> None:
    announce(tmp_path / "elsewhere")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (root / "dangling").symlink_to(tmp_path / "nowhere")
    (root / "loop").symlink_to(root)
    async with discover(root, rescan_s=0.05) as discovery:
        await quiet(discovery, root / "good")


async def test_many_bogus_directories_do_not_hide_a_queue(tmp_path: Path) -> None:
    for number in range(10_000):
        (tmp_path / f"bogus{number}").mkdir()
    announce(tmp_path / "queue")
    async with discover(tmp_path, rescan_s=60) as discovery:
        assert (await take(discovery)).path == str(tmp_path / "queue")
        await quiet(discovery, tmp_path / "another")


async def test_a_queue_made_anew_is_another_one(tmp_path: Path) -> None:
    """Even if the directory gets the inode number of the old one, which is common."""
    async with discover(tmp_path, rescan_s=60) as discovery:
        for _ in range(20):
            with open_writer(tmp_path / "queue", segment_size=4096, ready=True):
                assert isinstance(await take(discovery), Attached)
            shutil.rmtree(tmp_path / "queue")
            with open_writer(tmp_path / "queue", segment_size=4096, ready=True):
                assert await take(discovery) == Detached(str(tmp_path / "queue"))
                assert isinstance(await take(discovery), Attached)
            shutil.rmtree(tmp_path / "queue")
            assert await take(discovery) == Detached(str(tmp_path / "queue"))


async def test_a_queue_moved_away_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "root"
    announce(root / "queue")
    async with discover(root, rescan_s=60) as discovery:
        await take(discovery)
        (root / "queue").rename(tmp_path / "queue")
        assert await take(discovery) == Detached(str(root / "queue"))
        (tmp_path / "queue").rename(root / "back")
        assert (await take(discovery)).path == str(root / "back")


async def test_a_missing_root_is_made_and_a_removed_one_is_noticed(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there"
    async with discover(root, rescan_s=0.05) as discovery:
        await quiet(discovery, root / "a")
        shutil.rmtree(root)
        assert await take(discovery) == Detached(str(root / "a"))
        await quiet(discovery, root / "a")


async def test_queues_may_lie_deeper(tmp_path: Path) -> None:
    announce(tmp_path / "desk" / "a")
    announce(tmp_path / "b")
    announce(tmp_path / "too" / "deep" / "c")
    async with discover(tmp_path, depth=2, rescan_s=60) as discovery:
        found = {(await take(discovery)).path for _ in range(2)}
        assert found == {str(tmp_path / "desk" / "a"), str(tmp_path / "b")}
        await quiet(discovery, tmp_path / "new desk" / "d")
        shutil.rmtree(tmp_path / "desk")
        assert await take(discovery) == Detached(str(tmp_path / "desk" / "a"))
    async with discover(tmp_path, rescan_s=60) as discovery:
        assert (await take(discovery)).path == str(tmp_path / "b")
        await quiet(discovery, tmp_path / "e")


def fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_closing_releases_the_watcher(tmp_path: Path) -> None:
    announce(tmp_path / "a")

    async def follow_once() -> Discovery:
        async with discover(tmp_path) as discovery:
            await take(discovery)
            return discovery

    discovery = await follow_once()
    before = fds()
    for _ in range(20):
        discovery = await follow_once()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch ")]
    # The thread inside watchfiles has been asked to stop; it closes its fds later.
    async with asyncio.timeout(WITHIN_S):
        while fds() > before:
            await asyncio.sleep(0.001)
    with pytest.raises(StopAsyncIteration):
        await anext(discovery)


async def test_closing_wakes_whoever_waits(tmp_path: Path) -> None:
    discovery = discover(tmp_path)

    async def collect() -> list[Attached | Detached]:
        return [event async for event in discovery]

    task = asyncio.ensure_future(collect())
    await asyncio.sleep(0.05)
    await discovery.aclose()
    assert await task == []
    await discovery.aclose()


async def test_cancelling_loses_no_event(tmp_path: Path) -> None:
    async with discover(tmp_path, rescan_s=60) as discovery:
        for number in range(20):
            task = asyncio.ensure_future(anext(discovery))
            await asyncio.sleep(0)
            announce(tmp_path / f"{number}")
            await asyncio.sleep(0.001 * number)
            task.cancel()
            try:
                event = await task
            except asyncio.CancelledError:
                event = await take(discovery)
            assert event.path == str(tmp_path / f"{number}")


async def test_a_root_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with discover(tmp_path / "file" / "root") as discovery:
        with pytest.raises(StorageError, match="Not a directory"):
            await take(discovery)
    with pytest.raises(InvalidArgument):
        discover(tmp_path, depth=0)
    with pytest.raises(InvalidArgument):
        discover(tmp_path, rescan_s=0)


def test_parse_ready_takes_both_forms() -> None:
    assert parse_ready(b"version=1").version == 1
    assert parse_ready(b"\n version=3 \nrest").version == 3
    assert parse_ready(b' {"version": 1} ').version == 1
