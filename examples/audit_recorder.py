"""Audit: every service writes to a queue of its own; a recorder merges them into one.

The recorder is killed several times. Each audit record names the message that caused it, so the
audit queue shows how far the recorder got: nothing is recorded twice, nothing is missing.
"""

import os
import random
import signal
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import aiochronicle

SERVICES = ("gateway", "risk", "strategy")
EVENTS = 1_000
CRASHES = 3


def service(root: Path, name: str) -> None:
    with aiochronicle.open_writer(root / "services" / name, ready=True) as writer:
        for number in range(EVENTS):
            writer.append(f"{name} event {number}".encode())


async def record(root: Path, crash_after: int | None) -> None:
    """Copy all messages into the audit queue; after this many, die without warning."""
    total = EVENTS * len(SERVICES)
    audit = await aiochronicle.aopen_writer(root / "audit")
    recorded = audit.last_causes()  # which messages are in the audit queue
    async with audit, aiochronicle.Router(root / "services", name="audit") as router:
        while audit.next_seq < total:
            event = await router.next()
            if not recorded.covers(event):
                audit.append(event.payload, cause=event)
                recorded.add(event)
            if event.seq % 100 == 99:
                await audit.flush()  # the records reach the disk before the position
                router.commit()
            if crash_after is not None:
                crash_after -= 1
                if crash_after == 0:
                    os.kill(os.getpid(), signal.SIGKILL)


def run_recorder(root: Path, crash_after: int | None) -> None:
    aiochronicle.run(record(root, crash_after))


def main(root: Path, seed: int) -> None:
    (root / "services").mkdir(parents=True)
    spawn = get_context("spawn").Process
    services = [spawn(target=service, args=(root, name)) for name in SERVICES]
    for process in services:
        process.start()
    chance = random.Random(seed)
    for crash_after in [*(chance.randrange(1, 400) for _ in range(CRASHES)), None]:
        recorder = spawn(target=run_recorder, args=(root, crash_after))
        recorder.start()
        recorder.join()
        assert recorder.exitcode == (0 if crash_after is None else -signal.SIGKILL)
    for process in services:
        process.join()
    with aiochronicle.open_reader(root / "audit") as reader:
        records = [message.payload.decode().split() for message in reader]
    for name in SERVICES:
        numbers = [int(number) for service, _, number in records if service == name]
        assert numbers == [*range(EVENTS)], name
    print(f"{CRASHES} crashes (seed {seed}), {len(records)} audit records, each exactly once")


if __name__ == "__main__":
    run_seed = int(os.environ.get("AIOCHRONICLE_SEED", "1"))
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), run_seed)
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory) / "firm", run_seed)
