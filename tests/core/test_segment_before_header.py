"""A segment that another program publishes before its header counts as absent, not as damaged."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.hasty_writer import HastyWriter
from reference import format as fmt

import aiochronicle
from aiochronicle import open_reader, open_writer
from aiochronicle.errors import CorruptionError

SIZE = 4096
TESTS = Path(__file__).parents[1]


def read_everything(path: Path, expected: list[bytes]) -> None:
    """Call every reading function; none of them may take the newest segment for damage."""
    with open_reader(path) as reader:
        assert [message.payload for message in reader] == expected
        assert reader.lag.messages == 0
        reader.seek_first()
        assert reader.lag.messages == len(expected)
        reader.seek_last()
        assert reader.poll() is None
        reader.seek(0)
        assert (reader.poll() is not None) == bool(expected)
        reader.seek_time(0)
        assert [message.payload for message in reader] == expected
        reader.seek_time(10**18)
        assert reader.poll() is None
    for start in ("first", "last", 0):
        with open_reader(path, start=start) as reader:
            assert len(list(reader)) == (0 if start == "last" else len(expected))
    with open_reader(path, on_corrupt="skip") as reader:
        assert [message.payload for message in reader] == expected
        assert reader.statistics().skipped_records == 0
    report = aiochronicle.verify(path)
    assert (report.records, report.corrupt, report.first_problem) == (len(expected), 0, None)
    aiochronicle.inspect(path)


@pytest.mark.parametrize("first", [0, 7])
def test_each_step_of_a_new_segment(queue_path: Path, first: int) -> None:
    expected: list[bytes] = []
    steps = 0

    def look() -> None:
        nonlocal steps
        steps += 1
        read_everything(queue_path, expected)
        assert [message.payload for message in early] == expected[seen:]
        with open_reader(queue_path, f"named{steps}") as reader:
            assert [message.payload for message in reader] == expected
            reader.commit()
        with open_reader(queue_path, f"named{steps}") as reader:
            assert reader.poll() is None

    seen = 0
    with (
        open_reader(queue_path, wait_for_queue=True) as early,
        HastyWriter(queue_path, look, first_segment=first) as writer,
    ):
        for number in range(70):  # 31 fit into a segment
            seen = len(expected)
            writer.append(b"%d" % number, 0, 1000 + number)
            expected.append(b"%d" % number)
            assert [message.payload for message in early] == expected[seen:]
            seen = len(expected)
    assert steps == 18
    read_everything(queue_path, expected)


def test_a_header_that_is_missing_though_there_are_records_is_damage(queue_path: Path) -> None:
    with open_writer(queue_path, segment_size=SIZE, _inline_housekeeping=1) as writer:
        writer.append(b"1")
        segment = queue_path / "000000000.q"
        header = segment.read_bytes()[:64]
        with segment.open("r+b") as file:
            file.write(bytes(64))
        with pytest.raises(CorruptionError, match="zero"), open_reader(queue_path) as reader:
            reader.poll()
        with segment.open("r+b") as file:
            file.write(header)


def test_a_header_that_is_missing_before_later_segments_is_damage(queue_path: Path) -> None:
    with fmt.ForeignWriter(queue_path, SIZE) as writer:
        for number in range(40):
            writer.append(b"%d" % number, 0, number)
    with (queue_path / "000000000.q").open("r+b") as file:
        file.write(bytes(64))
    with pytest.raises(CorruptionError, match="zero"), open_reader(queue_path) as reader:
        reader.poll()


PROGRAM = """
import random, sys, time
from pathlib import Path
from helpers.hasty_writer import HastyWriter
rng = random.Random(sys.argv[2])
with HastyWriter(Path(sys.argv[1]), lambda: time.sleep(rng.random() * 0.002)) as writer:
    for number in range(100):
        writer.append(b"%d" % number, 0, time.time_ns())
"""


def test_a_reader_that_waits_for_the_queue_of_a_hasty_writer(tmp_path: Path) -> None:
    for round_ in range(15):
        path = tmp_path / f"queue{round_}"
        with (
            open_reader(path, wait_for_queue=True) as reader,
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(path), str(round_)], cwd=TESTS
            ) as writer,
        ):
            got: list[bytes] = []
            deadline = time.monotonic() + 30
            while len(got) < 100:
                assert time.monotonic() < deadline
                reader.wait(1)
                got += [message.payload for message in reader]
            assert writer.wait(30) == 0
        assert got == [b"%d" % number for number in range(100)]
