"""Latest quotes of a busy feed: a view that is slower than the market, but never out of date.

A process writes quotes as fast as it can. The view joins late: it takes a snapshot, then follows by
symbol, and skips quotes that newer ones replaced before it could show them.
"""

import asyncio
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import aiochronicle

SYMBOLS = ("ALFA", "BRAVO", "CHARLIE", "DELTA")
QUOTES = 50_000


def symbol_of(quote: aiochronicle.Message) -> bytes:
    return quote.payload.split()[0]


def feed(path: Path) -> None:
    with aiochronicle.open_writer(path) as quotes:
        for number in range(QUOTES):
            quotes.append(f"{SYMBOLS[number % len(SYMBOLS)]} {number}".encode())


async def view(path: Path) -> tuple[dict[bytes, bytes], int, int]:
    """Return the newest quote per symbol, and how many were shown and skipped."""
    async with aiochronicle.aopen_reader(path, wait_for_queue=True) as reader:
        await reader.next()  # the feed has begun
        board = {
            symbol: quote.payload for symbol, quote in (await reader.snapshot(symbol_of)).items()
        }
        quotes = reader.conflate(symbol_of)
        shown = skipped = 0
        while len(board) < len(SYMBOLS) or not all_final(board):
            quote = await anext(quotes)
            board[symbol_of(quote)] = quote.payload
            shown += 1
            skipped += quotes.skipped
            await asyncio.sleep(0.001)  # the time to draw a screen
        return board, shown, skipped


def all_final(board: dict[bytes, bytes]) -> bool:
    return all(int(quote.split()[1]) >= QUOTES - len(SYMBOLS) for quote in board.values())


def main(path: Path) -> None:
    market = get_context("spawn").Process(target=feed, args=(path,))
    market.start()
    board, shown, skipped = aiochronicle.run(view(path))
    market.join()
    print(f"{shown} quotes shown, {skipped} replaced before they could be shown")
    print(*(quote.decode() for _, quote in sorted(board.items())), sep=", ")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "quotes")
