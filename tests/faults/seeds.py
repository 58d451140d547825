"""Seeds of random tests: printed, so that a failure can be repeated, and read from the environment."""

import os
import secrets

__all__ = ["SEED_VARIABLE", "chosen_seed"]

SEED_VARIABLE = "AIOCHRONICLE_SEED"


def chosen_seed() -> int:
    """Return the seed from the environment, or a new one, and print it."""
    given = os.environ.get(SEED_VARIABLE)
    seed = secrets.randbits(48) if given is None else int(given, 0)
    print(f"{SEED_VARIABLE}={seed}")
    return seed
