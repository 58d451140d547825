"""Errors can be pickled and copied: for other processes, Spark, and logs."""

import copy
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from aiochronicle import errors, open_reader
from aiochronicle._base.engine_errors import from_engine
from aiochronicle.errors import (
    ChronicleError,
    DecodeError,
    DiskFull,
    FlushFailed,
    NotDurable,
    PositionLost,
    QueueNotFound,
    SchemaMismatch,
    StorageError,
)


def an(kind: type[ChronicleError]) -> ChronicleError:
    if issubclass(kind, SchemaMismatch):
        return kind("types differ", ["size: was int, is gone"], path="orders")
    if issubclass(kind, FlushFailed):
        return kind({"orders": DiskFull("cannot sync", path="orders", errno=28)})
    if issubclass(kind, DecodeError):
        return kind("is no number", path="orders", offset=64, seq=7)
    return kind("went wrong", path="orders", offset=64, errno=5)


def attributes(error: BaseException) -> dict[str, object]:
    """Return the attributes as text, because nested errors are equal only to themselves."""
    values = {name: getattr(error, name, None) for name in dir(error) if name[0] != "_"}
    return {name: repr(value) for name, value in values.items() if not callable(value)}


KINDS = [getattr(errors, name) for name in errors.__all__]

TRIPS: dict[str, Callable[[ChronicleError], ChronicleError]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),  # noqa: S301
    "oldest pickle": lambda error: pickle.loads(pickle.dumps(error, 0)),  # noqa: S301
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("trip", TRIPS.values(), ids=TRIPS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_arrives_as_it_left(
    kind: type[ChronicleError], trip: Callable[[ChronicleError], ChronicleError]
) -> None:
    error = an(kind)
    error.add_note("while testing")
    arrived = trip(error)
    assert type(arrived) is kind
    assert str(arrived) == str(error)
    assert repr(arrived) == repr(error)
    assert arrived.args == error.args
    assert attributes(arrived) == attributes(error)
    assert arrived.__notes__ == ["while testing"]
    if kind.advice:
        assert str(arrived).count(kind.advice) == 1


def test_errors_of_a_sync_say_what_was_appended() -> None:
    error = from_engine(-25, 28, b"orders", 0, b"appended as 7", (0, 0), (0, 0), 7)
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert isinstance(arrived, NotDurable)
    assert (arrived.seq, arrived.errno) == (7, 28)


def test_an_error_of_the_engine_arrives_as_it_left() -> None:
    error = from_engine(-13, 0, b"orders", 0, b"position is gone", (3, 64), (9, 128), 0)
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert isinstance(arrived, PositionLost)
    assert (arrived.wanted, arrived.nearest) == ((3, 64), (9, 128))
    assert str(arrived) == str(error)


def test_advice_of_its_own_arrives_instead_of_the_usual() -> None:
    error = DiskFull("no room", path="orders", errno=28, advice="Ask the operator.")
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert str(arrived) == "orders: no room. Ask the operator."
    assert isinstance(arrived, StorageError)
    assert arrived.errno == 28


def test_an_error_crosses_a_process_pool(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, pytest.raises(QueueNotFound) as told:
        pool.submit(open_reader, tmp_path / "nothing-here").result(60.0)
    error = told.value
    assert error.path == os.fspath(tmp_path / "nothing-here")
    assert error.errno == 2
    assert str(error) == f"{error.path}: {error.detail}. {error.advice}"


def test_advice_follows_a_sentence_or_a_question() -> None:
    assert str(QueueNotFound("gone", advice="Look.")) == "gone. Look."
    assert str(QueueNotFound("gone?", advice="Look.")) == "gone? Look."


UNPRINTABLE = "/data/a\nERROR all is lost\x1b[2J\udcff\u202eb"


@pytest.mark.parametrize("kind", KINDS)
def test_any_path_can_be_printed(kind: type[ChronicleError]) -> None:
    """File names cannot forge log lines or control a terminal, and can be written as UTF-8."""
    if issubclass(kind, SchemaMismatch):
        error: ChronicleError = kind("types differ", ["a: \x1b[2J\udcff"], path=UNPRINTABLE)
    elif issubclass(kind, FlushFailed):
        error = kind({"a": DiskFull("cannot sync \x1b[2J\udcff", path=UNPRINTABLE)})
    else:
        error = kind("cannot open \x1b[2J\udcff", path=UNPRINTABLE)
    assert error.path == UNPRINTABLE
    for text in (str(error), str(pickle.loads(pickle.dumps(error)))):  # noqa: S301
        assert text.encode() != b""
        assert all(line.isprintable() for line in text.split("\n")), text
        assert text.startswith("/data/a\\nERROR all is lost\\x1b[2J\\xff\\u202eb: ")


def test_the_engine_says_one_line(tmp_path: Path, queue: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/a\nb\x1b[2J\xff")
    with pytest.raises(QueueNotFound) as told:
        open_reader(path)
    assert told.value.path == path
    assert str(told.value).isprintable()
    with pytest.raises(errors.InvalidName) as refused:
        open_reader(queue, "a\nb\x1b")
    assert str(refused.value).isprintable()
