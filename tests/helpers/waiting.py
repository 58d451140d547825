"""Waiting for a thing to happen: what users have, too."""

from aiochronicle.testing import eventually

__all__ = ["eventually"]
