"""A missing feature raises an error that says why, or works differently in ways tested here."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aiochronicle
from aiochronicle import Batch, Codec, Retention, Roll, Writer
from aiochronicle.errors import NotSupported
from contract.backend import CQ4, NATIVE, Backend

PAGE = Path(__file__).parent.parent.parent / "docs" / "guide" / "java.md"
MISSING = sorted(NATIVE.features - CQ4.features)


class Trade(msgspec.Struct):
    price: float


def enter(writer: Writer) -> None:
    with writer.reserve(1):
        pass


OPENING: dict[str, dict[str, Any]] = {
    "batch flush": {"flush": Batch(1 << 20, 1.0)},
    "capacity": {"capacity": 1 << 20},
    "codec formats": {"codec": Codec(Trade, "json")},
    "heartbeat": {"heartbeat": 1.0},
    "max_ahead_s": {"max_ahead_s": 1.0},
    "memlock": {"memlock": True},
    "recovery": {"recover": "salvage"},
    "retention": {"retention": Retention()},
    "roll": {"roll": Roll(messages=1)},
    "segments": {"segment_size": 1 << 20},
    "verify": {"verify": True},
}

CALLS: dict[str, list[Callable[[Writer], object]]] = {
    "capacity": [lambda writer: writer.reader_lag()],
    "cause": [
        lambda writer: writer.append(b"x", cause=(1, 2)),
        lambda writer: writer.append_many([b"x"], cause=(1, 2)),
        lambda writer: writer.last_cause(1),
        lambda writer: writer.last_causes(),
    ],
    "configure": [lambda writer: writer.configure(flush="sync")],
    "expiry": [lambda writer: writer.append_expiring(b"x", 1 << 60)],
    "groups": [lambda writer: aiochronicle.open_group(writer.path, "group")],
    "heartbeat": [lambda writer: writer.heartbeat()],
    "keys and headers": [
        lambda writer: writer.append(b"x", key=b"key"),
        lambda writer: writer.append(b"x", headers={"name": b"value"}),
        lambda writer: writer.append_many([b"x"], keys=[b"key"]),
    ],
    "reserve": [enter],
    "retention": [lambda writer: writer.retain_now()],
    "timestamps": [
        lambda writer: writer.append(b"x", timestamp_ns=1),
        lambda writer: writer.append_many([b"x"], timestamps_ns=[1]),
    ],
    "types": [
        lambda writer: writer.append(b"x", type_id=1),
        lambda writer: writer.append_many([b"x"], type_id=1),
    ],
}

OTHERWISE = {"atomic batches", "empty payloads", "one reader per name", "one writer"}
"""Tested one by one: these are not refused, but different."""


@pytest.mark.parametrize("feature", sorted(OPENING))
def test_options_without_a_place_are_refused(queue_path: Path, feature: str) -> None:
    with pytest.raises(NotSupported) as caught:
        aiochronicle.open_writer(queue_path, format="cq4", **OPENING[feature])
    [option] = OPENING[feature]
    assert option in str(caught.value)
    assert str(queue_path) in str(caught.value)
    assert not queue_path.exists(), "nothing was made"


@pytest.mark.parametrize("feature", sorted(CALLS))
def test_calls_without_a_place_are_refused(queue_path: Path, feature: str) -> None:
    with CQ4.open_writer(queue_path) as writer:
        for call in CALLS[feature]:
            with pytest.raises(NotSupported) as caught:
                call(writer)
            assert str(queue_path) in str(caught.value)
        assert writer.append(b"only") == 0
    assert CQ4.payloads(queue_path) == [b"only"]


def test_all_that_is_missing_is_tested() -> None:
    assert {*OPENING, *CALLS, *OTHERWISE} == set(MISSING)


def test_the_guide_lists_what_is_missing() -> None:
    """The table in the guide has one row for each missing feature."""
    text = PAGE.read_text(encoding="utf-8")
    _, _, section = text.partition("\n## What a Java queue cannot do\n")
    section, _, _ = section.partition("\n## ")
    rows = re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)
    assert sorted(rows[2:] if rows[1].startswith("-") else rows[1:]) == MISSING


# features that work differently


def test_an_empty_payload_is_one_byte_of_padding(queue_path: Path) -> None:
    """Java writes an empty document in the same way."""
    with CQ4.open_writer(queue_path) as writer:
        writer.append(b"")
        writer.append_many([b"", b"x"])
    assert CQ4.payloads(queue_path) == [b"\x8f", b"\x8f", b"x"]


def test_writers_in_one_process_take_turns(queue_path: Path) -> None:
    with CQ4.open_writer(queue_path) as one, CQ4.open_writer(queue_path) as two:
        indexes = [writer.append(b"x") for _ in range(100) for writer in (one, two)]
        assert indexes == list(range(200))
        assert one.append_many([b"a", b"b"]) == range(200, 202)
        assert two.append_many([b"c"]) == range(202, 203)
    assert len(CQ4.payloads(queue_path)) == 203


def test_one_name_may_be_open_twice(queue_path: Path) -> None:
    CQ4.fill(queue_path, 3)
    with CQ4.open_reader(queue_path, "twice") as one, CQ4.open_reader(queue_path, "twice") as two:
        one.read_batch(1)
        two.read_batch(2)
        two.commit()
        one.commit()
    assert CQ4.payloads(queue_path, "twice") == [b"1", b"2"], "the last commit wins"


def test_what_is_there_is_recognised(tmp_path: Path, backend: Backend) -> None:
    path = tmp_path / "queue"
    backend.fill(path, 2)
    with aiochronicle.open_writer(path) as writer:
        assert writer.format == backend.name
        assert writer.append(b"2") == 2
    assert backend.payloads(path) == [b"0", b"1", b"2"]
