"""Copy a queue as a killed process leaves it, with the helper that users have."""

from aiochronicle.testing import copy_killed as copy_as_original

__all__ = ["copy_as_original"]
