"""R3: power cuts."""

from contextlib import closing

from faults.power_campaign import all_images, random_images

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
