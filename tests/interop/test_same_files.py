"""We write what Java writes: the same script, run by both, leaves the same files.

Data files are compared byte for byte. Java's table store lacks `deltaCheckpointInterval`, which older
versions need, so later entries have other offsets; table stores are therefore compared by Java's dump.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from aiochronicle import open_reader, open_writer
from aiochronicle.errors import ChronicleError

from .judge import Info, JavaThrew, Judge, JudgeQueue
from .ours import Ours

TABLE = Path(__file__).parents[1] / "data" / "cq4" / "roll-cycles.txt"
ROLL_CYCLES = re.findall(r"^cycle (\w+)", TABLE.read_text(), re.MULTILINE)
NOON_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class Script(msgspec.Struct, frozen=True):
    """A list of payloads for each of several times in milliseconds."""

    roll_cycle: str
    epoch: int
    steps: list[tuple[int, list[bytes]]]


@pytest.fixture(scope="module")
def ours() -> Iterator[Ours]:
    with Ours() as process:
        yield process


def script(judge: Judge, name: str, epoch: int = 0) -> Script:
    """Return a script that fills more than two small index pages and has a gap between cycles."""
    [cycle] = [each for each in judge.roll_cycles([]) if each.name == name]
    page = cycle.index_count * cycle.index_spacing
    many = 2 * page + 2 if page <= 128 else min(cycle.index_spacing, 256) + 2
    start = max(NOON_MS, epoch + NOON_MS)
    first = [_payload(number) for number in range(many)]
    few = [_payload(number) for number in (3, 1, 4)]
    steps = [(start, first), (start + cycle.length_ms, few), (start + 4 * cycle.length_ms, few)]
    return Script(name, epoch, steps)


def _payload(number: int) -> bytes:
    return b"\xe4" + b"%4d" % number + b"\x8f" * (number % 7)  # a text and wire padding


def run_by_java(judge: Judge, path: Path, script: Script) -> None:
    start = script.steps[0][0]
    with judge.open(path, roll_cycle=script.roll_cycle, time_ms=start, epoch=script.epoch) as queue:
        for time_ms, payloads in script.steps:
            queue.set_time(time_ms)
            queue.append_bytes(*payloads)


def run_by_us(ours: Ours, path: Path, script: Script) -> None:
    start = script.steps[0][0]
    ours.open(path, roll_cycle=script.roll_cycle, time_ms=start, epoch=script.epoch)
    for time_ms, payloads in script.steps:
        ours.set_time(time_ms)
        ours.append(*payloads)
    ours.close_writer()


def data_files(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return the name, length and first MiB of each data file; no script writes more."""
    found = {}
    for file in path.glob("*.cq4"):
        with file.open("rb") as opened:
            found[file.name] = file.stat().st_size, opened.read(1 << 20)
    return found


def dumped_table(dump: str) -> str:
    """Return the dump of the table store without positions and permitted differences."""
    table = dump.partition("header: !SCQStore")[0]
    table = re.sub(r"\n# position.*", "", table)
    table = re.sub(r" *deltaCheckpointInterval: 64,\n", "", table)
    table = re.sub(r"\n--- !!data #binary\nnormalisedEOFsTo: \d+", "", table)
    table = re.sub(r"(listing.modCount: )\d+", r"\1N", table)
    return re.sub(r"# \d+ bytes remaining", "", table)


def check(judge: Judge, ours: Ours, tmp_path: Path, script: Script) -> None:
    run_by_java(judge, tmp_path / "java", script)
    run_by_us(ours, tmp_path / "ours", script)
    assert data_files(tmp_path / "ours") == data_files(tmp_path / "java")
    with judge.open(tmp_path / "java") as java, judge.open(tmp_path / "ours") as same:
        written = [message.payload for message in same.read_all()]
        assert written == [payload for _, payloads in script.steps for payload in payloads]
        assert same.read_all() == java.read_all()
        theirs, mine = java.dump(), same.dump()
        assert dumped_table(mine) == dumped_table(theirs)
        split = "header: !SCQStore"
        assert mine.split(split)[1:] == theirs.split(split)[1:]
        assert facts(same) == facts(java)


def facts(queue: JudgeQueue) -> Info | str:
    """Return Java's description of a queue, or its error: it cannot count if the epoch exceeds a day."""
    try:
        return queue.info()
    except JavaThrew as thrown:
        return thrown.message


@pytest.mark.parametrize("name", [name for name in ROLL_CYCLES if name != "WEEKLY"])
def test_every_roll_cycle(judge: Judge, ours: Ours, tmp_path: Path, name: str) -> None:
    check(judge, ours, tmp_path, script(judge, name))


@pytest.mark.parametrize("epoch", [61_200_000, 1_600_000_123_456, -3_600_000])
@pytest.mark.parametrize("name", ["TEST_HOURLY", "DAILY"])
def test_epochs(judge: Judge, ours: Ours, tmp_path: Path, name: str, epoch: int) -> None:
    check(judge, ours, tmp_path, script(judge, name, epoch))


def test_java_itself_cannot_read_weekly_queues_again(judge: Judge, tmp_path: Path) -> None:
    """This is why we refuse WEEKLY. If this test fails, Java is fixed and WEEKLY can be supported."""
    path = tmp_path / "queue"
    with judge.open(path, roll_cycle="WEEKLY", time_ms=NOON_MS) as queue:
        queue.append_bytes(b"1", b"2", b"3")
    with judge.open(path, roll_cycle="WEEKLY", time_ms=NOON_MS) as queue, queue.tailer() as tailer:
        assert not list(tailer.read())
    with pytest.raises(ChronicleError, match=r"WEEKLY|format"):
        open_reader(path)
    with pytest.raises(ChronicleError, match="WEEKLY"):
        open_writer(tmp_path / "ours", format="cq4", roll_cycle="WEEKLY")
