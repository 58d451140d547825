"""The quality job counts what a plain loop over the messages counts."""

import math
import random
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from pyspark.sql import Row, SparkSession

import aiochronicle
from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.jobs import quality
from aiochronicle.spark.jobs.plots import plot_quality
from aiochronicle.spark.jobs.quality import PERCENTILES, _delays, _sweep
from spark.venues import MARKETS, Trade, record_venues

MIDNIGHT_NS = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * 10**9
LATE_NS = 50_000_000


class Tick(msgspec.Struct, frozen=True):
    symbol: str
    number: int
    venue_ns: int


Sent = tuple[int, Tick]  # time of recording, message


def feed(rng: random.Random, messages: int) -> list[Sent]:
    """Return a two-day feed that skips numbers and repeats and delays messages."""
    numbers: dict[str, int] = defaultdict(int)
    sent: list[Sent] = []
    now_ns = MIDNIGHT_NS - messages * 10**6 // 2
    for _ in range(messages):
        now_ns += rng.randrange(2 * 10**6)
        symbol = rng.choice(("ALFA", "ECHO"))
        numbers[symbol] += rng.choice((1,) * 20 + (2, 9))
        number = numbers[symbol] - rng.choice((0,) * 20 + (1, 5))
        delay_ns = rng.choice((rng.randrange(10**5), rng.randrange(10**8), -5))
        sent.append((now_ns, Tick(symbol, number, now_ns - delay_ns)))
    return sent


def expected_day(sent: list[Sent], day: str) -> dict[str, int]:
    """Return the expected counts for one day; they depend on earlier days too."""
    newest_ns, last_ns = 0, None
    counts: dict[str, int] = dict.fromkeys(("messages", "out_of_order", "late", "silence_ns"), 0)
    for time_ns, tick in sent:
        here = str(datetime.fromtimestamp(time_ns // 10**9, UTC).date()) == day
        if here:
            counts["messages"] += 1
            counts["out_of_order"] += tick.venue_ns < newest_ns
            counts["late"] += time_ns - tick.venue_ns > LATE_NS
            if last_ns is not None:
                counts["silence_ns"] = max(counts["silence_ns"], time_ns - last_ns)
        newest_ns, last_ns = max(newest_ns, tick.venue_ns), time_ns
    return counts


def delays_of(sent: list[Sent], day: str) -> list[int]:
    """Return the delays of one day, sorted."""
    return sorted(
        time_ns - tick.venue_ns
        for time_ns, tick in sent
        if str(datetime.fromtimestamp(time_ns // 10**9, UTC).date()) == day
    )


def assert_delays(row: Row, delays: list[int], first: int) -> None:
    """Check the delays; a percentile may be too high by 3 % of it or of its distance to the first."""
    assert (row.delay_min_ns, row.delay_max_ns) == (delays[0], delays[-1])
    for name, percent in PERCENTILES.items():
        exact = delays[math.ceil(len(delays) * percent / 100) - 1]
        error = min(abs(exact), abs(exact - first)) * 0.033
        assert exact <= row[name] <= min(exact + error, delays[-1]), name


def missing_numbers(sent: list[Sent]) -> tuple[int, int]:
    """Return how many numbers are missing, and how many messages are repeats."""
    seen: dict[str, list[int]] = defaultdict(list)
    for _, tick in sent:
        seen[tick.symbol].append(tick.number)
    missing = sum(max(n) - min(n) + 1 - len(set(n)) for n in seen.values())
    return missing, sum(len(n) - len(set(n)) for n in seen.values())


def test_quality_of_a_bad_feed(
    spark: SparkSession, root: Path, rng: random.Random, tmp_path: Path
) -> None:
    feeds = {"binance": feed(rng, 3000), "kraken": feed(rng, 200)}
    for name, sent in feeds.items():
        with aiochronicle.open_writer(root / name, codec=Tick, segment_size=1 << 20) as writer:
            for time_ns, tick in sent:
                writer.send(tick, timestamp_ns=time_ns)
    frame = quality(
        spark,
        str(root),
        messages="tick",
        number="number",
        time="venue_ns",
        by="symbol",
        late="50ms",
        options={"minPartitions": "4"},
    )
    rows = frame.collect()
    assert [(row.source, str(row.date)) for row in rows] == [
        (name, day) for name in feeds for day in ("2026-03-01", "2026-03-02")
    ]
    for row in rows:
        expected = expected_day(feeds[row.source], str(row.date))
        assert {name: row[name] for name in expected} == expected
        time_ns, tick = feeds[row.source][0]
        delays = delays_of(feeds[row.source], str(row.date))
        assert_delays(row, delays, time_ns - tick.venue_ns)
    for name, sent in feeds.items():
        of_feed = [row for row in rows if row.source == name]
        found = (sum(row.missing for row in of_feed), sum(row.duplicates for row in of_feed))
        assert found == missing_numbers(sent)
        assert min(row.delay_min_ns for row in of_feed) == -5
    plot_quality(rows, tmp_path / "quality.png")
    assert (tmp_path / "quality.png").read_bytes().startswith(b"\x89PNG")


def test_delays_of_a_venue_whose_clock_is_ahead(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    received = record_venues(root, 5, 500)
    frame = quality(spark, str(root), messages="trade", time="venue_ns", number="trade_id")
    rows = frame.collect()
    assert [row.source for row in rows] == list(MARKETS)
    for row in rows:
        delays = [
            each.timestamp_ns - each.content.venue_ns
            for each in received
            if each.source == row.source and isinstance(each.content, Trade)
        ]
        assert max(delays) < -1_000_000_000
        assert row.delay_p50_ns < row.delay_p99_ns
        assert_delays(row, sorted(delays), delays[0])
    plot_quality(rows, tmp_path / "quality.png")


@pytest.mark.parametrize("unit", [1_000_000, 1_000])
def test_a_venue_s_time_in_another_unit_is_refused(
    spark: SparkSession, root: Path, rng: random.Random, unit: int
) -> None:
    """Some venues send milliseconds; read as nanoseconds, delays were half a century."""
    with aiochronicle.open_writer(root / "a", codec=Tick, segment_size=1 << 20) as writer:
        for time_ns, tick in feed(rng, 20):
            sent = msgspec.structs.replace(tick, venue_ns=tick.venue_ns // unit)
            writer.send(sent, timestamp_ns=time_ns)
    with pytest.raises(InvalidArgument, match=r"venue_ns of Tick .* has to be nanoseconds"):
        quality(spark, str(root), messages="Tick", time="venue_ns")


def test_a_delay_that_no_integer_can_hold_is_the_largest() -> None:
    times_ns = np.array([5, 5, 2**62, 0])
    venue_ns = np.array([-(2**63), 6, -(2**62) - 1, 2**63 - 1])
    largest = 2**63 - 1
    assert _delays(times_ns, venue_ns).tolist() == [largest, -1, largest, -largest]


def test_quality_of_messages_without_a_type(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    with aiochronicle.open_writer(root / "a", segment_size=1 << 20) as writer:
        for number in range(100):
            writer.append(b"x" * 8, timestamp_ns=MIDNIGHT_NS + number * 10**9)
    with (root / "a" / "000000000.q").open("r+b") as segment:
        segment.seek(64 + 128 * 40)
        segment.write(b"\xff" * 64)
    (row,) = quality(spark, str(root), options={"on_corrupt": "skip"}).collect()
    assert (row.messages, row.gaps, row.missing) == (99, 1, 1)
    assert (row.duplicates, row.out_of_order, row.late, row.delay_p50_ns) == (0, 0, 0, None)
    assert row.silence_ns == 2 * 10**9
    plot_quality([row], tmp_path / "quality.png")
    with pytest.raises(InvalidArgument, match="a field of which type"):
        quality(spark, str(root), number="number")


class Other(msgspec.Struct, frozen=True):
    symbol: str


def test_seqs_that_messages_of_other_types_have_are_not_missing(
    spark: SparkSession, root: Path
) -> None:
    """A seq is missing only if no message of any type has it."""
    day_ns = 86_400 * 10**9
    with aiochronicle.open_writer(root / "a", codec=[Tick, Other], segment_size=1 << 20) as writer:
        for number in range(100):
            message = Other("ALFA") if number % 2 or 40 <= number < 60 else Tick("ALFA", number, 0)
            writer.send(message, timestamp_ns=MIDNIGHT_NS + number * day_ns // 20)
    with aiochronicle.open_writer(root / "b", codec=[Tick, Other], segment_size=1 << 20) as writer:
        writer.send(Other("ALFA"), timestamp_ns=MIDNIGHT_NS)
    options = {"minPartitions": "3"}
    rows = quality(spark, str(root), messages="tick", by="symbol", options=options).collect()
    days = [MIDNIGHT_NS // day_ns + day for day in (0, 1, 3, 4)]
    assert [(row.source, row.date.toordinal()) for row in rows] == [
        ("a", day + datetime(1970, 1, 1).toordinal()) for day in days
    ]
    assert [(row.messages, row.missing, row.duplicates) for row in rows] == [(10, 0, 0)] * 4
    assert rows[2].silence_ns == 22 * day_ns // 20


def test_numbers_that_come_again_are_of_the_day_on_which_they_do() -> None:
    def day(number: int, *runs: tuple[int, int]) -> dict[str, object]:
        starts, ends = zip(*runs, strict=True)
        keys = [""] * len(runs)
        return {
            "day": number,
            "duplicates": 0,
            "run_keys": keys,
            "run_starts": starts,
            "run_ends": ends,
        }

    repeated = day(18, (0, 650), (4900, 5100))
    _, missing, duplicates = _sweep([repeated, day(14, (0, 5000)), day(15, (5000, 9000))])
    assert +duplicates == {18: 850}
    assert +missing == {}
