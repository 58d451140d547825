"""Reading small files of unknown origin: limits on type, size, depth and time."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aiochronicle._base.printable import printable
from aiochronicle._files import open_regular, parse_json, parse_toml, read_small_file
from aiochronicle._services.settings import load_settings
from aiochronicle.errors import InvalidConfiguration

LIMIT_S = 20.0
MEGABYTE = 1 << 20


def test_what_is_there_is_read_and_what_is_not_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    assert read_small_file(str(tmp_path / "file"), 7) == b"content"
    assert read_small_file(str(tmp_path / "missing"), 7) is None
    assert read_small_file(str(tmp_path / "file" / "below"), 7) is None
    with pytest.raises(ValueError, match="file is larger than 6 bytes"):
        read_small_file(str(tmp_path / "file"), 6)


def test_a_file_is_read_below_a_descriptor(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_bytes(b"old")
    directory = os.open(tmp_path / "old", os.O_PATH | os.O_DIRECTORY)
    try:
        (tmp_path / "old").rename(tmp_path / "moved")
        (tmp_path / "old").mkdir()
        (tmp_path / "old" / "file").write_bytes(b"new")
        assert read_small_file("file", 100, directory=directory) == b"old"
    finally:
        os.close(directory)


def test_links_are_followed_only_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "device").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="link cannot be opened"):
        read_small_file(str(tmp_path / "link"), 100)
    assert read_small_file(str(tmp_path / "link"), 100, follow=True) == b"content"
    with pytest.raises(ValueError, match="device is not a regular file"):
        read_small_file(str(tmp_path / "device"), 100, follow=True)


def test_a_file_of_endless_size_is_read_to_the_limit_only(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="larger than 1000 bytes"):
        read_small_file(str(tmp_path / "sparse"), 1000)


def test_a_lease_that_is_not_given_back_delays_nobody(tmp_path: Path) -> None:
    """The holder of the lease could block every process that opens the file for 45 seconds."""
    (tmp_path / "file").write_bytes(b"content")
    holder = os.open(tmp_path / "file", os.O_RDWR)
    previous = signal.signal(signal.SIGIO, signal.SIG_IGN)  # how the kernel asks for the lease
    try:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        began = time.monotonic()
        with pytest.raises(ValueError, match="cannot be opened"):
            read_small_file(str(tmp_path / "file"), 100)
        assert time.monotonic() - began < LIMIT_S
    finally:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        signal.signal(signal.SIGIO, previous)
        os.close(holder)


LOAD = """
import resource, sys
from pathlib import Path
from aiochronicle.errors import InvalidConfiguration
from aiochronicle._services.settings import load_settings
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    load_settings(Path(sys.argv[1]))
except InvalidConfiguration as error:
    print(error)
"""


def load_in_child(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "directory", "large"])
def test_a_configuration_that_is_no_small_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "socket":
            os.mknod(path, 0o140600)
        case "directory":
            path.mkdir()
        case "large":
            with path.open("wb") as file:
                file.truncate(1 << 40)
    wanted = "larger than" if kind == "large" else "not a regular file"
    assert wanted in load_in_child(path)


def test_a_configuration_may_be_a_link_of_the_operator(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.toml").write_text("[defaults]\nready = true\n")
    (tmp_path / "config.toml").symlink_to("elsewhere.toml")
    assert load_settings(tmp_path / "config.toml").for_topic("any").ready


DEEP_TOML = {
    "arrays": "a = " + "[" * 40_000,
    "tables": "a = " + "{b = " * 10_000,
    "a dotted key": "a" + ".a" * 400_000 + " = 1",
    "a dotted header": "[a" + ".a" * 400_000 + "]",
    "behind a text with a quote more": 'a = ["""x"""", ' + "[" * 40_000,
}


@pytest.mark.parametrize("name", DEEP_TOML)
def test_a_deep_configuration_is_refused_at_once(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(DEEP_TOML[name])
    began = time.monotonic()
    with pytest.raises(InvalidConfiguration, match="not a TOML file: nested more than 64"):
        load_settings(tmp_path / "config.toml")
    assert time.monotonic() - began < LIMIT_S


@pytest.mark.parametrize("value", ["0x" + "f" * 100_000, '"' + "x" * 100_000 + '"'])
def test_an_endless_value_is_shown_in_part(value: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f"[defaults]\nmode = {value}\n")
    with pytest.raises(InvalidConfiguration, match=r"defaults\.mode = ") as caught:
        load_settings(tmp_path / "config.toml")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 40_000,
        b'{"a":' * 10_000,
        b'{"a": "' + b'\\"' * 100 + b'", "b": ' + b"[" * 65,
        b'"\\ud800"',
        b"\xff",
        b"1" + b"0" * 5000,
        b"",
    ],
    ids=range(7),
)
def test_json_that_cannot_be_used_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(content)


def test_brackets_in_texts_do_not_count() -> None:
    assert parse_json(b'["' + b"[" * 1000 + b'", "\\"[[", [[]]]', depth_max=3) == [
        "[" * 1000,
        '"[[',
        [[]],
    ]
    text = 'a = "[[["\nb = """{{{"""\nc = \'[[[\'\nd = [[]] # [[[[\n[x.y]\nz = 1.5\n'
    assert parse_toml(text.encode(), depth_max=2)["x"] == {"y": {"z": 1.5}}


@pytest.mark.parametrize(
    "content",
    [b'"' + b'\\"' * (MEGABYTE // 2), b'"' * MEGABYTE, b"[]" * (MEGABYTE // 2), b"'" * MEGABYTE],
    ids=range(4),
)
def test_the_depth_is_found_in_one_pass(content: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"."):
        parse_json(content)
    with pytest.raises(ValueError, match=r"."):
        parse_toml(b"a = " + content)
    assert time.monotonic() - began < LIMIT_S


def test_a_file_that_is_no_regular_one_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        open_regular(str(tmp_path / "pipe"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_name_prints_on_one_line_whatever_it_is() -> None:
    for text in ("a\nb", "\x1b[2J", "\u202egnp.exe", "\x7f", "\u2028"):
        shown = printable(text)
        assert shown.isprintable()
        shown.encode("utf-8")
        assert shown.encode("ascii").decode("unicode_escape") == text
    assert printable(os.fsdecode(b"a\xffb")) == "a\\xffb"
    assert printable("back\\slash") == printable(printable("back\\slash")) == "back\\slash"
    assert printable("/queues/größe é 市場") == "/queues/größe é 市場"
