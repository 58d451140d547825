"""Fixtures of the whole suite, and the check that no test leaves files open or mapped."""

import gc
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import aiochronicle


@pytest.fixture
def queue_path(tmp_path: Path) -> Path:
    """Where a queue can be made; nothing is there yet."""
    return tmp_path / "queue"


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A closed queue that holds the message b"hello"."""
    path = tmp_path / "hello"
    with aiochronicle.open_writer(path, segment_size=1 << 20) as writer:
        writer.append(b"hello")
    return path


@pytest.fixture
def namespace(tmp_path: Path, queue: Path) -> dict[str, object]:
    """Names that the examples in docstrings may use without making them."""
    public = {name: getattr(aiochronicle, name) for name in aiochronicle.__all__}
    return {**public, "tmp_path": tmp_path, "queue": queue}


@pytest.fixture
def seed() -> int:
    """Seed of a random test: printed, and taken from AIOCHRONICLE_SEED to repeat a run."""
    chosen = int(os.environ.get("AIOCHRONICLE_SEED") or random.SystemRandom().getrandbits(32))
    print(f"AIOCHRONICLE_SEED={chosen}")
    return chosen


@pytest.fixture
def rng(seed: int) -> random.Random:
    """Random numbers that can be had again."""
    return random.Random(seed)


def _files_in_use(root: str) -> Counter[str]:
    """Files below root that this process has open or mapped, and how often."""
    found: Counter[str] = Counter()
    for fd in list(Path("/proc/self/fd").iterdir()):
        try:
            target = str(fd.readlink())
        except FileNotFoundError:  # the descriptor of this very listing
            continue
        if target.startswith(root):
            found[f"open: {target}"] += 1
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        _, _, target = line.partition("/")
        if f"/{target}".startswith(root):
            found[f"mapped: /{target}"] += 1
    return found


@pytest.fixture(autouse=True)
def nothing_left_open(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Fail a test that ends with more files of a queue open or mapped than it began with."""
    root = str(tmp_path_factory.getbasetemp())
    before = _files_in_use(root)
    yield
    left = _files_in_use(root) - before
    if left:
        gc.collect()  # a traceback or a cycle may hold a message a little longer
        left = _files_in_use(root) - before
    assert not left, f"{request.node.name} leaves files behind: {dict(left)}"
