"""Fixtures of the whole suite, and the check that no test leaves files open or mapped."""

import os
import random
import signal
from pathlib import Path

import pytest

import aiochronicle

pytest_plugins = ["aiochronicle.testing.fixtures"]

# A shell starts what runs in its background, as part of `make test` does, with SIGINT ignored, and
# every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(autouse=True)
def every_test_leaves_nothing_open(nothing_left_open: None) -> None:
    """Of no test a file of a queue stays open or mapped."""
