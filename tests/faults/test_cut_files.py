"""R5: files cut, removed or replaced under open handles: an error within a second, never a signal.

A signal would end the test run, so each case runs in a process of its own: with Python's faulthandler off,
installed before the engine's handler, and installed after it.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TIMEOUT_S = 60  # allows for a slow start of Python; the program itself has a limit of a second

PRELUDE = """
import faulthandler, os, shutil, sys, time
from pathlib import Path
import aiochronicle
from aiochronicle import errors, open_reader, open_writer

queue, order = Path(sys.argv[1]), sys.argv[2]
if order == "before":
    faulthandler.enable()
SIZE = 1 << 16

def fill(writer, count=40):
    for _ in range(count):
        writer.append(b"x" * 1000)

def expect(action, *kinds):
    started = time.monotonic()
    try:
        result = action()
    except kinds as error:
        assert str(queue) in str(error), error
    else:
        raise SystemExit(f"no error, but {result!r}")
    assert time.monotonic() - started < 1, "took too long"

def read_on(reader):
    for _ in range(200):
        if reader.poll() is None:
            return "nothing more"

def append_on(writer):
    fill(writer, 200)

def segment(number):
    return queue / f"{number:09}.q"

writer = open_writer(queue, segment_size=SIZE, _inline_housekeeping=True)
fill(writer)
if order == "after":
    faulthandler.enable()
"""


def _run(queue: Path, program: str, order: str = "off") -> None:
    result = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c",
         PRELUDE + textwrap.dedent(program) + "\nprint('done')", str(queue), order],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "done"


ORDERS = pytest.mark.parametrize("order", ["off", "before", "after"])


@ORDERS
def test_cut_segment_under_a_reader(tmp_path: Path, order: str) -> None:
    program = """
    reader = open_reader(queue)
    for _ in range(3):
        message = reader.poll()
    os.truncate(segment(0), 4096)
    expect(lambda: read_on(reader), errors.QueueGone, errors.CorruptionError)
    reader.close()
    """
    _run(tmp_path / "queue", program, order)


@pytest.mark.parametrize("bytes_left", [0, 64])
def test_cut_segment_under_messages_that_were_handed_over(tmp_path: Path, bytes_left: int) -> None:
    """A payload that was not copied before the cut raises; the engine never returns zeros for it."""
    program = """
    import msgspec

    class Order(msgspec.Struct):
        price: float
        size: int

    writer.append(b"buy", cause=(1, 2))
    codec = aiochronicle.Codec(Order, format="struct")
    with open_writer(queue.parent / "orders", segment_size=SIZE, codec=codec) as orders:
        orders.send(Order(101.5, 300))
    with open_reader(queue) as reader, open_reader(orders.path, codec=codec) as typed:
        *_, copied, caused = reader
        payload, view = copied.payload, copied.view
        sent = typed.poll()
        for path in (segment(0), queue.parent / "orders" / "000000000.q"):
            os.truncate(path, BYTES_LEFT)
        for look in (lambda: caused.payload, lambda: caused.cause, lambda: caused.view,
                     lambda: bytes(caused), lambda: caused.decode(Order), lambda: caused.payload):
            expect(look, errors.QueueGone)
        queue = queue.parent / "orders"
        expect(sent.decode, errors.QueueGone)
        assert copied.payload == payload == b"x" * 1000
        assert bytes(view) == bytes(1000), "a view shows what there is"
    """
    _run(tmp_path / "queue", program.replace("BYTES_LEFT", f"{bytes_left}"))


@ORDERS
def test_cut_segment_under_a_writer(tmp_path: Path, order: str) -> None:
    program = """
    os.truncate(segment(0), 0)
    expect(lambda: append_on(writer), errors.StorageError, errors.WriterPoisoned)
    expect(writer.flush_now, errors.StorageError, errors.WriterPoisoned)
    """
    _run(tmp_path / "queue", program, order)


@ORDERS
def test_cut_control_block_under_both(tmp_path: Path, order: str) -> None:
    program = """
    reader = open_reader(queue)
    os.truncate(queue / "control.meta", 0)
    expect(lambda: append_on(writer), errors.QueueGone)
    expect(lambda: (read_on(reader), reader.wait(0.1), read_on(reader)), errors.QueueGone)
    """
    _run(tmp_path / "queue", program, order)


def test_cut_position_under_a_reader(tmp_path: Path) -> None:
    program = """
    reader = open_reader(queue, "audit")
    reader.poll()
    reader.commit()
    os.truncate(queue / "readers" / "audit.meta", 0)
    def commit_on():
        for _ in range(3):
            reader.poll()
            reader.commit()
    expect(commit_on, errors.QueueGone)
    """
    _run(tmp_path / "queue", program)


def test_cut_off_message_view_stays_readable(tmp_path: Path) -> None:
    program = """
    reader = open_reader(queue)
    messages = [reader.poll() for _ in range(30)]
    views = [message.view for message in messages]
    os.truncate(segment(0), 64)
    for view in views:
        bytes(view)
    for message in messages:
        expect(lambda: message.payload, errors.QueueGone)
    expect(lambda: read_on(reader), errors.QueueGone, errors.CorruptionError)
    """
    _run(tmp_path / "queue", program)


def test_cut_segment_found_by_the_next_opening(tmp_path: Path) -> None:
    program = """
    writer.close()
    os.truncate(segment(0), 10000)
    expect(lambda: open_writer(queue), errors.CorruptionError)
    reader = open_reader(queue)
    expect(lambda: read_on(reader), errors.CorruptionError)
    """
    _run(tmp_path / "queue", program)


def test_cut_out_segment_removed_under_a_reader(tmp_path: Path) -> None:
    program = """
    reader = open_reader(queue)
    reader.poll()
    fill(writer, 200)
    assert writer.position.segment >= 3
    segment(1).unlink()
    expect(lambda: read_on(reader), errors.PositionLost)
    """
    _run(tmp_path / "queue", program)


def test_cut_off_by_removal_of_the_directory(tmp_path: Path) -> None:
    program = """
    reader = open_reader(queue, "audit")
    reader.poll()
    shutil.rmtree(queue)
    while reader.poll() is not None:
        pass
    expect(reader.seek_first, errors.QueueGone)
    expect(lambda: reader.seek(3), errors.QueueGone)
    expect(lambda: append_on(writer), errors.StorageError)
    expect(lambda: open_reader(queue), errors.QueueNotFound)
    reader.close()
    """
    _run(tmp_path / "queue", program)


def test_cut_off_by_another_directory_in_its_place(tmp_path: Path) -> None:
    program = """
    reader = open_reader(queue)
    queue.rename(queue.with_name("moved"))
    other = open_writer(queue, segment_size=SIZE, _inline_housekeeping=True)
    for _ in range(200):
        other.append(b"not ours")
    expect(reader.seek_first, errors.QueueGone)
    while (message := reader.poll()) is not None:
        assert message.payload == b"x" * 1000
    """
    _run(tmp_path / "queue", program)


def test_cut_in_by_a_replaced_segment(tmp_path: Path) -> None:
    program = """
    fill(writer, 200)
    reader = open_reader(queue)
    reader.poll()
    other = segment(1).with_suffix(".other")
    other.write_bytes(segment(0).read_bytes())
    other.rename(segment(1))
    expect(lambda: read_on(reader), errors.CorruptionError)
    """
    _run(tmp_path / "queue", program)


def _can_unshare() -> bool:
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(probe, capture_output=True, timeout=20).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not _can_unshare(), reason="needs a user namespace with mounts")
def test_cut_off_writes_by_a_read_only_mount(tmp_path: Path) -> None:
    """A queue on a read-only mount can be read; opening it for writing raises AccessDenied."""
    program = """
    import subprocess
    from aiochronicle import *
    from aiochronicle import errors
    root = Path(sys.argv[1]).parent
    def mount(*options):
        subprocess.run(["mount", *options], check=True)
    mount("-t", "tmpfs", "-o", "size=4m", "none", str(root))
    writer = open_writer(queue, segment_size=SIZE)
    fill(writer)
    writer.close()
    mount("-o", "remount,ro", str(root))
    expect(lambda: open_writer(queue), errors.AccessDenied)
    expect(lambda: open_reader(queue, "audit"), errors.AccessDenied)
    with open_reader(queue) as reader:
        assert sum(1 for _ in reader) == 40
        assert not reader.wait(0.01)
    print("done")
    """
    (tmp_path / "mount").mkdir()
    prelude = PRELUDE[: PRELUDE.index("writer = open_writer")]
    result = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", prelude + textwrap.dedent(program),
         str(tmp_path / "mount" / "queue"), "off"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "done"
