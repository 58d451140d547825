"""Reports whether a service can do its work, for a health check or a watchdog.

Readers, writers, fan-ins, routers, requesters, responders and buses have a property ``healthy``, which
reports a removed queue, damage or a failed sync. How much lag is too much depends on the program, so
``health`` takes a limit.
"""

from collections.abc import Iterable
from typing import Protocol, cast

from aiochronicle._base.arguments import seconds
from aiochronicle._base.printable import printable
from aiochronicle._base.report import HtmlStruct
from aiochronicle.errors import ChronicleError, InvalidArgument

__all__ = ["Health", "health"]


class Health(HtmlStruct, frozen=True):
    """Whether an object can do its work, and if not, why: a sentence for each reason. True if ``ok``.

    >>> with open_reader(queue) as reader:
    ...     reader.healthy
    Health(ok=True, reasons=())
    >>> if not reader.healthy:
    ...     print(*reader.healthy.reasons)
    reader of ...hello: is closed
    """

    ok: bool
    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.ok


class _Lag(Protocol):
    @property
    def messages(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class _Lagging(Protocol):
    @property
    def lag(self) -> _Lag: ...


class _Checked(Protocol):
    @property
    def healthy(self) -> Health: ...


def health(*parts: _Checked, max_lag_s: float | None = None) -> Health:
    """Return the health of a service: the combined reasons of its readers, writers and other parts.

    With ``max_lag_s`` a reader or fan-in is unhealthy if its oldest unread message is older than that. This
    detects a reading task that has ended or hangs. Never waits; takes a few microseconds per queue.
    InvalidArgument without parts.

    >>> with open_writer(tmp_path / "fills") as fills, open_reader(queue) as orders:
    ...     health(fills, orders, max_lag_s=60).ok
    True
    """
    if not parts:
        raise InvalidArgument(
            "health() needs arguments: pass the readers and writers of the service"
        )
    limit_s = None if max_lag_s is None else seconds("max_lag_s", max_lag_s)
    reasons: list[str] = []
    for part in parts:
        found = part.healthy.reasons
        if not found and limit_s is not None and hasattr(type(part), "lag"):
            found = _lag_reasons(cast(_Lagging, part), limit_s)
        reasons += found
    return health_of(reasons)


def health_of(reasons: Iterable[str]) -> Health:
    """Return the health with these reasons; without any it is ok."""
    found = tuple(reasons)
    return Health(ok=not found, reasons=found)


def format_reason(what: str, path: str, why: object) -> str:
    """Return a reason on one line: what the object is, where it is, and what is wrong with it."""
    text = printable(why)
    if isinstance(why, ChronicleError) and text.startswith(place := printable(path)):
        text = text[len(place) :].lstrip(": ")  # do not repeat the path
    return f"{what} of {printable(path)}: {text}"


def _lag_reasons(part: _Lagging, limit_s: float) -> tuple[str, ...]:
    try:
        lag = part.lag
    except ChronicleError as error:
        return (printable(error),)
    if lag.seconds <= limit_s:
        return ()
    return (
        f"{printable(part)}: its oldest unread message is {lag.seconds:.1f} s old, the limit is"
        f" {limit_s:g} s; {lag.messages:,} messages wait",
    )
