"""What a kill leaves of a queue: what users have, too."""

from aiochronicle.testing import copy_killed as copy_as_original

__all__ = ["copy_as_original"]
