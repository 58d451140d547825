"""R3: after a power cut what was flushed is there, the rest is a clean prefix, nothing is wrong."""

import os
import random
import shutil
from pathlib import Path

import pytest

from aiochronicle import Retention, Roll, open_reader, open_writer

from .power_campaign import all_images, memory_directory, random_images
from .power_check import Violation, check_image, lay_out
from .power_disk import Crash
from .power_scenario import READER, Scenario

SEED = int(os.environ.get("AIOCHRONICLE_SEED") or random.SystemRandom().getrandbits(32))
IMAGES = int(os.environ.get("AIOCHRONICLE_POWER_IMAGES", "20000"))


@pytest.mark.timeout(400)
def test_power_loss_leaves_a_clean_prefix_and_all_that_was_flushed() -> None:
    print(f"AIOCHRONICLE_SEED={SEED}")
    assert sum(random_images(IMAGES, seed=SEED)) >= IMAGES


def test_power_loss_with_every_subset_of_small_programs() -> None:
    print(f"AIOCHRONICLE_SEED={SEED}")
    assert sum(all_images(8, seed=SEED, subsets_max=512)) > 500


def test_power_loss_of_segments_that_a_reader_had_read_is_told_to_it() -> None:
    print(f"AIOCHRONICLE_SEED={SEED}")
    rng = random.Random(SEED)

    def steps(scenario: Scenario) -> None:
        scenario.open(segment_size=4096, roll=Roll(messages=2), _inline_housekeeping=2)
        scenario.attach()
        for _ in range(10):
            scenario.append(100)
            scenario.read(1)

    with memory_directory() as scratch:
        queue = scratch / "queue"
        queue.mkdir(mode=0o700)
        scenario = Scenario(queue).run(steps)
        crash = Crash(scenario.recording, scenario.recording.time)
        for _ in range(300):
            lay_out(crash.random_image(rng), scratch / "image")
            check_image(scratch / "image", scenario.now, reader_first=False)


def test_power_loss_after_retention_leaves_readers_a_position_that_is_there() -> None:
    """If retention removed segments because of a commit, that commit is on disk as well."""
    print(f"AIOCHRONICLE_SEED={SEED}")
    rng = random.Random(SEED)

    def steps(scenario: Scenario) -> None:
        scenario.open(segment_size=4096, roll=Roll(messages=2), retention=Retention())
        scenario.attach()
        for _ in range(10):
            scenario.append(100)
        scenario.flush()
        for count in (5, 4):
            scenario.read(count)
            scenario.retain()

    with memory_directory() as scratch:
        queue = scratch / "queue"
        queue.mkdir(mode=0o700)
        scenario = Scenario(queue).run(steps)
        assert not (queue / "000000003.q").exists()
        crash = Crash(scenario.recording, scenario.recording.time)
        for _ in range(100):
            lay_out(crash.random_image(rng), scratch / "image")
            with (
                open_writer(scratch / "image", _inline_housekeeping=True),
                open_reader(scratch / "image", READER) as reader,
            ):
                assert [message.seq for message in reader] == [9]
            shutil.rmtree(scratch / "image")


def test_power_loss_does_not_bring_back_an_aborted_reservation_behind_a_sealed_segment() -> None:
    print(f"AIOCHRONICLE_SEED={SEED}")
    rng = random.Random(SEED)

    def steps(scenario: Scenario) -> None:
        scenario.open(segment_size=16384, roll=Roll(messages=2))
        scenario.append(3456)  # up to 3584
        scenario.reserve(832, abandon=True)  # into the next page
        scenario.append(448)  # up to that page
        scenario.append(10)  # in another segment
        scenario.flush()

    with memory_directory() as scratch:
        queue = scratch / "queue"
        queue.mkdir(mode=0o700)
        scenario = Scenario(queue).run(steps)
        crash = Crash(scenario.recording, scenario.recording.time)
        for _ in range(300):
            lay_out(crash.random_image(rng), scratch / "image")
            check_image(scratch / "image", scenario.now, reader_first=False)


def fill(orders: Path, fills: Path) -> list[bytes]:
    """Run an exactly-once chain over the queue; return the orders that it filled."""
    with open_reader(orders) as reader, open_writer(fills, segment_size=4096) as writer:
        done = writer.last_causes()
        filled = []
        for order in reader:
            guarded = writer.last_cause(order)
            assert done.covers(order) == (guarded is not None and order.seq <= guarded)
            if not done.covers(order):
                writer.append(order.payload, cause=order)
                done.add(order)
                filled.append(order.payload)
        return filled


def test_power_loss_of_orders_does_not_take_new_ones_for_those_that_were_lost() -> None:
    """Lost orders whose results are on disk do not hide new orders that get the same seqs."""
    print(f"AIOCHRONICLE_SEED={SEED}")
    rng = random.Random(SEED)

    def steps(scenario: Scenario) -> None:
        scenario.open(segment_size=4096)
        for length in (300, 300, 300):
            scenario.append(length)
        scenario.flush()
        for length in (300, 300, 300, 300, 300):
            scenario.append(length)

    losses = set()
    with memory_directory() as scratch:
        queue = scratch / "queue"
        queue.mkdir(mode=0o700)
        scenario = Scenario(queue).run(steps)
        assert fill(queue, scratch / "fills") == scenario.now.payloads
        crash = Crash(scenario.recording, scenario.recording.time)
        for number in range(200):
            orders, fills = scratch / f"{number}", scratch / f"{number}.fills"
            lay_out(crash.random_image(rng), orders)
            shutil.copytree(scratch / "fills", fills)
            new = [b"new %d" % i for i in range(rng.randrange(10))]
            with open_writer(orders, segment_size=4096) as writer:
                losses.add(len(scenario.now.payloads) - writer.next_seq)
                for payload in new:
                    writer.append(payload)
            assert fill(orders, fills) == new
            assert fill(orders, fills) == []
    assert {0, 5} <= losses, "some images lose everything after the flush, some nothing"


def test_power_model_forgets_what_was_not_synced() -> None:
    """The model itself works: without a flush both ends occur, after a flush only one."""

    times: list[int] = []

    def steps(scenario: Scenario) -> None:
        scenario.open(segment_size=4096)
        scenario.append(1000)
        times.append(scenario.recording.mark())
        scenario.flush()
        times.append(scenario.recording.mark())

    with memory_directory() as scratch:
        queue = scratch / "queue"
        queue.mkdir(mode=0o700)
        scenario = Scenario(queue).run(steps)
        before, after = (
            len({image["000000000.q"] for image in Crash(scenario.recording, time).all_images()})
            for time in times
        )
        assert before >= 2**3, "each of three sectors may be old or new"
        assert after == 1


def test_power_check_notices_a_lost_flush() -> None:
    """The check itself works: an image that lacks a flushed message is a violation."""

    def steps(scenario: Scenario) -> None:
        scenario.open(segment_size=4096)
        scenario.append(100)
        scenario.flush()

    with memory_directory() as scratch:
        queue = scratch / "queue"
        queue.mkdir(mode=0o700)
        scenario = Scenario(queue).run(steps)
        crash = Crash(scenario.recording, scenario.recording.time)
        image = crash.random_image(random.Random(SEED))
        segment = image["000000000.q"]
        assert segment is not None
        image["000000000.q"] = segment[:64] + bytes(len(segment) - 64)
        lay_out(image, scratch / "image")
        with pytest.raises(Violation, match=r"durable|missing"):
            check_image(scratch / "image", scenario.now, reader_first=False)
