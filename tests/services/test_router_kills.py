"""R10: exactly-once delivery through ``cause``, no matter when the router dies."""

from pathlib import Path

from helpers.router_kills import RouterKillLoop

KILLS = 30


def test_every_order_arrives_exactly_once_however_often_the_router_dies(
    tmp_path: Path, seed: int
) -> None:
    with RouterKillLoop(tmp_path, seed) as loop:
        print(loop.run(KILLS))
