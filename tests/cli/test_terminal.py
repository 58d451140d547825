"""In a terminal: no line is too wide, Ctrl-C ends cleanly, and pipes get no colours."""

import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from aiochronicle import list_backups, open_writer
from cli.running import ESCAPE, Terminal, aioc, in_terminal, lines_of, started


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A queue that takes noticeable time to read."""
    with open_writer(tmp_path / "large", segment_size=1 << 24) as writer:
        batch = [b"x" * 50] * 1000
        for _ in range(1500):
            writer.append_many(batch)
    return tmp_path / "large"


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    made: list[Terminal] = []
    yield made
    for terminal in made:
        terminal.kill()


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("command", ["ls", "du", "readers", "why-kept", "info", "who", "doctor"])
def test_tables_fit(live: tuple[Path, int], columns: int, command: str) -> None:
    path = live[0].parent if command in ("ls", "du", "doctor") else live[0]
    status, output = in_terminal(columns, command, path)
    assert status == 0
    lines = lines_of(output)
    if command in ("ls", "readers", "who", "why-kept"):
        assert all(len(line) <= columns for line in lines), output
        assert len(lines) >= 2


def test_a_wide_terminal_shows_all_columns_and_a_narrow_one_the_important(root: Path) -> None:
    wide = lines_of(in_terminal(160, "ls", root)[1])
    narrow = lines_of(in_terminal(80, "ls", root)[1])
    assert "OLDEST" in wide[0]
    assert "OLDEST" not in narrow[0]
    for name in ("QUEUE", "NEXT SEQ", "RATE", "WORST LAG"):
        assert name in narrow[0]


def test_long_names_lose_their_middle(tmp_path: Path) -> None:
    for end in ("one", "two"):
        open_writer(tmp_path / f"{'a-very-long-name-' * 4}{end}").close()
    lines = lines_of(in_terminal(80, "ls", tmp_path)[1])
    assert [line.split()[0].partition("…")[2][-4:] for line in lines[1:3]] == ["-one", "-two"]
    assert len(aioc("ls", tmp_path).out.splitlines()[1].split()[0]) == 71


def test_colours_are_for_terminals(live: tuple[Path, int]) -> None:
    path, _ = live
    assert "\x1b[32mopen" in in_terminal(80, "who", path)[1]
    assert not ESCAPE.search(in_terminal(80, "who", path, NO_COLOR="1")[1])
    assert "\x1b" not in aioc("who", path).out
    assert "\x1b" not in started("info").err


def test_errors_are_one_line_also_in_a_terminal(tmp_path: Path) -> None:
    status, output = in_terminal(80, "info", tmp_path / "none", NO_COLOR="1")
    assert status == 3
    assert output.startswith("aioc: ")
    assert output.count("\n") == 1


def test_ctrl_c_ends_tail(live: tuple[Path, int], terminals: list[Terminal]) -> None:
    terminals.append(Terminal(80, ["tail", "-f", live[0]]))
    terminals[0].read_until("x" * 50)
    terminals[0].interrupt()
    assert terminals[0].end() == 130
    assert lines_of(terminals[0].output)[-2].endswith("aioc: interrupted")
    assert "Traceback" not in terminals[0].output


SCRIPTS = Path(sys.executable).parent
IMPORTED = re.compile(r"import time: .*\| +(\S+)\r\n")


def has_fewer_imports(terminal: Terminal, count: int) -> bool:
    """Return whether fewer modules were imported after our first one."""
    names = IMPORTED.findall(terminal.output)
    return "_aioc" not in names or len(names) - names.index("_aioc") - 1 < count


@pytest.mark.parametrize(
    "command",
    [
        (str(SCRIPTS / "aioc"),),
        (str(SCRIPTS / "aiochronicle"),),
        (sys.executable, "-m", "aiochronicle"),
    ],
    ids=["aioc", "aiochronicle", "python-m"],
)
def test_ctrl_c_while_it_starts(command: Sequence[str], terminals: list[Terminal]) -> None:
    """Ctrl-C may come after any number of imports. Before our first module, Python itself is starting."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moments = [0, *random.Random(seed).sample(range(1, 400), 4)]
    for moment in moments:
        terminal = Terminal(80, ["--help"], command=command, PYTHONPROFILEIMPORTTIME="1")
        terminals.append(terminal)
        terminal.read_while(partial(has_fewer_imports, terminal, moment))
        terminal.interrupt()
        status = terminal.end()
        shown = IMPORTED.sub("", terminal.output)
        assert "Traceback" not in terminal.output, shown
        assert status == 130 or (status == 0 and "Usage" in shown), (moment, status, shown)
        assert moment or (status == 130 and "aioc: interrupted" in shown)


def test_tail_follows(tmp_path: Path, terminals: list[Terminal]) -> None:
    with open_writer(tmp_path / "queue", segment_size=1 << 16) as writer:
        writer.append(b"before")
        terminals.append(Terminal(80, ["tail", "-f", tmp_path / "queue"]))
        terminals[0].read_until("before")
        writer.append(b"after")
        terminals[0].read_until("after", 5)


def test_progress_shows_rate_and_time_left(large: Path, tmp_path: Path) -> None:
    status, output = in_terminal(80, "backup", large, tmp_path / "backups")
    assert status == 0
    shown = ESCAPE.sub("", output)
    assert "copy" in shown
    assert "100%" in shown
    assert "iB/s" in shown
    frames = [frame for frame in shown.split("\r") if "%" in frame]
    assert all(len(frame.splitlines()[0]) <= 80 for frame in frames), output


def test_ctrl_c_leaves_no_half_backup(
    large: Path, tmp_path: Path, terminals: list[Terminal]
) -> None:
    backups = tmp_path / "backups"
    terminals.append(Terminal(80, ["backup", large, backups]))
    until_s = time.monotonic() + 20
    while not (backups / ".part" / "000000000.q").exists() and time.monotonic() < until_s:
        time.sleep(0.001)
    terminals[0].interrupt()
    status = terminals[0].end()
    # It may have finished first.
    assert (status, len(list_backups(backups))) in ((130, 0), (0, 1))
    assert not (backups / ".part").exists()


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGINT] * 10])
def test_signals_leave_no_half_export(
    large: Path, tmp_path: Path, signals: list[signal.Signals]
) -> None:
    terminal = Terminal(80, ["export", large, tmp_path / "large.jsonl"])
    try:
        until_s = time.monotonic() + 20
        while time.monotonic() < until_s:
            if any(file.stat().st_size for file in tmp_path.glob(".*.part")):
                break
            time.sleep(0.001)
        for number in signals:
            os.kill(terminal.pid, number)
        # Signals may merge, or arrive between the end of the work and the exit.
        assert terminal.end() in [status for one in signals for status in (128 + one, -one)]
    finally:
        terminal.kill()
    assert [path.name for path in tmp_path.iterdir()] == ["large"]
