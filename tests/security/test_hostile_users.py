"""Attacks by another user of the host, with real users: planted links, files and connections."""

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
from helpers.users import COLLEAGUE, READER, SHARED, STRANGER, WRITER, become, run_as
from helpers.waiting import eventually

import aiochronicle._services.trusted
from aiochronicle import (
    Bus,
    Message,
    Reader,
    Responder,
    Retention,
    Roll,
    Router,
    list_readers,
    open_reader,
    open_writer,
)
from aiochronicle.errors import (
    AccessDenied,
    ChronicleError,
    InvalidName,
    QueueGone,
    QueueNotFound,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")

SEGMENT = 4096
ATTACKER, VICTIM = STRANGER, READER
CONNECTIONS = 5000
Pause = Callable[[], object]
Work = Callable[[Pause], object]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory like /tmp: every user may create files in it and remove their own."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o1777)
    yield base
    shutil.rmtree(base)


class Process:
    """A process of another user that pauses until the test lets it continue."""

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
        """Let the process continue."""
        self._channel.sendall(b"x")

    def go_on(self) -> None:
        """Let the process run to its next pause."""
        self.tell()
        self.await_pause()

    def end(self) -> int:
        """Let the process run to its end."""
        self._channel.close()
        return os.waitpid(self.pid, 0)[1]


@contextmanager
def process_of(user: int, work: Work) -> Iterator[Process]:
    """Run the work in a process of this user; its argument pauses until the test continues the process."""
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


# ---- a directory that was replaced after it was found ----


def test_the_directory_that_was_found_is_opened(shared: Path) -> None:
    run_as(ATTACKER, lambda: write(shared / "feed", b"public", 0o666))
    found = identity(shared / "feed")
    assert run_as(VICTIM, lambda: read_all(shared / "feed", found)) == ["public"]


def swap_directory(shared: Path, name: str, target: Path) -> None:
    (shared / name).rename(shared / "aside")
    (shared / name).symlink_to(target)


@pytest.mark.parametrize("part", ["feed", "team"])
def test_a_directory_swapped_for_a_link_is_not_opened(shared: Path, part: str) -> None:
    """Replacing the last part of the path, or one above it, does not expose the victim's own queue."""
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
    """A new directory may reuse the inode number of a removed one."""
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
    """Closing a reader does not remove a socket from the directory that its path has come to name."""
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
    """No position and no socket is created where a link of the queue's owner points."""
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


# ---- files that exist already ----


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
    """Return a file of root, which must not change."""
    path = shared / "precious"
    path.write_bytes(b"precious")
    path.chmod(0o640)
    yield path
    assert path.read_bytes() == b"precious"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_segment_is_a_new_file(shared: Path, precious: Path, kind: str) -> None:
    """Root writes to the queue of a user who has planted files under the names of the queue's files."""
    feed = shared / "feed"
    run_as(ATTACKER, lambda: write(feed, b"x", 0o666))
    with open_writer(feed, roll=Roll(messages=1)) as writer:
        # where the kernel protects links, linking another user's file needs permission
        user = 0 if kind == "hard link" else ATTACKER
        planted: dict[int, int] = {}  # held open, so that no new file gets the same inode number
        for segment in range(1, 6):
            place = feed / f"{segment:09}.q.tmp"
            do_as(user, partial(plant_file, place, kind, precious))
            planted[place.lstat().st_ino] = os.open(place, os.O_PATH | os.O_NOFOLLOW)
        for _ in range(4):
            writer.append(b"y")
        made = sorted(feed.glob("*.q"))[1:]
        assert len(made) >= 4
        for path in made:
            found = path.lstat()
            assert found.st_ino not in planted
            assert (found.st_uid, found.st_nlink, stat.S_ISREG(found.st_mode)) == (
                ATTACKER,
                1,
                True,
            )
            assert stat.S_IMODE(found.st_mode) == 0o600
    for fd in planted.values():
        os.close(fd)


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
    """Return the work of a user who opens connections, sends nothing and closes none."""

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
    """Raise the limit of descriptors for attackers; victims get the usual limit."""
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
    """Sleep until the eventfd is signalled, without a poll in between."""
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
    """A colleague's link in wake/ does not make a writer connect to another service of its user."""
    service = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    hidden = team.parent / "private"
    with service, process_of(WRITER, append_when_told(team)) as writer:
        service.bind(os.fspath(hidden))
        service.listen()
        hidden.chmod(0o600)
        os.chown(hidden, WRITER, -1)
        run_as(COLLEAGUE, lambda: (team / "wake" / "evil.efd").symlink_to(hidden))
        with process_of(WRITER, read_under_attack(team)) as victim:
            victim.go_on()  # connected: earlier connections were handled
            with pytest.raises(BlockingIOError):
                service.accept()
            victim.tell()
            writer.go_on()
            victim.await_pause()


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(("attacker", "most"), [(COLLEAGUE, 20), (WRITER, 160)])
def test_silent_connections_take_few_descriptors(team: Path, attacker: int, most: int) -> None:
    """A reader closes connections of other users at once, even if its socket's mode admits them, and silent
    ones of its own user when there are many. A writer still finds and wakes it."""
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
    """A colleague who may write into wake/ cannot make a reader sleep through messages."""

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

    (team / "wake").chmod(0o770)  # as earlier versions created it
    with (
        process_of(WRITER, append_when_told(team)) as writer,
        process_of(WRITER, read_under_attack(team)) as victim,
        process_of(WRITER, read_otherwise) as other,
    ):
        victim.go_on()
        run_as(COLLEAGUE, plant)
        other.go_on()  # connected: earlier entries were handled
        victim.tell()
        time.sleep(0.3)  # most probably the reader sleeps by now: the harder case
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


# ---- a router in a directory that other users may write to ----


def swap_again_and_again(shared: Path, target: Path, pause: Pause) -> None:
    """Alternate a queue and a link to another queue under one name."""
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
    """Return which messages a router delivered in this time, and how often."""
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
    """The victim's own queue stays private, whatever the timing of the attacker's swaps."""
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
    """The content of a private queue's schema appears in no error and no log."""
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


# ---- a bus in a directory that other users may write to ----


def append_to(root: Path, topic: str, **where: Any) -> None:
    with Bus(root, **where) as bus:
        bus.append(topic, b"order")


def read_topic(root: Path, topic: str) -> list[str]:
    with Bus(root) as bus:
        return [message.payload.decode() for message in bus.read_batch(topic, "audit")]


def plant_configuration(root: Path, text: str = "[defaults]\nmode = 0o666\n") -> None:
    (root / "config.toml").write_text(text)
    (root / "config.toml").chmod(0o644)


@pytest.mark.parametrize("text", ["[defaults]\nmode = 0o666\n", "broken"])
def test_a_configuration_of_a_stranger_is_not_obeyed(shared: Path, text: str) -> None:
    run_as(ATTACKER, lambda: plant_configuration(shared, text))
    for victim in (0, VICTIM):
        said = run_or_call(victim, lambda: outcome(lambda: append_to(shared, "orders")))
        assert said.startswith("AccessDenied"), said
        assert f"config.toml: belongs to user {ATTACKER}" in said
    assert not (shared / "orders").exists()
    run_as(VICTIM, lambda: append_with_own_configuration(shared))  # which is the way around it


def append_with_own_configuration(shared: Path) -> None:
    own = shared / "own.toml"
    own.write_text("[defaults]\nsegment_size = 65536\n")
    append_to(shared, "orders", config=own)


def run_or_call(user: int, work: Callable[[], Any]) -> Any:
    return work() if user == 0 else run_as(user, work)


def test_a_configuration_by_a_link_is_obeyed_if_link_and_file_are_trusted(shared: Path) -> None:
    elsewhere = shared / "elsewhere"
    elsewhere.mkdir()
    plant_configuration(elsewhere)
    root = shared / "bus"
    root.mkdir()
    root.chmod(0o1777)
    run_as(ATTACKER, lambda: (root / "config.toml").symlink_to(elsewhere / "config.toml"))
    said = run_as(VICTIM, lambda: outcome(lambda: append_to(root, "orders")))
    assert f"is a symbolic link of user {ATTACKER}" in said, said
    (root / "config.toml").unlink()
    (root / "config.toml").symlink_to(elsewhere / "config.toml")
    assert run_as(VICTIM, lambda: Bus(root).settings("orders").mode) == 0o666
    os.chown(elsewhere / "config.toml", ATTACKER, -1)
    said = run_as(VICTIM, lambda: outcome(lambda: append_to(root, "orders")))
    assert f"belongs to user {ATTACKER}" in said, said


def test_a_configuration_that_others_may_write_is_not_obeyed(shared: Path) -> None:
    plant_configuration(shared)
    file = shared / "config.toml"
    file.chmod(0o666)
    for config in (None, file):
        with pytest.raises(AccessDenied, match=r"everybody may write to it \(mode 0666\)"):
            Bus(shared, config=config)
    file.chmod(0o664)  # root's own group
    assert Bus(shared).settings("x").mode == 0o666
    os.chown(shared, WRITER, -1)
    os.chown(file, WRITER, -1)
    with pytest.raises(AccessDenied, match="group 0 may write to it"):
        Bus(shared)
    file.chmod(0o644)
    assert Bus(shared).settings("x").mode == 0o666


@pytest.mark.parametrize("linked", ["topic", "namespace"])
def test_a_bus_follows_no_links_below_its_root(shared: Path, linked: str) -> None:
    """A link does not make a bus append to a private queue of its user, read it, or create one beside it."""
    private, root = shared / "private", shared / "bus"
    root.mkdir()
    root.chmod(0o1777)
    run_as(VICTIM, private.mkdir)
    run_as(VICTIM, lambda: write(private / "ledger", b"secret"))
    before = everything(private)
    target = private / "ledger" if linked == "topic" else private
    run_as(ATTACKER, lambda: (root / "link").symlink_to(target))

    def attempts() -> list[str]:
        topic = "link" if linked == "topic" else "ledger"
        with Bus(root, namespace=None if linked == "topic" else "link") as bus:
            return [
                outcome(lambda: bus.append(topic, b"order")),
                outcome(lambda: bus.append(topic if linked == "topic" else "new", b"order")),
                outcome(lambda: [m.payload for m in bus.read_batch(topic, "audit")]),
                outcome(lambda: bus.reader(topic)),
                outcome(lambda: bus.readers(topic)),
            ]

    for victim in (0, VICTIM):
        for said in run_or_call(victim, attempts):
            assert said.startswith("AccessDenied"), said
            assert f"link: is a symbolic link of user {ATTACKER}" in said
    assert everything(private) == before
    assert run_as(VICTIM, lambda: Bus(root).topics()) == []


def test_a_bus_does_not_append_to_the_queue_of_a_stranger(shared: Path) -> None:
    """A topic created beforehand would be readable by its owner. Reading what others publish is allowed."""
    run_as(ATTACKER, lambda: write(shared / "pay", b"public", 0o666))
    run_as(ATTACKER, lambda: (shared / "new").mkdir())
    for victim in (0, VICTIM):
        for topic in ("pay", "new"):
            said = run_or_call(victim, lambda: outcome(lambda: append_to(shared, topic)))  # noqa: B023
            assert said.startswith("AccessDenied"), said
            assert f"{topic}: belongs to user {ATTACKER}; only user 0" in said
    assert run_as(VICTIM, lambda: read_topic(shared, "pay")) == ["public"]
    with open_reader(shared / "pay") as reader:
        assert [message.payload for message in reader] == [b"public"]


def test_a_topic_that_is_swapped_while_it_is_opened_is_closed_again(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a root without a sticky bit, every user may rename everything at any moment."""
    shared.chmod(0o777)
    append_to(shared, "orders")
    run_as(ATTACKER, lambda: write(shared / "own", b"public", 0o666))

    def swap_and_open(path: str, **options: Any) -> Any:
        run_as(ATTACKER, lambda: swap_directory(shared, "orders", shared / "own"))
        return open_writer(path, **options)

    monkeypatch.setattr(aiochronicle._services.trusted, "open_writer", swap_and_open)
    with pytest.raises(
        QueueGone, match="was replaced while it was being opened; nothing was appended"
    ):
        append_to(shared, "orders")
    with open_reader(shared / "own") as reader:
        assert [message.payload for message in reader] == [b"public"]


def test_a_namespace_of_a_stranger_is_not_used(shared: Path) -> None:
    run_as(ATTACKER, lambda: (shared / "desk").mkdir(mode=0o777))
    (shared / "desk").chmod(0o777)
    said = outcome(lambda: append_to(shared, "orders", namespace="desk"))
    assert f"desk: belongs to user {ATTACKER}" in said, said
    assert everything(shared / "desk") == []


def test_colleagues_share_a_bus(shared: Path) -> None:
    """In a root of their group, each user writes its own topics in one namespace, and reads all topics."""
    root = shared / "team"
    root.mkdir()
    os.chown(root, 0, SHARED)
    for mode in (0o2770, 0o3770):
        root.chmod(mode)
        for user in (WRITER, COLLEAGUE, READER):
            topic = f"of-{user}-{mode:o}"
            run_as(user, lambda: append_as_team(root, topic))  # noqa: B023
            owner = (root / "desk" / topic).stat()
            assert (owner.st_uid, owner.st_gid) == (user, SHARED)
    desk = (root / "desk").stat()
    assert (desk.st_gid, stat.S_IMODE(desk.st_mode)) == (SHARED, 0o2770)
    topics = run_as(READER, lambda: Bus(root, namespace="desk").topics())
    assert len(topics) == 6
    service = shared / "of-a-service"
    run_as(WRITER, lambda: append_as_team(service, "orders"))
    run_as(WRITER, lambda: append_to(service, "orders", namespace="desk"))
    append_to(service, "orders", namespace="desk")  # the owner of the root is trusted
    (shared / "way").symlink_to(service)
    append_to(shared / "way", "orders", namespace="desk")


def append_as_team(root: Path, topic: str) -> None:
    with Bus(root, namespace="desk") as bus:
        bus.writer(topic, mode=0o660, segment_size=SEGMENT).append(b"x")


def test_topics_leaves_out_what_this_user_may_not_look_into(shared: Path) -> None:
    run_as(ATTACKER, lambda: (shared / "closed").mkdir(mode=0o700))
    run_as(VICTIM, lambda: append_to(shared, "orders"))
    assert run_as(VICTIM, lambda: Bus(shared).topics()) == ["orders"]
    said = run_as(VICTIM, lambda: outcome(lambda: append_to(shared, "closed")))
    assert said.startswith("AccessDenied"), said


def flip_namespace(root: Path, own: Path, target: Path, pause: Pause) -> None:
    """Let the name of a namespace lead alternately nowhere and to a directory of root."""
    (own / "nowhere").symlink_to("/nonexistent/directory")
    (own / "there").symlink_to(target)
    (root / "md").symlink_to(own / "turn")
    pause()
    ends_s = time.monotonic() + 2
    while time.monotonic() < ends_s:
        for turn in ("nowhere", "there"):
            (own / turn).rename(own / "turn")
            (own / "turn").rename(own / turn)
    pause()


def test_a_bus_changes_the_mode_of_no_other_directory(shared: Path) -> None:
    """The bus sets modes only on what it created, whatever the timing of the attacker's swaps."""
    root, own, target = shared / "bus", shared / "own", shared / "like-etc"
    for directory in (root, own, target):
        directory.mkdir()
    root.chmod(0o1777)
    target.chmod(0o755)
    (target / "keep").mkdir()
    os.chown(own, ATTACKER, -1)
    with process_of(ATTACKER, lambda pause: flip_namespace(root, own, target, pause)) as attacker:
        attacker.tell()
        ends_s = time.monotonic() + 1.5
        while time.monotonic() < ends_s:
            said = outcome(lambda: append_to(root, "orders", namespace="md"))
            assert said.startswith("AccessDenied"), said
        attacker.await_pause()
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert everything(target) == ["keep"]


# ---- replies and requests ----


async def reply_to_first(root: Path, payload: bytes, **options: Any) -> str:
    async with Router(root, name=f"gateway-{os.geteuid()}", **options) as router:
        message = await router.next(timeout=30)
        writer = await router.reply(message)
        writer.append(payload)
        return writer.path


def announce(path: Path, text: bytes = b"hello") -> None:
    with open_writer(path, ready=True, mode=0o666, segment_size=SEGMENT) as writer:
        writer.append(text)


@pytest.fixture
def orders(shared: Path) -> Path:
    """Return a root in which every user may create queues, in a directory open to every user."""
    root = shared / "orders"
    root.mkdir()
    root.chmod(0o1777)
    run_as(WRITER, lambda: announce(root / "alice"))
    return root


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("planted", ["link", "directory", "queue", "link to a queue"])
def test_replies_go_to_no_stranger(
    shared: Path, orders: Path, planted: str, *, explicit: bool
) -> None:
    replies, private = shared / "orders.replies", shared / "private"
    run_as(VICTIM, private.mkdir)

    def plant() -> None:
        if planted == "link":
            replies.symlink_to(private)
        elif planted == "directory":
            replies.mkdir()
        elif planted == "queue":
            announce(replies / "alice")
        else:
            (replies / "alice").symlink_to(private)

    if "queue" in planted:
        replies.mkdir()
        replies.chmod(0o1777)
    run_as(ATTACKER, plant)
    before = everything(private), everything(replies)
    options = {"reply_root": f"{replies}/"} if explicit else {}
    for victim in (0, VICTIM):
        work = partial(outcome, lambda: asyncio.run(reply_to_first(orders, b"secret", **options)))
        said = run_or_call(victim, work)
        assert said.startswith("AccessDenied"), said
        assert f"user {ATTACKER}" in said
    assert (everything(private), everything(replies)) == before


def test_replies_go_where_the_operator_links_them(shared: Path, orders: Path) -> None:
    elsewhere = shared / "elsewhere"
    elsewhere.mkdir()
    (shared / "orders.replies").symlink_to(elsewhere)
    asyncio.run(reply_to_first(orders, b"answer"))
    assert (elsewhere / "alice" / "READY").exists()


NO_NAMES = [b"evil\nforged line\x1b[31m", b"bad\xff", b".hidden", b"-rf", b"x" * 200, b"..x"]


def test_a_responder_serves_no_impossible_names(
    shared: Path, orders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replies = shared / "replies"

    def plant() -> None:
        for name in NO_NAMES:
            announce(Path(os.fsdecode(os.fsencode(orders) + b"/" + name)))

    async def serve() -> dict[str, Exception]:
        async with Responder(orders, replies, rescan_s=0.02) as responder:
            request = await anext(responder)
            assert request.requester == "alice"
            request.reply(b"done")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await anext(responder)
            assert responder.requesters() == ["alice"]
            return dict(responder.problems)

    run_as(ATTACKER, plant)
    with caplog.at_level("WARNING"):
        problems = asyncio.run(serve())
    assert sorted(os.fsencode(path).rpartition(b"/")[2] for path in problems) == sorted(NO_NAMES)
    assert {type(error) for error in problems.values()} == {InvalidName}
    assert [entry.name for entry in replies.iterdir()] == ["alice"]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(NO_NAMES)
    assert all(text.isprintable() and "no requester can have this name" in text for text in told)


def test_queues_that_are_never_completed_hold_nobody_up(shared: Path, orders: Path) -> None:
    """Waiting a second for each of them would take half a minute."""

    def plant(pause: Pause) -> None:
        block = bytearray((orders / "alice" / "control.meta").read_bytes())
        block[8:12] = (1).to_bytes(4, "little")
        files = [orders / f"planted{number}" / "control.meta" for number in range(200)]
        for file in files:
            file.parent.mkdir()
            file.write_bytes(block)
            (file.parent / "READY").write_bytes(b"version=1")
        pause()
        ends_s = time.monotonic() + 30
        while time.monotonic() < ends_s and not (shared / "done").exists():
            for file in files:  # never ages
                file.chmod(0o644)
        pause()

    async def route() -> float:
        started_s = time.monotonic()
        async with Router(orders, name="gateway", rescan_s=1) as router:
            entered_s = time.monotonic() - started_s
            assert (await router.next(timeout=30)).source == "alice"
            assert len(router.problems) == 200
            announce(orders / "late")
            assert (await router.next(timeout=30)).source == "late"
            late_s = time.monotonic() - started_s
        return max(entered_s, late_s)

    with process_of(ATTACKER, plant) as attacker:
        attacker.tell()
        try:
            took_s = asyncio.run(route())
        finally:
            (shared / "done").touch()
            attacker.await_pause()
    assert took_s < 10, took_s


def test_a_queue_that_is_completed_late_is_attached(orders: Path) -> None:
    control = orders / "late" / "control.meta"
    announce(orders / "late")
    block = control.read_bytes()
    control.write_bytes(block[:8] + (1).to_bytes(4, "little") + block[12:])

    async def route() -> set[str]:
        async with Router(orders, name="gateway", rescan_s=0.1) as router:
            names = {(await router.next(timeout=30)).source}
            control.write_bytes(block)
            return names | {(await router.next(timeout=30)).source}

    assert asyncio.run(route()) == {"alice", "late"}
