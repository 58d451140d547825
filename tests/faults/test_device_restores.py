"""A queue that is restored from a backup, or cloned, becomes another queue.

What was written after the backup is gone, and other messages get its seqs. An exactly-once chain must treat
those messages as new, and the messages from before the backup as done.
"""

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from aiochronicle import FanIn, open_reader, open_writer

from .copies import WAYS

SEGMENT = 1 << 16
WAY = pytest.mark.parametrize("copy", WAYS.values(), ids=WAYS.keys())
Copy = Callable[[Path, Path], None]


def write(path: Path, *payloads: bytes) -> tuple[int, int]:
    """Append with a new writer; return its epoch and the queue's id."""
    with open_writer(path, segment_size=SEGMENT) as writer:
        for payload in payloads:
            writer.append(payload)
        statistics = writer.statistics()
        return statistics.epoch, statistics.queue_id


def execute(orders: Path, fills: Path) -> list[bytes]:
    """Run the chain: execute each order that has no result yet; return these orders."""
    executed: list[bytes] = []
    with open_reader(orders) as reader, open_writer(fills, segment_size=SEGMENT) as out:
        done = out.last_causes()
        for order in reader:
            if not done.covers(order):
                out.append(order.payload, cause=order)
                executed.append(order.payload)
    return executed


def restore(backup: Path, queue: Path, copy: Copy) -> None:
    shutil.rmtree(queue)
    copy(backup, queue)


def numbered(name: str, count: int = 10) -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(count)]


@WAY
@pytest.mark.parametrize("appended", [3, 10, 30])
def test_restored_input_has_its_new_orders_executed_and_no_old_one_again(
    tmp_path: Path, copy: Copy, appended: int
) -> None:
    """The chain executes all new orders, be they fewer than, as many as or more than the lost ones."""
    orders, fills, backup = (tmp_path / name for name in ("orders", "fills", "backup"))
    write(orders, *numbered("before"))
    copy(orders, backup)
    write(orders, *numbered("lost"))
    assert execute(orders, fills) == numbered("before") + numbered("lost")
    restore(backup, orders, copy)
    assert execute(orders, fills) == []
    write(orders, *numbered("new", appended))
    assert execute(orders, fills) == numbered("new", appended)
    assert execute(orders, fills) == []
    write(orders, *numbered("newer"))
    assert execute(orders, fills) == numbered("newer")


@WAY
def test_restored_input_is_restored_twice_from_the_same_backup(tmp_path: Path, copy: Copy) -> None:
    orders, fills, backup = (tmp_path / name for name in ("orders", "fills", "backup"))
    write(orders, *numbered("before"))
    copy(orders, backup)
    write(orders, *numbered("lost"))
    execute(orders, fills)
    for attempt in range(3):
        restore(backup, orders, copy)
        name = f"attempt {attempt}"
        write(orders, *numbered(name))
        assert execute(orders, fills) == numbered(name)
        assert execute(orders, fills) == []


@WAY
def test_restored_input_was_backed_up_while_its_writer_was_open(tmp_path: Path, copy: Copy) -> None:
    """If the backup has no clean end, the writer of the restored queue repairs it first."""
    orders, fills, backup = (tmp_path / name for name in ("orders", "fills", "backup"))
    with open_writer(orders, segment_size=SEGMENT) as writer:
        writer.append_many(numbered("before"))
        copy(orders, backup)
        writer.append_many(numbered("lost"))
        assert execute(orders, fills) == numbered("before") + numbered("lost")
    restore(backup, orders, copy)
    write(orders, *numbered("new"))
    assert execute(orders, fills) == numbered("new")


@WAY
def test_restored_input_is_known_by_last_cause_too(tmp_path: Path, copy: Copy) -> None:
    orders, fills, backup = (tmp_path / name for name in ("orders", "fills", "backup"))
    write(orders, *numbered("before"))
    copy(orders, backup)
    write(orders, *numbered("lost"))
    execute(orders, fills)
    restore(backup, orders, copy)
    write(orders, *numbered("new"))
    with open_reader(orders) as reader, open_writer(fills) as out:
        last = [out.last_cause(message) for message in reader.read_batch(11)]
    assert all(seq is not None and seq >= number for number, seq in enumerate(last[:10])), last
    assert last[10] is None or last[10] < 10, "the first new order has no result"


@WAY
def test_restored_chain_does_what_its_output_has_lost(tmp_path: Path, copy: Copy) -> None:
    """If the output is restored, the chain executes the orders that lack a result."""
    orders, fills, backup = (tmp_path / name for name in ("orders", "fills", "backup"))
    write(orders, *numbered("early"))
    execute(orders, fills)
    copy(fills, backup)
    write(orders, *numbered("late"))
    assert execute(orders, fills) == numbered("late")
    restore(backup, fills, copy)
    assert execute(orders, fills) == numbered("late")
    assert execute(orders, fills) == []


@WAY
def test_restored_queues_never_repeat_an_epoch(tmp_path: Path, copy: Copy) -> None:
    """The chain works even within one second: a clock with a resolution of seconds would not be enough."""
    queue, backup = tmp_path / "queue", tmp_path / "backup"
    epochs = [write(queue, b"first")[0]]
    copy(queue, backup)
    for _ in range(5):
        epochs += [write(queue, b"one")[0], write(queue, b"two")[0]]
        restore(backup, queue, copy)
    epochs.append(write(queue, b"last")[0])
    assert len(set(epochs)) == len(epochs), epochs
    with open_reader(queue) as reader:
        found = [message.epoch for message in reader]
    assert found == [epochs[0], epochs[-1]]
    assert found[0] < found[1], "within a queue they grow"


@WAY
def test_restored_copy_gets_an_id_of_its_own_when_it_is_written_to(
    tmp_path: Path, copy: Copy
) -> None:
    queue, clone, second = (tmp_path / name for name in ("queue", "clone", "second"))
    original = write(queue, b"first")[1]
    copy(queue, clone)
    copy(queue, second)
    ids = [original, write(clone, b"more")[1], write(second, b"more")[1]]
    assert len(set(ids)) == 3
    assert write(queue, b"more")[1] == original
    assert write(clone, b"more")[1] == ids[1], "it is a copy once only"
    assert write(second, b"more")[1] == ids[2]


def test_restored_is_not_what_a_queue_is_that_was_moved(tmp_path: Path) -> None:
    queue, moved = tmp_path / "queue", tmp_path / "moved"
    original = write(queue, b"first")[1]
    queue.rename(moved)
    assert write(moved, b"more")[1] == original


@WAY
def test_restored_queue_does_not_answer_for_its_original(tmp_path: Path, copy: Copy) -> None:
    """Results of a clone's messages do not count for the original's messages with the same seqs."""
    orders, clone, fills = (tmp_path / name for name in ("orders", "clone", "fills"))
    write(orders, *numbered("common"))
    copy(orders, clone)
    execute(orders, fills)
    write(clone, *numbered("clone"))
    write(orders, *numbered("original"))
    assert execute(clone, fills) == numbered("clone")
    assert execute(orders, fills) == numbered("original")
    assert execute(clone, fills) == execute(orders, fills) == []


def commit_one(paths: list[Path], chosen: Path, number: int) -> list[str]:
    """Commit a message of one queue in a fan-in of several; return the positions that moved."""
    with ExitStack() as stack:
        name = f"for-{chosen.name}"
        readers = [stack.enter_context(open_reader(path, name)) for path in paths]
        fan_in = stack.enter_context(FanIn(readers))
        before = [reader.committed for reader in readers]
        fan_in.commit([message for message in fan_in if message.source == chosen.name][number])
        moved = zip(paths, before, readers, strict=True)
        return [path.name for path, position, reader in moved if reader.committed != position]


@WAY
@pytest.mark.parametrize("written", [False, True], ids=["read only", "written to"])
def test_restored_clones_in_one_fan_in_are_committed_each_for_itself(
    tmp_path: Path, copy: Copy, written: bool
) -> None:
    paths = [tmp_path / name for name in ("first", "second", "third")]
    write(paths[0], *numbered("common"))
    for path in paths[1:]:
        copy(paths[0], path)
    if written:
        for path in paths:
            write(path, path.name.encode())
    for chosen in paths:
        assert commit_one(paths, chosen, 4) == [chosen.name]
        with open_reader(chosen, f"for-{chosen.name}") as reader:
            assert next(message.seq for message in reader) == 5
