"""R3: power cuts."""

from faults.power_campaign import all_images, random_images

from torture.registry import Run, campaign

IMAGES_AT_A_TIME = 20_000
PROGRAMS_AT_A_TIME = 4


@campaign("power-random", "R3: random images of random programs after a power cut", goal=1_000_000)
def power_random(run: Run) -> None:
    """Check random images."""
    done = 0
    while done < run.goal and run.progress(done):
        done += random_images(
            min(IMAGES_AT_A_TIME, run.goal - done), seed=run.seed + done // IMAGES_AT_A_TIME
        )
    run.progress(done)


@campaign("power-all", "R3: every image of one moment of small programs", goal=200)
def power_all(run: Run) -> str:
    """Check all images, up to 65,536 for each program."""
    done = images = 0
    while done < run.goal and run.progress(done):
        images += all_images(PROGRAMS_AT_A_TIME, seed=run.seed + done)
        done += PROGRAMS_AT_A_TIME
    run.progress(done)
    return f"{images:,} images"
