"""Each command in a separate process: its output, its effects and its exit status."""

import contextlib
import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pyarrow.ipc
import pyarrow.parquet
import pytest
from helpers.users import STRANGER, run_as

import aiochronicle
from aiochronicle import (
    Position,
    Queue,
    Retention,
    Roll,
    inspect,
    list_readers,
    open_reader,
    open_writer,
)
from aiochronicle._columns.export import replacing
from aiochronicle._core.newest import start_of_newest
from aiochronicle._core.position_files import decode_position, encode_position
from aiochronicle.cli import main
from cli.running import aioc, started


def copied(root: Path, tmp_path: Path, name: str = "trades") -> Path:
    """Return a copy of the queue that the test may change."""
    shutil.copytree(root / name, tmp_path / name)
    open_writer(tmp_path / name).close()  # gives it an id of its own
    return tmp_path / name


def json_lines(text: str) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in text.splitlines()]


def test_ls_lists_queues(root: Path) -> None:
    done = aioc("ls", root)
    assert done.status == 0
    heading, plain, trades = done.out.splitlines()
    assert heading.startswith("QUEUE   WRITER  SINCE  NEXT SEQ  RATE  READERS  WORST LAG  SEGMENTS")
    assert heading.endswith("OLDEST  LAST MESSAGE")
    assert plain.split()[0] == "plain"
    assert trades.split()[:3] == ["trades", "closed", "350"]
    found = aioc("ls", root, "--json").json
    assert [Path(one["path"]).name for one in found] == ["plain", "trades"]
    assert found[1]["next_seq"] == 350
    assert found[1]["worst_lag_reader"] == "risk"
    assert found[1]["worst_lag_messages"] == 350


def test_ls_shows_who_writes_how_much(live: tuple[Path, int]) -> None:
    path, pid = live
    found = aioc("ls", path.parent, "--json").json
    assert (found[0]["writer_state"], found[0]["writer_pid"]) == ("open", pid)
    assert found[0]["readers_open"] == 1
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert aioc("ls", path.parent, "--json").json[0]["writer_state"] == "died"


def test_ls_says_what_is_wrong(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path, "plain")
    (queue / "control.meta").write_bytes(b"?" * 512)
    done = aioc("ls", tmp_path)
    assert done.out.splitlines()[1].split() == ["plain", "unusable"]
    assert done.err.startswith("aioc: plain: magic is 0x3f3f3f3f")
    assert done.status == aioc("info", queue).status
    assert aioc("ls", tmp_path, "--json").json[0]["next_seq"] is None


def test_info_and_who(live: tuple[Path, int]) -> None:
    path, pid = live
    done = aioc("info", path)
    assert f"open, pid {pid}" in done.out
    assert "until all have read it" in done.out
    assert aioc("info", path, "--json").json["writer"]["pid"] == pid
    found = aioc("who", path, "--json").json
    assert [(one["role"], one["name"], one["pid"]) for one in found] == [
        ("writer", None, pid),
        ("reader", "risk", pid),
    ]


def test_info_and_ls_say_that_a_queue_is_a_backup(root: Path, tmp_path: Path) -> None:
    queue, backups = copied(root, tmp_path), tmp_path / "backups"
    first, second = (aioc("backup", queue, backups, "--json").json["path"] for _ in range(2))
    done = aioc("info", second)
    assert f"number 2 of {queue}" in done.out
    assert re.search(r"^made +20.* ago\)$", done.out, re.MULTILINE)
    assert re.search(r"^verified +when it was made, from segment 4 on", done.out, re.MULTILINE)
    assert re.search(r"^verified +when it was made$", aioc("info", first).out, re.MULTILINE)
    said = aioc("info", "000002", "--json", cwd=backups).json["backup"]
    assert (said["number"], said["queue"], said["verified_from"], said["corrupt"]) == (
        2,
        str(queue),
        4,
        0,
    )
    assert said["queue_id"] == inspect(queue).queue_id
    assert aioc("info", queue, "--json").json["backup"] is None
    assert [one["backup"] for one in aioc("ls", tmp_path, "--json").json] == [True, True, False]
    assert [line.split()[1] for line in aioc("ls", backups).out.splitlines()] == [
        "WRITER",
        "backup",
        "backup",
    ]
    done = aioc("info", backups)
    assert done.status == 3
    assert f"is a directory of backups. aioc backup --list {backups}" in done.err


def test_replay_of_backups_says_which_one_to_give(root: Path, tmp_path: Path) -> None:
    queue, backups = copied(root, tmp_path), tmp_path / "backups"
    for _ in range(2):
        aioc("backup", queue, backups)
    done = aioc("replay", backups, tmp_path / "new")
    assert (done.status, (tmp_path / "new").exists()) == (2, False)
    assert f"Give one of them, such as {backups / '000002'}." in done.err
    assert aioc("replay", backups / "000002", tmp_path / "new").status == 0
    assert inspect(tmp_path / "new" / "000002").next_seq == 350


def test_a_backup_of_another_version_is_listed_with_the_reason(root: Path, tmp_path: Path) -> None:
    queue, backups = copied(root, tmp_path), tmp_path / "backups"
    aioc("backup", queue, backups)
    manifest = backups / "000001" / "backup.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 9'))
    done = aioc("backup", "--list", backups)
    assert "version 9" in done.out
    assert "1970" not in done.out
    assert "version 9" in aioc("info", manifest.parent).out
    assert aioc("restore", backups, tmp_path / "again").status == 1


def test_readers_and_groups_of_a_topic_with_many_writers(tmp_path: Path) -> None:
    topic = tmp_path / "orders"
    with open_writer(topic, shared=True) as one, open_writer(topic, shared=True) as two:
        one.append_many([b"1", b"2"])
        two.append(b"3")
        with (
            aiochronicle.TopicReader(topic, "risk"),
            aiochronicle.open_group(topic, "team") as team,
        ):
            assert len(team.take_batch(2)) == 2
            found = {one["name"]: one for one in aioc("readers", topic, "--json").json}
            assert [found[name]["lag"]["messages"] for name in ("risk", "team")] == [3, 3]
            assert found["team"]["group"]["pending"] == 3
            assert found["risk"]["group"] is None
            assert "group team: 3 pending" in aioc("readers", topic).out
            assert aioc("readers", "forget", topic, "team").status != 0
        assert aioc("readers", "forget", topic, "team").out == "team: forgotten\n"
        assert [one.name for one in list_readers(topic)] == ["risk"]


def test_readers_are_listed_moved_and_forgotten(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path)
    found = aioc("readers", queue, "--json").json
    assert [(one["name"], one["committed_seq"], one["live"]) for one in found] == [
        ("audit", 120, False),
        ("risk", 0, False),
    ]
    assert aioc("readers", "seek", queue, "audit", "300").out == "audit: moved to seq 300\n"
    assert aioc("readers", "seek", queue, "risk", "last", "--json").json["seq"] == 350
    assert aioc("readers", "reset", queue, "audit").status == 0
    assert [reader.committed_seq for reader in list_readers(queue)] == [0, 350]
    assert aioc("readers", "forget", queue, "risk").status == 0
    assert [reader.name for reader in list_readers(queue)] == ["audit"]
    assert aioc("readers", "forget", queue, "risk").status == 3
    assert aioc("readers", "seek", queue, "nobody", "5").status == 3
    assert aioc("readers", "seek", queue, "nobody", "5", "--create").status == 0
    for beyond in ("999999999", "2130-01-01"):
        refused = aioc("readers", "seek", queue, "audit", beyond)
        assert refused.status == 2
        assert "The reader was not moved" in refused.err
    (queue / "000000000.q").unlink()
    moved = aioc("readers", "seek", queue, "audit", "5").out
    assert moved == "audit: moved to seq 100, the oldest: seq 5 was removed\n"


@pytest.mark.parametrize("content", [b"?" * 80, b"?"])
def test_a_reader_whose_position_is_damaged_is_shown(
    root: Path, tmp_path: Path, content: bytes
) -> None:
    queue = copied(root, tmp_path)
    (queue / "readers" / "risk.meta").write_bytes(content)
    done = aioc("readers", queue)
    assert done.status == 5
    assert [line.split()[0] for line in done.out.splitlines()] == ["NAME", "audit", "risk"]
    assert "damaged" in done.out.splitlines()[-1]
    assert "aioc repair" in done.err
    listed = {one["name"]: one.get("problem") for one in aioc("readers", queue, "--json").json}
    assert listed["audit"] is None
    assert "both copies are damaged" in listed["risk"]
    assert aioc("ls", tmp_path).status == aioc("info", queue).status == 5
    found = {one["check"]: one for one in aioc("doctor", tmp_path, "--json").json}
    assert found["damaged-reader"]["level"] == "error"
    assert found["damaged-reader"]["remedy"].startswith(f"aioc repair {queue}")
    assert aioc("repair", queue).status == 0
    assert aioc("readers", queue).status == 0


def test_the_last_messages_of_a_java_queue_may_be_in_several_cycles(tmp_path: Path) -> None:
    """The indexes jump at each new cycle, and some cycles have no file."""
    queue = tmp_path / "java"
    now_s = 1_700_000_000
    with open_writer(
        queue, format="cq4", roll_cycle="TEST_SECONDLY", clock=lambda: now_s * 10**9
    ) as writer:
        for number in range(40):
            writer.append(b"%d" % number)
            now_s += 17 if number % 3 == 0 else 0

    def last(*options: str) -> list[int]:
        lines = json_lines(aioc("tail", queue, "--json", *options).out)
        return [int(str(line["text"])) for line in lines]

    assert last() == list(range(30, 40))
    assert last("-n", "1") == [39]
    assert last("-n", "0") == []
    assert last("-n", "1000") == list(range(40))
    assert last("-n", "5", "--type", "0") == list(range(35, 40))
    assert last("-n", "5", "--type", "7") == []
    assert start_of_newest(queue, 0) == inspect(queue).next_seq


def test_a_reader_that_is_open_is_left_alone(live: tuple[Path, int]) -> None:
    path, pid = live
    for arguments in (["forget"], ["reset"], ["seek"]):
        rest = ["7"] if arguments == ["seek"] else []
        done = aioc("readers", *arguments, path, "risk", *rest)
        assert done.status == 4
        assert f"pid {pid}" in done.err
        assert len(done.err.splitlines()) == 1


def test_why_kept_and_retention(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    with open_writer(
        queue,
        segment_size=4096,
        roll=Roll(messages=2),
        retention=Retention(check_interval_s=1000.0),
    ) as writer:
        open_reader(queue, "away").close()
        for number in range(6):
            writer.append(b"%d" % number)
        found = aioc("why-kept", queue, "--json").json
    assert [(one["segment"], one["why"], one["reader"]) for one in found][:2] == [
        (0, "away", "away"),
        (1, "away", "away"),
    ]
    assert "reader 'away', which is closed" in aioc("why-kept", queue).out
    assert aioc("retention", queue).out.startswith("in force  until all have read it")
    done = aioc("retention", queue, "--max-bytes", "8K", "--now", "--json")
    assert done.json["segments_removed"] >= 1
    assert inspect(queue).first_segment > 0
    assert done.json["in_force"]["max_bytes"] == 8192
    assert aioc("retention", queue, "--max-bytes", "8K", "--off").status == 2
    assert aioc("retention", queue, "--reset").status == 0
    assert not (queue / "settings.toml").exists()


def test_retention_says_what_other_rules_would_remove(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    never = Retention(max_bytes=1 << 30, check_interval_s=1000.0)
    with open_writer(queue, segment_size=4096, roll=Roll(messages=2), retention=never) as writer:
        writer.append_many([b"x"] * 6)
        for number in range(6):
            writer.append(b"%d" % number)
    before = sorted(path.name for path in queue.iterdir())
    assert aioc("retention", queue, "--dry-run", "--json").json == []
    found = aioc("retention", queue, "--max-bytes", "8K", "--now", "--dry-run", "--json").json
    assert [one["why"] for one in found] == ["no writer"] * len(found)
    assert found
    done = aioc("retention", queue, "--max-bytes", "8K", "--dry-run")
    assert f"{len(found)} of {inspect(queue).segments} segments would go" in done.out
    assert aioc("retention", queue, "--off", "--dry-run").out == "no segment would go\n"
    assert sorted(path.name for path in queue.iterdir()) == before
    with Queue(queue) as whole:
        kept = whole.why_kept(retention=Retention(max_bytes=8192))
    assert [one.segment for one in kept if one.why == "no writer"] == [
        one["segment"] for one in found
    ]
    for options in (["--now"], ["--dry-run"]):
        assert aioc("retention", queue, "--reset", *options).status == 2


def test_retention_now_waits_for_a_writer_that_is_open(live: tuple[Path, int]) -> None:
    path, _ = live
    until_s = time.monotonic() + 60
    while inspect(path).segments < 4:
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert aioc("readers", "forget", path, "risk", "--force").status == 0
    done = aioc("retention", path, "--max-bytes", "1", "--now", "--json")
    assert done.json["in_force"]["max_bytes"] == 1
    assert done.json["segments_removed"] > 0
    assert inspect(path).first_segment > 0
    assert aioc("retention", path, "--off").out.startswith("in force       everything stays")


def test_retention_changes_a_writer_that_is_open(live: tuple[Path, int]) -> None:
    path, _ = live
    assert aioc("retention", path, "--max-age", "1h", "--reader-ttl", "2d").status == 0
    writer = inspect(path).writer
    assert writer is not None
    assert writer.retention is not None
    assert (writer.retention.max_age_s, writer.retention.reader_ttl_s) == (3600.0, 2 * 86400.0)
    assert aioc("retention", path, "--now", "--json").json["segments_removed"] == 0


def test_du_names_processes_that_hold_deleted_files(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path)
    found = aioc("du", queue, "--json").json
    assert found[0]["deleted"] == []
    assert found[0]["usage"]["segments_bytes"] >= 4 << 16
    with open_reader(queue) as reader:
        message = reader.poll()
        assert message is not None
        (queue / "000000000.q").unlink()
        done = aioc("du", queue, "--json").json[0]
        assert [one["pids"] for one in done["deleted"]] == [[os.getpid()]]
        assert done["deleted"][0]["path"] == str(queue / "000000000.q")
        assert done["deleted_bytes"] > 0
        assert str(os.getpid()) in aioc("du", tmp_path).out
        del message


def test_a_java_queue(tmp_path: Path) -> None:
    path = tmp_path / "java"
    with open_writer(path, format="cq4") as writer:
        writer.send("some text")
        writer.method("tick", "EURUSD", 1.25)
        writer.send({"px": 1.5})
        writer.append(b"\xff raw!")
        lines = aioc("tail", path).out.splitlines()
        assert [line.split("Z  ")[1] for line in lines] == [
            "some text",
            'tick ["EURUSD",1.25]',
            "px=1.5",
            "<6 bytes> ff20 7261 7721",
        ]
        assert aioc("du", path, "--json").json[0]["deleted"] == []
        assert [Path(row["path"]).name for row in aioc("ls", tmp_path, "--json").json] == ["java"]


def test_tail_decodes_without_the_classes(root: Path) -> None:
    done = aioc("tail", root / "trades", "-n", "2")
    assert [line.split(maxsplit=2)[2] for line in done.out.splitlines()] == [
        "Trade symbol=ALFA price=103.48 size=348",
        "Trade symbol=BRAVO price=103.49 size=349",
    ]
    found = json_lines(aioc("tail", root / "trades", "-n", "3", "--type", "Quote", "--json").out)
    assert [one["seq"] for one in found] == [335, 340, 345]
    assert found[0].keys() == {
        "seq", "timestamp_ns", "time", "type_id", "type", "bytes", "value"
    }  # fmt: skip
    assert found[0]["value"] == {"bid": 99.0, "ask": 100.0}
    assert len(aioc("tail", root / "trades").out.splitlines()) == 10
    assert aioc("tail", root / "trades", "-n", "0").out == ""
    assert len(aioc("tail", root / "trades", "--from", "340").out.splitlines()) == 10
    assert len(aioc("tail", root / "trades", "--from", "1d").out.splitlines()) == 350
    assert aioc("tail", root / "trades", "--from", "2999-01-01").out == ""


def test_tail_shows_bytes_in_fields_as_text_or_digits(tmp_path: Path) -> None:
    class Blob(msgspec.Struct):
        text: bytes
        other: list[bytes]

    with open_writer(tmp_path / "blobs", codec=Blob) as writer:
        writer.send(Blob(b"two words", [b"\xff\x00", b"\x1b[2J"]))
    shown = aioc("tail", str(tmp_path / "blobs")).out
    assert shown.endswith("""Blob text='two words' other=["0xff00","\\u001b[2J"]\n""")
    (record,) = json_lines(aioc("tail", str(tmp_path / "blobs"), "--json").out)
    assert record["value"] == {"text": "dHdvIHdvcmRz", "other": ["/wA=", "G1sySg=="]}


def test_tail_shows_what_is_no_text_safely(root: Path) -> None:
    done = aioc("tail", root / "plain", "-n", "2")
    assert "\x1b" not in done.out
    assert "<6 bytes> 00ff 1b5b 324a" in done.out
    assert "käse \\x1b[31m" in done.out
    found = json_lines(aioc("tail", root / "plain", "-n", "2", "--json").out)
    assert found[0]["base64"] == "AP8bWzJK"
    assert found[1]["text"] == "käse \x1b[31m"
    dump = aioc("tail", root / "plain", "-n", "1", "--hex").out
    assert "6b c3 a4 73 65 20 1b 5b 33 31 6d" in dump
    assert aioc("cat", root / "plain", "--raw", "--to", "2").out == "tick 0\ntick 1\n"


def test_cat_prints_a_range(root: Path) -> None:
    found = json_lines(aioc("cat", root / "trades", "--from", "98", "--to", "103", "--json").out)
    assert [one["seq"] for one in found] == [98, 99, 100, 101, 102]
    assert len(aioc("cat", root / "trades").out.splitlines()) == 350
    assert aioc("cat", root / "trades", "--json", "--hex").status == 2


def test_append_takes_words_lines_files_and_json(root: Path, tmp_path: Path) -> None:
    queue = tmp_path / "new"
    assert aioc("append", queue, "hello").status == 3
    assert not queue.exists()
    assert aioc("append", queue, "hello", "world", "--create").out == (
        "appended 2 messages, seq 0 to 1\n"
    )
    (tmp_path / "file").write_bytes(b"\0\1\2")
    assert aioc("append", queue, "--file", tmp_path / "file", "--flush").status == 0
    done = aioc("append", queue, "--json", given="one\ntwo\n")
    assert done.json == {"path": str(queue), "messages": 2, "first_seq": 3, "last_seq": 4}
    with open_reader(queue) as reader:
        assert [message.payload for message in reader] == [
            b"hello", b"world", b"\0\1\2", b"one", b"two"
        ]  # fmt: skip
    trades = copied(root, tmp_path)
    given = '{"symbol": "ECHO", "price": 7, "size": 1}\n'
    assert aioc("append", trades, "--type", "Trade", given=given).status == 0
    assert "symbol=ECHO price=7.0 size=1" in aioc("tail", trades, "-n", "1").out
    wrong = aioc("append", trades, '{"symbol": 7}', "--type", "Trade")
    assert wrong.status == 2
    assert "not a Trade" in wrong.err
    assert aioc("append", trades, "{}", "--type", "Order").status == 3


def test_java_queues(tmp_path: Path) -> None:
    queue = tmp_path / "java"
    with open_writer(queue, format="cq4") as writer:
        for number in range(3):
            writer.append(b"hello %d" % number)
    assert [Path(one["path"]).name for one in aioc("ls", tmp_path, "--json").json] == ["java"]
    assert aioc("append", queue, "hello 3").status == 0
    assert [
        line.split(maxsplit=2)[2] for line in aioc("tail", queue, "-n", "2").out.splitlines()
    ] == [
        "hello 2",
        "hello 3",
    ]
    assert aioc("verify", queue, "--json").json["report"]["records"] == 4
    assert aioc("du", queue, "--json").json[0]["usage"]["segments_bytes"] > 0
    for command in ("info", "readers", "who", "doctor"):
        assert aioc(command, queue).status == 0
    assert aioc("why-kept", queue, "--json").json[0]["why"] == "active"
    assert "0x" in aioc("ls", tmp_path).out
    assert aioc("backup", queue, tmp_path / "backups", "--json").json["messages"] == 4
    assert (
        "none, as Java queues have" in aioc("restore", tmp_path / "backups", tmp_path / "new").out
    )
    done = aioc("convert", queue, tmp_path / "native")
    assert (done.status, "not carried" in done.out) == (0, True)
    assert aioc("convert", queue, tmp_path / "native").status == 1
    seq = aioc("readers", "seek", queue, "audit", "first", "--create", "--json").json["seq"]
    assert "its next commit wins" in aioc("readers", "seek", queue, "audit", hex(seq + 1)).out
    refused: list[list[str | Path]] = [
        ["repair", queue],
        ["retention", queue],
        ["latency", queue],
        ["replay", queue, tmp_path / "replayed"],
        ["readers", "forget", queue, "audit"],
    ]
    for words in refused:
        done = aioc(*words)
        assert done.status in (1, 2)
        assert "Java" in done.err
        assert len(done.err.splitlines()) == 1


def test_a_process_that_has_a_java_queue_open_is_seen(tmp_path: Path) -> None:
    queue = tmp_path / "java"
    with open_writer(queue, format="cq4") as writer:
        writer.append(b"hello")
        found = aioc("who", queue, "--json").json
        assert [(one["role"], one["pid"]) for one in found] == [("has open", os.getpid())]


def test_readers_are_moved_by_force_while_they_are_open(live: tuple[Path, int]) -> None:
    path, pid = live
    done = aioc("readers", "seek", path, "risk", "5")
    assert done.status == 4
    assert f"pid {pid}" in done.err
    assert aioc("readers", "seek", path, "risk", "5", "--force").out == "risk: moved to seq 5\n"
    assert aioc("readers", path, "--json").json[0]["committed_seq"] == 5
    assert aioc("readers", "forget", path, "risk", "--force").status == 0
    assert aioc("readers", path, "--json").json == []


def test_keys_and_headers_in_and_out(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    given = ("--key", "ALFA", "--header", "a=1=2", "--header", "b c=d e")
    assert aioc("append", queue, "x", "y", *given, "--create").status == 0
    with open_writer(queue) as writer:
        writer.append(b"z", key=b"\xff\0", headers={"n": b"\xff"})
    lines = aioc("cat", queue).out.splitlines()
    assert [line.split("Z  ")[1] for line in lines] == [
        "[ALFA] a=1=2 b c='d e' x",
        "[ALFA] a=1=2 b c='d e' y",
        "[ff00] n=ff z",
    ]
    found = json_lines(aioc("cat", queue, "--json").out)
    assert (found[0]["key"], found[0]["headers"]) == ("ALFA", {"a": "1=2", "b c": "d e"})
    assert (found[2]["key"], found[2]["headers"]) == ({"base64": "/wA="}, {"n": {"base64": "/w=="}})
    assert "[ff00] n=ff" in aioc("cat", queue, "--hex").out
    for wrong in ("a", "=b", "a=b"):
        done = aioc("append", queue, "x", "--header", wrong, "--header", "a=c")
        assert done.status == 2
        assert "NAME=VALUE" in done.err


def test_append_to_a_queue_with_a_writer(live: tuple[Path, int]) -> None:
    path, pid = live
    done = aioc("append", path, "hello")
    assert done.status == 4
    assert f"pid {pid}" in done.err
    assert "--lock-timeout" in done.err
    assert "lock_timeout" not in done.err


def test_hz_and_latency(live: tuple[Path, int]) -> None:
    path, _ = live
    found = json_lines(aioc("hz", path, "--seconds", "0.5", "--json").out)
    assert 10 < found[0]["messages_per_s"] < 1500  # type: ignore[operator]
    assert "50 B each" in aioc("hz", path, "--seconds", "0.2").out
    done = aioc("latency", path, "--seconds", "0.5", "--json").json
    assert done["messages"] > 10
    assert 0 < done["p50_ns"] <= done["p99_ns"] <= done["max_ns"] < 60e9


def test_hz_counts_what_it_read_before_it_was_interrupted(live: tuple[Path, int]) -> None:
    command = [sys.executable, "-m", "aiochronicle", "hz", str(live[0]), "--seconds", "0"]
    shown = ""
    for wait_s in (0.3, 0.5, 0.7, 0.9):  # within the first second, before any line is shown
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            while str(live[0]) not in Path(f"/proc/{process.pid}/maps").read_text():
                time.sleep(0.01)
            time.sleep(wait_s)
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            shown = process.stdout.read()
        assert process.returncode == 130
        if re.fullmatch(r".* [1-9][\d,]* messages\n", shown):
            return
    pytest.fail(f"no messages: {shown}")


def test_verify_and_repair(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path)
    assert aioc("verify", queue).out == "messages  350\ndamaged   none\n"
    assert aioc("backup", queue, tmp_path / "backups").status == 0
    with (queue / "000000001.q").open("r+b") as file:
        file.seek(64 + 64)
        file.write(b"?")
    done = aioc("verify", queue, "--json")
    assert (done.status, done.json["report"]["corrupt"]) == (5, 1)
    assert aioc("tail", queue, "--from", "0").status == 5
    assert len(aioc("tail", queue, "--from", "0", "--skip-corrupt").out.splitlines()) == 349
    done = aioc("tail", queue, "--from", "0")
    assert done.status == 5
    assert "--skip-corrupt" in done.err
    assert "on_corrupt" not in done.err
    assert aioc("backup", queue, tmp_path / "backups").status == 5
    assert aioc("repair", queue, "--dry-run").status == 5
    done = aioc("repair", queue, "--backup", tmp_path / "backups")
    assert done.status == 0
    assert done.out.startswith("repaired: ")
    assert aioc("verify", queue).status == 0
    parts = aioc("recovered", queue, "--json").json
    assert [one["kind"] for one in parts] == ["segment"]
    assert len(aioc("recovered", queue, parts[0]["name"]).out.splitlines()) == 99
    assert aioc("recovered", queue, "../control.meta").status == 2
    assert aioc("recovered", queue, "none.bin").status == 3


def test_a_missing_segment_is_reported(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path)
    (queue / "000000001.q").unlink()
    with (queue / "000000002.q").open("r+b") as file:
        file.seek(64 + 10 * 64 + 40)
        file.write(b"?")
    done = aioc("verify", queue, "--json")
    report = done.json["report"]
    assert (done.status, report["records"], report["corrupt"]) == (5, 249, 2)
    assert report["missing_seqs"] == 101
    gap, damage = report["problems"]
    assert "seqs 100 to 199 are missing" in gap
    assert "000000002.q at offset" in damage
    assert "missing   101 messages\n" in aioc("verify", queue).out
    (found,) = [
        one for one in aioc("doctor", queue, "--json").json if one["check"] == "missing-segments"
    ]
    assert (found["level"], "000000001.q" in found["detail"]) == ("error", True)


def test_backups_are_not_listed_where_there_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name, said in (("none", "there is no such directory"), ("file", "is a file")):
        done = aioc("backup", "--list", tmp_path / name)
        assert (done.status, done.out) == (3, "")
        assert said in done.err
    assert aioc("backup", "--list", tmp_path).status == 0


@pytest.mark.parametrize("damage", ["sealed", "oldest", "missing"])
def test_what_is_skipped_is_said(root: Path, tmp_path: Path, damage: str) -> None:
    queue = copied(root, tmp_path)
    segment = queue / ("000000000.q" if damage == "oldest" else "000000001.q")
    if damage == "missing":
        segment.unlink()
    else:
        segment.write_bytes(b"?" * segment.stat().st_size)
    commands = [["cat"]]
    if damage != "oldest":
        commands += [["tail", "-n", "350"], ["tail", "--from", "0"], ["cat", "--from", "50"]]
    for command in commands:
        done = aioc(command[0], queue, *command[1:], "--skip-corrupt")
        assert done.status == 5, command
        assert len(done.out.splitlines()) == (200 if "50" in command else 250)
        assert "1 damaged place skipped" in done.err
        if damage != "oldest":
            assert "100 messages are missing" in done.err
            assert "seqs 100 to 199 are missing" in done.err
    lost = 0 if damage == "oldest" else 100
    for form in ("csv", "jsonl", "parquet", "arrow"):
        file = tmp_path / f"x.{form}"
        if damage != "oldest":
            done = aioc("export", queue, file)
            assert (done.status, file.exists()) == (5, False)
            assert "--skip-corrupt" in done.err
            assert "readers seek" not in done.err
        done = aioc("export", queue, file, "--skip-corrupt", "--json")
        assert (done.status, done.json["rows"]) == (5, 250)
        assert (done.json["skipped"], done.json["missing_seqs"]) == (1, lost)
        assert "1 damaged place skipped" in done.err
    if damage == "oldest":
        return
    done = aioc("convert", queue, tmp_path / "java")
    assert (done.status, (tmp_path / "java").exists()) == (5, False)
    done = aioc("convert", queue, tmp_path / "java", "--skip-corrupt", "--json")
    assert (done.status, done.json["messages"], done.json["skipped"]) == (5, 250, 1)
    assert "1 damaged place skipped" in done.err


def test_a_newest_segment_that_was_cut_is_stepped_over(tmp_path: Path) -> None:
    """verify, cat and export did not end; convert refused."""
    queue = tmp_path / "cut"
    with open_writer(queue, segment_size=1 << 16) as writer:
        writer.append_many([b"x"] * 100)
    os.truncate(queue / "000000000.q", 64 + 38 * 128 + 72)
    done = aioc("verify", queue, "--json")
    report = done.json["report"]
    assert (done.status, report["records"], report["corrupt"]) == (5, 38, 2)
    assert report["missing_seqs"] == 62
    assert "the segment was cut here; seqs 38 to 99 are missing" in report["problems"][1]
    done = aioc("cat", queue, "--skip-corrupt")
    assert (done.status, len(done.out.splitlines())) == (5, 38)
    assert "the segment was cut here" in done.err
    done = aioc("export", queue, tmp_path / "x.jsonl", "--skip-corrupt", "--json")
    assert (done.status, done.json["rows"]) == (5, 38)
    assert aioc("convert", queue, tmp_path / "java").status == 5
    done = aioc("convert", queue, tmp_path / "java", "--skip-corrupt", "--json")
    assert (done.status, done.json["messages"], done.json["skipped"]) == (5, 38, 1)
    assert "the segment was cut here" in done.err


def test_a_reader_in_a_damaged_segment_is_shown(root: Path, tmp_path: Path) -> None:
    """Regression: every command that lists readers failed."""
    queue = copied(root, tmp_path)
    segment = queue / "000000001.q"
    segment.write_bytes(b"?" * segment.stat().st_size)
    (audit, risk) = list_readers(queue)
    assert (audit.damaged, audit.lost, audit.committed_seq) == (True, False, None)
    assert audit.lag.messages == 150
    assert (risk.damaged, risk.lag.messages) == (False, 350)
    for command in ("info", "who", "ls"):
        assert aioc(command, queue).status == 0, command
    done = aioc("readers", queue)
    assert done.status == 5
    assert re.search("^audit .* damaged ", done.out, re.MULTILINE)
    assert "reader audit is in a damaged segment" in done.err
    (found,) = [
        one for one in aioc("doctor", queue, "--json").json if one["check"] == "damaged-reader"
    ]
    assert found["subject"].endswith("reader audit")
    done = aioc("backup", queue, tmp_path / "backups", "--keep-damaged")
    assert done.status == 5
    assert aioc("restore", tmp_path / "backups", tmp_path / "again").status == 5
    done = aioc("verify", tmp_path / "again", "--json")
    assert (done.json["report"]["records"], done.json["report"]["corrupt"]) == (250, 1)
    convert = aioc("convert", queue, tmp_path / "java", "--skip-corrupt")
    assert convert.status == 5
    assert [one.lag.messages for one in list_readers(tmp_path / "java")] == [150, 250]


def test_seqs_that_are_missing_where_reading_begins_are_said(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path)
    (queue / "000000001.q").unlink()
    for command in ("cat", "tail"):
        done = aioc(command, queue, "--from", "150", "--skip-corrupt")
        assert "seqs 150 to 199 are missing; next is 200." in done.err
    done = aioc("export", queue, tmp_path / "x.csv", "--from", "150", "--to", "250", "--json")
    assert "seqs 150 to 199 are missing; next is 200." in done.err
    assert done.json["rows"] == 50


def test_seqs_that_were_removed_are_said(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path)
    (queue / "000000000.q").unlink()
    for command in (["cat"], ["tail"], ["export", str(tmp_path / "x.csv")]):
        done = aioc(command[0], queue, *command[1:], "--from", "5")
        assert done.status == 0
        assert "seqs 5 to 99 were removed; it starts at 100." in done.err
    done = aioc("cat", queue, "--from", "5", "--to", "8")
    assert (done.status, done.out) == (0, "")
    assert "seqs 5 to 7 were removed" in done.err
    assert aioc("cat", queue, "--from", "100").err == aioc("cat", queue).err == ""


def test_backup_and_restore(live: tuple[Path, int], tmp_path: Path) -> None:
    path, _ = live
    first = aioc("backup", path, tmp_path / "backups", "--json").json
    second = aioc("backup", path, tmp_path / "backups")
    assert second.status == 0
    assert "000002" in second.out
    assert len(aioc("backup", "--list", tmp_path / "backups").out.splitlines()) == 3
    done = aioc("restore", tmp_path / "backups", tmp_path / "again", "--number", "1", "--json").json
    assert done["next_seq"] == first["next_seq"]
    assert aiochronicle.verify(tmp_path / "again").records == first["messages"]
    assert aioc("restore", tmp_path / "backups", tmp_path / "again").status == 1
    assert aioc("restore", tmp_path / "none", tmp_path / "other").status == 3
    assert aioc("backup", path).status == 2


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "jsonl"])
def test_export(root: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / f"trades.{form}"
    done = aioc("export", root / "trades", file, "--type", "Trade", "--from", "100", "--json")
    assert done.json["rows"] == 200
    if form == "parquet":
        prices = pyarrow.parquet.read_table(file).column("price").to_pylist()
    elif form == "arrow":
        prices = pyarrow.ipc.open_file(str(file)).read_all().column("price").to_pylist()
    elif form == "csv":
        prices = [float(row["price"]) for row in csv.DictReader(io.StringIO(file.read_text()))]
    else:
        prices = [json.loads(line)["value"]["price"] for line in file.read_text().splitlines()]
    assert prices == [100 + number / 100 for number in range(100, 350) if number % 5]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_export_needs_to_know_the_format(root: Path, tmp_path: Path) -> None:
    done = aioc("export", root / "trades", tmp_path / "trades.xls")
    assert done.status == 2
    assert "--format" in done.err
    assert aioc("export", root / "trades", tmp_path / "x", "--format", "csv").status == 0


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_export_refuses_what_is_not_a_file(root: Path, tmp_path: Path, form: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        done = aioc("export", root / "trades", tmp_path / name, "--format", form)
        assert (done.status, done.out) == (2, "")
        assert "aioc cat --json" in done.err
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_replay(root: Path, tmp_path: Path) -> None:
    done = aioc("replay", root, tmp_path / "again", "--json")
    assert done.json["messages"] == 372
    assert aioc("tail", tmp_path / "again" / "trades", "-n", "1").out == (
        aioc("tail", root / "trades", "-n", "1").out
    )
    assert aioc("replay", root, tmp_path / "again", "--json").json["messages"] == 0
    assert aioc("replay", root, tmp_path / "again", "--from", "7").status == 2
    queue = tmp_path / "again" / "trades"
    for source, target in (
        (tmp_path, tmp_path),
        (tmp_path, tmp_path / "again"),
        (queue, tmp_path / "again"),
        (root, queue),
        (root, queue / "below"),
    ):
        assert aioc("replay", source, target).status == 2, (source, target)
    assert not (queue / "below").exists()


def test_doctor(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "plain", tmp_path / "half")
    (tmp_path / "half" / "control.meta").unlink()
    queue = copied(root, tmp_path)
    queue.chmod(0o777)
    readers = queue / "readers"
    stale = decode_position((readers / "audit.meta").read_bytes())
    assert stale is not None
    lost = msgspec.structs.replace(stale, position=Position(1000, 64))
    stale = msgspec.structs.replace(stale, heartbeat_ns=1)
    (readers / "audit.meta").write_bytes(encode_position(stale))
    (readers / "risk.meta").write_bytes(encode_position(lost))
    done = aioc("doctor", tmp_path, "--json")
    found = {one["check"]: one for one in done.json}
    assert done.status == 1
    assert found["stale-reader"]["remedy"].startswith(f"aioc readers forget {queue} audit")
    assert found["lost-reader"]["remedy"].startswith(f"aioc readers seek {queue} risk first")
    assert found["half-made"]["remedy"] == f"aioc repair {tmp_path / 'half'}"
    assert found["permissions"]["remedy"] == f"chmod o-w {queue}"
    assert "queue" in aioc("doctor", root).out.splitlines()[-1]


def test_remedies_can_be_pasted_into_a_shell(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path).rename(tmp_path / "two words; $(exit)")
    queue.chmod(0o777)
    (found,) = [
        one for one in aioc("doctor", tmp_path, "--json").json if one["check"] == "permissions"
    ]
    subprocess.run(["sh", "-c", found["remedy"]], check=True)
    assert queue.stat().st_mode & 0o777 == 0o775


def test_doctor_finds_exports_that_were_killed(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with replacing(tmp_path / "killed.csv"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (tmp_path / ".x.converting").mkdir()
    with replacing(tmp_path / "running.csv"):
        found = {Path(one["subject"]).name: one for one in aioc("doctor", tmp_path, "--json").json}
    assert found[".killed.csv.part"]["check"] == "half-exported"
    assert str(tmp_path / "killed.csv") in found[".killed.csv.part"]["remedy"]
    assert found[".x.converting"]["check"] == "half-converted"
    assert ".running.csv.part" not in found


def test_doctor_names_a_writer_that_died(live: tuple[Path, int]) -> None:
    path, pid = live
    assert aioc("doctor", path).status == 0
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    found = [one for one in aioc("doctor", path, "--json").json if one["check"] == "dead-writer"]
    assert [one["level"] for one in found] == ["warning"]
    assert f"pid {pid}" in found[0]["detail"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")
def test_what_another_user_cannot_read_is_said() -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        place.chmod(0o755)
        open_writer(place / "closed").close()
        open_writer(place / "mine").close()
        for one in [place / "mine", *(place / "mine").rglob("*")]:
            os.chown(one, STRANGER, STRANGER)
        (place / "mine" / "left").touch(0o600)
        (place / "mine" / "recovered").mkdir(0o700)

        def look(*words: str) -> tuple[int, str, str]:
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                return main(words), out.getvalue(), err.getvalue()

        for command in ("doctor", "ls", "du", "info", "tail", "append"):
            look(
                command, str(place / "mine"), *["x"][: command == "append"]
            )  # imports modules before the user changes

        def ask(*words: str) -> tuple[int, str, str]:
            status, out, err = run_as(STRANGER, lambda: look(*words))
            return status, out, err

        status, said, _ = ask("doctor", directory)
        assert status == 1
        assert "closed: cannot be examined: Permission denied" in said
        assert "cannot read what others left in it: left" in said
        assert f"chown -R {STRANGER}:" in said
        for command, missing in (("ls", ["closed"]), ("du", ["closed", "mine/recovered"])):
            status, out, err = ask(command, directory)
            assert (status, "mine" in out) == (6, True)
            assert err.splitlines() == [f"aioc: {name}: Permission denied" for name in missing]
            status, out, _ = ask(command, directory, "--json")
            problems = {Path(one["path"]).name: one["problem"] for one in json.loads(out)}
            assert status == 6
            assert "Permission denied" in problems["closed"]
            assert (command == "du") == ("Permission denied" in (problems["mine"] or ""))
        status, out, _ = ask("info", str(place / "mine"), "--json")
        assert (status, json.loads(out)["unreadable"]) == (6, [str(place / "mine" / "recovered")])
        assert ask("tail", str(place / "closed"))[0] == 6
        (place / "hidden" / "one").mkdir(parents=True)
        (place / "hidden" / "one").chmod(0o700)
        status, out, _ = ask("du", str(place / "hidden"))
        assert (status, out.startswith("no queue could be listed in")) == (6, True)
        status, _, err = ask("append", str(place / "closed"), "x")
        assert (status, "ermission" in err, "--create" in err) == (6, True, False)


def test_messages_are_shown_though_their_schema_is_damaged(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path)
    (queue / "schema.json").write_text("{")
    for command in ("tail", "cat"):
        done = aioc(command, queue)
        assert done.status == 0
        assert done.out.splitlines()[-1].split()[2].startswith("#")
        assert "schema.json: " in done.err
    assert aioc("export", queue, tmp_path / "x.csv").status == 5
    assert not (tmp_path / "x.csv").exists()


def test_a_path_without_a_queue_is_explained(root: Path, tmp_path: Path) -> None:
    assert (
        f"{root}: there is no queue in this directory, but below it: plain, trades."
        in aioc("tail", root).err
    )
    (tmp_path / "empty").mkdir()
    assert "nor below it" in aioc("info", tmp_path / "empty").err
    assert "--create" in aioc("append", tmp_path / "empty", "x").err
    done = aioc("recovered", tmp_path / "empty")
    assert (done.status, "there is no queue" in done.err) == (3, True)
    assert "there is no queue. Check the path" in aioc("readers", tmp_path / "none").err
    assert (
        "the directory above it does not exist"
        in aioc("append", tmp_path / "none" / "q", "x", "--create").err
    )
    (tmp_path / "file").write_text("1")
    for command in ("tail", "ls", "doctor"):
        done = aioc(command, tmp_path / "file")
        assert (done.status, "directory" in done.err) == (3, True)
    with Path("/dev/full").open("wb") as out:
        full = subprocess.run(
            [sys.executable, "-m", "aiochronicle", "ls", root],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (full.returncode, full.stderr) == (7, "aioc: No space left on device\n")


def test_no_queue_is_put_into_a_queue(root: Path, tmp_path: Path) -> None:
    queue = copied(root, tmp_path)
    before = sorted(path.name for path in queue.iterdir())
    done = aioc("convert", root / "plain", queue / "below")
    assert (done.status, "inside a queue" in done.err) == (1, True)
    done = aioc("append", queue / "below", "x", "--create")
    assert (done.status, "inside of a queue" in done.err) == (2, True)
    assert sorted(path.name for path in queue.iterdir()) == before


def test_topics_and_config(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[topics.orders]\nflush = "sync"\n')
    with aiochronicle.Bus(tmp_path) as bus:
        bus.append("orders", b"buy")
    done = aioc("topics", tmp_path)
    assert done.out.splitlines()[1].split()[:2] == ["orders", "1"]
    assert (
        aioc("topics", "--json", AIOCHRONICLE_DATA_DIR=str(tmp_path)).json[0]["topic"] == "orders"
    )
    assert aioc("config", "check", tmp_path).status == 0
    (tmp_path / "config.toml").write_text('[topics.orders]\nflushh = "sync"\n')
    done = aioc("config", "check", tmp_path / "config.toml")
    assert done.status == 2
    assert "did you mean flush" in done.err
    assert aioc("config", "check", tmp_path / "none.toml").status == 2


def test_bench_leaves_nothing(tmp_path: Path) -> None:
    done = aioc("bench", tmp_path, "--messages", "1000", "--json")
    assert 0 < done.json["append_s"] < 1
    assert list(tmp_path.iterdir()) == []


def test_demo_gets_its_own_arguments() -> None:
    assert "--seconds S" in aioc("demo", "--help").out
    assert aioc("demo", "--seconds", "never").status == 2


@pytest.mark.parametrize("command", [["-m", "aiochronicle"], ["aioc"], ["aiochronicle"]])
def test_it_has_three_names(command: list[str]) -> None:
    beside = Path(sys.executable).parent
    words = [sys.executable, *command] if command[0] == "-m" else [str(beside / command[0])]
    done = subprocess.run([*words, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{aiochronicle.__version__}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, tmp_path: Path) -> None:
    done = aioc("completion", shell)
    assert "why-kept" in done.out
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(done.out)
        assert os.system(f"{shell} -n {script}") == 0


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["info", "none"], 3),
        (["ls", "none"], 3),
        (["tail", "none"], 3),
        (["verify", "none"], 3),
        (["readers", "none"], 3),
        (["info"], 2),
        (["tail", ""], 2),
        (["ls", ""], 2),
        (["append", "", "x", "--create"], 2),
        (["nonsense"], 2),
        (["tail", "trades", "--nonsense"], 2),
        (["tail", "trades", "-n", "many"], 2),
        (["tail", "trades", "-n", "-5"], 2),
        (["tail", "trades", "-n", "1", "--from", "1"], 2),
        (["tail", "trades", "--type", "Order"], 3),
        (["cat", "trades", "--from", "whenever"], 2),
        (["readers", "seek", "trades", "audit", "whenever"], 2),
        (["retention", "trades", "--max-bytes", "much"], 2),
    ],
)
def test_mistakes_are_one_line_with_a_status(root: Path, arguments: list[str], status: int) -> None:
    done = aioc(*arguments, cwd=root)
    assert done.status == status
    assert done.out == ""
    assert done.err.startswith("aioc: ")
    assert len(done.err.splitlines()) == 1


def test_no_permission_is_said(root: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    assert main(["info", str(root / "trades")]) == 0  # imports modules before the user changes
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(4321)
        os.setuid(4321)
        os.chdir("/")
        os._exit(main(["info", str(root / "trades")]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6


def test_hostile_names_are_printed_safely(tmp_path: Path) -> None:
    name = os.fsdecode(b"evil\n\x1b[2J\xff[red]")
    open_writer(tmp_path / name, segment_size=4096).close()
    done = aioc("ls", tmp_path)
    assert "\x1b" not in done.out
    assert len(done.out.splitlines()) == 2
    assert "evil\\n\\x1b[2J\\xff[red]" in done.out
    path = aioc("ls", tmp_path, "--json").json[0]["path"]
    assert path.endswith("[red]")
    assert aioc("info", tmp_path / name).status == 0
    assert aioc("info", tmp_path / f"{name}-none").err.count("\n") == 1


def test_times_of_java_queues_are_those_of_their_files(tmp_path: Path) -> None:
    with open_writer(tmp_path / "java", format="cq4") as writer:
        writer.append(b"x")
        open_reader(tmp_path / "java", "risk").close()
        listed = aioc("ls", tmp_path).out.splitlines()
        assert listed[0].endswith("LAST MESSAGE")
        assert listed[1].endswith("–"), "nobody knows when the last message was written"
        assert "newest cycle" in aioc("info", tmp_path / "java").out
        row = aioc("readers", tmp_path / "java").out.splitlines()[1]
        assert row.split()[-3:] == ["–", "–", "–"]  # AGE, SEEN, COMMAND
        assert f"  {writer.append(b'y') + 1:#x}" in aioc("topics", tmp_path).out


def test_tail_shows_as_many_messages_as_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_writer(tmp_path / "q", segment_size=65536) as writer:
        writer.append_many([b"x"] * 20)
        looked = aiochronicle.inspect

        def look_and_append(queue: Path) -> aiochronicle.QueueInfo:
            found = looked(queue)
            writer.append(b"meanwhile")
            return found

        monkeypatch.setattr(aiochronicle, "inspect", look_and_append)
        assert len(aioc("tail", tmp_path / "q", "-n", "2").out.splitlines()) == 2


@pytest.mark.parametrize("command", ["cat", "info", "why-kept"])
def test_a_closed_pipe_is_no_error(root: Path, command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "aiochronicle", command, root / "trades"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_output_is_no_error(root: Path) -> None:
    command = f"{sys.executable} -m aiochronicle ls {root}"
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = subprocess.run(f"{command} {closed}", shell=True, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_mistyped_command_of_a_group_is_recognised(root: Path) -> None:
    done = aioc("readers", "forgt", root / "trades", "risk")
    assert done.status == 2
    assert 'Unknown command "forgt". Did you mean "forget"?' in done.err
    assert "Did you mean" not in aioc("readers", root / "trades", "risk").err


def test_a_terminal_without_utf_8_gets_escapes(root: Path) -> None:
    done = started("ls", root, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.status == 0
    assert "\\u2013" in done.out
