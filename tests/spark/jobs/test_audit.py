"""The audit has the digest of a strict fan-in; its stream has the fan-in's order."""

import random
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from reference import format as fmt
from test_nested_names import digest_of

import aiochronicle
from aiochronicle.digest import StreamDigest
from aiochronicle.errors import InvalidArgument, QueueNotFound
from aiochronicle.spark.jobs import audit
from spark import venues
from spark.market import FIRST_NS

NAMES = ("binance", "coinbase", "kraken")


def record_venues(root: Path, rng: random.Random) -> None:
    """Write queues of different lengths with many equal times, within and across queues."""
    for name, messages in zip(NAMES, (900, 40, 3000), strict=True):
        time_ns = FIRST_NS
        with aiochronicle.open_writer(root / name, segment_size=1 << 20) as writer:
            for _ in range(messages):
                time_ns += rng.choice((0, 0, 10**6, rng.randrange(10**8)))
                writer.append(
                    rng.randbytes(rng.randrange(30)), type_id=rng.randrange(3), timestamp_ns=time_ns
                )


def strict_order(root: Path) -> list[aiochronicle.Message]:
    readers = [aiochronicle.open_reader(root / name, start="first") for name in NAMES]
    with aiochronicle.FanIn(readers, order="strict") as fan_in:
        messages = list(fan_in)
    for reader in readers:
        reader.close()
    return messages


def test_audit_has_the_digest_and_the_order_of_a_strict_fan_in(
    spark: SparkSession, root: Path, rng: random.Random, tmp_path: Path
) -> None:
    record_venues(root, rng)
    messages = strict_order(root)
    expected = StreamDigest(NAMES)
    expected.add(messages)
    found = audit(spark, str(root), out=str(tmp_path / "stream"), options={"minPartitions": "4"})
    assert found.messages == len(messages) == 3940
    assert found.digest == expected.hexdigest()
    assert found.blocks == tuple(expected.blocks())
    files = sorted((tmp_path / "stream").glob("*.parquet"))
    assert len(files) > 1
    rows = [row for file in files for row in spark.read.parquet(str(file)).collect()]
    assert [(row.timestamp_ns, row.source, row.seq, bytes(row.payload)) for row in rows] == [
        (m.timestamp_ns, m.source, m.seq, m.payload) for m in messages
    ]


def test_audit_of_a_part_of_the_time(spark: SparkSession, root: Path, rng: random.Random) -> None:
    record_venues(root, rng)
    start_ns, end_ns = FIRST_NS + 5 * 10**9, FIRST_NS + 20 * 10**9 + 12345
    expected = StreamDigest(NAMES)
    expected.add(m for m in strict_order(root) if start_ns <= m.timestamp_ns < end_ns)
    options = {"startingTimestamp": str(start_ns), "endingTimestamp": str(end_ns)}
    assert audit(spark, str(root), options=options).digest == expected.hexdigest()


def test_audit_ends_with_the_last_time_there_is(spark: SparkSession, root: Path) -> None:
    """Our writers refuse this time; other programs may use it for "unknown"."""
    for name in NAMES:
        with fmt.ForeignWriter(root / name, 1 << 16) as writer:
            for time_ns in (FIRST_NS, 2**63 - 1, 2**63 - 1):
                writer.append(name.encode(), 0, time_ns)
    readers = [aiochronicle.open_reader(root / name) for name in NAMES]
    messages = [message for reader in readers for message in reader]
    expected = StreamDigest(NAMES)
    expected.add(sorted(messages, key=lambda m: (m.timestamp_ns, m.source, m.seq)))
    assert expected.messages == 9
    assert audit(spark, str(root)).digest == expected.hexdigest()
    for reader in readers:
        reader.close()


def test_audit_says_what_is_wrong(
    spark: SparkSession, root: Path, rng: random.Random, tmp_path: Path
) -> None:
    with pytest.raises(QueueNotFound, match="there is no queue"):
        audit(spark, str(root))
    record_venues(root, rng)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(InvalidArgument, match="something is there already"):
        audit(spark, str(root), out=str(tmp_path / "taken"))
    with (root / "kraken" / "000000000.q").open("r+b") as segment:
        segment.seek(64 * 100)
        segment.write(b"\xff" * 64)
    with pytest.raises(PySparkException, match=r"kraken/000000000.q at offset \d+: "):
        audit(spark, str(root))


def test_nested_queues_have_the_digest_of_a_strict_fan_in(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    """Audit and fan-in name queues alike: by their path below the root."""
    venues.record_venues(root, 9, 200)
    found = audit(spark, str(root))
    assert found.sources == venues.MARKETS
    assert found.digest == digest_of(root)
    with aiochronicle.replay(root) as history:
        digest = StreamDigest(venues.MARKETS)
        digest.add(history)
    assert digest.hexdigest() == found.digest
    with aiochronicle.replay(root) as history:
        history.into_now(tmp_path / "copy")
    assert audit(spark, str(tmp_path / "copy")).digest == found.digest
