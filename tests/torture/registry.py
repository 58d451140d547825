"""The type and the registry of campaigns.

A campaign is a function that takes a Run. It calls ``run.progress`` often, which shows the progress and
returns False when the time is up. A broken promise raises an exception.

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
    """The argument of a campaign."""

    @property
    def seed(self) -> int:
        """The seed from which everything random must follow."""
        ...

    @property
    def goal(self) -> int:
        """The number of cases to run."""
        ...

    @property
    def has_limit(self) -> bool:
        """Whether the run stops by the clock."""
        ...

    def progress(self, done: int) -> bool:
        """Report how many cases are done; stop if this returns False."""
        ...


class Campaign(msgspec.Struct, frozen=True):
    """A registered campaign. Its function returns a remark for the summary, or None."""

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
