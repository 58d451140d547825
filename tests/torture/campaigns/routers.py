"""R10: writers, readers and routers are killed; long merges."""

import tempfile
from pathlib import Path

from helpers.delivery import Delivery
from helpers.fanin_machine import Machine
from helpers.router_kills import RouterKillLoop

from torture.registry import Run, campaign


@campaign("deliver", "R10: 4 writers and 8 readers killed and stopped", goal=1_000_000_000)
def deliver(run: Run) -> str:
    """Kill writers and readers; every reader gets every message. A case is a delivered message."""
    with tempfile.TemporaryDirectory() as root, Delivery(Path(root), run.seed) as delivery:
        run.progress(delivery.run(run.goal, run.progress))
    return f"{delivery.kills:,} kills, {delivery.stops:,} stops"


@campaign("kill-router", "R10: routers killed while strategies write", goal=1_000)
def kill_routers(run: Run) -> str:
    """Kill routers; every order arrives exactly once."""
    with tempfile.TemporaryDirectory() as root, RouterKillLoop(Path(root), run.seed) as loop:
        remark = loop.run(run.goal, run.progress)
    run.progress(run.goal)
    return remark


@campaign("merge", "fan-ins against the reference merge", goal=1_000_000)
def merge(run: Run) -> str:
    """Run random histories through the merge and its reference; a case is a delivered message."""
    delivered = histories = 0
    while delivered < run.goal and run.progress(delivered):
        strict = histories % 2 == 1
        queues = 2 + (run.seed + histories) % 7
        with tempfile.TemporaryDirectory() as root:
            machine = Machine(Path(root), run.seed + histories, strict=strict, queues=queues)
            try:
                for queue in range(queues):
                    machine.attach(queue)
                for _ in range(5_000):
                    machine.step()
                machine.finish()
            finally:
                machine.close()
        delivered += machine.delivered
        histories += 1
    run.progress(delivered)
    return f"{histories:,} histories"
