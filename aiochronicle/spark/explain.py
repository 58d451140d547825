"""What is behind an error of Spark's, which is many lines long and has the reason in the middle."""

import re

__all__ = ["explain"]


def explain(error: BaseException) -> str:
    """Return in one line what happened: of a failed task or stream, what it raised.

    >>> explain(RuntimeError("Job aborted\\n  File ...\\nValueError: no such symbol\\n\\tat org.apache..."))
    'ValueError: no such symbol'
    """
    text = str(error).strip()
    ours: list[str] = re.findall(r"aiochronicle\.errors\.\w+: (.*)", text)
    python: list[str] = re.findall(r"^(?:\w+\.)*\w+(?:Error|Exception): .*", text, re.MULTILINE)
    if ours or python:
        return (ours or python)[-1]
    return text.splitlines()[0] if text else repr(error)
