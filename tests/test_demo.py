"""The demo, run as users run it: as a program, with and without a terminal."""

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

import aiochronicle

COMMAND = [sys.executable, "-m", "aiochronicle.demo", "--venues", "2", "--strategies", "2"]
COMMAND += ["--no-pipeline"]  # its test is with those of Spark
TIMEOUT_S = 110.0


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
    """Yield a demo with all its processes, which would run for ten minutes."""
    root = tmp_path / "queues"
    arguments = ["--seconds", "600", "--rate", "2000", "--root", str(root)]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, process_group=0)
    try:
        assert process.stdout is not None
        first_line = process.stdout.readline()
        assert b"ticks" in first_line
        assert len(children_of(process.pid)) == 6  # the second strategy joins later
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def counts_of(output: str, strategy: str) -> list[str]:
    """Return the counts and the digest in the strategy's row of the proof."""
    (row,) = re.findall(rf"^{strategy} +(.*)$", output, re.MULTILINE)
    assert isinstance(row, str)
    return row.split()


@pytest.mark.parametrize("victim", ["router", "strategy", "venue"])
def test_demo_executes_everything_once_whatever_is_killed(victim: str) -> None:
    # Too short for the new process to start; the run continues until it has.
    done = run_demo("--seconds", "0.8", "--rate", "3000", "--kill", victim)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "reversion: attached by the router" in done.stdout
    assert "killed (SIGKILL)" in done.stdout
    assert "a new process took over" in done.stdout
    assert "each routed, filled and replied exactly once" in done.stdout
    assert "\x1b" not in done.stdout
    for strategy in ("momentum", "reversion"):
        *counts, sign, digest = counts_of(done.stdout, strategy)
        assert len(counts) == 5
        assert len(set(counts)) == 1
        assert int(counts[0].replace(",", "")) > 0
        assert (sign, len(digest)) == ("=", 12)


def test_demo_fails_when_no_process_takes_over() -> None:
    impatient = (
        "import sys; from aiochronicle.demo import __main__ as demo;"
        " demo.RESTART_PATIENCE_S = 0.0; demo.KILL_SHARE = 0.9; demo.PAUSE_S = 1.0;"
        " sys.exit(demo.main())"
    )
    arguments = [*COMMAND[3:], "--seconds", "2", "--rate", "1000"]
    done = subprocess.run(
        [sys.executable, "-c", impatient, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    assert "killed (SIGKILL)" in done.stdout
    assert "router: killed, and no new process took over" in done.stdout
    assert "exactly once" not in done.stdout


def test_demo_fails_when_a_queue_is_damaged(tmp_path: Path) -> None:
    arguments = ["--seconds", "0.3", "--rate", "1000", "--kill", "none", "--root", str(tmp_path)]
    first = run_demo(*arguments)
    assert first.returncode == 0, first.stdout + first.stderr
    segment = tmp_path / "market" / "nasdaq" / "000000000.q"
    with segment.open("r+b") as file:
        file.seek(64 + 64)  # the first payload byte of the first record
        byte = file.read(1)
        file.seek(64 + 64)
        file.write(bytes([byte[0] ^ 1]))
    done = run_demo(*arguments)
    assert done.returncode == 1, done.stdout
    assert "market/nasdaq: 1 corrupt records" in done.stdout
    assert "exactly once" not in done.stdout


def test_demo_fails_when_an_order_is_executed_twice(tmp_path: Path) -> None:
    arguments = ["--seconds", "0.3", "--rate", "1000", "--kill", "none", "--root", str(tmp_path)]
    assert run_demo(*arguments).returncode == 0
    queue = tmp_path / "routed"
    with aiochronicle.open_reader(queue) as reader, aiochronicle.open_writer(queue) as writer:
        message = reader.read_batch(1)[0]
        writer.append(message.payload, type_id=message.type_id)
    done = run_demo(*arguments)
    assert done.returncode == 1, done.stdout
    for stage in ("routed", "filled", "replied"):
        assert re.search(rf"momentum: ([\d,]+) orders expected, [\d,]+ {stage}", done.stdout)
    assert "risk: the positions are not the sum of the orders" in done.stdout
    assert "exactly once" not in done.stdout


def test_demo_draws_on_a_terminal_and_gives_it_back() -> None:
    parent_fd, child_fd = pty.openpty()
    ioctl(child_fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "PYTHONUTF8": "1"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [*COMMAND, "--seconds", "0.5", "--rate", "1000", "--kill", "none"],
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
    assert live.startswith("\x1b[?1049h")
    assert "\x1b[?25h" in text  # the cursor is back
    assert "venues → strategies → router" in live
    assert "each routed, filled and replied exactly once" in summary
    live = live.replace("\x1b[H", "\n")  # each frame begins at the top
    without_codes = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", live)
    assert max(len(line.rstrip()) for line in without_codes.splitlines()) <= 80
    assert "…" not in without_codes


def test_demo_saves_a_picture_that_loads_nothing(tmp_path: Path) -> None:
    picture = tmp_path / "pictures" / "demo.svg"
    done = run_demo("--seconds", "0.3", "--rate", "1000", "--kill", "none", "--svg", str(picture))
    assert done.returncode == 0, done.stdout
    svg = picture.read_text(encoding="utf-8")
    assert "momentum" in svg
    assert "url(http" not in svg
    assert "url('http" not in svg
    assert 'url("http' not in svg


def test_demo_ends_cleanly_on_an_interrupt(started: subprocess.Popen[bytes]) -> None:
    children = children_of(started.pid)
    started.send_signal(signal.SIGINT)
    output, _ = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 0, output.decode()
    assert "stopped early" in output.decode()
    assert "exactly once" in output.decode()
    assert not any(is_alive(pid) for pid in children)


def test_demo_fails_when_a_process_is_lost(started: subprocess.Popen[bytes]) -> None:
    os.kill(children_of(started.pid)[0], signal.SIGKILL)
    output, _ = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 1, output.decode()
    assert "ended with status -9" in output.decode()
    assert "exactly once" not in output.decode()


def test_demo_stops_at_once_when_interrupted_twice(started: subprocess.Popen[bytes]) -> None:
    children = children_of(started.pid)
    os.kill(children[0], signal.SIGSTOP)  # a child that does not end when asked
    started.send_signal(signal.SIGINT)
    assert started.stdout is not None
    wait_for(lambda: not all(is_alive(pid) for pid in children[1:]), "the end of a venue")
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
        (["--venues", "0"], "0 is not between 1 and 8"),
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
    for option in ("--seconds", "--venues", "--strategies", "--rate", "--root", "--kill", "--svg"):
        assert option in done.stdout
