"""why_kept explains why segments are kept; test_kept.c tests the rules themselves."""

from pathlib import Path

import pytest
from helpers.waiting import eventually

from aiochronicle import (
    Queue,
    Retention,
    Roll,
    Writer,
    inspect,
    list_readers,
    open_reader,
    open_writer,
    why_kept,
)
from aiochronicle.errors import QueueNotFound

NEVER = 1000.0


def filled(path: Path, retention: Retention | None) -> Writer:
    writer = open_writer(path, segment_size=4096, roll=Roll(messages=2), retention=retention)
    for number in range(10):
        writer.append(b"%d" % number)
    writer.flush_now()
    return writer


def reasons(path: Path) -> list[str]:
    return [kept.why for kept in why_kept(path) if kept.why != "active"]


def test_without_retention(queue_path: Path) -> None:
    with filled(queue_path, None):
        assert set(reasons(queue_path)) == {"no retention"}
        with Queue(queue_path) as queue:
            assert queue.why_kept() == why_kept(queue_path)


def test_each_reader_is_named(queue_path: Path) -> None:
    with (
        filled(queue_path, Retention(check_interval_s=NEVER)),
        open_reader(queue_path, "slow") as slow,
        open_reader(queue_path, "quick") as quick,
    ):
        for message in quick.read_batch(6):
            quick.commit(message)
        for message in slow.read_batch(3):
            slow.commit(message)
        kept = why_kept(queue_path)
        assert [(k.segment, k.why, k.reader, k.readers) for k in kept[:4]] == [
            (0, "goes", None, 0),
            (1, "reader", "slow", 1),
            (2, "reader", "slow", 2),
            (3, "reader", "slow", 2),
        ]
        assert "'slow'" in kept[1].text
        assert kept[1].bytes == 4096
        held = {info.name: info.keeps_segments for info in list_readers(queue_path)}
        assert held == {"slow": 3, "quick": 2}


def test_it_agrees_with_what_retention_does(queue_path: Path) -> None:
    retention = Retention(max_bytes=3 * 4096, check_interval_s=NEVER)
    with filled(queue_path, retention) as writer:
        goes = [kept for kept in why_kept(queue_path) if kept.why == "goes"]
        assert goes
        assert {kept.limit for kept in goes} == {"max_bytes"}

        def is_gone() -> bool:
            writer.retain_now()  # which spares segments that are not sealed yet
            return inspect(queue_path).first_segment == goes[-1].segment + 1

        eventually(is_gone)
        assert "goes" not in reasons(queue_path)
        assert set(reasons(queue_path)) <= {"limits"}


def test_one_that_is_away_and_one_that_never_came(queue_path: Path) -> None:
    with filled(queue_path, Retention(check_interval_s=NEVER)) as writer:
        assert set(reasons(queue_path)) == {"no reader"}
        open_reader(queue_path, "away").close()
        assert {(k.why, k.reader) for k in why_kept(queue_path)[:3]} == {("away", "away")}
        writer.configure(retention=Retention(max_age_s=1e-6, wait_for="archive"))
    assert {(k.why, k.reader) for k in why_kept(queue_path)[:3]} == {("wait_for", "archive")}


def test_nobody_removes_while_nobody_writes(queue_path: Path) -> None:
    filled(queue_path, Retention(max_bytes=1, check_interval_s=NEVER)).close()
    before = sorted(queue_path.iterdir())
    assert set(reasons(queue_path)) <= {"no writer"}
    (queue_path / "statistics.meta").unlink()
    assert set(reasons(queue_path)) <= {"unknown"}
    assert sorted(queue_path.iterdir()) == [
        path for path in before if path.name != "statistics.meta"
    ]


def test_there_is_no_queue(tmp_path: Path) -> None:
    with pytest.raises(QueueNotFound):
        why_kept(tmp_path)
