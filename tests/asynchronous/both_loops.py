"""Run a test on asyncio's own loop and on uvloop."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from asynchronous.loops import LOOPS

__all__ = ["on_both_loops"]


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test once per loop. A test with the parameter ``loop_name`` gets the loop's name."""
    signature = inspect.signature(test)
    parameters = list(signature.parameters.values())
    if "loop_name" not in signature.parameters:
        parameters.append(inspect.Parameter("loop_name", inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(test)
    def run(*, loop_name: str, **arguments: Any) -> None:
        if "loop_name" in signature.parameters:
            arguments["loop_name"] = loop_name
        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.run(test(**arguments))

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    decorated: Callable[..., None] = pytest.mark.parametrize("loop_name", list(LOOPS))(run)
    return decorated
