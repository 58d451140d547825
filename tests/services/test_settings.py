"""config.toml: valid contents, merging, and errors."""

from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from aiochronicle import Batch, Bus, Capacity, Retention, Roll, TopicSettings
from aiochronicle._core.topic_settings import ALLOWED
from aiochronicle._services.settings import BusSettings, load_settings
from aiochronicle.errors import InvalidConfiguration

EVERYTHING = """
[defaults]
segment_size = 1_048_576
roll = { bytes = 100_000, seconds = 3600, messages = 1000 }
flush = { bytes = 65_536, seconds = 0.1 }
capacity = { bytes = 4096, policy = "block", timeout_s = 1.5 }
heartbeat = 0.5
max_ahead_s = 60
ready = true
mode = 0o640
memlock = false
verify = true
[defaults.retention]
max_age_s = 86_400
max_bytes = 1_000_000
archive = "old"
reader_ttl_s = 5
max_reader_lag = 9
check_interval_s = 0.5
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "config.toml"
    path.write_text(text)
    return path


def refusal(directory: Path, text: str) -> InvalidConfiguration:
    path = write(directory, text)
    with pytest.raises(InvalidConfiguration) as caught:
        load_settings(path)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    return caught.value


def test_everything_can_be_said(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, EVERYTHING)).for_topic("orders")
    assert settings == TopicSettings(
        segment_size=1 << 20,
        roll=Roll(bytes=100_000, seconds=3600.0, messages=1000),
        flush=Batch(65_536, 0.1),
        retention=Retention(
            max_age_s=86_400.0,
            max_bytes=1_000_000,
            archive="old",
            reader_ttl_s=5.0,
            max_reader_lag=9,
            check_interval_s=0.5,
        ),
        capacity=Capacity(4096, "block", 1.5),
        heartbeat=0.5,
        max_ahead_s=60.0,
        ready=True,
        mode=0o640,
        memlock=False,
        verify=True,
    )


def test_no_file_means_the_defaults_of_open_writer(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "config.toml") == BusSettings()
    assert BusSettings().for_topic("orders") == TopicSettings()
    write(tmp_path, "")
    assert load_settings(tmp_path / "config.toml").for_topic("orders") == TopicSettings()


def test_patterns_in_the_order_of_the_file_and_the_very_name_last(tmp_path: Path) -> None:
    settings = load_settings(
        write(
            tmp_path,
            """
            [defaults]
            mode = 0o600
            capacity = 1000
            roll = { messages = 5, bytes = 5 }
            [topics."ticks.eu"]
            mode = 0o604
            [topics."ticks.*"]
            mode = 0o640
            flush = "sync"
            capacity = false
            [topics."*.eu"]
            mode = 0o644
            roll = { seconds = 1 }
            [topics."desk/*"]
            verify = true
            [topics."desk/orders"]
            mode = 0o666
            """,
        )
    )
    assert settings.for_topic("orders") == TopicSettings(
        capacity=1000, roll=Roll(messages=5, bytes=5)
    )
    eu = settings.for_topic("ticks.eu")
    assert (eu.mode, eu.flush, eu.capacity) == (0o604, "sync", None)
    assert eu.roll == Roll(seconds=1.0), "a table replaces the one before as a whole"
    assert settings.for_topic("ticks.us").mode == 0o640
    assert settings.for_topic("fills.eu").mode == 0o644
    assert not settings.for_topic("fills", "floor").verify
    assert settings.for_topic("fills", "desk").verify
    assert settings.for_topic("orders", "desk").mode == 0o666


REFUSED = {
    "segment_size": ["0", "100", "4097", "4_294_967_360", '"big"', "1.5", "99999999999999999999"],
    "roll": ["3", "true", '"daily"'],
    "roll.bytes": ["0", "-1", "1.5", '"x"'],
    "roll.seconds": ["0", "-0.5", "inf", "nan", '"1h"'],
    "roll.messages": ["0", "true"],
    "flush": ['"snyc"', "5", "false", "[]"],
    "flush.bytes": ["0", '"1 MiB"'],
    "flush.seconds": ["0.0", "false"],
    "retention": ['"1d"', "true"],
    "retention.max_age_s": ["0", '"1d"'],
    "retention.max_bytes": ["-1"],
    "retention.archive": ["5"],
    "retention.wait_for": ["5"],
    "retention.reader_ttl_s": ["0"],
    "retention.max_reader_lag": ["0"],
    "retention.check_interval_s": ["-1"],
    "capacity": ["0", "-5", '"1 MiB"', "true"],
    "capacity.bytes": ["0"],
    "capacity.policy": ['"wait"', "1"],
    "capacity.timeout_s": ["0"],
    "heartbeat": ["0", '"1s"'],
    "max_ahead_s": ["0", '"1s"'],
    "ready": ["1", '"yes"'],
    "mode": ["-1", "0o1000", '"rw"'],
    "memlock": ["0"],
    "verify": ['"no"'],
    "lock_timeout": ["-1", '"1s"', "true"],
    "format": ['"java"', "1"],
    "roll_cycle": ["1"],
    "epoch": ['"1970"', "1e3", "99999999999999999999"],
    "shared": ["1", "[true]"],
}
COMPANIONS = {"flush.bytes": "seconds = 1", "flush.seconds": "bytes = 1"}


def toml_line(key: str, value: str) -> str:
    outer, _, inner = key.partition(".")
    if not inner:
        return f"{key} = {value}"
    companion = COMPANIONS.get(key) or ("bytes = 5" if key.startswith("capacity.") else "")
    if companion.startswith(inner):
        companion = ""
    return f"{outer} = {{ {inner} = {value}{', ' if companion else ''}{companion} }}"


@pytest.mark.parametrize("key", REFUSED)
def test_wrong_value_is_refused_with_key_value_and_what_is_allowed(
    tmp_path: Path, key: str
) -> None:
    for value in REFUSED[key]:
        for table, name in (("defaults", "defaults"), ('topics."ticks.*"', 'topics."ticks.*"')):
            error = refusal(tmp_path, f"[{table}]\n{toml_line(key, value)}\n")
            assert error.key == f"{name}.{key}"
            assert f"{name}.{key} = " in str(error)
            assert ALLOWED[key] in str(error)


def test_the_value_is_shown_as_it_is_written(tmp_path: Path) -> None:
    error = refusal(tmp_path, '[topics.orders]\nflush = "snyc"\n')
    assert error.detail == (
        "topics.orders.flush = 'snyc', but it must be"
        ' "async", "sync", or a table with bytes and seconds'
    )


def test_missing_key_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path, "[defaults]\nflush = { bytes = 5 }\n")
    assert error.key == "defaults.flush"
    assert "seconds is missing" in str(error)


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("[defaults]\nsegmentsize = 5\n", "defaults.segmentsize", "segment_size"),
        ("[topics.a]\nroll = { byte = 5 }\n", "topics.a.roll.byte", "bytes"),
        ("[topics.a]\nretention = { age = 5 }\n", "topics.a.retention.age", "max_age_s"),
        ("[default]\nmode = 0\n", "default", "defaults"),
        ("[topic.a]\n", "topic", "topics"),
        ("flush = 'sync'\n", "flush", "defaults"),
        ("[defaults]\nxyzzy = 1\n", "defaults.xyzzy", ""),
    ],
)
def test_unknown_key_is_refused_with_the_nearest_known(
    tmp_path: Path, text: str, key: str, nearest: str
) -> None:
    error = refusal(tmp_path, text)
    assert error.key == key
    assert f"unknown key {key}" in str(error)
    assert f"did you mean {nearest}" in str(error)
    assert "Known keys: " in str(error)


@pytest.mark.parametrize(
    ("text", "key"),
    [("defaults = 5\n", "defaults"), ("[topics]\norders = 'x'\n", "topics.orders")],
)
def test_not_a_table(tmp_path: Path, text: str, key: str) -> None:
    assert refusal(tmp_path, text).key == key


@pytest.mark.parametrize("name", ["a b", "", ".hidden", "fx//orders", "/orders", "x" * 65])
def test_a_table_that_no_topic_can_have_is_refused(tmp_path: Path, name: str) -> None:
    error = refusal(tmp_path, f'[topics."{name}"]\nflush = "sync"\n')
    assert error.key == f'topics."{name}"' or error.key == f"topics.{name}"
    assert "neither a valid topic name nor a pattern" in str(error)
    path = tmp_path / "config.toml"
    path.write_text("[topics.'fx/orders']\n[topics.orders]\n[topics.'a b*']\n[topics.'[a-c]?']\n")
    load_settings(path)


def test_not_toml(tmp_path: Path) -> None:
    error = refusal(tmp_path, "[defaults]\nmode = \n")
    assert error.key is None
    assert "line 2" in str(error)
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfiguration, match="not a TOML file"):
        load_settings(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(
        InvalidConfiguration, match=r"cannot be read: config.toml is not a regular file"
    ):
        load_settings(path)


def test_a_bus_refuses_its_file_at_once(tmp_path: Path) -> None:
    write(tmp_path, "[topics.never-used]\nmode = 9999\n")
    with pytest.raises(InvalidConfiguration, match=r"topics\.never-used\.mode = 9999"):
        Bus(tmp_path)


def fields(kind: type[msgspec.Struct], prefix: str = "") -> set[str]:
    names: set[str] = set()
    for name, hint in get_type_hints(kind).items():
        names.add(prefix + name)
        for part in (hint, *get_args(hint)):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                names |= fields(part, f"{prefix}{name}.")
    return names


def test_every_setting_says_what_is_allowed_and_is_tested() -> None:
    assert set(ALLOWED) == fields(TopicSettings)
    assert set(REFUSED) == set(ALLOWED)
