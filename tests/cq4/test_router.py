"""A Router over Java and native queues: message times, and a fan-in that sleeps."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aiochronicle import FanIn, Router, cq4, open_reader, open_writer
from aiochronicle.errors import TimestampUnknown, WrongType

_LIMIT_S = 30.0


def _java(path: Path, *times_ns: int) -> None:
    with open_writer(path, format="cq4", ready=True) as writer:
        for at in times_ns:
            writer.send(cq4.Fields({"at": at, "from": path.name}))


def _native(path: Path, *times_ns: int) -> None:
    with open_writer(path, ready=True) as writer:
        for at in times_ns:
            writer.append(b"native", timestamp_ns=at)


async def _take(router: Router[Any], count: int) -> list[int]:
    taken: list[int] = []
    async with asyncio.timeout(_LIMIT_S):
        async for message in router:
            taken.append(message.timestamp_ns)
            if len(taken) == count:
                break
    return taken


@pytest.mark.parametrize(
    "timestamp", ["at", cq4.Timestamp("at"), lambda payload: cq4.decode(payload)["at"]]
)
def test_messages_of_java_queues_are_ordered_by_their_own_times(
    tmp_path: Path, timestamp: Any
) -> None:
    _java(tmp_path / "one", 10, 40, 60)
    _java(tmp_path / "two", 20, 50)
    _native(tmp_path / "three", 30, 70)

    async def main() -> list[int]:
        async with Router(tmp_path, name="router", timestamp=timestamp) as router:
            assert not router.problems
            return await _take(router, 7)

    assert asyncio.run(main()) == [10, 20, 30, 40, 50, 60, 70]


def test_a_java_queue_whose_messages_have_no_such_time_is_set_aside(tmp_path: Path) -> None:
    _native(tmp_path / "native", 1, 2)
    with open_writer(tmp_path / "bad", format="cq4", ready=True) as writer:
        writer.send(cq4.Fields({"other": 1}))

    async def main() -> None:
        async with Router(tmp_path, name="router", timestamp="at") as router:
            assert await _take(router, 2) == [1, 2]
            async with asyncio.timeout(_LIMIT_S):
                while not router.problems:
                    await asyncio.sleep(0.01)
            (problem,) = router.problems.values()
            assert isinstance(problem, TimestampUnknown)

    asyncio.run(main())


def test_what_is_no_timestamp_is_refused_when_the_router_is_made(tmp_path: Path) -> None:
    with pytest.raises(WrongType, match="timestamp"):
        Router(tmp_path, name="router", timestamp=5)  # type: ignore[arg-type]


def test_a_fan_in_sleeps_until_a_java_queue_has_a_message(tmp_path: Path) -> None:
    _native(tmp_path / "native")
    _java(tmp_path / "java", 1)

    async def main() -> list[bytes]:
        got: list[bytes] = []
        with (
            open_writer(tmp_path / "java") as java,
            open_reader(tmp_path / "java", timestamp=lambda _: 1) as one,
            open_reader(tmp_path / "native") as two,
            FanIn([one, two]) as fan_in,
        ):
            messages = aiter(fan_in)
            async with asyncio.timeout(_LIMIT_S):
                await anext(messages)
                for number in range(20):
                    waiting = asyncio.ensure_future(anext(messages))
                    await asyncio.sleep(
                        0.01
                    )  # gives it time to sleep; the test also passes if it does not
                    java.append(b"%d" % number)
                    got.append((await waiting).payload)
        return got

    assert asyncio.run(main()) == [b"%d" % number for number in range(20)]
