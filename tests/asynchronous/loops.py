"""The event loops that every test runs on. Imports no pytest: child processes use it too."""

import asyncio
from collections.abc import Callable

import uvloop

__all__ = ["LOOPS"]

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
