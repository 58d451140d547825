"""The demo, run as people run it: as a program, with and without a terminal."""

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "aiochronicle.demo", "--feeds", "2", "--readers", "1"]
COMMAND += ["--no-pipeline"]  # its test is among those of Spark
TIMEOUT_S = 60.0


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        time.sleep(0.01)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A demo that has all its processes and would go on for long."""
    root = tmp_path / "queues"
    arguments = ["--seconds", "600", "--rate", "2000", "--root", str(root)]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, process_group=0)
    try:
        wait_for(lambda: len(children_of(process.pid)) == 4, "four children")
        assert process.stdout is not None
        first_line = process.stdout.readline()
        assert b"written" in first_line
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_demo_delivers_everything_and_survives_a_killed_feed() -> None:
    done = run_demo("--seconds", "0.5", "--rate", "5000")  # too short for the new writer to come
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "killed (SIGKILL)" in done.stdout
    assert "a new writer took over" in done.stdout
    assert "every reader got every message, once, in order" in done.stdout
    assert "\x1b" not in done.stdout
    written = dict(re.findall(r"^ (nasdaq|xetra) +([\d,]+) ", done.stdout, re.MULTILINE))
    read = dict(re.findall(r"^ (nasdaq|xetra) → risk +([\d,]+) ", done.stdout, re.MULTILINE))
    assert written == read
    assert len(written) == 2


def test_demo_fails_when_no_writer_takes_over() -> None:
    impatient = (
        "import sys; from aiochronicle.demo import __main__ as demo;"
        " demo.TAKE_OVER_TIMEOUT_S = 0.0; sys.exit(demo.main())"
    )
    arguments = [*COMMAND[3:], "--seconds", "0.4", "--rate", "1000"]
    done = subprocess.run(
        [sys.executable, "-c", impatient, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    assert "killed (SIGKILL)" in done.stdout
    assert "xetra: killed, and no new writer took over" in done.stdout.splitlines()[-1]
    assert "every reader got" not in done.stdout


def test_demo_fails_when_a_queue_is_damaged(tmp_path: Path) -> None:
    arguments = ["--seconds", "0.3", "--rate", "1000", "--no-crash", "--root", str(tmp_path)]
    assert run_demo(*arguments).returncode == 0
    segment = tmp_path / "nasdaq" / "000000000.q"
    with segment.open("r+b") as file:
        file.seek(64 + 64)  # the first payload byte of the first record
        byte = file.read(1)
        file.seek(64 + 64)
        file.write(bytes([byte[0] ^ 1]))
    done = run_demo(*arguments)
    assert done.returncode == 1, done.stdout
    assert "corrupt" in done.stdout.splitlines()[-2]
    assert "every reader got" not in done.stdout


def test_demo_draws_on_a_terminal_and_gives_it_back() -> None:
    parent_fd, child_fd = pty.openpty()
    ioctl(child_fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "PYTHONUTF8": "1"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [*COMMAND, "--seconds", "0.5", "--rate", "1000", "--no-crash"],
        stdout=child_fd,
        env=environment,
    )
    os.close(child_fd)
    screen = bytearray()
    deadline_s = time.monotonic() + TIMEOUT_S
    while select.select([parent_fd], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
        try:
            screen += os.read(parent_fd, 65536)
        except OSError:  # EIO: the other side is closed
            break
    os.close(parent_fd)
    assert process.wait(TIMEOUT_S) == 0
    text = screen.decode()
    live, _, summary = text.partition("\x1b[?1049l")
    assert live.startswith("\x1b[?1049h\x1b[?25l")
    assert live.endswith("\x1b[?25h")
    assert "live demo" in live
    assert "every reader got every message" in summary
    without_colours = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", live)
    assert max(len(line.rstrip()) for line in without_colours.splitlines()) <= 80


def test_demo_ends_cleanly_on_an_interrupt(started: subprocess.Popen[bytes]) -> None:
    children = children_of(started.pid)
    started.send_signal(signal.SIGINT)
    output, _ = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 0, output.decode()
    assert "stopped early" in output.decode()
    assert "every reader got every message" in output.decode()
    assert not any(is_alive(pid) for pid in children)


def test_demo_fails_when_a_process_is_lost(started: subprocess.Popen[bytes]) -> None:
    os.kill(children_of(started.pid)[0], signal.SIGKILL)
    output, _ = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 1, output.decode()
    assert "ended with status -9" in output.decode()
    assert "every reader got" not in output.decode()


def test_demo_stops_at_once_when_interrupted_twice(started: subprocess.Popen[bytes]) -> None:
    children = children_of(started.pid)
    os.kill(children[0], signal.SIGSTOP)  # a child that does not end when asked
    started.send_signal(signal.SIGINT)
    assert started.stdout is not None
    wait_for(lambda: not all(is_alive(pid) for pid in children[1:]), "the end of a feed")
    started.send_signal(signal.SIGINT)
    assert started.wait(TIMEOUT_S) == 130
    assert not any(is_alive(pid) for pid in children)


def test_demo_children_do_not_outlive_a_killed_parent(started: subprocess.Popen[bytes]) -> None:
    children = children_of(started.pid)
    started.kill()
    started.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in children), "the end of the children")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--feeds", "0"], "0 is not between 1 and 8"),
        (["--seconds", "never"], "invalid number value: 'never'"),
        (["--root", "/dev/null"], "is not a directory"),
    ],
)
def test_demo_refuses_nonsense(arguments: list[str], complaint: str) -> None:
    done = run_demo(*arguments)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_demo_help_names_every_option() -> None:
    done = run_demo("--help")
    assert done.returncode == 0
    for option in ("--seconds", "--feeds", "--readers", "--rate", "--root", "--no-crash"):
        assert option in done.stdout
