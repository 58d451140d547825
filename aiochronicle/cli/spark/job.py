"""Common to all jobs: notes on standard error, and errors in terms of the command line."""

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from rich.text import Text

from aiochronicle._base.printable import printable
from aiochronicle.cli.exits import FAILED, Refused, status_of
from aiochronicle.cli.output import console
from aiochronicle.errors import ChronicleError, TimestampOrder

__all__ = ["OPTIONS", "in_arguments", "job", "note"]

P = ParamSpec("P")

# What options of the source are called here.
OPTIONS = {
    "subscribe": "--queues",
    "subscribePattern": "--pattern",
    "startingTimestamp": "--start",
    "endingTimestamp": "--end",
    "archive": "--moved",
    "badRecordsPath": "--bad-records",
}
_MISSING = 'Spark is not installed ({} is missing): pip install "aiochronicle[spark]"'


def job(command: Callable[P, None]) -> Callable[P, None]:
    """Make a command from a function: an exception becomes one line that says what happened and what to
    do."""
    reads_queues = "reading" in inspect.signature(command).parameters

    @wraps(command)
    def run(*given: P.args, **named: P.kwargs) -> None:
        try:
            command(*given, **named)
        except (Refused, BrokenPipeError):
            raise
        except ImportError as error:
            raise Refused(_MISSING.format(error.name or error), FAILED) from error
        except Exception as error:
            text = _explain(error)
            if text is None:
                raise
            raise Refused(in_arguments(text) if reads_queues else text, _status(error)) from error

    return run


def _explain(error: Exception) -> str | None:
    """Return one line for an error that is not a bug of the command."""
    from aiochronicle.spark.runtime.explain import explain, is_of_spark

    known = isinstance(error, ChronicleError | OSError) or is_of_spark(error)
    return explain(error) if known else None


def _status(error: Exception) -> int:
    # The argument is right; the queue's present content is not.
    return FAILED if isinstance(error, TimestampOrder) else status_of(error)


def in_arguments(text: str) -> str:
    """Return an error's text with the command's arguments in place of the source's options.

    >>> in_arguments("option subscribe is empty")
    '--queues is empty'
    """
    text = re.sub(r'on_corrupt="?skip"?', "--skip-corrupt", text)
    return re.sub(r"\boption (\w+)", lambda found: OPTIONS.get(found[1], found[0]), text)


def note(name: str, text: str) -> None:
    """Print a line about a job on standard error."""
    console(stderr=True).print(Text(printable(f"{name}: {text}")))
