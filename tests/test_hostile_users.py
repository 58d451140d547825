"""What another user of the host tries, with real users: planted links, files and connections."""

import asyncio
import contextlib
import os
import resource
import shutil
import socket
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_two_users import COLLEAGUE, READER, SHARED, STRANGER, WRITER, become, run_as
from waiting import eventually

from aiochronicle import (
    Message,
    Reader,
    Retention,
    Roll,
    Router,
    list_readers,
    open_reader,
    open_writer,
)
from aiochronicle.errors import ChronicleError, QueueGone, QueueNotFound

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")

SEGMENT = 4096
ATTACKER, VICTIM = STRANGER, READER
CONNECTIONS = 5000
Pause = Callable[[], object]
Work = Callable[[Pause], object]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory as /tmp is: everybody may create in it, and remove their own."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o1777)
    yield base
    shutil.rmtree(base)


class Process:
    """A process of another user, which goes on when it is told to."""

    def __init__(self, user: int, work: Work) -> None:
        self._channel, end = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self._channel.close()
                become(user)
                work(lambda: end.send(b"x") and end.recv(1))
                status = 0
            except BaseException:  # noqa: BLE001  it is shown with the test
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        end.close()
        self.await_pause()

    def await_pause(self) -> None:
        assert self._channel.recv(1) == b"x", "the process ended before it came to a pause"

    def tell(self) -> None:
        """Have it go on."""
        self._channel.sendall(b"x")

    def go_on(self) -> None:
        """Let it come to its next pause."""
        self.tell()
        self.await_pause()

    def end(self) -> int:
        """Let it come to its end."""
        self._channel.close()
        return os.waitpid(self.pid, 0)[1]


@contextmanager
def process_of(user: int, work: Work) -> Iterator[Process]:
    """Have a process of this user do the work; what it is given pauses until it is told to go on."""
    process = Process(user, work)
    try:
        yield process
    finally:
        status = process.end()
    assert status == 0


def write(path: Path, text: bytes, mode: int = 0o600) -> None:
    with open_writer(path, segment_size=SEGMENT, mode=mode) as writer:
        writer.append(text)


def identity(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino, found.st_uid


def everything(path: Path) -> list[str]:
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))


def outcome(work: Callable[[], object]) -> str:
    try:
        return repr(work())
    except ChronicleError as error:
        return f"{type(error).__name__}: {error}"


def read_all(path: Path, expect: tuple[int, int, int] | None) -> list[str]:
    with open_reader(path, "router", _expect=expect) as reader:
        return [message.payload.decode() for message in reader]


# ---- a directory that is not what was found any more ----


def test_the_directory_that_was_found_is_opened(shared: Path) -> None:
    run_as(ATTACKER, lambda: write(shared / "feed", b"public", 0o666))
    found = identity(shared / "feed")
    assert run_as(VICTIM, lambda: read_all(shared / "feed", found)) == ["public"]


def swap_directory(shared: Path, name: str, target: Path) -> None:
    (shared / name).rename(shared / "aside")
    (shared / name).symlink_to(target)


@pytest.mark.parametrize("part", ["feed", "team"])
def test_a_directory_swapped_for_a_link_is_not_opened(shared: Path, part: str) -> None:
    """The last part of the path, or one above it: the victim's own queue stays private."""
    private = shared / "private"
    run_as(VICTIM, private.mkdir)
    run_as(VICTIM, lambda: write(private / "feed", b"secret"))
    base = shared if part == "feed" else shared / "team"
    if part == "team":
        run_as(ATTACKER, base.mkdir)
        base.chmod(0o755)
    run_as(ATTACKER, lambda: write(base / "feed", b"public", 0o666))
    found, before = identity(base / "feed"), everything(private)
    target = private / "feed" if part == "feed" else private
    run_as(ATTACKER, lambda: swap_directory(shared, part, target))
    said = run_as(VICTIM, lambda: outcome(lambda: read_all(base / "feed", found)))
    assert said.startswith("QueueGone"), said
    assert "is not the directory that was found here" in said
    assert everything(private) == before


def test_a_directory_that_was_replaced_by_another_or_by_none(shared: Path) -> None:
    path = shared / "feed"
    run_as(VICTIM, lambda: write(path, b"x"))
    found = identity(path)
    path.rename(shared / "aside")
    with pytest.raises(QueueNotFound):
        open_reader(path, _expect=found)
    path.write_bytes(b"")
    with pytest.raises(QueueGone, match="link or a file"):
        open_reader(path, _expect=found)
    path.unlink()
    write(path, b"y")
    with pytest.raises(QueueGone):
        open_reader(path, "named", _expect=found)
    assert not (path / "readers").exists()


def test_the_owner_of_what_was_found_counts(shared: Path) -> None:
    """A directory that was removed leaves its inode number to the next one made."""
    path = shared / "feed"
    run_as(ATTACKER, lambda: write(path, b"x", 0o666))
    device, inode, _ = identity(path)
    with pytest.raises(QueueGone):
        open_reader(path, _expect=(device, inode, VICTIM))


def test_a_queue_that_is_awaited_is_only_the_expected_one(shared: Path) -> None:
    run_as(ATTACKER, lambda: (shared / "feed").mkdir())
    found = identity(shared / "feed")
    with open_reader(shared / "feed", wait_for_queue=True, _expect=found) as reader:
        assert reader.poll() is None
        run_as(VICTIM, lambda: write(shared / "private", b"secret"))
        run_as(ATTACKER, lambda: swap_directory(shared, "feed", shared / "private"))
        with pytest.raises(QueueGone):
            reader.seek_first()


def test_an_operator_may_link_a_queue(shared: Path) -> None:
    write(shared / "disk2", b"linked")
    (shared / "feed").symlink_to(shared / "disk2")
    with open_reader(shared / "feed", "named") as reader:
        assert [message.payload for message in reader] == [b"linked"]
        reader.commit()
    with open_writer(shared / "feed") as writer:
        writer.append(b"more")
    assert [info.name for info in list_readers(shared / "feed")] == ["named"]


def test_a_swap_under_an_open_reader_touches_nothing_else(shared: Path) -> None:
    """When it is closed, its socket is not removed from where the path leads by then."""
    feed, private = shared / "feed", shared / "private"

    def attack(pause: Pause) -> None:
        with open_writer(feed, segment_size=SEGMENT, mode=0o666):
            pause()

    def read(pause: Pause) -> None:
        with open_reader(feed, "router") as reader:
            reader.wait(0.001)
            assert reader.statistics().announced
            pause()

    with process_of(ATTACKER, attack):
        run_as(VICTIM, lambda: write(private, b"secret"))
        run_as(VICTIM, lambda: (private / "wake" / "router.efd").touch())
        before = everything(private)
        with process_of(VICTIM, read):
            run_as(ATTACKER, lambda: swap_directory(shared, "feed", private))
    assert everything(private) == before


@pytest.mark.parametrize("name", ["readers", "wake"])
def test_directories_in_a_queue_that_lead_out_of_it(shared: Path, name: str) -> None:
    """Neither a position nor a socket is made where a link of the queue's owner points."""
    feed, private = shared / "feed", shared / "private"
    run_as(VICTIM, private.mkdir)

    def plant() -> None:
        shutil.rmtree(feed / name, ignore_errors=True)
        (feed / name).symlink_to(private)

    def attack(pause: Pause) -> None:
        with open_writer(feed, segment_size=SEGMENT, mode=0o666):
            plant()
            pause()

    def read() -> bool:
        with open_reader(feed, "router") as reader:
            reader.wait(0.001)
            return reader.statistics().announced

    with process_of(ATTACKER, attack):
        said = run_as(VICTIM, lambda: outcome(read))
    assert said.startswith("NotAQueue") if name == "readers" else said == "False", said
    with open_writer(feed, mode=0o600) as writer:  # as root, who could
        writer.append(b"x")
    assert everything(private) == []


# ---- files that are there already ----


KINDS = ["file", "hard link", "symbolic link", "pipe"]


def do_as(user: int, work: Callable[[], None]) -> None:
    if user == 0:
        work()
    else:
        run_as(user, work)


def plant_file(path: Path, kind: str, target: Path) -> None:
    if kind == "file":
        path.write_bytes(b"planted")
        path.chmod(0o666)
    elif kind == "hard link":
        os.link(target, path)
    elif kind == "symbolic link":
        path.symlink_to(target)
    else:
        os.mkfifo(path)


@pytest.fixture
def precious(shared: Path) -> Iterator[Path]:
    """Return a file of root, which must stay as it is."""
    path = shared / "precious"
    path.write_bytes(b"precious")
    path.chmod(0o640)
    yield path
    assert path.read_bytes() == b"precious"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_segment_is_a_new_file(shared: Path, precious: Path, kind: str) -> None:
    """Root writes to the queue of somebody who has put files where its own will be made."""
    feed = shared / "feed"
    run_as(ATTACKER, lambda: write(feed, b"x", 0o666))
    with open_writer(feed, roll=Roll(messages=1)) as writer:
        # links to files of others need their permission, where the kernel protects them
        user = 0 if kind == "hard link" else ATTACKER
        for segment in range(1, 6):
            do_as(user, partial(plant_file, feed / f"{segment:09}.q.tmp", kind, precious))
        for _ in range(4):
            writer.append(b"y")
        made = sorted(feed.glob("*.q"))[1:]
        assert len(made) >= 4
        for path in made:
            found = path.lstat()
            assert (found.st_uid, found.st_nlink, stat.S_ISREG(found.st_mode)) == (0, 1, True)
            assert stat.S_IMODE(found.st_mode) == 0o600


@pytest.mark.parametrize("kind", KINDS)
def test_an_archived_segment_is_a_new_file(shared: Path, precious: Path, kind: str) -> None:
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == shared.stat().st_dev:
        pytest.skip("needs a second file system, /dev/shm")
    with tempfile.TemporaryDirectory(dir=elsewhere) as archive:
        day = Path(archive) / "1970" / "01" / "01"
        day.mkdir(parents=True)
        target = Path(archive) / "precious"
        shutil.copy2(precious, target)
        for segment in range(3):
            plant_file(day / f"{segment:09}.q.tmp", kind, target)
            os.chown(day / f"{segment:09}.q.tmp", 0 if "link" in kind else ATTACKER, -1)
            plant_file(day / f"{segment:09}.idx.tmp", kind, target)
        retention = Retention(max_bytes=SEGMENT, archive=archive, check_interval_s=3600)
        with open_writer(
            shared / "feed", segment_size=SEGMENT, roll=Roll(messages=1), retention=retention
        ) as writer:
            for number in range(4):
                writer.append(b"y", timestamp_ns=1 + number)
            eventually(lambda: writer.statistics().seals == 3)
            writer.retain_now()
        assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (b"precious", 0o640)
        for path in day.glob("*.q"):
            made = path.lstat()
            assert (made.st_uid, made.st_nlink, stat.S_ISREG(made.st_mode)) == (0, 1, True)
        assert len(list(day.glob("*.q"))) >= 2


# ---- sockets ----


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208


def listening(queue: Path) -> Path:
    (found,) = (queue / "wake").glob("*.efd")
    return found


def connect_often(path: Path) -> Work:
    """Return the work of somebody who connects, says nothing, and keeps what is not closed."""

    def attack(pause: Pause) -> None:
        kept = []
        for _ in range(CONNECTIONS):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.connect(os.fspath(path))
            kept.append(one)
        pause()

    return attack


@pytest.fixture
def many_files() -> Iterator[None]:
    """For attackers; victims get the usual limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (CONNECTIONS + 1000, max(before[1], 10000)))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def team() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    os.chown(base, WRITER, SHARED)
    queue = base / "queue"
    run_as(WRITER, lambda: write(queue, b"first", 0o660))
    yield queue
    shutil.rmtree(base)


async def next_of(reader: Reader[Any]) -> Message:
    """Sleep until the bell rings: no look in between finds what nobody rang for."""
    return await reader.next(30)


def read_under_attack(queue: Path) -> Work:
    def read(pause: Pause) -> None:
        os.umask(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
        with open_reader(queue, "victim", start="last") as reader:
            reader.wait(0.001)
            assert reader.statistics().announced
            pause()
            eventually(lambda: reader.statistics().attended)
            pause()
            message = asyncio.run(next_of(reader))
            late_s = time.time() - message.timestamp_ns / 1e9
            assert late_s < 5, late_s
            pause()

    return read


def append_when_told(queue: Path) -> Work:
    def append(pause: Pause) -> None:
        with open_writer(queue, mode=0o660) as writer:
            pause()
            writer.append(b"y")
            pause()

    return append


def test_the_socket_of_a_reader_is_for_its_user_only(team: Path) -> None:
    def connect() -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            try:
                one.connect(os.fspath(listening(team)))
            except PermissionError:
                return "refused"
        return "connected"

    with (
        process_of(WRITER, append_when_told(team)) as writer,
        process_of(WRITER, read_under_attack(team)) as victim,
    ):
        assert stat.S_IMODE(listening(team).stat().st_mode) == 0o600
        assert run_as(COLLEAGUE, connect) == "refused"
        assert run_as(WRITER, connect) == "connected"
        victim.go_on()
        victim.tell()
        writer.go_on()
        victim.await_pause()


def test_connections_that_say_nothing_end_after_some_seconds(team: Path) -> None:
    def say_nothing() -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.settimeout(30)
            one.connect(os.fspath(listening(team)))
            return one.recv(1) == b""

    with process_of(WRITER, read_under_attack(team)) as victim:
        before = descriptors(victim.pid)
        assert run_as(WRITER, say_nothing)
        assert descriptors(victim.pid) == before
        with process_of(WRITER, append_when_told(team)) as writer:
            victim.go_on()
            victim.tell()
            writer.go_on()
            victim.await_pause()


def test_a_writer_connects_to_sockets_of_its_own_user_only(team: Path) -> None:
    """A link that a colleague puts into wake/ does not lead it to another service of its user."""
    service = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    hidden = team.parent / "private"
    with service, process_of(WRITER, append_when_told(team)) as writer:
        service.bind(os.fspath(hidden))
        service.listen()
        hidden.chmod(0o600)
        os.chown(hidden, WRITER, -1)
        run_as(COLLEAGUE, lambda: (team / "wake" / "evil.efd").symlink_to(hidden))
        with process_of(WRITER, read_under_attack(team)) as victim:
            victim.go_on()  # connected: what came before it was looked at
            with pytest.raises(BlockingIOError):
                service.accept()
            victim.tell()
            writer.go_on()
            victim.await_pause()


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(("attacker", "most"), [(COLLEAGUE, 20), (WRITER, 160)])
def test_silent_connections_take_few_descriptors(team: Path, attacker: int, most: int) -> None:
    """Others' are closed at once, even if somebody opened the socket's mode; silent ones of its own
    user when there are many. The reader is found and woken by a writer meanwhile."""
    with process_of(WRITER, read_under_attack(team)) as victim:
        listening(team).chmod(0o666)
        before = descriptors(victim.pid)
        with process_of(attacker, connect_often(listening(team))):
            eventually(lambda: descriptors(victim.pid) <= before + most)
            with process_of(WRITER, append_when_told(team)) as writer:
                victim.go_on()
                assert descriptors(victim.pid) <= before + most
                victim.tell()
                writer.go_on()
                victim.await_pause()


@pytest.mark.parametrize("planted", ["file", "name of another reader"])
def test_a_reader_keeps_its_writer_whatever_appears_under_its_name(
    team: Path, planted: str
) -> None:
    """A colleague who may write into wake/ cannot have a reader sleep through messages."""

    def read_otherwise(pause: Pause) -> None:
        for number in range(2):
            with open_reader(team, f"other{number}", start="last") as reader:
                reader.wait(0.001)
                eventually(lambda reader=reader: reader.statistics().attended)  # type: ignore[misc]
                pause()

    def plant() -> None:
        own, other = team / "wake" / "victim.efd", team / "wake" / "other0.efd"
        if planted == "file":
            own.unlink()
            own.touch()
        else:
            other.rename(own)

    (team / "wake").chmod(0o770)  # as earlier versions made it
    with (
        process_of(WRITER, append_when_told(team)) as writer,
        process_of(WRITER, read_under_attack(team)) as victim,
        process_of(WRITER, read_otherwise) as other,
    ):
        victim.go_on()
        run_as(COLLEAGUE, plant)
        other.go_on()  # connected: what appeared before it was looked at
        victim.tell()
        time.sleep(0.3)  # most probably it sleeps by now, which makes it harder
        writer.go_on()
        victim.await_pause()


def test_sockets_of_others_cannot_be_removed(team: Path) -> None:
    def remove() -> str:
        try:
            (team / "wake" / "victim.efd").unlink()
        except PermissionError:
            return "refused"
        return "removed"

    with process_of(WRITER, read_under_attack(team)) as victim:
        assert run_as(COLLEAGUE, remove) == "refused"
        with process_of(WRITER, append_when_told(team)) as writer:
            victim.go_on()
            victim.tell()
            writer.go_on()
            victim.await_pause()


# ---- a router in a directory that others may write to ----


def swap_again_and_again(shared: Path, target: Path, pause: Pause) -> None:
    """Have a queue and a link to another one take turns under one name."""
    write(shared / "feed", b"public", 0o666)
    (shared / "feed" / "READY").write_bytes(b'{"version": 1}')
    (shared / "feed" / "READY").chmod(0o644)
    (shared / "link").symlink_to(target)
    pause()
    ends_s = time.monotonic() + 3
    while time.monotonic() < ends_s:
        (shared / "feed").rename(shared / "aside")
        (shared / "link").rename(shared / "feed")
        (shared / "feed").rename(shared / "link")
        (shared / "aside").rename(shared / "feed")
    pause()


async def route(root: Path, seconds: float) -> dict[str, int]:
    """Return what a router delivered in that time, and how often."""
    delivered: dict[str, int] = {}
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        async with Router(root, name="router", rescan_s=0.02) as router:
            with contextlib.suppress(TimeoutError):
                for _ in range(20):
                    message = await router.next(timeout=0.05)
                    text = message.payload.decode()
                    delivered[text] = delivered.get(text, 0) + 1
                    del message
    return delivered


def test_a_router_opens_what_was_found_or_nothing(shared: Path) -> None:
    """However the attacker's swaps fall, the victim's own queue stays private."""
    private = shared / "private"
    run_as(VICTIM, lambda: private.mkdir(mode=0o700))
    run_as(VICTIM, lambda: write(private / "orders", b"secret"))
    run_as(VICTIM, lambda: (private / "orders" / "READY").write_bytes(b'{"version": 1}'))
    before = everything(private)
    with process_of(
        ATTACKER, lambda pause: swap_again_and_again(shared, private / "orders", pause)
    ) as attacker:
        attacker.tell()
        delivered = run_as(VICTIM, lambda: asyncio.run(route(shared, 2.5)))
        attacker.await_pause()
    assert "public" in delivered, "it never met the attacker's queue"
    assert "secret" not in delivered
    assert everything(private) == before


class Order(msgspec.Struct):
    size: int


class Hidden(msgspec.Struct):
    secret: str


def test_a_schema_is_read_in_the_directory_that_was_found(shared: Path) -> None:
    """What a private queue's schema says is in no error and no log."""
    private = shared / "private"
    run_as(VICTIM, lambda: private.mkdir(mode=0o700))

    def make_private() -> None:
        open_writer(private / "orders", segment_size=SEGMENT, codec=Hidden).close()

    run_as(VICTIM, make_private)
    run_as(ATTACKER, lambda: write(shared / "feed", b"public", 0o666))
    found = identity(shared / "feed")
    run_as(ATTACKER, lambda: swap_directory(shared, "feed", private / "orders"))
    said = run_as(
        VICTIM,
        lambda: outcome(lambda: open_reader(shared / "feed", codec=Order, _expect=found)),
    )
    assert said.startswith("QueueGone"), said
    assert "Hidden" not in said
