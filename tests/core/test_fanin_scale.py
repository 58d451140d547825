"""A thousand queues in one router; queues that come and go leave nothing behind."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from aiochronicle import FanIn, Router, open_reader, open_writer

QUEUES = 1_000
CYCLES = int(os.environ.get("AIOCHRONICLE_ATTACH_CYCLES") or 20_000)

WRITERS = """
import resource, sys, aiochronicle
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
root, count = sys.argv[1], int(sys.argv[2])
writers = [
    aiochronicle.open_writer(f"{root}/{number:04}", segment_size=1 << 16, ready=True)
    for number in range(count)
]
print("ready", flush=True)
for line in sys.stdin:
    writers[int(line)].append(line.strip().encode())
for writer in writers:
    writer.close()
"""


@pytest.fixture
def memory() -> Iterator[Path]:
    """Yield a directory in memory, where a thousand queues take seconds instead of minutes of syncing."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        yield Path(directory)


def fds() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def maps() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def is_mapped(directory: Path) -> bool:
    return str(directory) in Path("/proc/self/maps").read_text()


def resident_kib(kind: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1])
    raise AssertionError(kind)


async def test_a_thousand_queues(memory: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITERS, str(memory), str(QUEUES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None
        assert writers.stdout.readline() == "ready\n"
        fds_before, maps_before = fds(), maps()
        private_before, resident_before = resident_kib("RssAnon"), resident_kib("VmRSS")
        started_s = time.monotonic()
        async with asyncio.timeout(60), Router(memory, name="router") as router:
            attach_s = time.monotonic() - started_s
            assert len(router.sources()) == QUEUES
            task = asyncio.ensure_future(router.next())
            # Every writer is connected: that costs one fd per source, and nothing else costs any.
            while sum(reader.attended for reader in router.sources().values()) < QUEUES:
                await asyncio.sleep(0.01)
            private_kib = (resident_kib("RssAnon") - private_before) / QUEUES
            resident = (resident_kib("VmRSS") - resident_before) / QUEUES
            print(f"attached in {attach_s:.2f} s, {fds() - fds_before} fds for {QUEUES} sources,")
            print(f"{private_kib:.1f} KiB of memory and {resident:.1f} KiB resident per source")
            assert fds() - fds_before < 1_200
            assert resident < 64
            assert attach_s < 20  # 2 s is the target on an idle machine
            for number in (0, 500, 999, 500):
                writers.stdin.write(f"{number}\n")
                writers.stdin.flush()
                assert (await task).payload == b"%d" % number
                task = asyncio.ensure_future(router.next())
            # Detaching a removed queue frees everything at once.
            attached_maps = maps()
            shutil.rmtree(memory / "0100")
            while len(router.sources()) == QUEUES:
                await asyncio.sleep(0.001)
            assert maps() < attached_maps
            assert not is_mapped(memory / "0100")
            task.cancel()
        assert maps() - maps_before < 200  # threads and memory pools, not three per queue
        writers.stdin.close()


def test_attaching_and_detaching_leaves_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number in range(10):
            stack.enter_context(open_writer(tmp_path / f"{number}", segment_size=1 << 16))
        readers = [stack.enter_context(open_reader(tmp_path / f"{n}", "test")) for n in range(10)]
        fan_in = stack.enter_context(FanIn())
        for reader in readers:  # once for each, so that everything is allocated
            source = fan_in.attach(reader)
            fan_in.wait(timeout=0)
            fan_in.detach(source)
        before = fds(), maps(), resident_kib("RssAnon")
        for cycle in range(CYCLES):
            source = fan_in.attach(readers[cycle % 10])
            if cycle % 50 == 0:
                fan_in.wait(timeout=0)  # parks: writers connect and are disconnected again
            assert fan_in.detach(source) is readers[cycle % 10]
        fan_in._check()
        assert fan_in.statistics().sources == 0
        deadline_s = time.monotonic() + 20
        while fds() > before[0] or maps() > before[1]:  # another thread closes connections
            assert time.monotonic() < deadline_s, (fds(), maps(), before)
            time.sleep(0.001)
        assert resident_kib("RssAnon") - before[2] < 2_048


def test_opening_attaching_and_closing_leaves_nothing(tmp_path: Path) -> None:
    with open_writer(tmp_path / "queue", segment_size=1 << 16) as writer, FanIn() as fan_in:
        writer.append(b"1")
        before = None
        for cycle in range(CYCLES // 20):
            with open_reader(tmp_path / "queue", "test") as reader:
                source = fan_in.attach(reader)
                assert fan_in.poll() is not None
                fan_in.detach(source)
            if cycle == 10:
                before = fds(), maps()
        assert (fds(), maps()) == before
