"""Every screen shows processes that are stopped (SIGSTOP, a debugger) or only appear to run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.users import STRANGER, run_as
from helpers.waiting import eventually

from aiochronicle import inspect, list_readers, open_writer
from cli.running import aioc

MEMBER = """
import sys, time, aiochronicle
with aiochronicle.open_group(sys.argv[1], "team") as team:
    held = team.take_batch(2)
    print("ready", flush=True)
    time.sleep(600)
"""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "T")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_stopped_process_is_shown_wherever_it_is_named(live: tuple[Path, int]) -> None:
    path, pid = live
    assert aioc("ls", path.parent, "--json").json[0]["writer_stopped"] is False
    with stopped(pid):
        assert f"{pid} stopped" in aioc("ls", path.parent).out
        found = aioc("ls", path.parent, "--json").json[0]
        assert (found["writer_state"], found["writer_stopped"]) == ("open", True)
        assert f"stopped, pid {pid}" in aioc("info", path).out
        assert aioc("info", path, "--json").json["writer"]["stopped"] is True
        roles = {one["role"]: one for one in aioc("who", path, "--json").json}
        assert roles["writer"]["stopped"] is roles["reader"]["stopped"] is True
        assert aioc("who", path).out.count("stopped") == 2
        assert "stopped" in aioc("readers", path).out
        (reader,) = list_readers(path)
        assert reader.live
        assert reader.stopped
        found = {one["check"]: one for one in aioc("doctor", path, "--json").json}
        assert f"kill -CONT {pid}" in found["stopped-writer"]["remedy"]
        assert f"kill -CONT {pid}" in found["stopped-reader"]["remedy"]
    assert "stopped" not in aioc("ls", path.parent).out + aioc("who", path).out
    assert "stopped" not in aioc("doctor", path).out


def test_another_user_sees_that_it_is_stopped(live: tuple[Path, int]) -> None:
    path, pid = live
    for place in (path, *path.rglob("*"), *path.parents[:3]):
        place.chmod(0o755 if place.is_dir() else 0o644)

    def look() -> tuple[bool, bool]:
        writer = inspect(path).writer
        assert writer is not None
        return writer.stopped, list_readers(path)[0].stopped

    with stopped(pid):
        assert run_as(STRANGER, look) == [True, True]


def test_a_writer_without_a_sign_of_life_is_told_from_one_that_runs(
    live: tuple[Path, int],
) -> None:
    path, pid = live
    with stopped(pid):
        eventually(lambda: aioc("ls", path.parent, "--json").json[0]["writer_silent_s"], 20)
        assert "none for" in aioc("info", path).out
        writer = inspect(path).writer
        assert writer is not None
        assert writer.silent_s is not None
        assert writer.silent_s > 5
    eventually(lambda: aioc("ls", path.parent, "--json").json[0]["writer_silent_s"] is None, 20)
    assert "sign of life" not in aioc("info", path).out


def test_doctor_tells_of_a_writer_whose_background_thread_does_not_run(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", _inline_housekeeping=1) as writer:
        writer.append(b"x")
        eventually(lambda: "silent for" in aioc("ls", tmp_path).out, 20)
        assert "silent" in aioc("who", tmp_path / "q").out
        found = {one["check"]: one for one in aioc("doctor", tmp_path, "--json").json}
        assert "no sign of life" in found["silent-writer"]["detail"]


def test_a_stopped_member_of_a_group_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with open_writer(path) as writer:
        writer.append_many([b"1", b"2", b"3"])
    command = [sys.executable, "-c", MEMBER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            with stopped(process.pid):
                (member,) = aioc("who", path, "--json").json[-1:]
                assert (member["role"], member["stopped"]) == ("member", True)
                assert "stopped" in aioc("readers", path).out
                found = {one["check"]: one for one in aioc("doctor", path, "--json").json}
                assert "2 messages in flight" in found["stopped-member"]["detail"]
        finally:
            process.kill()


def test_looking_at_a_stopped_writer_does_not_wait_for_it(live: tuple[Path, int]) -> None:
    path, pid = live
    with stopped(pid):
        began_s = time.monotonic()
        assert aioc("doctor", path).status == 0
        assert time.monotonic() - began_s < 5
