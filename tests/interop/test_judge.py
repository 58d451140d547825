"""The judge itself: Java reads what Java writes, for every request that other tests use."""

import hashlib
import re
from pathlib import Path

import pytest

from .building import VERSION, JudgeUnavailable, build
from .judge import JavaThrew, Judge, JudgeDied, JudgeTimeout, pattern

NOON_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LARGEST = 16 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue"


def test_the_library_is_the_one_that_was_asked_for(judge: Judge) -> None:
    assert judge.version == VERSION
    assert judge.ask("hello")["library"].endswith(f"/chronicle-queue-{VERSION}.jar")


def test_text_is_read_as_it_was_written(judge: Judge, path: Path) -> None:
    with judge.open(path, roll_cycle="TEST_DAILY", time_ms=NOON_MS) as queue:
        indexes = queue.append_text("one", "", "é😀")
        messages = queue.read_all()
    assert indexes == [NOON_MS // DAY_MS << 32 | seq for seq in range(3)]
    assert [message.index for message in messages] == indexes
    assert [message.payload for message in messages] == [
        b"\xe3one",
        b"\xe0",
        b"\xe8\xc3\xa9\xed\xa0\xbd\xed\xb8\x80",
    ]


def test_bytes_are_read_as_they_were_written(judge: Judge, path: Path) -> None:
    payloads = [bytes([length % 256]) * length for length in (1, 2, 3, 4, 5, 4095)]
    with judge.open(path, roll_cycle="TEST4_DAILY") as queue:
        queue.append_bytes(*payloads)
        assert [message.payload for message in queue.read_all()] == payloads


def test_the_largest_message(judge: Judge, path: Path) -> None:
    with judge.open(path) as queue:
        index = queue.append_pattern(LARGEST, seed=3)
        [message] = queue.read_all()
        assert (message.index, message.length) == (index, LARGEST)
        assert message.sha256 == hashlib.sha256(pattern(LARGEST, 3)).hexdigest()
        with pytest.raises(JavaThrew):
            queue.append_pattern(LARGEST + 1)


def test_empty_metadata_and_rolled_back_documents(judge: Judge, path: Path) -> None:
    with judge.open(path, roll_cycle="TEST_DAILY") as queue:
        queue.append_bytes(b"first")
        queue.append_metadata(b"meta")
        queue.roll_back(b"gone")
        queue.append_empty()
        assert [message.payload for message in queue.read_all()] == [b"first", b"\x8f"]
        with queue.tailer() as tailer:
            seen = [message.payload for message in tailer.read(metadata=True) if message.metadata]
    assert b"meta" in seen


def test_a_document_with_fields(judge: Judge, path: Path) -> None:
    with judge.open(path) as queue:
        queue.append_fields([("px", ["f64", "1.5"]), ("12", ["i32", 1]), ("é", ["text", "é"])])
        [message] = queue.read_all()
    assert message.payload.hex(" ") == "c2 70 78 92 96 01 ba 0c a1 01 c1 e9 e2 c3 a9"


def test_calls_are_read_by_the_method_reader(judge: Judge, path: Path) -> None:
    calls: list[list[tuple[str, list[list[object] | None]]]] = [
        [("none", [])],
        [("two", [["text", "a"], ["i64", 7]])],
        [("text", [None])],
        [("numbered", [["i64", 9]])],
        [("to", [["text", "x"]]), ("via", [["i64", 3]]), ("say", [["text", "hi"]])],
        [("any", [["list", [["i32", 1], ["side", "BUY"]]]])],
    ]
    with judge.open(path) as queue:
        queue.append_calls(*calls)
        with queue.tailer() as tailer:
            heard = tailer.read_calls()
    assert heard == [
        ("none", []),
        ("two", [["String", "a"], ["Long", 7]]),
        ("text", [None]),
        ("numbered", [["Long", 9]]),
        ("to", [["String", "x"]]),
        ("via", [["Long", 3]]),
        ("say", [["String", "hi"]]),
        ("any", [["ArrayList", [["Integer", 1], ["Side", "BUY"]]]]),
    ]


def test_reading_backwards_seeking_and_limits(judge: Judge, path: Path) -> None:
    payloads = [b"%d" % number for number in range(40)]
    with judge.open(path, roll_cycle="TEST_DAILY") as queue:
        indexes = queue.append_bytes(*payloads)
        with queue.tailer(start="end", backward=True) as tailer:
            assert [message.payload for message in tailer.read()] == payloads[::-1]
        with queue.tailer(start=indexes[7]) as tailer:
            assert [message.payload for message in tailer.read(2)] == payloads[7:9]
            assert tailer.seek(indexes[39], indexes[39] + 1, indexes[20]) == [True, False, True]
            assert tailer.read(1)[0].payload == payloads[20]


def test_a_named_tailer_goes_on_where_it_was(judge: Judge, path: Path) -> None:
    with judge.open(path) as queue:
        queue.append_bytes(b"1", b"2", b"3")
        with queue.tailer("name") as tailer:
            assert [message.payload for message in tailer.read(2)] == [b"1", b"2"]
        with queue.tailer("name") as tailer:
            assert [message.payload for message in tailer.read()] == [b"3"]


def test_the_clock_stands_until_it_is_set(judge: Judge, path: Path) -> None:
    with judge.open(path, roll_cycle="TEST_SECONDLY", time_ms=NOON_MS) as queue:
        first = queue.append_bytes(b"1", b"2")
        queue.set_time(NOON_MS + 3000)
        second = queue.append_bytes(b"3")
        info = queue.info()
        assert (first[0] >> 32, second[0] >> 32) == (NOON_MS // 1000, NOON_MS // 1000 + 3)
        assert (info.entry_count, info.first_index, info.last_index) == (3, first[0], second[0])
        assert (info.first_cycle, info.last_cycle) == (first[0] >> 32, second[0] >> 32)
        assert info.files == ["20231114-221320T.cq4", "20231114-221323T.cq4"]
        assert [message.payload for message in queue.read_all()] == [b"1", b"2", b"3"]


def test_a_shifted_clock(judge: Judge, tmp_path: Path) -> None:
    with judge.open(tmp_path / "now", roll_cycle="TEST_DAILY") as queue:
        today = queue.info().cycle
    with judge.open(tmp_path / "then", roll_cycle="TEST_DAILY", shift_ms=-10 * DAY_MS) as queue:
        assert queue.info().cycle in (today - 10, today - 9)  # midnight may have passed


def test_dump_and_sync(judge: Judge, path: Path) -> None:
    with judge.open(path, roll_cycle="TEST_DAILY") as queue:
        queue.append_text("hello")
        queue.sync()
        text = queue.dump()
    assert re.search(r"--- !!data #binary\nhello\n", text), text
    assert re.search(r"chronicle.lastIndexMSynced: \d+", text), text


def test_another_jvm_follows_a_writer_over_rolls(judge: Judge, path: Path) -> None:
    with judge.open(path, roll_cycle="TEST_SECONDLY") as queue, Judge() as other:
        queue.start_append(prefix="a", count=300, rate_hz=150)
        with other.open(path) as same, same.tailer() as tailer:
            messages = tailer.read(300, wait_s=20)
        written = queue.stop_append(let_finish=True)
        files = queue.info().files
    assert (written.written, written.thrown) == (300, None)
    assert [message.payload for message in messages] == [b"a:%d" % n for n in range(300)]
    assert written.last_index == messages[-1].index
    assert len(files) > 1


def test_a_live_holder_of_the_lock_is_waited_for_in_vain(judge: Judge, path: Path) -> None:
    with judge.open(path, roll_cycle="TEST_DAILY", timeout_ms=500) as queue, Judge() as other:
        with other.open(path) as held:
            held.hold_lock(b"half")
            with pytest.raises(JavaThrew, match="UnrecoverableTimeoutException"):
                queue.append_bytes(b"never")
            held.release_lock()
            queue.append_bytes(b"then")
        assert [message.payload for message in queue.read_all()] == [b"then"]


def test_the_lock_of_a_killed_holder_is_taken_over(judge: Judge, path: Path) -> None:
    with judge.open(path, roll_cycle="TEST_DAILY", timeout_ms=500) as queue, Judge() as other:
        queue.append_bytes(b"before")
        other.open(path).hold_lock(b"half of a message")
        other.kill()
        queue.append_bytes(b"after")
        assert [message.payload for message in queue.read_all()] == [b"before", b"after"]


def test_a_frozen_jvm_is_given_up_and_a_killed_one_is_noticed() -> None:
    with Judge() as judge:
        judge.stop()
        with pytest.raises(JudgeTimeout):
            judge.ask("hello", timeout_s=0.2)
        with pytest.raises(JudgeDied):
            judge.ask("hello")


def test_without_java_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JudgeUnavailable, match="java is not installed"):
        build()


def test_what_java_throws_is_raised_and_the_jvm_goes_on(judge: Judge, tmp_path: Path) -> None:
    with pytest.raises(JavaThrew, match="no roll cycle WEEKDAYS"):
        judge.open(tmp_path / "queue", roll_cycle="WEEKDAYS")
    assert judge.ask("hello")["pid"] == judge.pid


def test_the_table_of_roll_cycles(judge: Judge) -> None:
    table = {cycle.name: cycle for cycle in judge.roll_cycles([NOON_MS], [0, 61_200_000])}
    assert len(table) >= 27
    huge = table["HUGE_DAILY_XSPARSE"]
    assert (huge.format, huge.index_count, huge.index_spacing) == ("yyyyMMdd'HX'", 16384, 1 << 20)
    assert (huge.shift, huge.max_messages) == (48, 0xFFFFFFFFFFFF)
    assert [file.name for file in table["FAST_DAILY"].files] == ["20231114F", "20231114F"]
    assert [file.cycle for file in table["MINUTELY"].files] == [28333333, 28332313]


def test_the_wire_without_a_queue(judge: Judge) -> None:
    encoded = judge.encode([["i64", 300], ["f64", "1.5"], None, ["text", "é"]])
    assert [each.hex() for each in encoded] == ["a52c01", "929601", "bb", "e2c3a9"]
    assert judge.decode(encoded[:3]) == [["Short", 300], ["Double", "1.5"], None]
    assert judge.decode([b"\x90\x00\x00\x00\x5f"], "i64") == [["Long", 2**63 - 1]]
