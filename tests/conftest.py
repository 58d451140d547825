"""Fixtures of the whole suite, and the check that no test leaves files open or mapped."""

import os
import random
import signal
from pathlib import Path

import pytest

import aiochronicle

pytest_plugins = ["aiochronicle.testing.fixtures"]

# A shell starts its background jobs, such as those of `make test`, with SIGINT ignored; every process that a
# test starts would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """Return a closed queue that holds the message b"hello"."""
    path = tmp_path / "hello"
    with aiochronicle.open_writer(path, segment_size=1 << 20) as writer:
        writer.append(b"hello")
    return path


@pytest.fixture
def namespace(tmp_path: Path, queue: Path) -> dict[str, object]:
    """Return the names that docstring examples may use without defining them."""
    public = {name: getattr(aiochronicle, name) for name in aiochronicle.__all__}
    return {**public, "tmp_path": tmp_path, "queue": queue}


@pytest.fixture
def seed() -> int:
    """Return the seed of a random test. It is printed; set AIOCHRONICLE_SEED to repeat a run."""
    chosen = int(os.environ.get("AIOCHRONICLE_SEED") or random.SystemRandom().getrandbits(32))
    print(f"AIOCHRONICLE_SEED={chosen}")
    return chosen


@pytest.fixture
def rng(seed: int) -> random.Random:
    """Return a reproducible random number generator."""
    return random.Random(seed)


@pytest.fixture(autouse=True)
def every_test_leaves_nothing_open(nothing_left_open: None) -> None:
    """Check that no test leaves a file of a queue open or mapped."""
