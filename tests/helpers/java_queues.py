"""The queues in ``tests/data/cq4``, written by JVMs, and Java's listings of them."""

import tarfile
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "cq4"
# Of j26-noeof, Java lists only the older cycle; ``after-eof`` is its listing after another appender.
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in DATA.glob("*.tar.xz"))

Listing = list[tuple[int, bytes]]


def unpack(name: str, to: Path) -> Path:
    """Unpack a queue into a directory, with its listings next to it."""
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
        archive.extractall(to)
    return to / name


def listing(queue: Path, kind: str = "expected") -> Listing:
    """Return the indexes and payloads of the messages that Java listed."""
    lines = queue.with_name(f"{queue.name}.{kind}.txt").read_text().splitlines()
    found = [line.split(" ") for line in lines if not line.startswith("#")]
    return [(int(index, 16), bytes.fromhex(payload)) for index, payload in found]
