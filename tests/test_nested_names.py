"""A queue below a root has the same name everywhere: its path relative to that root."""

import asyncio
from pathlib import Path

from spark.venues import MARKETS, record_venues

from aiochronicle import Bus, FanIn, Registry, Router, open_reader, replay
from aiochronicle.digest import StreamDigest


def digest_of(root: Path, names: tuple[str, ...] = MARKETS) -> str:
    """Return the digest of a strict fan-in over readers named by their paths relative to the root."""
    digest = StreamDigest(names)
    readers = [open_reader(root / name, source=name) for name in names]
    with FanIn(readers, order="strict") as fan_in:
        digest.add(fan_in)
    for reader in readers:
        reader.close()
    return digest.hexdigest()


def test_a_reader_has_the_name_that_it_was_given(tmp_path: Path) -> None:
    record_venues(tmp_path, 1, 3)
    with open_reader(tmp_path / "cm" / "btc", source="cm/btc") as reader:
        assert reader.source == "cm/btc"
        assert {message.source for message in reader} == {"cm/btc"}
    with open_reader(tmp_path / "cm" / "btc") as reader:
        assert reader.source == "btc"


def test_a_replay_keeps_the_tree(tmp_path: Path) -> None:
    received = record_venues(tmp_path / "bus", 1, 50)
    with replay(tmp_path / "bus") as history:
        seen = [(message.source, message.seq) for message in history]
    expected = sorted(received, key=lambda each: (each.timestamp_ns, each.source, each.seq))
    assert seen == [(each.source, each.seq) for each in expected]
    with replay(tmp_path / "bus") as history:
        assert history.into_now(tmp_path / "copy") == len(received)
    found = {path.parent for path in (tmp_path / "copy").rglob("control.meta")}
    assert found == {tmp_path / "copy" / market for market in MARKETS}
    assert digest_of(tmp_path / "copy") == digest_of(tmp_path / "bus")
    for market in MARKETS:
        names = {entry.name for entry in Registry.load(tmp_path / "copy" / market)}
        assert names == {"Trade", "Depth", "BookTicker"}


def test_a_replay_of_readers_keeps_their_names(tmp_path: Path) -> None:
    record_venues(tmp_path / "bus", 1, 5)
    with (
        open_reader(tmp_path / "bus" / "um" / "btc", source="um/btc") as reader,
        replay([reader, tmp_path / "bus" / "cm"]) as history,
    ):
        assert {message.source for message in history} == {"um/btc", "btc"}


def test_a_bus_names_queues_by_their_topics(tmp_path: Path) -> None:
    with Bus(tmp_path, namespace="md/cm") as bus:
        bus.writer("btc", segment_size=1 << 16).append(b"x")
        reader = bus.reader("btc", "risk")
        assert [message.source for message in reader] == ["md/cm/btc"]


async def test_a_router_names_queues_by_their_paths_below_its_root(tmp_path: Path) -> None:
    record_venues(tmp_path / "bus", 1, 4)
    async with Router(tmp_path / "bus", name="all", depth=2) as router:
        seen = [(await asyncio.wait_for(router.next(), 30)).source for _ in range(12)]
    assert sorted(set(seen)) == list(MARKETS)
