"""``retention`` and ``why-kept``: what they change, and what they report."""

import time
import tomllib
from pathlib import Path

from aiochronicle import Retention, Roll, configure, inspect, open_writer
from cli.running import aioc


def test_retention_reset_leaves_other_settings(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    open_writer(queue).close()
    configure(queue, flush="sync", capacity=1 << 20)
    assert aioc("retention", queue, "--max-bytes", "1M").status == 0
    assert aioc("retention", queue, "--reset").status == 0
    said = tomllib.loads((queue / "settings.toml").read_text())
    assert (said["flush"], set(said)) == ("sync", {"flush", "capacity"})


def test_an_archive_that_no_writer_can_make_is_refused(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    open_writer(queue).close()
    (tmp_path / "file").touch()
    for archive, status in ((tmp_path / "none" / "archive", 3), (tmp_path / "file", 2)):
        done = aioc("retention", queue, "--max-bytes", "1M", "--archive", archive)
        assert (done.status, "directory" in done.err) == (status, True)
        assert not (queue / "settings.toml").exists()
    assert aioc("retention", queue, "--archive", tmp_path / "new").status == 0


def test_failing_retention_is_reported(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    (tmp_path / "archive").touch()  # in the way
    rules = Retention(max_bytes=1, archive=str(tmp_path / "archive"), check_interval_s=0.02)
    with open_writer(queue, segment_size=4096, roll=Roll(messages=2), retention=rules) as writer:
        for number in range(6):
            writer.append(b"%d" % number)
        until_s = time.monotonic() + 60
        while not ((known := inspect(queue).writer) and known.errors):
            assert time.monotonic() < until_s
            time.sleep(0.02)
        found = aioc("why-kept", queue, "--json").json
        assert found[0]["why"] == "goes"
        assert found[0]["text"].startswith("could be removed, but retention fails: ")
        assert str(tmp_path / "archive") in found[0]["text"]
        failed = [
            one for one in aioc("doctor", queue, "--json").json if one["check"] == "writer-errors"
        ]
        assert [one["level"] for one in failed] == ["warning"]
        assert str(tmp_path / "archive") in failed[0]["detail"]
    assert "writer-errors" not in aioc("doctor", queue, "--json").out


def test_refused_settings_are_reported(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    open_writer(queue).close()
    assert aioc("info", queue, "--json").json["settings_problem"] is None
    (queue / "settings.toml").write_text('flush = "syncc"\n')
    done = aioc("retention", queue)
    assert (done.status, "'syncc', but it must be" in done.err) == (2, True)
    assert "'syncc', but it must be" in aioc("info", queue).out
    done = aioc("doctor", queue, "--json")
    assert [one["level"] for one in done.json if one["check"] == "settings"] == ["error"]
    assert done.status == 1
