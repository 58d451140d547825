"""An archive has message fields as plain Parquet columns and still holds each message in full."""

import random
import shutil
from pathlib import Path
from typing import Annotated, Any

import duckdb
import msgspec
import pandas as pd
import polars as pl
import pytest
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle import Codec, Width
from aiochronicle.codec import Format
from aiochronicle.digest import StreamDigest
from aiochronicle.spark.archive.manifest import Manifest
from aiochronicle.spark.jobs import archive, archived, replay

FIRST_NS = 1_772_409_600_000_000_000 - 10**9  # a second before midnight


class Level(msgspec.Struct, array_like=True, frozen=True):
    price: float
    size: float


class Trade(msgspec.Struct, frozen=True, rename={"price": "p", "symbol": "s"}):
    symbol: str
    price: float
    size: float | None = None
    tags: dict[str, int] = {}


class Book(msgspec.Struct, frozen=True, tag="book"):
    symbol: str
    bids: list[Level]
    asks: list[Level]


class Fixed(msgspec.Struct, frozen=True):
    symbol: Annotated[str, Width("S8")]
    price: float
    flags: Annotated[int, Width("u8")]
    buyer: bool


class Odd(msgspec.Struct, frozen=True):
    """A type with fields that columns cannot hold, or not exactly."""

    choice: int | str
    pair: tuple[int, str]


TYPES: list[type[Any]] = [Trade, Book, Odd]


def some_message(rng: random.Random) -> Any:
    symbol = rng.choice(("BTCUSDT", "ETHUSDT", "Ωmega"))
    match rng.randrange(4):
        case 0:
            return Trade(symbol, rng.random(), rng.choice((None, 1.5)), {"a": rng.randrange(9)})
        case 1:
            sides = [
                [Level(rng.random(), float(i)) for i in range(rng.randrange(4))] for _ in range(2)
            ]
            return Book(symbol, *sides)
        case 2:
            return Odd(rng.choice((1, "x")), (2, "y"))
        case _:
            return Fixed(symbol, rng.random(), rng.getrandbits(64), rng.random() < 0.5)


def record(path: Path, rng: random.Random, encoding: Format, messages: int = 300) -> None:
    codecs: list[Codec[Any]] = [Codec(kind, format=encoding) for kind in TYPES]
    with aiochronicle.open_writer(
        path, codec=[*codecs, Codec(Fixed, format="struct")], segment_size=1 << 20
    ) as writer:
        start_ns = FIRST_NS if writer.next_seq == 0 else FIRST_NS + 3 * 10**9
        for number in range(messages):
            time_ns = start_ns + number * (2 * 10**9 // messages)
            if rng.random() < 0.1:
                # Encoded differently, invalid for the type, of an unknown type, or untyped.
                type_id, payload = rng.choice(
                    ((1, spaced(encoding)), (1, b"\xc1{"), (99, rng.randbytes(20)), (0, b""))
                )
                writer.append(payload, type_id=type_id, timestamp_ns=time_ns)
            else:
                writer.send(some_message(rng), timestamp_ns=time_ns)


def spaced(encoding: Format) -> bytes:
    """Return a Trade encoded the way another program might encode it."""
    if encoding == "json":
        return b'{ "s": "BTCUSDT", "p": 1.50, "more": [] }'
    return msgspec.msgpack.encode({"p": 1.5, "more": 1, "s": "BTCUSDT"})


def messages_of(path: Path) -> list[tuple[int, int, int, bytes]]:
    with aiochronicle.open_reader(path, start="first") as reader:
        return [(m.seq, m.timestamp_ns, m.type_id, m.payload) for m in reader]


def digest_of(path: Path) -> str:
    digest = StreamDigest([path.name])
    with aiochronicle.open_reader(path, start="first") as reader:
        digest.add(reader)
    return digest.hexdigest()


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_an_archive_has_columns_and_gives_each_message_back(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random, encoding: Format
) -> None:
    out, again = tmp_path / "archive", tmp_path / "again"
    record(root / "md", rng, encoding)
    (done,) = archive(spark, str(root), str(out), options={"minPartitions": 3})
    assert done.rows == 300
    assert 0 < done.payloads < 60, "which fields cannot give again"
    assert {path.name for path in out.glob("type=*")} == {
        "type=Book",
        "type=Fixed",
        "type=Odd",
        "type=Trade",
        "type=raw",
    }
    assert spark.read.parquet(str(out)).count() == 300

    codec = {c.type: c for c in [Codec(kind, format=encoding) for kind in TYPES]}[Trade]
    trades: list[tuple[int, Trade]] = []
    for seq, _, type_id, payload in messages_of(root / "md"):
        if type_id == 1 and payload[:1] != b"\xc1":
            trades.append((seq, codec.decode(payload)))
    expected = [(seq, trade.price) for seq, trade in trades]
    files = str(out / "type=Trade")
    by_spark = spark.read.parquet(files).orderBy("seq").select("seq", "price").collect()
    assert [tuple(row) for row in by_spark] == expected
    query = f"select seq, price from '{files}/**/*.parquet' order by seq"
    assert duckdb.execute(query).fetchall() == expected
    by_polars = (
        pl.scan_parquet(f"{files}/**/*.parquet").select("seq", "price").sort("seq").collect()
    )
    assert by_polars.rows() == expected
    by_pandas = pd.read_parquet(files, columns=["seq", "price", "source"]).sort_values("seq")
    assert list(by_pandas[["seq", "price"]].itertuples(index=False, name=None)) == expected
    assert set(by_pandas.source) == {"md"}

    live = spark.read.format("chronicle").option("type", "trade").load(str(root)).orderBy("seq")
    kept = archived(spark, str(out), type="trade").orderBy("seq")
    assert kept.schema == live.schema
    assert kept.collect() == live.collect()
    everything = archived(spark, str(out)).orderBy("seq").collect()
    assert [
        (row.seq, row.timestamp_ns, row.type_id, bytes(row.payload)) for row in everything
    ] == messages_of(root / "md")

    # A second run compacts new rows with the small files of the day; then everything is replayed.
    files_before = len(list(out.rglob("*.parquet")))
    record(root / "md", rng, encoding, 100)
    assert [one.rows for one in archive(spark, str(root), str(out))] == [100]
    assert len(list(out.rglob("*.parquet"))) == files_before
    expected_digest = digest_of(root / "md")
    shutil.rmtree(root / "md")
    assert [one.rows for one in replay(spark, str(out), str(again))] == [400]
    assert digest_of(again / "md") == expected_digest
    assert aiochronicle.Registry.load(again / "md").named("Trade").format == encoding


def test_payloads_are_kept_if_that_is_wanted(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    record(root / "md", rng, "msgpack", 50)
    (done,) = archive(spark, str(root), str(tmp_path / "archive"), payload=True)
    assert done.payloads == done.rows == 50
    query = f"select seq, payload from '{tmp_path}/archive/type=*/**/*.parquet' order by seq"
    found = duckdb.execute(query).fetchall()
    assert found == [(seq, payload) for seq, _, _, payload in messages_of(root / "md")]


def test_a_type_that_gains_a_field_goes_on_in_its_dataset(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    class Before(msgspec.Struct):
        price: float

    class After(msgspec.Struct):
        price: float
        venue: str = "?"

    out = tmp_path / "archive"
    for message in (Before(1.0), After(2.0, "X")):
        codec: Codec[Any] = Codec(type(message), name="Trade")
        with aiochronicle.open_writer(root / "md", codec=codec, segment_size=1 << 20) as writer:
            writer.send(message, timestamp_ns=FIRST_NS)
        archive(spark, str(root), str(out))
    rows = archived(spark, str(out), type="Trade").orderBy("seq").select("price", "venue")
    assert [tuple(row) for row in rows.collect()] == [(1.0, "?"), (2.0, "X")]
    expected = digest_of(root / "md")
    replay(spark, str(out), str(tmp_path / "again"))
    assert digest_of(tmp_path / "again" / "md") == expected


def test_an_archive_of_before_there_were_types_goes_on_as_it_is(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    record(root / "md", rng, "msgpack", 40)
    shutil.move(root / "md" / "schema.json", tmp_path / "schema.json")
    archive(spark, str(root), str(out))
    manifest = Manifest.load(out, "md")
    assert manifest is not None
    files = []
    for file in manifest.files:
        path = file.path.removeprefix("type=raw/")
        (out / path).parent.mkdir(parents=True)
        shutil.move(out / file.path, out / path)
        files.append(msgspec.structs.replace(file, path=path))
    msgspec.structs.replace(manifest, version=1, files=tuple(files)).save(out)
    shutil.rmtree(out / "type=raw")
    shutil.move(tmp_path / "schema.json", root / "md" / "schema.json")
    record(root / "md", rng, "msgpack", 40)
    archive(spark, str(root), str(out))
    assert not list(out.glob("type=*"))
    assert spark.read.parquet(str(out)).count() == 80
    expected = digest_of(root / "md")
    replay(spark, str(out), str(tmp_path / "again"))
    assert digest_of(tmp_path / "again" / "md") == expected
