"""Lists, retries and drops dead letters: messages that failed too often (dead_letter_mover.py).

The group ``dead`` of the dead-letter queue tracks them: retried and dropped ones are acknowledged there.
"""

import os
import time
from collections.abc import Callable, Container, Iterator
from itertools import islice
from pathlib import Path

from aiochronicle._core.dead_letter_mover import DeadLetter, is_known
from aiochronicle._core.group import Group, open_queue_group, undone_seqs
from aiochronicle._core.reader import open_reader
from aiochronicle._core.writer import Writer
from aiochronicle._core.writer_opening import open_writer
from aiochronicle._hot import Delivery
from aiochronicle._layout import CONTROL, SHARED
from aiochronicle.errors import QueueNotFound, ReaderNotFound

__all__ = ["drop_dead_letters", "list_dead_letters", "retry_dead_letters"]

GROUP = "dead"
_WINDOW = 65536
_WAIT_MAX_S = 5.0


def _open_dead(place: str | os.PathLike[str]) -> Group[DeadLetter]:
    return open_queue_group(
        place,
        GROUP,
        lease_s=600,
        max_in_flight=_WINDOW,
        retry_s=0,
        codec=DeadLetter,
        on_corrupt="skip",
    )


def _process_each(
    place: str | os.PathLike[str],
    seqs: Container[int] | None,
    process: Callable[[Delivery[DeadLetter]], None],
) -> list[int]:
    """Process the dead letters with these seqs, or all if None; return the seqs that existed."""
    done: list[int] = []
    others: list[Delivery[DeadLetter]] = []  # kept until the end, or they would be delivered again
    deadline_s = time.monotonic() + _WAIT_MAX_S
    with _open_dead(place) as group:
        while True:
            for delivery in group.take_batch(_WINDOW):
                if seqs is None or delivery.seq in seqs:
                    process(delivery)
                    done.append(delivery.seq)
                if not delivery.settled:
                    others.append(delivery)
            if group.info().in_flight <= group.in_flight or time.monotonic() > deadline_s:
                break
            group.wait(0.02)  # another process is reading dead letters right now
        del others
    return sorted(done)


def list_dead_letters(
    path: str | os.PathLike[str],
) -> list[tuple[int, DeadLetter]]:
    """Return (seq, dead letter) for each dead letter that was neither retried nor dropped.

    At most the first 65,536. QueueNotFound if there is no such queue. It only reads: the list has dead
    letters that another process is retrying at this moment.

    >>> list_dead_letters(tmp_path / "dead")
    Traceback (most recent call last):
    ...
    aiochronicle.errors.QueueNotFound: ...
    """
    try:
        seqs = set(undone_seqs(path, GROUP, _WINDOW))
    except ReaderNotFound:  # none has been retried or dropped yet
        seqs = None
    if seqs is not None and not seqs:
        return []
    with open_reader(path, start="first", codec=DeadLetter, on_corrupt="skip") as reader:
        if seqs:
            reader.seek(min(seqs))
        found = (one for one in reader if seqs is None or one.seq in seqs)
        return [(message.seq, message.decode()) for message in islice(found, _WINDOW)]


def drop_dead_letters(
    path: str | os.PathLike[str], seqs: Container[int] | None = None
) -> list[int]:
    """Discard the dead letters with these seqs, or all if None; return the seqs that existed."""
    return _process_each(path, seqs, lambda delivery: delivery.ack())


def retry_dead_letters(
    path: str | os.PathLike[str],
    seqs: Container[int] | None = None,
    *,
    to: str | os.PathLike[str] | None = None,
    lock_timeout: float = 0,
) -> list[int]:
    """Append the payloads of dead letters to the queue that they came from, or to another; return their seqs.

    Raises LockedError if another writer keeps that queue open for longer than ``lock_timeout`` seconds. A
    queue of a topic with many writers may be open. Payload, type_id, key and headers stay the same; the
    timestamp is the current time. The cause is the dead letter, so if the process dies, no dead letter is
    retried twice.
    """
    writers: dict[str, Writer] = {}
    known: dict[str, set[tuple[int, int]]] = {}  # causes in the queues of dead letters tried before

    def retry(delivery: Delivery[DeadLetter]) -> None:
        letter = delivery.message.decode()
        place = os.fspath(to) if to is not None else letter.place
        if place not in writers:
            if not _queues_of(place):
                raise QueueNotFound(
                    f"the queue of dead letter {delivery.seq} no longer exists: give another one as to=",
                    path=str(place),
                )
            writers[place] = _open_queue(place, lock_timeout)
        if delivery.attempt > 1 and place not in known:
            known[place] = set(_causes_of(place))
        if not is_known(delivery.message, known.get(place, ())):
            writers[place].append(
                letter.payload,
                type_id=letter.type_id,
                cause=delivery.message,
                key=delivery.message.key,
                headers=delivery.message.headers,
            )
            writers[place].flush_now()
        delivery.ack()

    try:
        return _process_each(path, seqs, retry)
    finally:
        for writer in writers.values():
            writer.close()


def _topic_of(place: str) -> Path | None:
    """Return the topic with many writers that a queue is in."""
    topic = Path(place).parent.parent
    return topic if (topic / SHARED).exists() else None


def _queues_of(place: str) -> list[Path]:
    """Return the queue, and the queues of other writers of its topic."""
    topic = _topic_of(place)
    found = [Path(place)] if topic is None else sorted((topic / "queue").iterdir())
    return [queue for queue in found if (queue / CONTROL).exists()]


def _open_queue(place: str, lock_timeout: float) -> Writer:
    """Open the queue, or a new queue of its topic if that has many writers, which needs no lock."""
    topic = _topic_of(place)
    if topic is not None:
        return open_writer(topic, shared=True)
    return open_writer(place, lock_timeout=lock_timeout)


def _causes_of(place: str | os.PathLike[str]) -> Iterator[tuple[int, int]]:
    for queue in _queues_of(os.fspath(place)):
        with open_reader(queue, start="first", on_corrupt="skip") as reader:
            for message in reader:
                if message.cause is not None:
                    yield message.cause
