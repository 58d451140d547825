"""R3: power cuts."""

from contextlib import closing

from faults.power_campaign import all_images, random_images
from faults.power_groups import group_images

from torture.registry import Run, campaign


@campaign("power-random", "R3: random images of random programs after a power cut", goal=1_000_000)
def power_random(run: Run) -> None:
    """Check random images."""
    done = 0
    with closing(random_images(run.goal, seed=run.seed)) as programs:
        for images in programs:
            done += images
            if not run.progress(done):
                break


@campaign("power-all", "R3: every image of one moment of small programs", goal=200)
def power_all(run: Run) -> str:
    """Check all images, up to 65,536 for each program."""
    total = 0
    with closing(all_images(run.goal, seed=run.seed)) as programs:
        for done, images in enumerate(programs, start=1):
            total += images
            if not run.progress(done):
                break
    return f"{total:,} images"


@campaign("power-group", "R3: random images of queues with a group after a power cut", goal=100_000)
def power_group(run: Run) -> str:
    """Check what a group delivers after a power cut."""
    done = again = 0
    while done < run.goal and run.progress(done):
        shown = group_images(3000, seed=run.seed + done)
        done += shown.images
        again += shown.again
    run.progress(done)
    return f"{again:,} acknowledged messages were delivered again"
