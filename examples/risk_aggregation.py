"""Risk: strategies come and go and write their fills; one service computes the total position.

The service starts first and knows no strategy by name: it attaches each queue that announces
itself, and detaches it when its directory is removed.
"""

import asyncio
import shutil
import sys
import tempfile
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

import msgspec

import aiochronicle

FILLS = 500
STRATEGIES = 4


class Fill(msgspec.Struct):
    symbol: str
    quantity: int


def strategy(root: Path, number: int) -> None:
    path = root / f"strategy-{number}"
    with aiochronicle.open_writer(path, codec=Fill, ready=True) as writer:
        for fill in range(FILLS):
            writer.send(Fill("ALFA" if fill % 2 else "BRAVO", number + 1))


async def risk(root: Path) -> Counter[str]:
    positions: Counter[str] = Counter()
    received = 0
    spawn = get_context("spawn").Process
    async with aiochronicle.Router(root, name="risk", codec=Fill) as router:
        strategies = [spawn(target=strategy, args=(root, number)) for number in range(STRATEGIES)]
        for process in strategies:
            process.start()
        async for message in router:
            fill = message.decode()
            positions[fill.symbol] += fill.quantity
            received += 1
            if received == FILLS * STRATEGIES:
                router.commit()
                break
        for process in strategies:
            process.join()
        # Remove a strategy: the service closes and unmaps its files at once.
        shutil.rmtree(root / "strategy-0")
        async with asyncio.timeout(10):
            while len(router.sources()) == STRATEGIES:
                await asyncio.sleep(0.01)
    return positions


def main(root: Path) -> None:
    positions = aiochronicle.run(risk(root))
    each = FILLS // 2 * sum(range(1, STRATEGIES + 1))
    assert positions == {"ALFA": each, "BRAVO": each}, positions
    print(f"{STRATEGIES} strategies, positions {dict(sorted(positions.items()))}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "strategies")
