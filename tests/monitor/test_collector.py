"""The collector, tested on real queues of other processes."""

import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest
from helpers.users import STRANGER, run_as

from aiochronicle import Retention, Roll, open_reader, open_writer
from aiochronicle.monitor.collector import Collector, Limits, QueueState, Snapshot
from aiochronicle.monitor.records import Event
from monitor.processes import MEMBER, READER, WRITER, program, until


def state(snapshot: Snapshot, name: str) -> QueueState:
    return next(queue for queue in snapshot.queues if queue.name == name)


def kinds(collector: Collector, name: str) -> list[str]:
    return [event.kind for event in collector.events if event.name == name]


def happened(collector: Collector, kind: str, times: int = 1) -> bool:
    collector.look()
    return kinds(collector, "a").count(kind) >= times


def event(collector: Collector, kind: str) -> Event:
    return next(one for one in collector.events if one.kind == kind)


def test_rates_lag_and_processes_are_those_of_the_queue(tmp_path: Path) -> None:
    with (
        program(WRITER, tmp_path / "a", 200) as writer,
        program(READER, "risk", tmp_path / "a") as reader,
        Collector(tmp_path) as collector,
    ):
        open_reader(tmp_path / "a", "late", start="first").close()
        until(lambda: state(collector.look(), "a").rate > 50, "no rate")
        seen = state(collector.look(), "a")
        assert seen.problem is None
        assert seen.format == "native"
        assert seen.writer is not None
        assert (seen.writer.state, seen.writer.pid) == ("open", writer.pid)
        assert {one.name: one.pid for one in seen.readers} == {"late": None, "risk": reader.pid}
        assert seen.worst is not None
        assert seen.worst.name == "late"
        assert seen.rate < 250
        assert collector.look().alarms == ()


def test_what_a_roll_left_empty_was_not_written(tmp_path: Path) -> None:
    roll = Roll(messages=10)
    with (
        open_writer(tmp_path / "a", segment_size=1 << 20, roll=roll) as writer,
        Collector(tmp_path) as collector,
    ):

        def is_known() -> bool:
            for _ in range(25):
                writer.append(bytes(64))
            seen = state(collector.look(), "a")
            assert seen.rate_bytes < 200 * seen.rate or not seen.rate
            return seen.rate_bytes > 100 * seen.rate > 0

        until(is_known, "no rate")


def test_a_killed_writer_is_noticed_at_once(tmp_path: Path) -> None:
    with program(WRITER, tmp_path / "a", 50) as writer, Collector(tmp_path) as collector:
        assert collector.look().alarms == ()
        assert not select.select([collector], [], [], 0)[0]
        writer.kill()
        assert select.select([collector], [], [], 1)[0], "nothing said that the process ended"
        snapshot = collector.look()
        seen = kinds(collector, "a")
        assert [kind for kind in seen if kind != "slow append"] == ["opened", "killed"]
        (alarm,) = snapshot.alarms
        assert alarm.level == "critical"
        assert f"pid {writer.pid}" in alarm.text
        assert not select.select([collector], [], [], 0)[0]


def test_events_of_a_life(tmp_path: Path) -> None:
    """Events: opened, rolled, retained, killed, recovered, closed, vanished, appeared."""
    path = tmp_path / "a"
    with Collector(tmp_path) as collector:
        collector.look()
        with program(WRITER, path, 100) as writer:
            until(lambda: collector.look().queues, "not found")
            writer.kill()
        until(lambda: happened(collector, "killed"), "not killed")
        rules = Retention(max_bytes=1 << 16, check_interval_s=0.05)
        with open_writer(path, segment_size=1 << 16, retention=rules) as again:
            until(lambda: happened(collector, "recovered"), "unrecovered")
            for _ in range(4000):
                again.append(b"x" * 50)
            until(lambda: happened(collector, "retained"), "not retained")
        until(lambda: happened(collector, "closed"), "not closed")
        shutil.rmtree(path)
        until(lambda: not collector.look().queues, "not gone")
        open_writer(path).close()
        until(lambda: collector.look().queues, "not back")
        seen = kinds(collector, "a")
        for kind in ("appeared", "opened", "rolled", "retained", "killed", "closed", "vanished"):
            assert kind in seen
        assert seen.index("killed") < seen.index("recovered") < seen.index("closed")
        assert event(collector, "rolled").count >= 3
        assert "records checked" in event(collector, "recovered").text
        assert len(collector.events) < 30


def test_events_of_readers(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with open_writer(path) as writer, Collector(tmp_path) as collector:
        writer.append(b"x")
        collector.look()
        with program(READER, "risk", path) as reader:
            until(lambda: happened(collector, "reader opened"), "unopened")
            reader.kill()
            reader.wait()
        until(lambda: happened(collector, "reader killed"), "unkilled")
        open_reader(path, "audit").close()
        (path / "readers" / "audit.meta").unlink()
        with open_reader(path, "audit"):
            until(lambda: happened(collector, "reader opened", times=2), "unopened")
        until(lambda: happened(collector, "reader closed"), "unclosed")
        (path / "readers" / "audit.meta").unlink()
        until(lambda: happened(collector, "reader forgotten"), "kept")


def test_damage_is_a_row_with_the_reason(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        with open_writer(tmp_path / name) as writer:
            writer.append(b"x")
    with Collector(tmp_path) as collector:
        assert collector.look().alarms == ()
        control = tmp_path / "bad" / "control.meta"
        kept = control.read_bytes()
        control.write_bytes(b"\xff" * 10)
        until(lambda: state(collector.look(), "bad").problem, "no problem")
        snapshot = collector.look()
        assert state(snapshot, "good").problem is None
        assert [alarm.level for alarm in snapshot.alarms] == ["critical"]
        control.write_bytes(kept)
        until(lambda: state(collector.look(), "bad").problem is None, "still a problem")
        assert kinds(collector, "bad")[-2:] == ["unreadable", "readable"]
        assert state(collector.look(), "bad").next_seq == 1


def look_once(root: Path) -> list[tuple[str, str | None]]:
    with Collector(root) as collector:
        return [(queue.name, queue.problem) for queue in collector.look().queues]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_what_may_not_be_read_is_a_row_with_the_reason() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        for name in ("open", "closed"):
            with open_writer(root / name, mode=0o644) as writer:
                writer.append(b"x")
        (root / "open").chmod(0o755)
        (root / "closed").chmod(0o700)
        found = dict(run_as(STRANGER, lambda: look_once(root)))
    assert found["open"] is None
    assert "ermission" in found["closed"]


def test_members_that_take_turns_do_not_open_the_group_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with open_writer(path) as writer, Collector(tmp_path) as collector:
        writer.append_many([b"x"] * 3)
        collector.look()
        with program(MEMBER, path, "billing"):
            until(lambda: happened(collector, "reader opened"), "unopened")
            with program(MEMBER, path, "billing"):
                until(lambda: len(state(collector.look(), "a").groups[0].members) == 2, "alone")
        assert kinds(collector, "a").count("reader opened") == 1


def test_names_are_safe_to_print(tmp_path: Path) -> None:
    hostile = os.fsdecode(b"\xff\xfe\x1b[2J")
    for name in ("<script>alert(1)</script>".replace("/", "\u2215"), hostile):
        open_writer(tmp_path / name).close()
    with Collector(tmp_path) as collector:
        names = [queue.name for queue in collector.look().queues]
    assert all(name.isprintable() for name in names)
    assert "\\xff\\xfe\\x1b[2J" in names


def test_a_queue_made_anew_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with open_writer(path) as writer:
        writer.append_many([b"x"] * 10)
    with Collector(tmp_path) as collector:
        assert state(collector.look(), "a").next_seq == 10
        shutil.rmtree(path)
        with open_writer(path) as writer:
            writer.append(b"x")
        until(lambda: state(collector.look(), "a").next_seq == 1, "the old one is still seen")


def test_a_late_reader_is_an_alarm_only_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "a"
    limits = Limits(max_lag_s=0.01, lag_is_critical=True)
    with open_writer(path) as writer, Collector(tmp_path, limits=limits) as collector:
        open_reader(path, "away").close()
        with open_reader(path, "slow"):
            writer.append(b"x")
            time.sleep(0.05)
            (alarm,) = collector.look().alarms
            assert alarm.level == "critical"
            assert "'slow' is late" in alarm.text
        until(lambda: not collector.look().alarms, "still late")


def test_a_stopped_writer_is_a_warning(tmp_path: Path) -> None:
    with program(WRITER, tmp_path / "a", 50) as writer, Collector(tmp_path) as collector:
        os.kill(writer.pid, signal.SIGSTOP)
        until(lambda: collector.look().alarms, "not noticed")
        (alarm,) = collector.look().alarms
        assert alarm.level == "warning"
        assert "is stopped" in alarm.text


def test_a_root_that_goes_and_comes_is_said(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with Collector(root) as collector:
        assert collector.look().problem is None
        root.rmdir()
        until(lambda: collector.look().problem, "not noticed")
        assert "no such directory" in str(collector.look().problem)
        root.mkdir()
        until(lambda: collector.look().problem is None, "not noticed")


def test_history_is_bounded_and_has_holes(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a") as writer, Collector(tmp_path) as collector:
        collector.look()
        open_writer(tmp_path / "b").close()
        until(lambda: len(collector.look().queues) == 2, "no second one")
        for _ in range(310):
            writer.append(b"x")
            collector.look()
        snapshot = collector.look()
        history = collector.history
        series = history.series("rate", state(snapshot, "a").number)
        assert len(series.values) == len(series.times_ns) == history.points
        assert series.values[-1] > 0
        assert len(history.series("rate").values) == history.points
        assert history.series("rate", 12345).values == []


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_it_opens_no_descriptor_per_queue(tmp_path: Path) -> None:
    for number in range(20):
        open_writer(tmp_path / f"q{number}").close()
    before = descriptors()
    with Collector(tmp_path) as collector:
        collector.look()
        assert descriptors() <= before + 2
    assert descriptors() == before
