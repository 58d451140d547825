"""Seeds of random tests: printed, so that a failure can be had again, and taken back."""

import os
import secrets

__all__ = ["SEED_VARIABLE", "chosen_seed"]

SEED_VARIABLE = "AIOCHRONICLE_SEED"


def chosen_seed() -> int:
    """Return the seed given in the environment, or a new one, and print which."""
    given = os.environ.get(SEED_VARIABLE)
    seed = secrets.randbits(48) if given is None else int(given, 0)
    print(f"{SEED_VARIABLE}={seed}")
    return seed
