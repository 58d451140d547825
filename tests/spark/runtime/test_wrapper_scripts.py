"""Wrapper scripts are run only if no other user could have written them."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.users import STRANGER, run_as
from helpers.users import WRITER as VICTIM

from aiochronicle.spark.runtime.wrapper_scripts import wrapper_script

SCRIPT = "#!/bin/sh\necho ours\n"
FALSE = "#!/bin/sh\necho theirs\n"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache directory that other users can reach."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o1777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(base / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(base))  # forked children leave files behind
    yield base / "cache"
    shutil.rmtree(base)


def said(path: str) -> str:
    return subprocess.run([path], capture_output=True, text=True, check=True).stdout


def stand_in_and_run() -> dict[str, str | int]:
    path = wrapper_script("java/bin/java", SCRIPT)
    found = path.stat()
    above = path.parent.stat()
    return {
        "path": str(path),
        "said": said(str(path)),
        "owner": found.st_uid,
        "mode": stat.S_IMODE(found.st_mode),
        "above": stat.S_IMODE(above.st_mode),
    }


def put(path: Path, script: str, mode: int = 0o777) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(mode)
    for place in (path.parent, path.parent.parent, path.parent.parent.parent):
        place.chmod(0o777)


@as_root
@pytest.mark.parametrize("script", [SCRIPT, FALSE])
def test_a_script_of_a_stranger_is_not_run(cache: Path, script: str) -> None:
    """Even a script with the right content is refused: its owner could change it before it is run."""
    theirs = cache / "aiochronicle" / "java" / "bin" / "java"
    run_as(STRANGER, lambda: put(theirs, script))
    made = run_as(VICTIM, stand_in_and_run)
    assert made["path"] != str(theirs)
    assert made["said"] == "ours\n"
    assert made["owner"] == VICTIM
    assert (made["mode"], made["above"]) == (0o700, 0o700)
    assert theirs.read_text() == script


@as_root
@pytest.mark.parametrize("script", [SCRIPT, FALSE])
def test_a_script_that_others_can_change_is_replaced(cache: Path, script: str) -> None:
    """Such a script may be in a directory that was created with a permissive umask."""
    path = cache / "aiochronicle" / "java" / "bin" / "java"

    def make() -> None:
        cache.mkdir()
        put(path, script)
        cache.chmod(0o755)

    run_as(VICTIM, make)
    made = run_as(VICTIM, stand_in_and_run)
    assert made["path"] == str(path)
    assert made["said"] == "ours\n"
    assert made["mode"] == 0o700
    for place in path.parents[:3]:
        assert place.stat().st_mode & 0o022 == 0, place


@as_root
def test_a_script_of_a_stranger_among_ones_own_is_replaced(cache: Path) -> None:
    path = cache / "aiochronicle" / "java" / "bin" / "java"
    run_as(VICTIM, stand_in_and_run)
    path.unlink()
    path.write_text(SCRIPT)
    os.chown(path, STRANGER, -1)
    path.chmod(0o777)
    made = run_as(VICTIM, stand_in_and_run)
    assert (made["path"], made["owner"], made["mode"]) == (str(path), VICTIM, 0o700)


@as_root
def test_a_cache_that_others_can_rename_is_not_used(cache: Path) -> None:
    def make() -> None:
        cache.mkdir()
        cache.chmod(0o777)

    run_as(VICTIM, make)
    made = run_as(VICTIM, stand_in_and_run)
    assert not Path(str(made["path"])).is_relative_to(cache)
    assert made["said"] == "ours\n"


def test_a_link_in_place_of_a_script_is_not_followed(cache: Path, tmp_path: Path) -> None:
    path = wrapper_script("java/bin/java", SCRIPT)
    (tmp_path / "elsewhere").write_text(SCRIPT)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert wrapper_script("java/bin/java", SCRIPT) == path
    assert not path.is_symlink()
    assert said(str(path)) == "ours\n"


def test_a_script_that_is_right_stays(cache: Path) -> None:
    first = wrapper_script("name", SCRIPT).stat()
    again = wrapper_script("name", SCRIPT).stat()
    assert (first.st_ino, first.st_mtime_ns) == (again.st_ino, again.st_mtime_ns)
    assert cache.is_dir()


def test_a_directory_for_want_of_a_cache_ends_with_the_process(cache: Path) -> None:
    code = f"""
from aiochronicle.spark.runtime.wrapper_scripts import wrapper_script
path = wrapper_script("name", {SCRIPT!r})
assert path.exists()
print(path)
"""
    cache.write_text("not a directory")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    path = Path(done.stdout.strip())
    assert path.name == "name"
    assert not path.parent.exists()
