"""What is behind an error of Spark's, which is many lines long and has the reason in the middle."""

import re

__all__ = ["explain"]

OURS = "aiochronicle.errors."

# Behind the indented lines of a traceback: what was raised, up to an empty line or the JVM's own.
_RAISED = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*(?:\n(?!\tat )[ \t]*\S.*)*)"
)
_ANY_ERROR = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): .*", re.MULTILINE)


def explain(error: BaseException) -> str:
    """Return in one line what happened: of a failed task or stream, what it raised.

    >>> explain(RuntimeError("Job aborted\\n  File ...\\nValueError: no such symbol\\n\\tat org.apache..."))
    'ValueError: no such symbol'
    """
    text = str(error).strip()
    raised: list[str] = _RAISED.findall(text)
    of_ours = [reason for reason in raised if reason.startswith(OURS)]
    found = of_ours or raised or _ANY_ERROR.findall(text)
    if not found:
        return text.splitlines()[0] if text else repr(error)
    reason = " ".join(line.strip() for line in found[-1].splitlines())
    return reason.split(": ", 1)[-1] if of_ours else reason
