"""A recording with an unreadable part raises an error instead of being replayed without that part."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from helpers.nobody import as_nobody

from aiochronicle import open_writer


class Tick(msgspec.Struct):
    price: int


TRY = """
import aiochronicle
for call in (aiochronicle.replay, aiochronicle.repair):
    try:
        call(sys.argv[1])
        print("opened")
    except errors.ChronicleError as error:
        print(type(error).__name__, error.path)
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """Yield a root of two queues, only one of which is readable by all users."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        for name, mode in (("public", 0o644), ("private", 0o600)):
            with open_writer(root / name, segment_size=4096, mode=mode) as writer:
                writer.append(name.encode())
        yield root


@pytest.mark.parametrize("place", ["", "private"])
def test_replay_and_repair_say_what_they_may_not_read(root: Path, place: str) -> None:
    if as_nobody("print(list(open_reader(sys.argv[1])))", root / "public").returncode:
        pytest.skip("another user cannot run this Python")
    run = as_nobody(TRY, root / place)
    assert run.stderr == ""
    replayed, repaired = run.stdout.splitlines()
    assert replayed == f"AccessDenied {root / 'private'}"
    if place:
        assert repaired.startswith(f"AccessDenied {root / place}")
    else:
        assert repaired == f"QueueNotFound {root}"


def test_a_schema_that_may_not_be_read_is_not_a_damaged_one(root: Path) -> None:
    with open_writer(root / "public", codec=Tick) as writer:
        writer.send(Tick(1))
    (root / "public" / "schema.json").chmod(0o600)
    code = """
try:
    aiochronicle.Registry.load(sys.argv[1])
except errors.ChronicleError as error:
    print(type(error).__name__)
"""
    run = as_nobody(code, root / "public")
    if run.returncode:
        pytest.skip("another user cannot run this Python")
    assert run.stdout == "AccessDenied\n"
