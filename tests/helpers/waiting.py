"""Wait for a condition, with the helper that users have."""

from aiochronicle.testing import eventually

__all__ = ["eventually"]
