"""A service between a JVM and native queues: ticks from Java and native limits in, alerts to Java out.

A Java MethodWriter wrote the ticks; a Java MethodReader reads the alerts. The service merges both kinds of
queues into one stream, in the order of their times.
"""

import sys
import time
from pathlib import Path

import msgspec

import aiochronicle
from aiochronicle import cq4


class Tick(msgspec.Struct):
    """ticks.Tick of the Java side."""

    symbol: str
    price: float
    time: int


class Limit(msgspec.Struct):
    """Send an alert when the price of the symbol is above this limit."""

    symbol: str
    price: float


class Alerts:
    """ticks.Alerts of the Java side."""

    def alert(self, symbol: str, price: float) -> None: ...
    def done(self, alerts: int) -> None: ...


async def serve(root: Path) -> int:
    """Send alerts until the feed is closed; return their number."""
    limits: dict[str, float] = {}
    sent = 0
    await (
        await aiochronicle.aopen_writer(root / "ticks", format="cq4")
    ).aclose()  # or Java has created it
    async with (
        aiochronicle.aopen_reader(root / "ticks", "service", timestamp="time") as ticks,
        aiochronicle.aopen_reader(root / "limits", codec=Limit) as changes,
        aiochronicle.aopen_writer(root / "alerts", format="cq4") as writer,
        aiochronicle.FanIn([ticks, changes]) as everything,
    ):
        alerts = cq4.method_writer(Alerts, writer)

        @everything.on(Limit)
        def change(limit: Limit) -> None:
            limits[limit.symbol] = limit.price

        @everything.on("tick")
        def watch(tick: Tick) -> None:
            nonlocal sent
            if tick.price > limits.get(tick.symbol, float("inf")):
                alerts.alert(tick.symbol, tick.price)
                sent += 1
            everything.commit()  # after the alert: a service that is killed in between repeats it

        @everything.on("closed")
        def stop(last: Tick) -> None:
            alerts.done(sent)
            everything.commit()
            everything.close()

        await everything.dispatch()
    return sent


def set_limits(root: Path) -> None:
    """Write limits into a native queue, as another program would; they are older than any tick."""
    with aiochronicle.open_writer(root / "limits", codec=Limit) as writer:
        for symbol, price in (("ALFA", 107.0), ("ECHO", 108.0)):
            writer.send(Limit(symbol, price), timestamp_ns=0)


def main(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    set_limits(root)
    started = time.monotonic()
    sent = aiochronicle.run(serve(root))
    print(f"{sent} alerts in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
