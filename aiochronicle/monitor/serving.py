"""Serves the page with uvicorn until SIGINT or SIGTERM."""

import logging
import os
import socket
from collections.abc import Callable

import uvicorn

from aiochronicle.monitor.collector import Collector, Limits
from aiochronicle.monitor.watching import Watching
from aiochronicle.monitor.web import make_application

__all__ = ["serve"]


async def serve(
    root: str | os.PathLike[str],
    sockets: list[socket.socket],
    *,
    token: str | None,
    limits: Limits,
    probe: bool = True,
    started: Callable[[], object] = lambda: None,
) -> None:
    """Serve on sockets that listen already. Ends on SIGINT or SIGTERM.

    Cancelled, it stops at once.
    """
    watching = Watching(Collector(root, limits=limits), probe=probe)
    config = uvicorn.Config(
        make_application(watching, token=token),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=1,
        limit_concurrency=200,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    server = _Server(config, started)
    await server.serve(sockets)


def _is_news(record: logging.LogRecord) -> bool:
    """Drop the log line that says that streams were cancelled, which is how they end with the server."""
    return "without completing response" not in record.getMessage()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: Callable[[], object]) -> None:
        super().__init__(config)
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell()
