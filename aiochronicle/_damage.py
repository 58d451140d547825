"""What a service does about damage that it meets in a queue: the words for it, and who decides.

Two things can be wrong with a queue that reading on may get over: bytes that violate the format
(CorruptionError), and a position that is no longer there (PositionLost). For each, whoever runs the
service says what to do: a word, or a function that looks at the exception.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal

from aiochronicle._arguments import one_of, wrong_value
from aiochronicle.errors import CorruptionError, PositionLost

__all__ = ["Damage", "OnDamage", "OnDamageOfAnswers", "Verdict", "check_on_damage", "judge"]

Damage = CorruptionError | PositionLost

OnDamage = Literal["set_aside", "raise", "skip"] | Callable[[Any], object]
OnDamageOfAnswers = Literal["raise", "skip"] | Callable[[Any], object]

SERVICE_WORDS = ("set_aside", "raise", "skip")
REQUESTER_WORDS = ("raise", "skip")


class Verdict:
    """What was decided: whether to go on behind the damage, and else what is raised for it."""

    def __init__(self, *, skip: bool = False, raised: BaseException | None = None) -> None:
        self.skip = skip
        self.raised = raised


def check_on_damage(name: str, given: Any, words: tuple[str, ...]) -> Any:
    """Return what may be given as ``on_corrupt`` or ``on_lost``."""
    if not callable(given):
        one_of(name, dict.fromkeys(words), given, "a function")
    elif inspect.iscoroutinefunction(given):
        raise wrong_value(name, "a plain function: reading waits for its answer", given)
    return given


def judge(on_damage: Any, error: Exception) -> Verdict:
    """Ask what to do about an error; a function that raises has the last word on what is raised."""
    if on_damage == "skip":
        return Verdict(skip=True)
    if on_damage == "set_aside":
        return Verdict()
    if on_damage == "raise":
        return Verdict(raised=error)
    try:
        on_damage(error)
    except (StopIteration, StopAsyncIteration) as stop:  # which would end a loop in silence
        return Verdict(raised=RuntimeError(f"on_corrupt or on_lost raised {stop!r}"))
    except BaseException as raised:  # noqa: BLE001 - it goes to whoever reads
        if raised is not error and raised.__context__ is None:
            raised.__context__ = error
        return Verdict(raised=raised)
    return Verdict(skip=True)
