"""What happened between ten and eleven? Seek by time, read a range, continue from a seq."""

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiochronicle

OPENING = datetime(2024, 3, 1, 9, 0, tzinfo=UTC)
MINUTES = 8 * 60


def nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000_000


def record_a_day(path: Path) -> None:
    """Write one message per minute, with its own time instead of the time of writing."""
    with aiochronicle.open_writer(path) as writer:
        for minute in range(MINUTES):
            moment = OPENING + timedelta(minutes=minute)
            writer.append(f"{moment:%H:%M}".encode(), timestamp_ns=nanoseconds(moment))


def replay(path: Path, start: datetime, end: datetime) -> list[str]:
    """Return the payloads from start up to, not including, end."""
    end_ns = nanoseconds(end)
    found: list[str] = []
    with aiochronicle.open_reader(path, start=start) as reader:
        for message in reader:
            if message.timestamp_ns >= end_ns:
                break
            found.append(message.payload.decode())
    return found


def main(path: Path) -> None:
    record_a_day(path)
    ten = OPENING + timedelta(hours=1)
    hour = replay(path, ten, ten + timedelta(hours=1))
    print(f"{len(hour)} messages from {hour[0]} to {hour[-1]}")
    assert (len(hour), hour[0], hour[-1]) == (60, "10:00", "10:59")

    with aiochronicle.open_reader(path) as reader:
        reader.seek(MINUTES - 1)  # by seq
        last = reader.poll()
        assert last is not None
        assert last.payload == b"16:59"
        reader.seek_time(OPENING + timedelta(hours=2, seconds=30))  # nothing at 11:00:30 …
        after = reader.poll()
        assert after is not None
        assert after.payload == b"11:01"  # … so the next one


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "minutes")
