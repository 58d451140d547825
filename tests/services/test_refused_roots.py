"""If a directory cannot be created, each service raises a ChronicleError that names the path."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults.devices import missing, tmpfs

import aiochronicle
from aiochronicle import errors


async def entered(service: Any) -> None:
    async with service:
        pass


def requester(root: Path) -> aiochronicle.Requester[Any, Any]:
    return aiochronicle.Requester(root / "requests", root / "replies", "desk")


def responder(root: Path) -> aiochronicle.Responder[Any]:
    return aiochronicle.Responder(root / "requests", root / "replies")


def copy(root: Path) -> object:
    recorded = root.parent.parent / "recorded"
    aiochronicle.open_writer(recorded, segment_size=65536).close()
    with aiochronicle.replay(recorded) as history:
        return history.into_now(root)


MAKERS = {
    "bus": lambda root: aiochronicle.Bus(root).append("topic", b""),
    "router": lambda root: asyncio.run(entered(aiochronicle.Router(root, name="router"))),
    "requester": lambda root: asyncio.run(entered(requester(root))),
    "requester without a loop": lambda root: requester(root).__enter__(),
    "responder": lambda root: asyncio.run(entered(responder(root))),
    "topic": lambda root: aiochronicle.open_writer(root, shared=True),
    "replay into": copy,
}

every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@every
def test_a_name_that_is_too_long(tmp_path: Path, make: Callable[[Path], object]) -> None:
    root = tmp_path / "above" / ("x" * 256)
    with pytest.raises(errors.StorageError, match="File name too long") as refused:
        make(root)
    assert str(root) in str(refused.value.path)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@every
def test_a_full_disk(tmp_path: Path, make: Callable[[Path], object]) -> None:
    with tmpfs(tmp_path / "full", "1m,nr_inodes=1") as disk:
        with pytest.raises(errors.DiskFull) as refused:
            make(disk / "root")
        assert str(refused.value.path).startswith(str(disk))
