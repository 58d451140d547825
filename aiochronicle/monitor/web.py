"""The page of ``aioc monitor``, its stream of frames, ``/metrics`` and ``/healthz``.

Nothing can be changed from here: every route answers GET and HEAD only. On a loopback address no token is
needed, but the request has to name that address, so that no page of another host can read along by
giving its own name to 127.0.0.1. Everywhere else a token is needed for everything but the bare verdict of
``/healthz``.
"""

import hmac
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aiochronicle.monitor.metrics import expose
from aiochronicle.monitor.view import totals_of
from aiochronicle.monitor.watching import Watching

__all__ = ["is_loopback", "make_application"]

_STATIC = Path(__file__).with_name("static")
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_FILES = {path.name: path for path in sorted(_STATIC.glob("*")) if path.suffix in _TYPES}
_COOKIE = "aioc_monitor"
_STALE_S = 10.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.com")]
    [True, True, True, False, False]
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make_application(watching: Watching, *, token: str | None = None) -> Starlette:
    """Return the application. Without a token it answers only requests to loopback addresses."""
    pages = _Pages(watching, token)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None, None]:
        async with watching.running():
            yield

    app = Starlette(
        routes=[
            Route("/", pages.page),
            Route("/static/{name}", pages.file),
            Route("/events", pages.events),
            Route("/metrics", pages.metrics),
            Route("/healthz", pages.healthz),
        ],
        lifespan=lifespan,
    )
    app.add_middleware(_Guard, token=token)
    return app


class _Guard:
    """Requires the token, or a Host that is this machine, and adds the security headers."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refuse(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        request = Request(scope)
        if self._token is None:
            host = _host_of(request.headers)
            if is_loopback(host):
                return None
            return PlainTextResponse(
                f"This monitor answers requests to localhost only, not to {host!r}.\n", 403
            )
        if request.url.path == "/healthz" or _is_known(request, self._token):
            return None
        given = request.query_params.get("token")
        if request.url.path == "/" and given is not None and _is_same(given, self._token):
            answer = RedirectResponse("/", 303)  # so that it does not stay in the address
            answer.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict")
            return answer
        return PlainTextResponse(
            "A token is needed: Authorization: Bearer TOKEN, or /?token=TOKEN in a browser.\n",
            401,
            {"WWW-Authenticate": "Bearer"},
        )


def _host_of(headers: Headers) -> str:
    host = headers.get("host", "")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _is_known(request: Request, token: str) -> bool:
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and _is_same(given.strip(), token):
        return True
    return _is_same(request.cookies.get(_COOKIE, ""), token)


class _Pages:
    def __init__(self, watching: Watching, token: str | None) -> None:
        self._watching = watching
        self._token = token

    async def page(self, _: Request) -> Response:
        return FileResponse(_FILES["page.html"], media_type="text/html")

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "plotly.js":
            return FileResponse(
                _plotly(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"}
            )
        if name not in _FILES:
            return PlainTextResponse("There is no such file.\n", 404)
        return FileResponse(_FILES[name], media_type=_TYPES[_FILES[name].suffix])

    async def events(self, request: Request) -> Response:
        wanted = request.query_params.get("queue", "")
        queue = int(wanted) if wanted.isdecimal() and len(wanted) < 10 else None
        return EventSourceResponse(self._stream(queue), ping=15)

    async def _stream(self, queue: int | None) -> AsyncIterator[ServerSentEvent]:
        watching = self._watching
        totals = totals_of(watching.collector.history, watching.latencies)
        yield ServerSentEvent(totals.decode(), event="totals")
        async for frame, detail in watching.frames(queue):
            if detail is not None:
                yield ServerSentEvent(detail.decode(), event="detail")
            yield ServerSentEvent(frame.decode(), event="frame")

    async def metrics(self, _: Request) -> Response:
        snapshot = self._watching.snapshot
        if snapshot is None:
            return PlainTextResponse("Nothing has been looked at yet.\n", 503)
        return Response(expose(snapshot, self._watching.latencies), media_type=CONTENT_TYPE_LATEST)

    async def healthz(self, request: Request) -> Response:
        reasons = self._reasons()
        known = self._token is None or _is_known(request, self._token)
        text = "ok" if not reasons else "\n".join(reasons) if known else "not healthy"
        return PlainTextResponse(f"{text}\n", 503 if reasons else 200)

    def _reasons(self) -> list[str]:
        watching = self._watching
        if watching.failure is not None:
            return [watching.failure]
        snapshot = watching.snapshot
        if snapshot is None:
            return ["nothing has been looked at yet"]
        age_s = (time.monotonic_ns() - snapshot.monotonic_ns) / 1e9
        if age_s > _STALE_S:
            return [f"the last look was {age_s:.0f} s ago"]
        return [
            f"{alarm.name}: {alarm.text}" if alarm.name else alarm.text
            for alarm in snapshot.alarms
            if alarm.level == "critical"
        ]


def _plotly() -> Path:
    """Return the script from plotly's wheel, without importing plotly."""
    found = find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("plotly is missing", name="plotly")
    return Path(found.submodule_search_locations[0], "package_data", "plotly.min.js")
