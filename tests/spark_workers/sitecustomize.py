"""Lets `make coverage` measure Spark's Python workers; Python imports this module when it starts.

Spark ends an idle worker with SIGHUP or SIGKILL, which coverage does not see. This module turns both into
SIGHUP and ends the worker with ``os._exit``, which coverage hooks.
"""

import os
import signal
import sys
from typing import Any

__all__: list[str] = []

DAEMON = "/daemon.py"  # of pyspark, and ours

_set_handler, _kill = signal.signal, os.kill


def _set_worker_handler(number: int, handler: Any) -> Any:
    if number == signal.SIGHUP and handler is signal.SIG_DFL and sys.argv[0].endswith(DAEMON):
        handler = _end
    return _set_handler(number, handler)


def _end(number: int, frame: object) -> None:
    os._exit(0)


def _kill_worker(pid: int, number: int) -> None:
    gently = number == signal.SIGKILL and sys.argv[0].endswith(DAEMON)
    _kill(pid, signal.SIGHUP if gently else number)


signal.signal = _set_worker_handler  # type: ignore[assignment]
os.kill = _kill_worker
