"""Random cases on a failing disk: where the bad page is, and when the power is cut.

The tests in test_device_*.py state what must happen at chosen places. Here the place is random, and one rule
holds everywhere: a temporary fault costs no acknowledged message.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from .actor import Actor, Failure
from .copies import copy_in_name_order
from .device_queues import SALT, fill, flip_a_bit, kept_aside, read, recover, segment
from .devices import PAGE, Disk, content
from .oracle import payload, require

__all__ = ["CASES", "run_case", "wait_for_write_back"]

_READER = "reader = open_reader(path, 'audit'); batch = reader.read_batch(%d); reader.commit()"


def _options(dice: random.Random) -> str:
    size = dice.choice((64 << 10, 256 << 10, 1 << 20))
    flush = dice.choice(("'async'", "'sync'", "Batch(8 << 10, 0.005)"))
    return f"segment_size={size}, flush={flush}"


def _write(actor: Actor, queue: Path, dice: random.Random) -> int:
    """Append messages, flush some of them, perhaps read some; return how many were appended."""
    count = dice.randint(50, 1500)
    actor.do(f"writer = open_writer(path, {_options(dice)})", path=str(queue))
    done = 0
    while done < count:
        some = min(dice.randint(1, 500), count - done)
        fill(actor, done, some)
        done += some
        if dice.random() < 0.3:
            assert actor.do("writer.flush_now()") == done
    if dice.random() < 0.5:
        actor.do(_READER % dice.randint(1, count))
    return count


def _require_all(queue: Path, count: int) -> None:
    """Recover the queue; check that every message is there and that recovery found no damage."""
    with Actor() as actor:
        actor.do("writer = open_writer(path)", path=str(queue))
        require(actor.do("writer.next_seq") == count, "next_seq is not {}", count)
        require(actor.do("writer.recovery.corrupt_records") == 0, "records count as corrupt")
        actor.do("writer.close()")
    require(not kept_aside(queue), "something was set aside: {}", kept_aside(queue))
    require(read(queue) == list(range(count)), "messages are missing")


def unreadable_page(disk: Disk, queue: Path, dice: random.Random) -> None:
    """Open a queue while one random page cannot be read."""
    with Actor() as actor:
        count = _write(actor, queue, dice)
        if dice.random() < 0.3:
            actor.do("writer.close()")
        actor.kill()
    files = [path for path in sorted(queue.rglob("*")) if path.is_file()]
    file = dice.choice([path for path in files if path.name != "writer.lock"])
    disk.drop_caches()
    before = content(queue)
    disk.drop_caches()
    page = dice.randrange(max(1, file.stat().st_size // PAGE)) * PAGE
    if not disk.blocks(file, page, 1):
        return
    step = f"writer = open_writer(path, verify={dice.random() < 0.3})"
    with disk.unreadable(file, page), Actor() as actor:
        outcome = actor.attempt(step, path=str(queue))
        if not isinstance(outcome, Failure):  # fine: it did not need the page
            actor.attempt("writer.close()")
        actor.kill()
    disk.drop_caches()
    where = f"{file.name} at {page}"
    if isinstance(outcome, Failure):
        require("ChronicleError" in outcome.kinds, "{}: {}", where, outcome)
        require(content(queue) == before, "{}: refused, but changed", where)
    _require_all(queue, count)


def damage_before_the_end(disk: Disk, queue: Path, dice: random.Random) -> None:
    """Cut the power after a flush, and flip one bit of a random earlier message."""
    with Actor() as actor:
        count = _write(actor, queue, dice)
        durable = actor.do("writer.flush_now()")
        require(durable == count, "flush_now returned {}", durable)
        seq = dice.choice([seq for seq in range(count) if payload(SALT, seq)])
        with disk.power_cut() as image:
            there = image / queue.name
            flip_a_bit(there, seq)
            next_seq = recover(there)
            require(next_seq >= durable, "seq {} damaged: ends at {}", seq, next_seq)
            found = read(there, on_corrupt="skip")
            require(set(range(durable)) - set(found) <= {seq}, "more than seq {} is lost", seq)


def failed_write_back(disk: Disk, queue: Path, dice: random.Random) -> None:
    """Let write-back fail for a while; what is reported as durable afterwards must be on the disk."""
    with Actor() as actor:
        count = _write(actor, queue, dice)
        durable = actor.do("writer.statistics().durable_seq")
        active = segment(queue, actor.do("writer.position.segment"))
        with disk.unwritable(active):
            some = dice.randint(1, 200)
            seqs = f"range({count}, {count + some})"
            appended = actor.attempt(f"for n in {seqs}: writer.append(payload({SALT}, n))")
            if not isinstance(appended, Failure) and dice.random() < 0.8:
                actor.attempt("writer.flush_now()")
            if dice.random() < 0.5:
                actor.attempt("writer.close()")
            actor.kill()
    with Actor() as actor:
        actor.do("writer = open_writer(path)", path=str(queue))
        next_seq = actor.do("writer.next_seq")
        require(next_seq >= durable, "ends at {} before {}", next_seq, durable)
        claimed = actor.do("writer.statistics().durable_seq")
        if dice.random() < 0.5:
            claimed = actor.do("writer.flush_now()")
        with disk.power_cut() as image:
            recover(image / queue.name)
            found = read(image / queue.name)
            require(found == list(range(len(found))), "messages are missing in between")
            require(len(found) >= claimed, "{} of {} durable ones", len(found), claimed)


def copy_of_a_busy_queue(disk: Disk, queue: Path, dice: random.Random) -> None:
    """Copy a queue file by file, at random moments, while its writer appends; use the copy."""
    copy = disk.path / f"{queue.name}-copy"
    with Actor() as actor:
        count = _write(actor, queue, dice)
        actor.do("reader = open_reader(path, 'busy')")

        def go_on(_: str) -> None:
            nonlocal count
            if dice.random() < 0.5:
                some = dice.randint(1, 300)
                fill(actor, count, some)
                count += some
            if dice.random() < 0.5:
                actor.do("batch = reader.read_batch(100_000); reader.commit()")
            if dice.random() < 0.3:
                actor.do("writer.flush_now()")

        copy_in_name_order(queue, copy, go_on)
    try:
        with Actor() as actor, Actor() as reading:
            actor.do("writer = open_writer(path)", path=str(copy))
            require(actor.do("writer.recovery.corrupt_records") == 0, "the copy counts as corrupt")
            next_seq = actor.do("writer.next_seq")
            reading.do("reader = open_reader(path, 'busy')", path=str(copy))
            reading.do("before = [message.seq for message in reader]")
            fill(actor, next_seq, 10)
            after = reading.do("[message.seq for message in reader]")
            require(after == list(range(next_seq, next_seq + 10)), "it resumes with {}", after)
            actor.do("writer.close()")
        require(read(copy) == list(range(next_seq + 10)), "the copy has gaps")
    finally:
        shutil.rmtree(copy, ignore_errors=True)


CASES: tuple[Callable[[Disk, Path, random.Random], None], ...] = (
    unreadable_page,
    damage_before_the_end,
    failed_write_back,
    copy_of_a_busy_queue,
)


def run_case(disk: Disk, seed: int) -> str:
    """Run the case that the seed selects, in a queue of its own; return its name."""
    dice = random.Random(seed)
    case = dice.choice(CASES)
    queue = disk.path / f"queue-{seed}"
    try:
        case(disk, queue, dice)
    except BaseException as error:
        error.add_note(f"case {case.__name__}, seed {seed}")
        raise
    finally:
        shutil.rmtree(queue, ignore_errors=True)
    return case.__name__


def wait_for_write_back(disk: Disk, count: int, limit_s: float) -> float:
    """Append without flushing; return the seconds until everything counts as durable."""
    queue = disk.path / "queue"
    step = f"""
started = time.monotonic()
while writer.statistics().durable_seq < {count} and time.monotonic() < started + {limit_s}:
    time.sleep(0.05)
waited_s = time.monotonic() - started
"""
    with Actor() as actor:
        actor.do("writer = open_writer(path, segment_size=1 << 20)", path=str(queue))
        fill(actor, 0, count)
        actor.do(step, timeout_s=limit_s + 30)
        durable = actor.do("writer.statistics().durable_seq")
        require(durable == count, "after {} s only {} of {} are durable", limit_s, durable, count)
        with disk.power_cut() as image:
            recover(image / "queue")
            found = read(image / "queue")
            require(found == list(range(count)), "only {} are on the disk", len(found))
        waited_s = actor.do("waited_s")
    assert isinstance(waited_s, float)
    return waited_s
