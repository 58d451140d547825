"""Error texts of commands name options and commands of ``aioc``, not parameters of Python."""

import contextlib
import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from helpers.users import STRANGER, run_as

from aiochronicle import backup, open_reader, open_writer
from aiochronicle.cli import main
from cli.running import aioc
from cli.test_commands import copied

# Names from the API. Repair's advice for users who run programs beside it is exempt.
OF_PROGRAMS = re.compile(
    r"open_(reader|writer|group)|on_corrupt|step_over|max_ahead|lock_timeout|without a name|[Hh]andle"
    r"|codec|TopicReader|segment_size|forget_reader|list_readers|recover=|await |\bNone\b|=True"
    r"|does not exist yet|verify_all|number="
)


def refused(status: int, *arguments: str | Path) -> str:
    done = aioc(*arguments)
    assert done.status == status, done.err
    assert not OF_PROGRAMS.search(done.err), done.err
    assert done.err.count("\n") >= 1
    return done.err


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_read_only_file_system(root: Path, small: Path) -> None:
    queue = copied(root, small)
    other = root / "plain"
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    commands: list[list[str | Path]] = [
        ["append", queue, "x"],
        ["readers", "forget", queue, "risk"],
        ["readers", "reset", queue, "risk"],
        ["retention", queue, "--max-bytes", "1G"],
        ["retention", queue, "--now"],
        ["repair", queue],
        ["backup", other, small / "backups"],
        ["export", other, small / "x.csv"],
        ["convert", other, small / "java"],
        ["replay", other, small / "copies"],
    ]
    for command in commands:
        assert "Read-only file system" in refused(6, *command)
    for verb, *more in (["info"], ["verify"], ["tail"], ["readers"], ["repair", "--dry-run"]):
        assert aioc(verb, queue, *more).status == 0


def test_a_full_disk(root: Path, small: Path, tmp_path: Path) -> None:
    with open_writer(small / "q", segment_size=1 << 16) as writer:
        writer.append(b"x")
    backup(root / "trades", tmp_path / "backups")
    fill = small / "fill"
    with pytest.raises(OSError, match="space"), fill.open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    lines = "".join(f"{number:0100}\n" for number in range(2000))
    done = aioc("append", small / "q", given=lines)
    assert done.status == 7
    (count,) = re.findall(r"appended ([\d,]+) messages, seq 1 to ", done.err)
    with open_reader(small / "q", start="first") as reader:
        assert sum(1 for _ in reader) == 1 + int(count.replace(",", ""))
    commands: list[list[str | Path]] = [
        ["append", small / "new", "x", "--create"],
        ["backup", root / "trades", small / "backups"],
        ["restore", tmp_path / "backups", small / "again"],
        ["export", root / "trades", small / "x.csv"],
        ["export", root / "trades", small / "x.parquet"],
        ["convert", root / "trades", small / "java"],
        ["replay", root / "trades", small / "copies"],
    ]
    for command in commands:
        said = refused(7, *command)
        assert "No space left" in said
        assert "append" not in said.removeprefix("aioc: ")
    for verb in ("info", "verify", "tail", "readers", "du", "doctor"):
        assert aioc(verb, small / "q").status == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user(root: Path, tmp_path: Path) -> None:
    queue, closed = copied(root, tmp_path), copied(root, tmp_path, "plain")
    for place in (queue, *queue.rglob("*"), *queue.parents[:3]):
        place.chmod(0o755 if place.is_dir() else 0o644)

    def look(*words: str) -> tuple[int, str]:
        err = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            return main(words), err.getvalue()

    look("readers", "list", str(queue))  # imports modules before the user changes
    look("repair", str(queue), "--dry-run")
    look("retention", str(queue))
    look("append", str(queue), "x")
    commands: list[list[str | Path]] = [
        ["append", queue, "x"],
        ["readers", "reset", queue, "risk"],
        ["readers", "forget", queue, "risk"],
        ["retention", queue, "--max-bytes", "1G"],
        ["repair", queue],
        ["info", closed],
        ["tail", closed],
        ["append", closed, "x"],
        ["append", tmp_path / "new", "x", "--create"],
    ]
    for command in commands:
        status, said = run_as(STRANGER, partial(look, *map(str, command)))
        assert status == 6, said
        assert "ermission denied" in said
        assert not OF_PROGRAMS.search(said), said


def test_a_topic_with_many_writers_is_no_queue(tmp_path: Path) -> None:
    topic = tmp_path / "topic"
    with open_writer(topic, shared=True) as writer:
        writer.append(b"x")
    for command in (
        "info",
        "tail",
        "cat",
        "who",
        "verify",
        "why-kept",
        "hz",
        "recovered",
        "retention",
    ):
        assert f"aioc ls {topic} lists them" in refused(3, command, topic)
    refused(3, "append", topic, "x")


def test_a_queue_in_use(tmp_path: Path, root: Path) -> None:
    queue = copied(root, tmp_path)
    with open_writer(queue), open_reader(queue, "risk"):
        commands: list[list[str | Path]] = [["append", queue, "x"], ["repair", queue]]
        for command in commands:
            assert "aioc who" in refused(4, *command)
        for verb in ("forget", "reset", "seek"):
            to = ["last"] if verb == "seek" else []
            assert "use --force" in refused(4, "readers", verb, queue, "risk", *to)


def test_damage(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path)
    (queue / "control.meta").write_bytes(b"?" * 512)
    for command in ("info", "tail", "readers", "verify"):
        assert "aioc repair QUEUE recreates control.meta" in refused(3, command, queue)
    shutil.rmtree(queue)
    queue = copied(root, tmp_path)
    last = max(queue.glob("*.q"))
    last.unlink()
    max(queue.glob("*.q")).unlink()
    assert "aioc repair QUEUE --backup DIR" in refused(5, "append", queue, "x")
    assert "with aioc repair --salvage" in aioc("repair", queue).out
    done = aioc("doctor", queue)
    assert done.status == 1
    assert "its last segments are missing" in done.out
    assert len(aioc("tail", queue, "-n", "2").out.splitlines()) == 2
    assert "--speed" in refused(2, "replay", queue, tmp_path / "new", "--speed", "0")


def test_a_reader_with_a_damaged_position_is_not_missing(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path)
    (queue / "readers" / "audit.meta").write_bytes(b"?" * 96)
    for verb, *to in (["reset"], ["seek", "first"]):
        assert "aioc repair sets the file aside" in refused(5, "readers", verb, queue, "audit", *to)


def test_an_append_that_ends_early_says_how_far_it_came(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path)
    good = '{"symbol": "A", "price": 1.0, "size": 1}\n'
    done = aioc("append", queue, "--type", "Trade", given=good * 2 + "{\n")
    assert done.status == 2
    assert "appended 2 messages, seq 350 to 351 before this:" in done.err
    assert "It was not appended" in done.err
    big = tmp_path / "big"
    big.write_bytes(bytes(1 << 17))
    done = aioc("append", queue, "x", "--file", big)
    assert "appended seq 352 before this:" in done.err
    assert "segment_size" not in done.err
