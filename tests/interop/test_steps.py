"""Our writer is killed at any instruction of an append, page, roll or creation; a JVM continues the queue.

csrc/tests/test_cq4_steps.c makes the states, one per instruction that leaves a distinct one.

Java miscounts one of them, even if a JVM left it: the first message of a file is present, but the file does
not count it yet. Java's next appender then returns an index that is one too low. Tailers of both sides
number all messages correctly, and nothing is lost.
"""

import os
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from faults.programs import program
from faults.scratch import in_memory

from .judge import Judge
from .ours import digest

START_MS = 1_700_000_000_000
ROLL_CYCLES = {
    "append": "TEST4_DAILY",
    "page": "TEST_DAILY",
    "roll": "TEST4_SECONDLY",
    "gap": "TEST4_SECONDLY",
    "create": "TEST4_SECONDLY",
}
LATER_MS = {"roll": 1000, "gap": 5000}
BY_JAVA = [b"\xe7after:0", b"\xe7after:1"]


@pytest.mark.timeout(300)
def test_java_goes_on_with_what_any_instruction_leaves(judge: Judge) -> None:
    seen: Counter[str] = Counter()
    miscounted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=in_memory()) as scratch:
        environment = {**os.environ, "AIOCHRONICLE_KEEP_STATES": str(scratch)}
        subprocess.run(
            [program("test_cq4_steps")], env=environment, check=True, capture_output=True
        )
        for state in sorted(Path(scratch).iterdir()):
            scenario, _, before, acknowledged, attempted = state.name.split("-")
            promised = range(int(acknowledged), int(attempted) + 1)
            miscounted[scenario] += _go_on(judge, state, scenario, int(before), promised)
            seen[scenario] += 1
    assert seen.keys() == ROLL_CYCLES.keys()
    assert min(seen.values()) > 5, seen
    assert +miscounted == {"roll": 1, "gap": 1, "create": 1}
    print(dict(seen))


def _go_on(judge: Judge, state: Path, scenario: str, before: int, promised: range) -> int:
    """Return how many messages Java does not count, though it lists them."""
    time_ms = START_MS + LATER_MS.get(scenario, 0)
    roll_cycle = ROLL_CYCLES[scenario]
    with judge.open(state, roll_cycle=roll_cycle, time_ms=time_ms, timeout_ms=1000) as queue:
        queue.append_text("after:0")
        queue.set_time(time_ms + 86_400_000)
        queue.append_text("after:1")
        payloads = [message.payload for message in queue.read_all()]
        found = queue.tailer(start="start").digest()
        counted = queue.info().entry_count
    assert [one for one in payloads if one[:2] == b"2:"] == [b"2:%d" % n for n in range(before)]
    stepped = [one for one in payloads if one[:2] == b"1:"]
    assert stepped == [b"1:%d" % number for number in range(len(stepped))], state.name
    assert len(stepped) in promised, state.name
    assert payloads[-2:] == BY_JAVA, state.name
    assert len(payloads) == before + len(stepped) + 2, state.name
    assert digest(state)[0] == found, state.name
    return len(payloads) - counted
