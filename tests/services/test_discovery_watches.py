"""What discovery watches, what that costs, and how it continues when watching fails."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from asynchronous.both_loops import on_both_loops
from asynchronous.loops import LOOPS
from faults.system_calls import injected
from helpers.inotify import count_watches, watched_inodes
from helpers.limits import can_limit, limited
from helpers.waiting import eventually

import aiochronicle
from aiochronicle import Attached, Detached, Discovery, discover

WITHIN_S = 20.0
WAYS = ["nudge", "alone"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Watch with the engine, or with watchfiles alone as if the system had no watches left."""
    with contextlib.ExitStack() as hooks:
        if request.param == "alone":
            hooks.enter_context(injected("watch", errno.EMFILE))
        yield request.param


def announce(path: Path, content: str = '{"version": 1}') -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "READY.tmp").write_text(content)
    (path / "READY.tmp").rename(path / "READY")


async def take(discovery: Discovery) -> Attached | Detached:
    async with asyncio.timeout(WITHIN_S):
        return await anext(discovery)


async def found(discovery: Discovery, path: Path) -> Attached:
    event = await take(discovery)
    assert isinstance(event, Attached)
    assert event.path == str(path)
    return event


class Discoverer:
    """Another process that follows a root."""

    def __init__(self, root: Path, rescan_s: float, way: str, within: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*within, sys.executable, "-m", "helpers.discoverer", str(root), str(rescan_s), way],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())

    def expect(self, kind: str, path: Path) -> None:
        assert self._lines.get(timeout=WITHIN_S) == f"{kind} {str(path)!a}"

    def __enter__(self) -> "Discoverer":
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.communicate()


def switches(pid: int) -> int:
    """Return how often the threads of a process went to sleep."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            text = (task / "status").read_text()
            total += int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return total


def settled(pid: int) -> Callable[[], bool]:
    """Return a function that returns True once the process is idle."""
    last = [switches(pid)]

    def is_settled() -> bool:
        time.sleep(0.5)
        before, last[0] = last[0], switches(pid)
        return last[0] - before < 5

    return is_settled


def test_idle_discovery_sleeps(tmp_path: Path) -> None:
    for number in range(20):
        announce(tmp_path / f"{number:02}")
    with Discoverer(tmp_path, 5.0, "nudge") as process:
        for number in range(20):
            process.expect("Attached", tmp_path / f"{number:02}")
        eventually(settled(process.pid), WITHIN_S)
        before, began = switches(process.pid), time.monotonic()
        time.sleep(6)  # the measured interval
        per_second = (switches(process.pid) - before) / (time.monotonic() - began)
        print(f"{per_second:.2f} wake-ups per second")
        assert per_second < 5
        announce(tmp_path / "later")
        process.expect("Attached", tmp_path / "later")


async def test_only_directories_where_queues_may_lie_are_watched(tmp_path: Path, way: str) -> None:
    tree = tmp_path / "tree"
    for number in range(400):
        (tree / f"{number}" / "below").mkdir(parents=True)
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tree)
    (root / "loop").symlink_to(root)
    with aiochronicle.open_writer(root / "queue", segment_size=4096, ready=True):
        before = count_watches()
        async with discover(root, rescan_s=0.1) as discovery:
            await found(discovery, root / "queue")
            (root / "desk" / "too" / "deep").mkdir(parents=True)
            announce(root / "good")
            await found(discovery, root / "good")
            await asyncio.sleep(0.5)  # time enough to follow links, wrongly
            # root, queue, desk and good; and the root once more, by watchfiles
            assert count_watches() - before <= 5
    eventually(lambda: count_watches() <= before)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"new\nline", b"\x1b[2J"])
async def test_names_of_any_bytes(
    tmp_path: Path, way: str, name: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    odd = os.fsdecode(name)
    async with discover(tmp_path, rescan_s=0.5) as discovery:
        announce(tmp_path / "first")
        await found(discovery, tmp_path / "first")
        for directory in (tmp_path, tmp_path / "first", tmp_path / "below"):
            directory.mkdir(exist_ok=True)
            (directory / odd).write_text("")
        for number in range(3):
            announce(tmp_path / f"{number}")
            await found(discovery, tmp_path / f"{number}")
        (tmp_path / odd).unlink()
        announce(tmp_path / odd)
        await found(discovery, tmp_path / odd)
        (tmp_path / odd / "READY").write_text("{")
        shutil.rmtree(tmp_path / odd)
        assert await take(discovery) == Detached(str(tmp_path / odd))
        with caplog.at_level(logging.WARNING):
            announce(tmp_path / odd, "broken")
            async with asyncio.timeout(WITHIN_S):
                while not any("neither JSON" in text for text in caplog.messages):
                    await asyncio.sleep(0.01)
    for text in caplog.messages:
        assert text.isprintable()
        text.encode()


async def test_a_root_that_was_removed_and_made_again_is_watched_again(
    tmp_path: Path, way: str
) -> None:
    root = tmp_path / "root"
    async with discover(root, rescan_s=0.2) as discovery:
        announce(root / "a")
        await found(discovery, root / "a")
        for _ in range(3):
            shutil.rmtree(root)
            assert await take(discovery) == Detached(str(root / "a"))
            announce(root / "a")
            await found(discovery, root / "a")
            async with asyncio.timeout(WITHIN_S):
                while root.stat().st_ino not in watched_inodes():
                    await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", WAYS)
def test_more_events_than_the_kernel_keeps(tmp_path: Path, way: str) -> None:
    """watchfiles does not report lost events; the full scan finds the queues that it missed."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 100_000:
        pytest.skip("takes too many files")
    with Discoverer(tmp_path, 600 if way == "nudge" else 2, way) as process:
        announce(tmp_path / "first")
        process.expect("Attached", tmp_path / "first")
        os.kill(process.pid, signal.SIGSTOP)
        for number in range(limit // 2 + 1000):  # each is created and closed
            (tmp_path / f"file{number}").touch()
        announce(tmp_path / "queue")
        shutil.rmtree(tmp_path / "first")
        os.kill(process.pid, signal.SIGCONT)
        process.expect("Detached", tmp_path / "first")
        process.expect("Attached", tmp_path / "queue")
        announce(tmp_path / "then")
        process.expect("Attached", tmp_path / "then")


@pytest.mark.skipif(not can_limit(), reason="needs user namespaces")
@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("limit", ["max_inotify_watches", "max_inotify_instances"])
def test_without_watches_the_full_scan_finds_all(tmp_path: Path, limit: str, count: int) -> None:
    with Discoverer(tmp_path, 0.5, "nudge", within=limited(limit, count)) as process:
        for number in range(6):
            announce(tmp_path / f"{number}")
            process.expect("Attached", tmp_path / f"{number}")
        for number in range(6):
            shutil.rmtree(tmp_path / f"{number}")
            process.expect("Detached", tmp_path / f"{number}")


async def test_a_directory_that_became_a_link_is_gone(tmp_path: Path, way: str) -> None:
    """A user who may rename in the root cannot make us deliver a queue from outside it."""
    root, private = tmp_path / "root", tmp_path / "private"
    announce(private / "a", '{"version": 1, "secret": true}')
    announce(root / "desk" / "a")
    announce(root / "b")
    async with discover(root, depth=2, rescan_s=0.2) as discovery:
        first, second = await take(discovery), await take(discovery)
        assert {first.path, second.path} == {str(root / "desk" / "a"), str(root / "b")}
        (root / "desk").rename(tmp_path / "desk")
        (root / "desk").symlink_to(private)
        assert await take(discovery) == Detached(str(root / "desk" / "a"))
        (root / "b").rename(tmp_path / "b")
        (root / "b").symlink_to(private / "a")
        assert await take(discovery) == Detached(str(root / "b"))
        await asyncio.sleep(0.5)  # full scans
        announce(root / "c")
        await found(discovery, root / "c")


async def test_what_is_found_has_the_identity_of_the_directory(tmp_path: Path, way: str) -> None:
    """Even while the directory is replaced by a link and back, as fast as possible."""
    root, private, away = tmp_path / "root", tmp_path / "private", tmp_path / "away"
    announce(private, '{"version": 1, "secret": true}')
    announce(root / "queue", '{"version": 1, "public": true}')
    status = (root / "queue").stat()
    (tmp_path / "link").symlink_to(private)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (root / "queue").rename(away)
            (tmp_path / "link").rename(root / "queue")
            (root / "queue").rename(tmp_path / "link")
            away.rename(root / "queue")

    thread = threading.Thread(target=swap)
    async with discover(root, rescan_s=0.01) as discovery:
        thread.start()
        try:
            for _ in range(40):
                event = await take(discovery)
                assert event.path == str(root / "queue")
                if isinstance(event, Attached):
                    assert event.identity == (status.st_dev, status.st_ino, status.st_uid)
                    assert event.ready.extra == {"public": True}
        finally:
            stop.set()
            thread.join()


@on_both_loops
async def test_closing_is_quick_and_leaves_nothing(tmp_path: Path) -> None:
    announce(tmp_path / "a")
    before = count_watches()
    slowest_s = 0.0
    for _ in range(10):
        async with discover(tmp_path) as discovery:
            await found(discovery, tmp_path / "a")
            began = time.monotonic()
        slowest_s = max(slowest_s, time.monotonic() - began)
    assert slowest_s < 2  # half of the watcher's long interval
    eventually(lambda: count_watches() <= before)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch ")]


@on_both_loops
async def test_cancelled_at_any_moment_it_leaves_nothing(tmp_path: Path) -> None:
    announce(tmp_path / "a")
    before = count_watches()
    for turns in range(30):
        discovery = discover(tmp_path)
        task = asyncio.ensure_future(anext(discovery))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        discovery.stop()
        with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
            await task
        await discovery.aclose()
    eventually(lambda: count_watches() <= before)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch ")]


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_loop_that_was_closed_first_leaves_nothing(tmp_path: Path, way: str, name: str) -> None:
    announce(tmp_path / "a")
    before = count_watches()
    loop = LOOPS[name]()
    loop.set_exception_handler(lambda *_: None)  # a task is destroyed that was pending
    discovery = discover(tmp_path)
    loop.run_until_complete(found(discovery, tmp_path / "a"))
    loop.close()
    del discovery, loop

    def is_gone() -> bool:
        gc.collect()
        return count_watches() <= before

    eventually(is_gone)
    asyncio.run(_find_again(tmp_path))  # another loop, another discovery


async def _find_again(root: Path) -> None:
    async with discover(root) as discovery:
        await found(discovery, root / "a")


async def test_a_forked_child_holds_no_watches(tmp_path: Path) -> None:
    announce(tmp_path / "a")
    before = count_watches()
    async with discover(tmp_path) as discovery:
        await found(discovery, tmp_path / "a")
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(readable, 1)
            os._exit(0)
        # The descriptor of watchfiles; the child closes ours later.
        eventually(lambda: count_watches(child) - before <= 1)
        announce(tmp_path / "b")
        await found(discovery, tmp_path / "b")
        os.write(writable, b"x")
        os.waitpid(child, 0)  # noqa: ASYNC222 - it was told to end
        os.close(readable)
        os.close(writable)


async def test_too_many_open_files_end_nothing(tmp_path: Path, way: str) -> None:
    """A queue that cannot be checked is not reported as gone."""
    import resource

    for number in range(5):
        with aiochronicle.open_writer(tmp_path / f"{number}", segment_size=4096, ready=True):
            pass
    async with discover(tmp_path, rescan_s=0.05) as discovery:
        for number in range(5):
            await found(discovery, tmp_path / f"{number}")
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.open("/", os.O_RDONLY)
        os.close(lowest)
        try:
            for extra in (0, 1, 2):  # fails at a different step each time
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + extra, limits[1]))
                await asyncio.sleep(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        announce(tmp_path / "later")
        await found(discovery, tmp_path / "later")
