"""The event loops that everything has to work on; without pytest, for other processes."""

import asyncio
from collections.abc import Callable

import uvloop

__all__ = ["LOOPS"]

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
