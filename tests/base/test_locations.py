"""URLs in place of paths: ``file:`` is a path; every other scheme is rejected before anything is created."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiochronicle
from aiochronicle import Retention
from aiochronicle._base.locations import local_path
from aiochronicle.cli import main as aioc
from aiochronicle.errors import InvalidArgument

URLS = (
    "s3a://bucket/a",
    "s3:/bucket/a",
    "hdfs://namenode:9000/a",
    "gs://b",
    "file://host/a",
    "file://",
)


async def _opened(path: str) -> None:
    async with aiochronicle.aopen_reader(path):
        pass


def _exported(path: str) -> None:
    with aiochronicle.Queue("ticks") as queue:
        queue.slice(None, None).export(path)


def _replayed(target: str) -> None:
    with aiochronicle.replay("ticks") as history:
        history.into_now(target)


def _moved_to(archive: str) -> None:
    kept = Retention(max_bytes=1 << 20, archive=archive)
    aiochronicle.open_writer("ticks", retention=kept).close()


CALLS: dict[str, Callable[[str], Any]] = {
    "open_writer": aiochronicle.open_writer,
    "open_reader": aiochronicle.open_reader,
    "aopen_reader": lambda path: asyncio.run(_opened(path)),
    "Queue": aiochronicle.Queue,
    "Bus": aiochronicle.Bus,
    "Bus config": lambda path: aiochronicle.Bus("bus", config=path),
    "Retention archive": _moved_to,
    "configure": lambda path: aiochronicle.configure(path, retention=Retention(max_age_s=60)),
    "configure archive": lambda path: aiochronicle.configure(
        "ticks", retention=Retention(max_age_s=60, archive=path)
    ),
    "discover": lambda path: asyncio.run(aiochronicle.discover(path).__anext__()),
    "export": _exported,
    "replay": aiochronicle.replay,
    "replay into": _replayed,
    "backup of": lambda path: aiochronicle.backup(path, "backups"),
    "backup to": lambda path: aiochronicle.backup("ticks", path),
    "restore from": lambda path: aiochronicle.restore(path, "again"),
    "list_backups": aiochronicle.list_backups,
    "inspect": aiochronicle.inspect,
    "verify": aiochronicle.verify,
    "repair": aiochronicle.repair,
    "repair from": lambda path: aiochronicle.repair("ticks", backup=path),
    "why_kept": aiochronicle.why_kept,
    "list_readers": aiochronicle.list_readers,
    "forget_reader": lambda path: aiochronicle.forget_reader(path, "nobody"),
    "list_recovered": aiochronicle.list_recovered,
    "read_recovered": lambda path: aiochronicle.read_recovered(path, "1"),
}

COMMANDS = (
    ("ls", "{}"),
    ("info", "{}"),
    ("tail", "{}"),
    ("append", "{}", "hello"),
    ("export", "ticks", "{}/a.parquet"),
    ("export", "ticks", "{}/a.csv"),
    ("replay", "ticks", "{}"),
    ("backup", "ticks", "{}"),
    ("restore", "{}", "again"),
    ("verify", "{}"),
    ("retention", "ticks", "--archive", "{}"),
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory, which holds a queue and nothing else."""
    monkeypatch.chdir(tmp_path)
    with aiochronicle.open_writer("ticks", segment_size=1 << 16) as writer:
        writer.append(b"hello", timestamp_ns=1_700_000_000_000_000_000)
    return tmp_path


def _everything(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize("name", CALLS)
def test_urls_are_refused_and_nothing_is_made(name: str, here: Path) -> None:
    before = _everything(here)
    for url in URLS:
        with pytest.raises(InvalidArgument, match=r"not supported|has no path"):
            CALLS[name](url)
    made = {path for path in _everything(here) - before if ":" in path or "a" in path.split("/")}
    assert not made


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_commands_refuse_urls(
    command: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _everything(here)
    given = [part.format("s3a://bucket") for part in command]
    assert aioc(given) == 2, capsys.readouterr()
    assert "s3a: is not supported" in capsys.readouterr().err
    assert {path for path in _everything(here) - before if ":" in path} == set()


def test_file_urls_are_paths(here: Path) -> None:
    url = f"file://{here}"
    assert aiochronicle.inspect(f"{url}/ticks").next_seq == 1
    with aiochronicle.open_writer(f"{url}/more") as writer:
        writer.append(b"x")
    assert (here / "more").is_dir()
    with aiochronicle.open_reader(f"file://localhost{here}/more") as reader:
        assert [message.payload for message in reader] == [b"x"]
    with aiochronicle.Queue(f"file:{here}/ticks") as queue:
        queue.slice(None, None).export(f"{url}/out.parquet")
    assert (here / "out.parquet").is_file()
    aiochronicle.backup(f"{url}/ticks", f"{url}/backups")
    assert aioc(["export", f"{url}/ticks", f"{url}/out.csv"]) == 0
    assert (here / "out.csv").is_file()
    assert not [path for path in _everything(here) if ":" in path]


def test_paths_that_only_look_like_urls() -> None:
    for path in ("a:b", "./s3a://x", "/s3a://x", "file:x", "10:30/ticks"):
        assert local_path(path) == path
