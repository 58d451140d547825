"""One queue with a writer and readers of several users: real processes, each under its own user."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.users import COLLEAGUE, READER, SHARED, STRANGER, WRITER, become, run_as

from aiochronicle import (
    Request,
    Requester,
    Responder,
    Retention,
    Roll,
    forget_reader,
    inspect,
    list_readers,
    open_reader,
    open_writer,
)
from aiochronicle.errors import AccessDenied, QueueFull

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")


@contextmanager
def reader_of(user: int, path: Path, name: str) -> Iterator[int]:
    """Hold a reader open in a process of this user; yield its pid."""
    ready, tell_ready = os.pipe()
    finish, tell_finish = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell_finish)
        become(user)
        with open_reader(path, name):
            os.write(tell_ready, b"x")
            os.read(finish, 1)
        os._exit(0)
    os.close(tell_ready)
    assert os.read(ready, 1) == b"x"
    try:
        yield child
    finally:
        os.close(tell_finish)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(finish)


@pytest.fixture
def path() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    os.chown(base, WRITER, SHARED)
    yield base / "queue"
    shutil.rmtree(base)


def fill(path: Path, mode: int) -> None:
    with open_writer(path, segment_size=4096, roll=Roll(messages=2), mode=mode) as writer:
        for number in range(6):
            writer.append(b"%d" % number)


def read(path: Path, count: int) -> list[int]:
    with open_reader(path, "risk") as reader:
        seqs = [message.seq for message in reader.read_batch(count)]
        reader.commit()
    return seqs


def retain(path: Path, mode: int) -> int:
    with open_writer(path, mode=mode, retention=Retention(check_interval_s=1000.0)) as writer:
        writer.retain_now()
    return inspect(path).first_segment


@pytest.mark.parametrize("mode", [0o640, 0o660])
def test_retention_waits_for_the_readers_of_another_user(path: Path, mode: int) -> None:
    run_as(WRITER, lambda: fill(path, mode))
    assert run_as(READER, lambda: read(path, 3)) == [0, 1, 2]
    assert run_as(WRITER, lambda: retain(path, mode)) == 1
    assert run_as(READER, lambda: read(path, 10)) == [3, 4, 5]
    assert run_as(COLLEAGUE, lambda: [info.name for info in list_readers(path)]) == ["risk"]


@pytest.mark.parametrize("mode", [0o640, 0o660])
def test_capacity_waits_for_the_readers_of_another_user(path: Path, mode: int) -> None:
    def overflow() -> str:
        with open_writer(path, mode=mode, capacity=4096) as writer:
            try:
                while True:
                    writer.append(bytes(64))
            except QueueFull as error:
                return str(error)

    run_as(WRITER, lambda: fill(path, mode))
    with reader_of(READER, path, "risk") as pid:
        assert f"reader 'risk' (pid {pid}" in run_as(WRITER, overflow)


def refused(work: Callable[[], Any]) -> str:
    try:
        work()
    except AccessDenied as error:
        return str(error)
    return "not refused"


def test_only_the_owner_of_queue_or_reader_removes_a_reader(path: Path) -> None:
    run_as(WRITER, lambda: fill(path, 0o640))
    for user in (READER, WRITER):
        run_as(READER, lambda: read(path, 1))
        told = run_as(COLLEAGUE, lambda: refused(lambda: forget_reader(path, "risk")))
        assert "readers/risk.meta" in told
        run_as(user, lambda: forget_reader(path, "risk"))
        assert list_readers(path) == []


def test_a_name_of_another_user_is_refused(path: Path) -> None:
    run_as(WRITER, lambda: fill(path, 0o640))
    run_as(READER, lambda: read(path, 1))
    told = run_as(COLLEAGUE, lambda: refused(lambda: open_reader(path, "risk")))
    assert "queue/readers/risk.meta" in told


def test_strangers_get_nothing(path: Path) -> None:
    run_as(WRITER, lambda: fill(path, 0o640))
    assert "queue" in run_as(STRANGER, lambda: refused(lambda: open_reader(path)))


def test_without_a_mode_for_them_nobody_else_gets_in(path: Path) -> None:
    run_as(WRITER, lambda: fill(path, 0o600))
    assert "queue" in run_as(COLLEAGUE, lambda: refused(lambda: open_reader(path)))


def test_retention_names_a_position_that_it_may_not_read(path: Path) -> None:
    run_as(WRITER, lambda: fill(path, 0o640))
    run_as(READER, lambda: read(path, 5))
    (path / "readers" / "risk.meta").chmod(0o600)
    told = run_as(WRITER, lambda: refused(lambda: retain(path, 0o640)))
    assert "queue/readers/risk.meta" in told
    assert inspect(path).first_segment == 0


@pytest.fixture
def shared_root() -> Iterator[Path]:
    """A root that a group shares: files created in it belong to the group."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    for name in ("asked", "answered"):
        (base / name).mkdir()
        os.chown(base / name, 0, SHARED)
        (base / name).chmod(0o3770)
    yield base
    shutil.rmtree(base)


def test_a_queue_in_a_shared_root_belongs_to_the_group_of_the_root(shared_root: Path) -> None:
    """Files belong to the root's group even if that is not the writer's primary group."""
    queue = shared_root / "asked" / "queue"
    run_as(READER, lambda: fill(queue, 0o660))
    assert run_as(COLLEAGUE, lambda: read(queue, 2)) == [0, 1]
    groups = {entry.stat().st_gid for entry in [queue, *queue.rglob("*")]}
    assert groups == {SHARED}


async def _ask(root: Path) -> list[str]:
    roots = root / "asked", root / "answered"
    async with Requester(*roots, "desk", mode=0o660) as requester:
        answers = [await requester.request(b"%d" % number, timeout=30) for number in range(3)]
        return [answer.payload.decode() for answer in answers]


async def _answer(root: Path, started: Callable[[], object]) -> None:
    async def double(request: Request) -> bytes:
        return request.payload * 2

    roots = root / "asked", root / "answered"
    async with Responder(*roots, mode=0o660) as responder:
        started()
        await responder.serve(double)


def test_requests_between_two_users(shared_root: Path) -> None:
    started, tell_started = os.pipe()
    child = os.fork()
    if child == 0:
        become(WRITER)
        asyncio.run(_answer(shared_root, lambda: os.write(tell_started, b"x")))
        os._exit(1)
    try:
        assert os.read(started, 1) == b"x"
        assert run_as(READER, lambda: asyncio.run(_ask(shared_root))) == ["00", "11", "22"]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(started)
        os.close(tell_started)


def test_a_refusal_says_whose_it_is_and_what_would_be_allowed(path: Path) -> None:
    run_as(WRITER, lambda: fill(path, 0o644))
    for told in (
        run_as(STRANGER, lambda: refused(lambda: open_writer(path))),
        run_as(STRANGER, lambda: refused(lambda: open_reader(path, "risk"))),
    ):
        assert f"belongs to uid {WRITER}, gid {SHARED}, with mode 0" in told
        assert f"this process is uid {STRANGER}" in told
        assert "a reader without a name" in told.lower()
    run_as(WRITER, lambda: path.chmod(0o700))
    told = run_as(STRANGER, lambda: refused(lambda: open_reader(path)))
    assert f"belongs to uid {WRITER}, gid {SHARED}, with mode 0700;" in told
    assert "without a name" not in told
    assert "mode=" in told
    told = run_as(STRANGER, lambda: refused(lambda: open_writer(path.with_name("new"))))
    assert f"{path.parent} belongs to uid {WRITER}, gid {SHARED}, with mode 0755;" in told
    assert "without a name" not in told
