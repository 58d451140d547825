"""One process of the demo, started with a Spec."""

import sys

import msgspec

import aiochronicle
from aiochronicle.demo import gateway, risk, router, strategy, venue
from aiochronicle.demo.reports import Spec, Stop

__all__ = ["main"]

WORK = {
    "venue": venue.work,
    "strategy": strategy.work,
    "router": router.work,
    "gateway": gateway.work,
    "risk": risk.work,
}


async def main(argument: str) -> None:
    """Do the work of the role until standard input ends."""
    spec = msgspec.json.decode(argument, type=Spec)
    await WORK[spec.role](spec, Stop())


if __name__ == "__main__":
    aiochronicle.run(main(sys.argv[1]))
