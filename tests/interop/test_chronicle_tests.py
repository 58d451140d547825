"""We list the queues that Chronicle's own tests leave behind as Java does.

This runs some of the test classes; `python -m tests.torture java-tests` runs all.
"""

from collections import Counter
from pathlib import Path

import pytest

from . import chronicle_tests
from .building import JudgeUnavailable
from .judge import Judge

# Rolls, indexes, epochs, unfinished messages, metadata, wire types, end marks.
CLASSES = [
    f"net.openhft.chronicle.queue.{name}"
    for name in (
        "ChronicleAppenderCycleTest",
        "ChronicleQueueIndexTest",
        "CreateAtIndexTest",
        "IncompleteMessageTest",
        "InternalAppenderWriteBytesTest",
        "LastAcknowledgedTest",
        "ToEndPaddingTest",
        "impl.RollingChronicleQueueTest",
        "impl.single.EmptyRollCycleTest",
        "impl.single.EofMarkerOnEmptyQueueTest",
        "impl.single.NotCompleteTest",
        "impl.single.QueueEpochTest",
        "impl.single.SingleCQFormatTest",
        "impl.single.ToEndTest",
        "internal.reader.FieldlessMethodReaderTest",
        "internal.reader.RollEOFTest",
        "issue.ChangeRollCycleTest",
    )
]


def test_what_its_tests_leave_behind(judge: Judge, tmp_path: Path) -> None:
    try:
        assert set(CLASSES) <= set(chronicle_tests.classes())
    except JudgeUnavailable as reason:
        pytest.skip(f"no tests of Chronicle Queue: {reason}")
    log = chronicle_tests.leave_queues(CLASSES, tmp_path)
    chronicle_tests.unpack_queues(tmp_path / "resources")
    queues = sorted(chronicle_tests.find_queues(tmp_path))
    verdicts = list(chronicle_tests.compare(judge, queues, tmp_path))
    counts = Counter(verdict.outcome for verdict in verdicts)
    assert not [verdict for verdict in verdicts if verdict.outcome == "different"]
    assert counts["equal"] + counts["ended"] >= 60, f"{counts}\n{log[-4000:]}"
