"""R3 for groups: random programs whose members take and settle messages, and images of power cuts.

A message that no member had begun to acknowledge must not be missing afterwards; an acknowledged one may
come again.
"""

import contextlib
import random
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import aiochronicle
from aiochronicle import Delivery, Group, Roll, TopicGroup, open_group, open_writer

from .power_campaign import memory_directory
from .power_check import Violation, lay_out
from .power_disk import Crash, Image
from .power_scenario import Scenario
from .processes import in_processes

__all__ = ["GroupPower", "group_images"]

GROUP = "workers"
CUTS_PER_PROGRAM = 15
IMAGES_PER_CUT = 4


class _Moment(NamedTuple):
    time: int
    acked: frozenset[int]  # or about to be


class GroupScenario:
    """A writer, and a member of a group, under a recording."""

    def __init__(self, queue: Path) -> None:
        self.scenario = Scenario(queue)
        self.acked = [_Moment(0, frozenset())]
        self._member: Group | TopicGroup | None = None
        self._held: list[Delivery] = []

    def acked_at(self, time: int) -> frozenset[int]:
        return next(moment.acked for moment in reversed(self.acked) if moment.time <= time)

    def join(self, max_in_flight: int) -> None:
        self.leave()
        self._member = open_group(
            self.scenario.queue, GROUP, max_in_flight=max_in_flight, retry_s=0
        )
        self.scenario.recording.mark()

    def take(self, count: int) -> None:
        if self._member is not None:
            self._held += self._member.take_batch(count)
            self.scenario.recording.mark()

    def settle(self, choose: random.Random) -> None:
        if not self._held:
            return
        delivery = self._held.pop(choose.randrange(len(self._held)))
        if choose.random() < 0.2:
            delivery.nack()
        else:
            done = self.acked[-1].acked | {delivery.seq}
            self.acked.append(_Moment(self.scenario.recording.mark(), done))
            delivery.ack()
        self.scenario.recording.mark()

    def leave(self) -> None:
        self._held.clear()
        if self._member is not None:
            self._member.close()
            self._member = None
        self.scenario.recording.mark()

    def run(self, seed: int) -> None:
        """Run 10 to 60 random steps."""
        choose = random.Random(seed)
        options = {"segment_size": 4096, "roll": Roll(messages=choose.randint(2, 20))}
        sizes = [choose.choice((1, 10, 50, 80, 200)) for _ in range(3)]

        def steps(scenario: Scenario) -> None:
            scenario.open(**options)
            for _ in range(choose.randint(10, 60)):
                step = choose.choices(
                    ("append", "batch", "flush", "join", "take", "settle", "leave", "reopen"),
                    (20, 5, 8, 5, 15, 40, 3, 2),
                )[0]
                if step == "append":
                    scenario.append(choose.choice((0, 40, 700)))
                elif step == "batch":
                    scenario.batch(*(choose.choice((1, 100)) for _ in range(3)))
                elif step == "flush":
                    scenario.flush()
                elif step == "join":
                    self.join(choose.choice(sizes))
                elif step == "take":
                    self.take(choose.randint(1, 5))
                elif step == "settle":
                    self.settle(choose)
                elif step == "leave":
                    self.leave()
                else:
                    scenario.kill()
                    scenario.open(**options)
            self.leave()

        self.scenario.run(steps)


def _require(condition: bool, text: str, *values: object) -> None:
    if not condition:
        raise Violation(text.format(*values))


def check_group_image(path: Path, payloads: list[bytes], acked: frozenset[int]) -> int:
    """Recover the queue, join the group, and compare what it delivers with what it must deliver."""
    try:
        with open_writer(path, segment_size=4096, _inline_housekeeping=True) as writer:
            end = writer.next_seq
            with open_group(path, GROUP) as group:
                found = [(delivery.seq, delivery.message.payload) for delivery in _all_of(group)]
                seqs = [seq for seq, _ in found]
                _require(len(seqs) == len(set(seqs)), "twice: {}", seqs)
                _require(all(payloads[seq] == load for seq, load in found), "wrong payload")
                missing = set(range(end)) - set(seqs) - acked
                _require(not missing, "{} of {} are not delivered", sorted(missing), end)
                writer.append(b"new")
                new = [delivery.message.payload for delivery in _all_of(group)]
                _require(new == [b"new"], "after that {} comes", new)
        return len(set(seqs) & acked)
    except aiochronicle.ChronicleError as error:
        raise Violation(f"{type(error).__name__}: {error}") from error


def _all_of(group: Group | TopicGroup) -> Generator[Delivery, None, None]:
    for delivery in group:
        yield delivery
        delivery.ack()


class GroupPower(NamedTuple):
    """Counts over all images."""

    images: int
    again: int  # acknowledged messages that came again


def _check(scratch: Path, image: Image, payloads: list[bytes], acked: frozenset[int]) -> int:
    path = scratch / "image"
    lay_out(image, path)
    try:
        return check_group_image(path, payloads, acked)
    except Violation as violation:
        kept = Path(tempfile.mkdtemp(prefix="power-violation-")) / "queue"
        lay_out(image, kept)
        raise Violation(f"(kept in {kept}): {violation}") from violation
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    for file in sorted(path.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    path.rmdir()


def _program(seed: int) -> GroupPower:
    rng = random.Random(seed)
    images = again = 0
    with memory_directory() as scratch:
        queue = scratch / "queue"
        queue.mkdir(mode=0o700)
        program = GroupScenario(queue)
        program.run(rng.getrandbits(64))
        recording = program.scenario.recording
        for _ in range(CUTS_PER_PROGRAM):
            time = rng.randint(0, recording.time)
            crash, expected = Crash(recording, time), program.scenario.at(time)
            for _ in range(IMAGES_PER_CUT):
                try:
                    again += _check(
                        scratch, crash.random_image(rng), expected.payloads, program.acked_at(time)
                    )
                except Violation as violation:
                    raise Violation(f"program {seed}, cut at {time} {violation}") from violation
                images += 1
    return GroupPower(images, again)


def group_images(count: int, *, seed: int, processes: int = 2) -> GroupPower:
    """Check this many images of random programs. Raises Violation."""
    images = again = 0
    seeds = (seed * 1_000_003 + number for number in range(count))
    with contextlib.closing(in_processes(_program, seeds, processes=processes)) as programs:
        while images < count:
            done = next(programs)
            images += done.images
            again += done.again
    return GroupPower(images, again)
