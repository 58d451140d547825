"""Decides how a service handles damage in a queue: ``on_corrupt`` and ``on_lost``.

Reading can continue after two problems: bytes that violate the format (CorruptionError), and a position that
no longer exists (PositionLost). For each, the user of the service chooses what to do: by a word, or by a
function that is called with the exception.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal

from aiochronicle._base.arguments import one_of, wrong_value
from aiochronicle.errors import CorruptionError, PositionLost

__all__ = ["Damage", "OnDamage", "OnDamageOfAnswers", "Verdict", "check_on_damage", "judge"]

Damage = CorruptionError | PositionLost

OnDamage = Literal["set_aside", "raise", "skip"] | Callable[[Any], object]
OnDamageOfAnswers = Literal["raise", "skip"] | Callable[[Any], object]

SERVICE_WORDS = ("set_aside", "raise", "skip")
REQUESTER_WORDS = ("raise", "skip")


class Verdict:
    """The decision: whether to continue after the damage, and otherwise what to raise."""

    def __init__(self, *, skip: bool = False, raised: BaseException | None = None) -> None:
        self.skip = skip
        self.raised = raised


def check_on_damage(name: str, given: Any, words: tuple[str, ...]) -> Any:
    """Check a value of ``on_corrupt`` or ``on_lost``."""
    if not callable(given):
        one_of(name, dict.fromkeys(words), given, "a function")
    elif inspect.iscoroutinefunction(given):
        raise wrong_value(name, "a function that is not async: reading waits for its result", given)
    return given


def judge(on_damage: Any, error: Exception) -> Verdict:
    """Decide about an error; if a function raises, its exception is the one that is raised."""
    if on_damage == "skip":
        return Verdict(skip=True)
    if on_damage == "set_aside":
        return Verdict()
    if on_damage == "raise":
        return Verdict(raised=error)
    try:
        on_damage(error)
    except (StopIteration, StopAsyncIteration) as stop:  # they would end a loop silently
        return Verdict(raised=RuntimeError(f"on_corrupt or on_lost raised {stop!r}"))
    except BaseException as raised:  # noqa: BLE001 - raised again where messages are read
        if raised is not error and raised.__context__ is None:
            raised.__context__ = error
        return Verdict(raised=raised)
    return Verdict(skip=True)
