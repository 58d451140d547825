"""What a campaign is, and where they are all known.

A campaign is a function that is given a Run. It calls ``run.progress`` often: that shows how far it
is, and tells it to stop when the time is up. A broken promise is an exception.

    @campaign("kill-c", "writers in C killed at random instants", goal=1_000_000)
    def kill_in_c(run: Run) -> str:
        ...
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Protocol

import msgspec

__all__ = ["Campaign", "Run", "campaign", "load_all"]


class Run(Protocol):
    """What a campaign is given."""

    @property
    def seed(self) -> int:
        """From which everything random has to come."""
        ...

    @property
    def goal(self) -> int:
        """How many cases are wanted."""
        ...

    @property
    def has_limit(self) -> bool:
        """Whether a time was given, and is to be used."""
        ...

    def progress(self, done: int) -> bool:
        """Tell how many cases are through; False means: stop now."""
        ...


class Campaign(msgspec.Struct, frozen=True):
    """A registered campaign. Its function returns a remark for the summary, or nothing."""

    name: str
    title: str
    goal: int
    function: Callable[[Run], str | None]


_campaigns: dict[str, Campaign] = {}


def campaign(
    name: str, title: str, *, goal: int
) -> Callable[[Callable[[Run], str | None]], Callable[[Run], str | None]]:
    """Register the decorated function under ``name``; a release wants ``goal`` cases of it."""

    def register(function: Callable[[Run], str | None]) -> Callable[[Run], str | None]:
        if name in _campaigns:
            raise ValueError(f"there are two campaigns named {name!r}")
        _campaigns[name] = Campaign(name, title, goal, function)
        return function

    return register


def load_all() -> dict[str, Campaign]:
    """Import every module of the campaigns package; return the campaigns by name."""
    from . import campaigns

    for module in pkgutil.iter_modules(campaigns.__path__, campaigns.__name__ + "."):
        importlib.import_module(module.name)
    return dict(sorted(_campaigns.items()))
