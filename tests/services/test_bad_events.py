"""One bad event must not end a service: the next message always gets through.

Every event is tested on every service listed in services.py. If a service has several queues, the others
must not be affected.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from faults.devices import missing, tmpfs

import aiochronicle
from aiochronicle.errors import ChronicleError, DiskFull

from .service import Service, until
from .services import SERVICES

NOT_SERVICES = {
    "Replay": "reads what was recorded; damage is raised where it lies (test_replay.py)",
    "Slice": "a part of a recording",
    "VirtualTimeLoop": "an event loop",
}

every = pytest.mark.parametrize("kind", SERVICES, ids=lambda kind: kind.__name__)
every_handler = pytest.mark.parametrize(
    "kind", [kind for kind in SERVICES if kind.handles], ids=lambda kind: kind.__name__
)
every_finder = pytest.mark.parametrize(
    "kind", [kind for kind in SERVICES if kind.finds], ids=lambda kind: kind.__name__
)


@asynccontextmanager
async def running(kind: type[Service], root: Path) -> AsyncIterator[Service]:
    service = kind(root)
    service.make_peers()
    try:
        await service.start()
        try:
            for queue in service.queues:
                await service.exchange(queue)
            yield service
            for queue in service.queues:
                await service.exchange(queue)
        finally:
            await service.stop()
    finally:
        service.close_peers()


def test_every_service_of_the_package_is_in_the_list() -> None:
    covered = {one for kind in SERVICES for one in kind.covers}
    verbs = ("__aiter__", "serve", "request", "reader")
    for name in aiochronicle.__all__:
        thing = getattr(aiochronicle, name)
        if isinstance(thing, type) and any(callable(getattr(thing, verb, None)) for verb in verbs):
            assert thing in covered or name in NOT_SERVICES, f"{name} is a service without tests"


@every
async def test_a_corrupt_record(kind: type[Service], tmp_path: Path) -> None:
    async with running(kind, tmp_path) as service:
        for _ in range(3):
            service.damage("a")
            for queue in service.queues:
                await service.exchange(queue)


@every
async def test_a_record_that_became_zeros(kind: type[Service], tmp_path: Path) -> None:
    async with running(kind, tmp_path) as service:
        for _ in range(3):
            service.blank("a")
            for queue in service.queues:
                await service.exchange(queue)


@every
async def test_a_position_that_is_lost(kind: type[Service], tmp_path: Path) -> None:
    async with running(kind, tmp_path) as service:
        service.lose("a")
        for queue in reversed(service.queues):
            await service.exchange(queue)


@every
async def test_a_queue_that_is_removed_and_made_again(kind: type[Service], tmp_path: Path) -> None:
    async with running(kind, tmp_path) as service:
        for _ in range(3):
            service.remove("a")
            for queue in service.queues[1:]:
                await service.exchange(queue)
            service.make("a")
            await service.exchange("a")
            service.remove("a")  # at once, so that the service does not see it missing
            service.make("a")


@every
async def test_a_disk_that_is_full_for_a_while(kind: type[Service], tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    with tmpfs(tmp_path / "small", "32m") as disk:
        async with running(kind, disk) as service:
            ballast = disk / "ballast"
            _fill(ballast)
            for _ in range(5):
                for queue in service.queues:
                    await _try_to_exchange(service, queue)
            ballast.unlink()


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


async def _try_to_exchange(service: Service, queue: str) -> None:
    """Exchange a message if there is room for it on the disk."""
    try:
        async with asyncio.timeout(0.5):
            await service.exchange(queue)
    except (DiskFull, TimeoutError):
        pass


@every_finder
async def test_a_watch_that_is_lost(kind: type[Service], tmp_path: Path) -> None:
    async with running(kind, tmp_path) as service:
        inputs = tmp_path / "in"
        for (
            queue
        ) in service.queues:  # a writer whose queue is moved stops, if it checks at that moment
            service.writers[queue].close()
        inputs.rename(tmp_path / "elsewhere")
        await asyncio.sleep(0.05)
        (tmp_path / "elsewhere").rename(inputs)
        service.make_peers()
        for queue in service.queues:
            await service.exchange(queue)
        for queue in service.queues:
            service.remove(queue)
        shutil.rmtree(inputs)
        await asyncio.sleep(0.3)  # longer than rescan_s
        service.make_peers()
        for queue in service.queues:
            await service.exchange(queue)


def make_nonsense(directory: Path) -> None:
    directory.mkdir()
    (directory / "READY").write_bytes(b"\xff")
    (directory / os.fsdecode(b"\xff")).touch()


@every_finder
async def test_names_that_are_not_text(kind: type[Service], tmp_path: Path) -> None:
    async with running(kind, tmp_path) as service:
        for name in (b"\xff\xfe", b"a\nb", b"\x1b[31m"):
            make_nonsense(tmp_path / "in" / os.fsdecode(name))
            for queue in service.queues:
                await service.exchange(queue)


@every_finder
async def test_a_marker_that_is_a_bomb(kind: type[Service], tmp_path: Path) -> None:
    async with running(kind, tmp_path) as service:
        bombs = {
            "deep": b'{"version": 1, "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
            "long": b"version=" + b"9" * 10_000,
            "huge": b" " * 100_000,
        }
        for name, content in bombs.items():
            (tmp_path / "in" / name).mkdir()
            (tmp_path / "in" / name / "READY").write_bytes(content)
        (tmp_path / "in" / "pipe").mkdir()
        os.mkfifo(tmp_path / "in" / "pipe" / "READY")
        await asyncio.sleep(0.5)  # rescanned, too
        for queue in service.queues:
            await service.exchange(queue)


@every
def test_a_loop_that_is_closed(kind: type[Service], tmp_path: Path) -> None:
    """Closing the loop before the service leaks nothing and frees the name for the next service."""
    service = kind(tmp_path)
    service.make_peers()
    try:
        with asyncio.Runner() as runner:
            runner.run(_start_and_exchange(service))
        service.close_now()
        successor = kind(tmp_path)
        successor.writers = service.writers
        successor._numbers = service._numbers
        asyncio.run(_use_and_stop(successor))
    finally:
        service.close_peers()


async def _start_and_exchange(service: Service) -> None:
    await service.start()
    for queue in service.queues:
        await service.exchange(queue)


async def _use_and_stop(service: Service) -> None:
    await service.start()
    try:
        for queue in service.queues:
            await service.exchange(queue)
    finally:
        await service.stop()


@every
def test_a_second_loop(kind: type[Service], tmp_path: Path) -> None:
    """In another loop, after the first was closed, the service works or says why it cannot."""
    service = kind(tmp_path)
    service.make_peers()
    try:
        asyncio.run(_start_and_exchange(service))
        try:
            asyncio.run(_go_on(service))
        except ChronicleError as error:
            if "loop" not in str(error):
                raise
        finally:
            service.close_now()
    finally:
        service.close_peers()


async def _go_on(service: Service) -> None:
    service._task = asyncio.create_task(service.run())
    for queue in service.queues:
        await service.exchange(queue)
    await service.stop()


@every_handler
async def test_a_handler_that_raises(
    kind: type[Service], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is not lost: it is delivered again, or its sender gets the error."""
    caplog.set_level(logging.CRITICAL, "aiochronicle.requests")  # its records would keep messages
    async with running(kind, tmp_path) as service:
        failures: list[bytes] = []

        def fail_once(payload: bytes) -> None:
            if payload not in failures:
                failures.append(payload)
                raise RuntimeError("this handler fails the first time")

        service.on_message = fail_once
        payload = service.put("a")
        service.supervised = True
        supervised = asyncio.create_task(_supervise(service))
        try:
            await until(lambda: payload in failures)
            service.on_message = None
            await service.settled(payload)
            for queue in service.queues:
                await service.exchange(queue)
        finally:
            supervised.cancel()
            await asyncio.wait([supervised])
            service.supervised = False


async def _supervise(service: Service) -> None:
    """Restart the service's task whenever it fails."""
    while True:
        task = service._task
        assert task is not None
        await asyncio.wait([task])
        if task.cancelled() or task.exception() is None:
            return
        service._task = asyncio.create_task(service.run())


@every_handler
async def test_a_handler_that_hangs(kind: type[Service], tmp_path: Path) -> None:
    """Concurrent handlers still run; closing cancels the hanging one, and its message comes again."""
    service = kind(tmp_path)
    service.make_peers()
    try:
        await service.start()
        await service.exchange("a")
        payload = service.payload()
        service.hanging.add(payload)
        service.writers["a"].append(payload)
        for queue in service.queues:
            if not service.serial:
                await service.exchange(queue)
        await asyncio.sleep(0.05)
        await service.stop()
        successor = kind(tmp_path)
        successor.writers, successor._numbers = service.writers, service._numbers
        await successor.start()
        await successor.arrives(payload)
        await successor.stop()
    finally:
        service.close_peers()
