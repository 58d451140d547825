"""Programs with queues to monitor, run in separate processes."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

WRITER = """
import select, sys, aiochronicle
from aiochronicle import Retention
path, rate = sys.argv[1], float(sys.argv[2])
with aiochronicle.open_writer(path, segment_size=1 << 16, retention=Retention(max_bytes=1 << 17)) as writer:
    writer.append(b"first")
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 1 / rate)[0]:
        writer.append(b"x" * 50)
"""

READER = """
import select, sys, aiochronicle
readers = [aiochronicle.open_reader(path, sys.argv[1]) for path in sys.argv[2:]]
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.05)[0]:
    for reader in readers:
        while reader.read_batch(1000):
            pass
        reader.commit()
"""

MEMBER = """
import sys, aiochronicle
group = aiochronicle.open_group(sys.argv[1], sys.argv[2])
group.poll().ack()
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def program(text: str, *arguments: str | float | Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program that prints "ready" and exits when its standard input closes."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def until(found: Callable[[], object], what: str, timeout_s: float = 20.0) -> float:
    """Wait until the condition holds; return the seconds that it took."""
    began_s = time.monotonic()
    while not found():
        assert time.monotonic() - began_s < timeout_s, what
        time.sleep(0.02)
    return time.monotonic() - began_s
