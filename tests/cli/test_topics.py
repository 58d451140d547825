"""``topics``: one or many queues, settings in force, and unreadable topics."""

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path

import pytest
from helpers.users import STRANGER, run_as

from aiochronicle import Bus, Retention, open_writer
from aiochronicle.cli import main
from cli.running import aioc


def test_a_topic_with_many_writers_and_settings_of_the_queue(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[defaults]\nsegment_size = 65536\n")
    with Bus(tmp_path) as bus:
        bus.append("one", b"x")
    path = tmp_path / "many"
    with open_writer(path, shared=True) as first, open_writer(path, shared=True) as second:
        first.append_many([b"1", b"2"])
        second.append(b"3")
        rules = Retention(max_bytes=1 << 20)
        open_writer(tmp_path / "own", segment_size=1 << 17, flush="sync", retention=rules).close()
        done = aioc("topics", tmp_path)
        found = aioc("topics", tmp_path, "--json").json
    many, one, own = done.out.splitlines()[1:]
    assert done.status == 0
    assert "3 in 2 queues" in many
    assert "64 KiB" in one
    assert all(text in own for text in ("128 KiB", "sync", "max 1 MiB"))
    assert [(entry["shared"], len(entry["queues"])) for entry in found] == [
        (True, 2),
        (False, 1),
        (False, 1),
    ]


def test_damaged_topics_and_missing_roots_have_a_status(tmp_path: Path) -> None:
    with Bus(tmp_path) as bus:
        bus.append("one", b"x")
        bus.append("two", b"x")
    (tmp_path / "one" / "control.meta").write_bytes(b"")
    os.utime(tmp_path / "one" / "control.meta", (1, 1))  # old, so no writer is creating it
    done = aioc("topics", tmp_path)
    assert done.status == 5
    assert done.err.startswith("aioc: one: ")
    assert [line.split()[1] for line in done.out.splitlines()[1:]] == ["unusable", "1"]
    assert aioc("topics", tmp_path / "none").status == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_topics_of_others_are_named() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        open_writer(Path(directory, "closed")).close()

        def look() -> tuple[int, str, str]:
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                return main(["topics", directory, "--json"]), out.getvalue(), err.getvalue()

        assert look()[0] == 0  # also imports modules before the user changes
        status, out, err = run_as(STRANGER, look)
    assert (status, err) == (6, "aioc: closed: Permission denied\n")
    assert "Permission denied" in json.loads(out)[0]["problem"]
