"""Extracts the reason from an error of Spark, which has many lines with the reason in the middle."""

import re
from collections.abc import Iterator

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

__all__ = ["explain", "is_java_gone", "is_of_spark"]

OURS = "aiochronicle.errors."
TRACEBACK = "Traceback (most recent call last):\n"

# After the indented lines of a traceback: the exception, up to an empty line or the JVM's own.
_RAISED = re.compile(r"(?:[ \t].*\n)+(\S.*(?:\n(?!\tat )[ \t]*\S.*)*)")
_ANY_ERROR = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): .*", re.MULTILINE)
_NOT_THERE = re.compile(r"ModuleNotFoundError: No module named '(aiochronicle|pyspark_chronicle)\b")
# Spark puts it after every message, followed by the query.
_STATE = re.compile(r"\s+SQLSTATE: [0-9A-Z]{5}\b")


def explain(error: BaseException) -> str:
    """Return in one line what happened: the exception of a failed task or stream.

    >>> explain(RuntimeError("Job aborted\\n  File ...\\nValueError: no such symbol\\n\\tat org.apache..."))
    'ValueError: no such symbol'
    """
    if is_java_gone(error):
        return "Java, in which Spark runs, did not start or has ended"
    texts = [str(each).strip() for each in _with_causes(error)]
    if any(_NOT_THERE.search(text) for text in texts):
        return (
            "the executors do not have aiochronicle, or another version: install it there, or send it"
            " along with spark-submit --archives lib.tar.gz#lib --conf spark.executorEnv.PYTHONPATH=./lib"
            " (aioc spark pack makes the file)"
        )
    nothing: list[str] = []
    raised = next((found for text in texts if (found := _all_raised(text))), nothing)
    of_ours = [reason for reason in raised if reason.startswith(OURS)]
    first_line = texts[0].splitlines()[:1]
    others: list[str] = _ANY_ERROR.findall(texts[0])
    reasons = of_ours or raised or others or first_line or [repr(error)]
    reason = " ".join(line.strip() for line in _STATE.split(reasons[-1])[0].splitlines())
    return reason.split(": ", 1)[-1] if of_ours else reason


def is_of_spark(error: BaseException) -> bool:
    """Return whether Spark raised it, or the bridge to its JVM."""
    return isinstance(error, PySparkException | Py4JError | ConnectionError)


def is_java_gone(error: BaseException) -> bool:
    """Return whether the JVM did not start, or has ended."""
    at_start = isinstance(error, PySparkException) and "JAVA_GATEWAY_EXITED" in str(error)
    return at_start or isinstance(error, Py4JNetworkError | ConnectionError)


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors of the JVM that caused it, which its text may not mention."""
    while error is not None:
        yield error
        error = getattr(error, "_cause", None)


def _all_raised(text: str) -> list[str]:
    """Return the last line of each traceback; the exception raised last may quote another one."""
    matches = map(_RAISED.match, text.split(TRACEBACK)[1:])
    return [match[1] for match in matches if match is not None]
