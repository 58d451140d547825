"""Power cuts by the thousand: random images of random programs, and all images of small ones.

Everything random follows from the seed. A violation names the seed of its program and the number of its
image. The image itself is kept too, because the files also depend on the timing and the process id.
"""

import contextlib
import itertools
import random
import shutil
import tempfile
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path

import msgspec

from .power_check import Violation, check_image, lay_out
from .power_disk import Crash, Image
from .power_scenario import Expectation, Scenario, random_scenario, small_scenario
from .processes import in_processes
from .scratch import in_memory

__all__ = ["all_images", "memory_directory", "random_images"]

CUTS_PER_PROGRAM = 20
IMAGES_PER_CUT = 10  # fewer if a cut does not leave as many different ones
SUBSETS_MAX = 1 << 16


@contextlib.contextmanager
def memory_directory() -> Iterator[Path]:
    """Yield a directory in memory: the model decides what a power cut loses, and syncs are free."""
    with tempfile.TemporaryDirectory(prefix="power-", dir=in_memory()) as path:
        yield Path(path)


def _check(scratch: Path, image: Image, expected: Expectation, *, label: str, number: int) -> None:
    path = scratch / "image"
    lay_out(image, path)
    try:
        check_image(path, expected, reader_first=number % 4 == 0)
    except Violation as violation:
        kept = Path(tempfile.mkdtemp(prefix="power-violation-")) / "queue"
        lay_out(image, kept)
        raise Violation(f"{label}, image {number} (kept in {kept}): {violation}") from violation


def _record(scratch: Path, rng: random.Random) -> Scenario:
    """Run a random program; every third one continues after an earlier power cut."""
    queue = scratch / "queue"
    queue.mkdir(mode=0o700)
    steps = random_scenario(rng)
    scenario = Scenario(queue).run(steps)
    shutil.rmtree(queue)
    if rng.random() < 0.67:
        return scenario
    time = rng.randint(0, scenario.recording.time)
    lay_out(Crash(scenario.recording, time).random_image(rng), queue)
    after = msgspec.structs.replace(scenario.at(time))
    again = Scenario(queue, after=after).run(random_scenario(rng))
    shutil.rmtree(queue)
    return again


def _different_images(crash: Crash, rng: random.Random) -> Iterator[Image]:
    seen: set[int] = set()
    for _ in range(IMAGES_PER_CUT):
        image = crash.random_image(rng)
        identity = hash(frozenset(image.items()))
        if identity not in seen:
            seen.add(identity)
            yield image


def _random_program(seed: int) -> int:
    rng = random.Random(seed)
    checked = 0
    with memory_directory() as scratch:
        scenario = _record(scratch, rng)
        for _ in range(CUTS_PER_PROGRAM):
            time = rng.randint(0, scenario.recording.time)
            crash, expected = Crash(scenario.recording, time), scenario.at(time)
            for image in _different_images(crash, rng):
                label = f"program {seed}, cut at {time}"
                _check(scratch, image, expected, label=label, number=checked)
                checked += 1
    return checked


def _small_program(seed: int, *, subsets_max: int) -> int:
    rng = random.Random(seed)
    checked = 0
    with memory_directory() as scratch:
        queue = scratch / "queue"
        queue.mkdir(mode=0o700)
        scenario = Scenario(queue).run(small_scenario(rng))
        # The cut with the most images that can still be checked one by one.
        crashes = [
            (Crash(scenario.recording, time), time) for time in range(scenario.recording.time + 1)
        ]
        crash, time = max(
            (pair for pair in crashes if pair[0].choices() <= subsets_max),
            key=lambda pair: pair[0].choices(),
        )
        for image in crash.all_images():
            label = f"small program {seed}, cut at {time}"
            _check(scratch, image, scenario.at(time), label=label, number=checked)
            checked += 1
    return checked


def _seeds(seed: int) -> Iterator[int]:
    return itertools.count(seed * 1_000_003)


def random_images(count: int, *, seed: int, processes: int = 2) -> Generator[int, None, None]:
    """Check this many random images; yield the number of images after each program. Raises Violation."""
    checked = 0
    with contextlib.closing(
        in_processes(_random_program, _seeds(seed), processes=processes)
    ) as programs:
        while checked < count:
            images = next(programs)
            checked += images
            yield images


def all_images(
    programs: int, *, seed: int, subsets_max: int = SUBSETS_MAX, processes: int = 2
) -> Generator[int, None, None]:
    """Check every image of one moment of this many small programs; yields like ``random_images``."""
    work = partial(_small_program, subsets_max=subsets_max)
    return in_processes(work, itertools.islice(_seeds(seed), programs), processes=processes)
