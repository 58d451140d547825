"""R4 for the calls by which writers and readers find each other.

A fault there may cost a wake-up its speed, never a message.

The timing of these calls is random, so the test does not count them: each one fails from the start, always
or once, while a reader waits for a message.
"""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from aiochronicle import open_reader, open_writer
from aiochronicle.errors import CorruptionError

from .system_calls import CALL_NAMES, Call, observed

TESTS = Path(__file__).parent.parent
WAKING_CALLS = ["eventfd", "poll", "receive", "send", "signal", "socket", "watch"]
FOR_EVER = 1_000_000
# An interrupted call is repeated, here without end.
FAULTS = [
    (errno.EIO, 1),
    (errno.EIO, FOR_EVER),
    (errno.EMFILE, FOR_EVER),
    (errno.EINTR, 3),
    (errno.EAGAIN, 2),
]

PROGRAM = """
import errno, sys, time
from pathlib import Path
from aiochronicle import errors, open_reader, open_writer
from faults.system_calls import injected

queue, name, fault, times = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
received = 0
with injected(name, fault, times=times) as injection:
    try:
        with open_writer(queue, segment_size=1 << 16) as writer:
            with open_reader(queue, "audit") as reader:
                for sent in range(20):
                    reader.wait(0.002)
                    writer.append(b"%d" % sent)
                    started = time.monotonic()
                    assert reader.wait(10.0), "the message was not noticed"
                    assert time.monotonic() - started < 5
                    assert reader.poll().payload == b"%d" % sent
                    received += 1
    except errors.StorageError as error:
        assert error.errno == fault, error
    print(injection.seen > 0, received)
"""


def _run(path: Path, call: str, fault: int, times: int) -> bool:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path / "queue"), call, str(fault), str(times)],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.startswith("True")


@pytest.mark.parametrize("call", WAKING_CALLS)
def test_nth_fault_while_waiting_loses_no_message(tmp_path: Path, call: str) -> None:
    assert call in CALL_NAMES
    met = False
    for fault, times in FAULTS:
        path = tmp_path / f"{errno.errorcode[fault]}-{times}"
        path.mkdir()
        met |= _run(path, call, fault, times)
    assert met, f"{call} never happened"


def test_nth_fault_while_a_queue_is_being_created(tmp_path: Path) -> None:
    """Opening a control block that no process completes ends: the only place that waits on a word."""
    queue = tmp_path / "queue"
    with open_writer(queue, segment_size=1 << 16):
        pass
    with (queue / "control.meta").open("r+b") as file:
        file.seek(8)
        file.write(b"\x01")
    for fault in (0, errno.EIO, errno.EINTR, errno.EAGAIN):
        waits = 0

        def answer(call: Call, fault: int = fault) -> int:
            nonlocal waits
            waits += call.name == "wait"
            return fault if call.name == "wait" else 0

        (queue / "control.meta").touch()  # opening does not wait for an old one
        with observed(answer), pytest.raises(CorruptionError, match="never completed"):
            open_reader(queue)
        assert waits > 0
