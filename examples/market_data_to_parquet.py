"""Market data: record quotes of a fixed layout, view them as arrays, and export each minute to Parquet.

The recorder appends while the export runs in a thread: a slice does not change after its creation.
The fields of a quote become columns of the files, without an object for each quote.
"""

import asyncio
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from pyarrow import parquet

import aiochronicle


class Quote(msgspec.Struct):
    instrument: int
    size: int
    bid: float
    ask: float


QUOTE = aiochronicle.Codec(Quote, format="struct")
COLUMNS = ["seq", "timestamp", "instrument", "size", "bid", "ask"]
OPENING = datetime(2024, 5, 2, 9, 0, tzinfo=UTC)
OPENING_NS = int(OPENING.timestamp()) * 10**9
QUOTES_PER_MINUTE = 5_000
MINUTES = 3


def record_minute(writer: aiochronicle.Writer, minute: int) -> None:
    for number in range(QUOTES_PER_MINUTE):
        time_ns = OPENING_NS + minute * 60 * 10**9 + number * 12 * 10**6
        bid = 100 + number % 50 * 0.01
        writer.send(Quote(number % 10, 100, bid, bid + 0.02), timestamp_ns=time_ns)


async def record_and_export(root: Path) -> list[Path]:
    """Export each minute while the next one is recorded; return the files."""
    files: list[Path] = []
    with (
        aiochronicle.open_writer(root / "quotes", codec=QUOTE) as writer,
        aiochronicle.Queue(root / "quotes") as queue,
    ):
        for minute in range(MINUTES):
            record_minute(writer, minute)
            start = OPENING + timedelta(minutes=minute)
            part = queue.slice(start, start + timedelta(minutes=1))
            files.append(root / f"quotes-{start:%H%M}.parquet")
            await asyncio.to_thread(part.export, files[-1], columns=COLUMNS, codec=QUOTE)
    return files


def widest_spread(root: Path) -> float:
    """Compute over all quotes without copying one."""
    with aiochronicle.Queue(root / "quotes") as queue:
        return max(float((a["ask"] - a["bid"]).max()) for a in queue.slice().to_numpy(QUOTE))


def main(root: Path) -> None:
    files = aiochronicle.run(record_and_export(root))
    rows = sum(parquet.ParquetFile(file).metadata.num_rows for file in files)
    print(f"widest spread {widest_spread(root):.2f}")
    print("columns", ", ".join(parquet.ParquetFile(files[0]).schema_arrow.names))
    print(f"{rows} quotes in {len(files)} Parquet files")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
