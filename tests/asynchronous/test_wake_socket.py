"""Peers on the socket that carries a reader's eventfd are not trusted more than necessary."""

import array
import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import aiochronicle
from asynchronous.both_loops import on_both_loops
from asynchronous.peers import eventually

NOBODY = 65534
MAGIC, VERSION = 0x4143574B, 1
NAME_SIZE = 72


def hello(path: Path, name: bytes, magic: int = MAGIC, version: int = VERSION) -> bytes:
    """Return the first packet of a writer, as csrc/wake_connection.c defines it."""
    info = path.stat()
    return struct.pack(f"<IIQQ{NAME_SIZE}s", magic, version, info.st_dev, info.st_ino, name)


@contextlib.contextmanager
def connected(path: Path, name: str) -> Iterator[socket.socket]:
    """Act as a writer: connect to a reader."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(5)
        directory = os.open(path / "wake", os.O_RDONLY)
        try:
            connection.connect(f"/proc/self/fd/{directory}/{name}.efd")
        finally:
            os.close(directory)
        yield connection


@contextlib.contextmanager
def listening(path: Path, name: str) -> Iterator[socket.socket]:
    """Act as a reader: wait for the writer to connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.settimeout(5)
        directory = os.open(path / "wake", os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{directory}/{name}.new")
            listener.listen()
            (path / "wake" / f"{name}.new").rename(path / "wake" / f"{name}.efd")
            yield listener
        finally:
            os.close(directory)
            (path / "wake" / f"{name}.efd").unlink()


def send_fds(connection: socket.socket, fds: list[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg([b"\x01"], rights)


def is_eventfd(fd: int) -> bool:
    return str(Path(f"/proc/self/fd/{fd}").readlink()) == "anon_inode:[eventfd]"


def give_to(user: int, path: Path) -> None:
    """Give a queue to another user."""
    for entry in (path, *path.rglob("*")):
        os.chown(entry, user, -1)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@on_both_loops
async def test_a_proper_writer_gets_the_eventfd(queue: Path) -> None:
    with aiochronicle.open_reader(queue, "honest", start="last") as reader:
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0)
        with connected(queue, "honest") as connection:
            connection.send(hello(queue, b"honest"))
            data, rights, _, _ = await asyncio.to_thread(connection.recvmsg, 16, 64)
            assert data == b"\x01"
            (fd,) = array.array("i", rights[0][2])
            assert is_eventfd(fd)
            os.close(fd)
            assert not reader.attended  # not before the reader knows its bit
            connection.send(struct.pack("<I", 5))
            await eventually(lambda: reader.attended)
        await eventually(lambda: not reader.attended)
        waiting.cancel()


@on_both_loops
@pytest.mark.parametrize(
    "case",
    ["garbage", "empty", "short", "magic", "version", "queue", "name", "unterminated"],
)
async def test_whoever_does_not_say_hello_properly_gets_nothing(queue: Path, case: str) -> None:
    good = hello(queue, b"honest")
    packet = {
        "garbage": b"\xff" * len(good),
        "empty": b"\0",
        "short": good[:-1],
        "magic": hello(queue, b"honest", magic=1),
        "version": hello(queue, b"honest", version=2),
        "queue": hello(queue.parent, b"honest"),
        "name": hello(queue, b"dishonest"),
        "unterminated": hello(queue, b"h" * NAME_SIZE),
    }[case]
    with aiochronicle.open_reader(queue, "honest", start="last") as reader:
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0)
        with connected(queue, "honest") as connection:
            connection.send(packet)
            data, rights, _, _ = await asyncio.to_thread(connection.recvmsg, 16, 64)
            assert (data, rights) == (b"", [])
        assert not reader.attended
        waiting.cancel()


@on_both_loops
async def test_a_bit_that_does_not_exist_ends_the_connection(queue: Path) -> None:
    with aiochronicle.open_reader(queue, "honest", start="last") as reader:
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0)
        for wrong in (struct.pack("<I", 64 + 512), struct.pack("<I", 2**32 - 1), b"\1", b"\1" * 16):
            with connected(queue, "honest") as connection:
                connection.send(hello(queue, b"honest"))
                _, rights, _, _ = await asyncio.to_thread(connection.recvmsg, 16, 64)
                for fd in array.array("i", rights[0][2]):
                    os.close(fd)
                connection.send(wrong)
                assert await asyncio.to_thread(connection.recv, 16) == b""
            assert not reader.attended
        waiting.cancel()


@on_both_loops
async def test_fds_that_a_writer_sends_are_closed(queue: Path) -> None:
    with aiochronicle.open_reader(queue, "honest", start="last") as reader:
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0)
        with connected(queue, "honest") as connection:
            await asyncio.sleep(0.01)
            before = descriptors()
            rights = array.array("i", [0] * 10)
            connection.sendmsg([b"\xff" * 10], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            assert await asyncio.to_thread(connection.recv, 16) == b""
            await eventually(lambda: descriptors() <= before)
        waiting.cancel()


@on_both_loops
@pytest.mark.parametrize("sent", ["nothing", "pipe", "file", "two", "many", "eventfd"])
async def test_a_writer_takes_exactly_one_eventfd(queue: Path, sent: str) -> None:
    with aiochronicle.open_writer(queue) as writer, listening(queue, "fake") as listener:
        connection, _ = await asyncio.to_thread(listener.accept)
        with connection:
            connection.settimeout(5)
            assert await asyncio.to_thread(connection.recv, 4096) == hello(queue, b"fake")
            own = [os.eventfd(0), os.open("/dev/null", os.O_RDONLY), *os.pipe()]
            event, file, pipe = own[0], own[1], own[2]
            before = descriptors()
            send_fds(
                connection,
                {
                    "nothing": [],
                    "pipe": [pipe],
                    "file": [file],
                    "two": [event, file],
                    "many": [event] * 100,
                    "eventfd": [event],
                }[sent],
            )
            answer = await asyncio.to_thread(connection.recv, 16)
            if sent in ("nothing", "pipe", "file"):
                assert answer == b""
                await eventually(lambda: descriptors() <= before)
                assert writer.statistics().readers_connected == 0
            else:
                # The first of several descriptors counts; the others are closed.
                assert struct.unpack("<I", answer)[0] < 64
                assert writer.statistics().readers_connected == 1
                await eventually(lambda: descriptors() <= before + 1)
            for fd in own:
                os.close(fd)
        await eventually(lambda: writer.statistics().readers_connected == 0)


@on_both_loops
async def test_a_full_eventfd_does_not_stall_the_writer(queue: Path) -> None:
    with aiochronicle.open_writer(queue) as writer, listening(queue, "fake") as listener:
        connection, _ = await asyncio.to_thread(listener.accept)
        with connection:
            connection.settimeout(5)
            await asyncio.to_thread(connection.recv, 4096)
            event = os.eventfd(2**32 - 2, 0)
            os.eventfd_write(event, 2**64 - 2 - (2**32 - 2))  # the next write would block
            send_fds(connection, [event])
            bit = struct.unpack("<I", await asyncio.to_thread(connection.recv, 16))[0]
            with (queue / "control.meta").open("r+b") as file:
                file.seek(384 + 8)
                file.write((1 << bit).to_bytes(8, "little"))
            await asyncio.wait_for(asyncio.to_thread(writer.append, b"x"), 5)
            assert writer.statistics().wakeups == 1
            os.close(event)


@on_both_loops
async def test_leftovers_of_dead_readers_are_harmless(queue: Path) -> None:
    wake = queue / "wake"
    wake.mkdir(exist_ok=True)
    with listening(queue, "dead"):
        os.link(wake / "dead.efd", wake / "stale.efd")
        os.link(wake / "dead.efd", wake / "_4711-0123456789abcdef.efd")
    (wake / "file.efd").write_text("not a socket")
    (wake / "directory.efd").mkdir()
    (wake / "link.efd").symlink_to("/dev/null")
    (wake / ("n" * 100 + ".efd")).write_text("too long")
    with aiochronicle.open_writer(queue) as writer:
        assert writer.statistics().readers_connected == 0
        # A named reader may come back; an anonymous one cannot.
        assert not (wake / "_4711-0123456789abcdef.efd").exists()
        for name in ("stale", "file"):
            with aiochronicle.open_reader(queue, name, start="last") as reader:
                waiting = asyncio.ensure_future(reader.next())
                await eventually(lambda: reader.attended)
                writer.append(b"x")
                assert (await asyncio.wait_for(waiting, 5)).payload == b"x"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("owner", [0, NOBODY])
async def test_another_user_gets_no_eventfd(tmp_path: Path, owner: int) -> None:
    """Not even the owner of the queue: see ``trusted`` in csrc/wake_connection.c."""
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    path = tmp_path / "queue"
    aiochronicle.open_writer(path, segment_size=1 << 20, mode=0o666).close()
    give_to(owner, path)
    with aiochronicle.open_reader(path, "guarded") as reader:
        waiting = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0)
        (path / "wake" / "guarded.efd").chmod(0o777)
        program = (
            "import os, socket, sys\n"
            "os.setgid(65534); os.setuid(65534)\n"
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            f"os.chdir({str(path / 'wake')!r}); s.connect('guarded.efd')\n"
            "try:\n"
            f"    s.send(bytes.fromhex({hello(path, b'guarded').hex()!r}))\n"
            "    print(s.recvmsg(16, 64)[:2])\n"
            "except (BrokenPipeError, ConnectionResetError):\n"
            "    print((b'', []))  # closed before it had said a word\n"
        )
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        assert done.stdout == "(b'', [])\n"
        assert not reader.attended
        waiting.cancel()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("owner", [0, NOBODY])
async def test_a_writer_takes_nothing_from_another_user(tmp_path: Path, owner: int) -> None:
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    path = tmp_path / "queue"
    program = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"os.chdir({str(path / 'wake')!r})\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.bind('x.new'); s.listen(); os.rename('x.new', 'x.efd')\n"
        "print('listening', flush=True); sys.stdin.readline()\n"
        "s.setblocking(False)\n"
        "try:\n"
        "    s.accept()\n"
        "except BlockingIOError:\n"
        "    print('nobody came')\n"
    )
    aiochronicle.open_writer(path, segment_size=1 << 20, mode=0o666).close()
    give_to(owner, path)
    with aiochronicle.open_writer(path) as writer:
        (path / "wake").chmod(0o777)
        stranger = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert stranger.stdout is not None
        assert await stranger.stdout.readline() == b"listening\n"
        # The writer handles the names in wake/ in the order in which they appear.
        with aiochronicle.open_reader(path, "own", start="last") as reader:
            waiting = asyncio.ensure_future(reader.next())
            await eventually(lambda: reader.attended)
            assert writer.statistics().readers_connected == 1
            waiting.cancel()
        said, _ = await stranger.communicate(b"\n")
        assert said == b"nobody came\n"
