"""Calls the handler of a request, and answers for it if it fails."""

import asyncio
import logging

from aiochronicle._base.printable import printable
from aiochronicle._services.request import CANNOT_WRITE, Handler, Request
from aiochronicle.codec import T
from aiochronicle.errors import ChronicleError, RequestFailed

__all__ = ["answer_by", "wait_until_done"]

_log = logging.getLogger("aiochronicle.requests")


async def answer_by(handler: Handler[T], request: Request[T]) -> None:
    """Answer a request, however its handler ends. An exception raised here would end the service."""
    try:
        result = await handler(request)
        if result is not None or not request.answered:
            request.reply(result)  # type: ignore[arg-type]  # None is refused
    except RequestFailed as refusal:
        _fail(request, refusal.detail)
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        _fail(request, "CancelledError: its handling was cancelled")  # by the handler itself
    except Exception as error:  # noqa: BLE001 - the requester gets it
        _fail(request, _reason(error))
        if request._refused is not None:  # pyright: ignore[reportPrivateUsage]
            return
        name = printable(request.requester)
        _log.exception("handling request %d of '%s' failed", request.message.seq, name)


def _reason(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its text is the handler's code, too
        return type(error).__name__


def _is_cancelled() -> bool:
    """Return whether this task itself was cancelled, not only something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _fail(request: Request, reason: str) -> None:
    if request.answered:
        return
    try:
        request.fail(reason)
    except CANNOT_WRITE:  # it is delivered again
        return
    except ChronicleError:  # without an answer it is delivered again after a restart
        name = printable(request.requester)
        _log.exception("request %d of '%s' has no answer", request.message.seq, name)


async def wait_until_done(tasks: "set[asyncio.Task[None]]") -> None:
    """Return when these tasks have ended, however."""
    while tasks:
        await asyncio.wait(list(tasks))
        tasks = {task for task in tasks if not task.done()}
