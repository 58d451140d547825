"""Follow a queue like `tail -f`. It needs read permission only and writes nothing to the queue.

python examples/audit_tail.py QUEUE [--from-start] [--idle-seconds S]
"""

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import aiochronicle


def show(message: aiochronicle.Message) -> None:
    moment = datetime.fromtimestamp(message.timestamp_ns / 1e9, UTC)
    print(
        f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z  {message.source}#{message.seq}"
        f"  type {message.type_id}  {message.payload!r}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Follow a queue.")
    parser.add_argument("queue", type=Path)
    parser.add_argument("--from-start", action="store_true", help="begin at the oldest message")
    parser.add_argument("--idle-seconds", type=float, help="end after this time without a message")
    arguments = parser.parse_args()
    start: Literal["first", "last"] = "first" if arguments.from_start else "last"
    # Without a name a reader stores no position.
    with aiochronicle.open_reader(arguments.queue, start=start, on_corrupt="skip") as reader:
        while reader.wait(arguments.idle_seconds):
            for message in reader:
                show(message)
        skipped = reader.statistics().skipped_records
    if skipped:
        print(f"{skipped} corrupt records were skipped")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
    except aiochronicle.errors.ChronicleError as error:
        raise SystemExit(f"audit_tail: {error}") from None
