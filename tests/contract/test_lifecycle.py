"""Opening, reopening, threads, fork, killed writers, and causes."""

import threading
from pathlib import Path

import pytest

from aiochronicle.errors import InvalidArgument, LockedError, WrongType
from contract.backend import SMALL_SEGMENT, Backend


def test_seqs_go_on_after_reopening(backend: Backend, queue_path: Path) -> None:
    for round_ in range(20):
        with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
            assert writer.next_seq == round_ * 7
            for number in range(7):
                assert writer.append(b"x") == round_ * 7 + number
            if round_:
                assert writer.recovery.clean
                assert writer.recovery.records_scanned == 0
            assert writer.statistics().messages == 7
    with backend.open_reader(queue_path) as reader:
        assert [message.seq for message in reader] == list(range(140))


@pytest.mark.needs("segments")
def test_reopening_keeps_the_segment_size(backend: Backend, queue_path: Path) -> None:
    backend.fill(queue_path, 1, segment_size=SMALL_SEGMENT)
    with backend.open_writer(queue_path, segment_size=1 << 20) as writer:
        assert writer.statistics().segment_size == SMALL_SEGMENT


@pytest.mark.needs("one writer")
def test_second_writer_is_told_who_holds_the_queue(backend: Backend, queue_path: Path) -> None:
    code = """
with backend.open_writer(sys.argv[1]) as writer:
    writer.append(b"mine")
    print("ready", flush=True)
    sys.stdin.read()
"""
    with backend.start(code, queue_path) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(LockedError, match=rf"\b{child.pid}\b") as caught:
            backend.open_writer(queue_path)
        assert str(queue_path) in str(caught.value)
        child.stdin.close()
        assert child.wait(30) == 0
    with backend.open_writer(queue_path) as writer:
        assert writer.append(b"next") == 1
        with pytest.raises(LockedError):
            backend.open_writer(queue_path)


def test_killed_writer_loses_nothing(backend: Backend, queue_path: Path) -> None:
    code = """
writer = backend.open_writer(sys.argv[1])
for number in range(100):
    writer.append(b"%d" % number)
print("ready", flush=True)
sys.stdin.read()
"""
    with backend.start(code, queue_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.kill()
    with backend.open_writer(queue_path) as writer:
        if "recovery" in backend.features:
            assert not writer.recovery.clean
        assert writer.append(b"100") == 100
    assert backend.payloads(queue_path) == [b"%d" % number for number in range(101)]


def test_threads_share_a_writer(backend: Backend, queue_path: Path) -> None:
    """Small segments make the threads meet in the slow path, too."""
    threads, each = 4, 1500
    returned: list[list[int]] = [[] for _ in range(threads)]
    barrier = threading.Barrier(threads)

    with backend.open_writer(queue_path, segment_size=1 << 15) as writer:

        def work(mine: int) -> None:
            barrier.wait()
            for number in range(0, each, 3):
                returned[mine].append(writer.append(b"%d %d" % (mine, number)))
                pair = [b"%d %d" % (mine, number + 1), b"%d %d" % (mine, number + 2)]
                returned[mine] += writer.append_many(pair)

        workers = [threading.Thread(target=work, args=(mine,)) for mine in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert writer.statistics().messages == threads * each
    with backend.open_reader(queue_path) as reader:
        messages = list(reader)
    assert [message.seq for message in messages] == list(range(threads * each))
    stamps = [message.timestamp_ns for message in messages]
    assert stamps == sorted(stamps)
    for mine in range(threads):
        expected = [b"%d %d" % (mine, number) for number in range(each)]
        assert [messages[seq].payload for seq in returned[mine]] == expected
        assert returned[mine] == sorted(returned[mine])


def test_fork_gives_closed_handles(backend: Backend, queue_path: Path) -> None:
    code = """
from aiochronicle.errors import ForkedError
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork with threads
writer = backend.open_writer(sys.argv[1])
reader = backend.open_reader(sys.argv[1], "forked")
writer.append(b"parent 0")
message = reader.poll()
reader.commit()
pid = os.fork()
if pid == 0:
    status = 1
    try:
        assert writer.closed and reader.closed
        assert message.payload == b"parent 0"
        calls = [
            lambda: writer.append(b"child"),
            lambda: writer.append_many([b"child"]),
            lambda: writer.reserve(1).__enter__(),
            writer.flush_now,
            writer.heartbeat,
            reader.poll,
            reader.commit,
            lambda: reader.seek(0),
            lambda: reader.wait(0),
        ]
        for call in calls:
            try:
                call()
            except ForkedError:
                pass
            else:
                raise AssertionError("no ForkedError")
        writer.close()
        reader.close()
        with backend.open_reader(sys.argv[1]) as own:
            assert [m.payload for m in own] == [b"parent 0"]
        try:
            backend.open_writer(sys.argv[1]).close()
        except Exception as error:
            assert type(error).__name__ == "LockedError", error
        else:
            assert "one writer" not in backend.features, "the parent still holds it"
        del writer, reader
        status = 0
    finally:
        os._exit(status)
assert os.waitpid(pid, 0)[1] == 0
assert writer.append(b"parent 1") == 1
assert reader.poll().payload == b"parent 1"
reader.commit()
reader.close()
writer.close()
"""
    with backend.start(code, queue_path) as child:
        assert child.wait(30) == 0
    assert backend.payloads(queue_path) == [b"parent 0", b"parent 1"]
    assert backend.payloads(queue_path, "forked") == []


def test_child_of_a_dead_parent_does_not_hold_the_lock(backend: Backend, queue_path: Path) -> None:
    code = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
writer = backend.open_writer(sys.argv[1])
writer.append(b"x")
reader = backend.open_reader(sys.argv[1], "name")
pid = os.fork()
if pid == 0:
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
os.waitpid(pid, 0)
"""
    with backend.start(code, queue_path) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        parent.wait()
        with backend.open_writer(queue_path) as writer:
            assert writer.append(b"y") == 1
        assert backend.payloads(queue_path, "name") == [b"x", b"y"]
        parent.stdin.close()  # lets the orphan exit


def test_statistics_of_a_writer(backend: Backend, queue_path: Path) -> None:
    with backend.open_writer(queue_path, segment_size=SMALL_SEGMENT) as writer:
        for _ in range(40):
            writer.append(b"12345")
        writer.append_many([b"123"] * 4)
        statistics = writer.statistics()
        assert (statistics.messages, statistics.next_seq) == (44, 44)
        assert statistics.payload_bytes == 40 * 5 + 4 * 3
        assert statistics.batches == 1
        if "segments" in backend.features:
            assert statistics.rolls == 1
            assert statistics.record_bytes == 44 * 128
        assert (statistics.sync_errors, statistics.last_error) == (0, "")
        if "cause" in backend.features:
            assert statistics.queue_id != 0
        assert "next_seq=44" in repr(writer)
        assert str(queue_path) in repr(writer)
        assert writer.path == str(queue_path)


# causes


@pytest.mark.needs("cause")
def test_cause_is_kept(backend: Backend, tmp_path: Path) -> None:
    backend.fill(tmp_path / "in", 3)
    with (
        backend.open_reader(tmp_path / "in") as reader,
        backend.open_writer(tmp_path / "out") as writer,
    ):
        messages = list(reader)
        for message in messages:
            writer.append(b"because", cause=message)
        writer.append(b"by hand", cause=(77, 88))
        writer.append(b"uncaused", cause=None)
        queue_id = messages[0].queue_id
        for wrong in (1, (1,), (1, 2, 3), "ab", (1.5, 0)):
            with pytest.raises(WrongType, match="cause must be"):
                writer.append(b"x", cause=wrong)  # type: ignore[arg-type]
        for out_of_range in ((-1, 0), (1, 1 << 64)):
            with pytest.raises(InvalidArgument, match="cause must be"):
                writer.append(b"x", cause=out_of_range)
        with pytest.raises(InvalidArgument, match="no id"):
            writer.append(b"x", cause=(0, 5))
    with backend.open_reader(tmp_path / "out") as reader:
        causes = [message.cause for message in reader]
    assert causes == [(queue_id, 0), (queue_id, 1), (queue_id, 2), (77, 88), None]


@pytest.mark.needs("cause")
def test_a_batch_may_have_a_cause(backend: Backend, tmp_path: Path) -> None:
    backend.fill(tmp_path / "in", 3)
    with backend.open_reader(tmp_path / "in") as reader:
        *_, message = reader
        queue_id = message.queue_id
        with backend.open_writer(tmp_path / "out") as writer:
            writer.append_many([b"1", b"2"], cause=message)
            writer.append_many([b"3"], type_id=5, cause=(77, 88))
            writer.append_many([b"4"])
            with pytest.raises(InvalidArgument, match="cause must be"):
                writer.append_many([b"5"], cause=7)  # type: ignore[arg-type]
            assert writer.last_cause(message) == message.seq
        del message
    with backend.open_reader(tmp_path / "out") as reader:
        causes = [message.cause for message in reader]
    assert causes == [(queue_id, 2), (queue_id, 2), (77, 88), None]


@pytest.mark.needs("cause")
def test_last_cause_tells_where_to_resume(backend: Backend, tmp_path: Path) -> None:
    backend.fill(tmp_path / "in", 50)
    with backend.open_reader(tmp_path / "in") as reader:
        messages = list(reader)
    out = tmp_path / "out"
    for first in range(0, 50, 10):
        with backend.open_writer(out, segment_size=SMALL_SEGMENT) as writer:
            assert writer.last_cause(messages[0]) == (first - 1 if first else None)
            for message in messages[first : first + 10]:
                writer.append(message.payload, cause=message)
            for _ in range(50):  # moves them out of the newest segment
                writer.append(b"other")
            assert writer.last_cause(messages[0].queue_id) == first + 9
            assert writer.last_cause(12345) is None
