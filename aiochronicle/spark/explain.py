"""What is behind an error of Spark's, which is many lines long and has the reason in the middle."""

import re
from collections.abc import Iterator

__all__ = ["explain"]

OURS = "aiochronicle.errors."
TRACEBACK = "Traceback (most recent call last):\n"

# Behind the indented lines of a traceback: what was raised, up to an empty line or the JVM's own.
_RAISED = re.compile(r"(?:[ \t].*\n)+(\S.*(?:\n(?!\tat )[ \t]*\S.*)*)")
_ANY_ERROR = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): .*", re.MULTILINE)
# Spark puts it behind every message, and behind it which query that was.
_STATE = re.compile(r"\s+SQLSTATE: [0-9A-Z]{5}\b")


def explain(error: BaseException) -> str:
    """Return in one line what happened: of a failed task or stream, what it raised.

    >>> explain(RuntimeError("Job aborted\\n  File ...\\nValueError: no such symbol\\n\\tat org.apache..."))
    'ValueError: no such symbol'
    """
    texts = [str(each).strip() for each in _with_causes(error)]
    nothing: list[str] = []
    raised = next((found for text in texts if (found := _all_raised(text))), nothing)
    of_ours = [reason for reason in raised if reason.startswith(OURS)]
    first_line = texts[0].splitlines()[:1]
    others: list[str] = _ANY_ERROR.findall(texts[0])
    reasons = of_ours or raised or others or first_line or [repr(error)]
    reason = " ".join(line.strip() for line in _STATE.split(reasons[-1])[0].splitlines())
    return reason.split(": ", 1)[-1] if of_ours else reason


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those of the JVM that have led to it, of which it may say nothing."""
    while error is not None:
        yield error
        error = getattr(error, "_cause", None)


def _all_raised(text: str) -> list[str]:
    """Return what each traceback ends with; what was raised last may quote another one."""
    matches = map(_RAISED.match, text.split(TRACEBACK)[1:])
    return [match[1] for match in matches if match is not None]
