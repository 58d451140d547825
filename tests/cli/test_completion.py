"""Completion of queues and readers, tested in the shells themselves."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aiochronicle import open_reader, open_writer
from cli.running import aioc


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with queues and an ``aioc`` script that a shell can call."""
    path = tmp_path_factory.mktemp("place")
    (path / "feeds" / "deep").mkdir(parents=True)
    for name in ("trades", "ticks", "quotes"):
        open_writer(path / "feeds" / name).close()
    for name in ("risk", "audit"):
        open_reader(path / "feeds" / "trades", name).close()
    bin_ = path / "bin"
    bin_.mkdir()
    command = bin_ / "aioc"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m aiochronicle "$@"\n')
    command.chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        (path / f"aioc.{shell}").write_text(aioc("completion", shell).out)
    return path


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["info", "fe"], ["feeds/"]),
        (["info", "feeds/"], ["feeds/deep/", "feeds/quotes", "feeds/ticks", "feeds/trades"]),
        (["tail", "-n", "5", "feeds/t"], ["feeds/ticks", "feeds/trades"]),
        (["ls", "--json", "fe"], ["feeds/"]),
        (["append", "--create", "--flush", "fe"], ["feeds/"]),
        (["monitor", "--no-probe", "fe"], ["feeds/"]),
        (["backup", "--keep", "3", "--verify-all", "fe"], ["feeds/"]),
        (["readers", "seek", "--force", "feeds/trades", "r"], ["risk"]),
        (["readers", "forget", "feeds/trades", ""], ["audit", "risk"]),
        (["readers", "seek", "feeds/trades", "r"], ["risk"]),
        (["readers", "seek", "feeds/trades", "risk", ""], ["first", "last"]),
        (["readers", "forget", "feeds/none", ""], []),
        (["recovered", "feeds/trades", ""], []),
        (["info", "--", "x"], []),
        (["nonsense", ""], []),
        ([], []),
    ],
)
def test_words(place: Path, words: list[str], found: list[str]) -> None:
    done = aioc("complete-words", "--", *words, cwd=place)
    assert (done.status, done.err) == (0, "")
    assert done.out.split() == found


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "TERM": "dumb"}


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")


def bash(place: Path, line: str) -> list[str]:
    script = (
        "source aioc.bash; words=($1); [[ $1 == *' ' ]] && words+=('');"
        'COMP_WORDS=("${words[@]}"); COMP_CWORD=$((${#words[@]} - 1)); COMP_LINE="$1";'
        '_aioc_words; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", line],
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not done.stderr, done.stderr
    return done.stdout.split()


def fish(place: Path, line: str) -> list[str]:
    script = f"source aioc.fish; complete -C {line!r}"
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not done.stderr, done.stderr
    return [one.partition("\t")[0] for one in done.stdout.splitlines()]


Shell = Callable[[Path, str], list[str]]


@pytest.mark.parametrize("shell", [bash, fish], ids=["bash", "fish"])
def test_shells_complete_commands_queues_and_readers(
    place: Path, shell: Callable[[Path, str], list[str]]
) -> None:
    needs(shell.__name__)
    assert {"retention", "restore", "repair", "replay", "readers", "recovered"} <= set(
        shell(place, "aioc re")
    )
    assert "feeds/trades" in shell(place, "aioc info feeds/tr")
    assert {"audit", "risk"} <= set(shell(place, "aioc readers forget feeds/trades "))
    assert "--json" in shell(place, "aioc ls --j")


def test_zsh_completes_queues_and_readers(place: Path) -> None:
    needs("zsh")
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(place)
        os.execvpe("zsh", ["zsh", "-f", "-i"], environment(place))
    try:
        for text, wanted in (
            ("autoload -U compinit && compinit -u -D; source ./aioc.zsh; print REA''DY\n", "READY"),
            ("aioc info feeds/tr\t", "feeds/trades"),
            ("\x15aioc readers forget feeds/trades au\t", "audit"),
        ):
            os.write(fd, text.encode())
            read_until(fd, wanted)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(fd)


def read_until(fd: int, wanted: str) -> None:
    shown = ""
    until_s = time.monotonic() + 60
    while wanted not in shown:
        left_s = until_s - time.monotonic()
        assert left_s > 0, shown
        if select.select([fd], [], [], left_s)[0]:
            shown += os.read(fd, 65536).decode(errors="replace")
