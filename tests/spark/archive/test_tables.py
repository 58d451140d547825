"""Archives as Delta Lake and Iceberg tables: every row exactly once, whenever a driver is killed."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pytest
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle import Codec
from aiochronicle.digest import StreamDigest
from aiochronicle.errors import InvalidArgument
from aiochronicle.spark.archive.tables import TableFormat
from aiochronicle.spark.jobs import archive, archived, compact, replay
from spark.archive.killed_driver import JOB, killed, killed_when_fresh

FIRST_NS = 1_772_409_600_000_000_000

Row = tuple[str, int, float, str | None]

# Warnings of pyiceberg and its database.
pytestmark = pytest.mark.filterwarnings(
    "ignore::polars.exceptions.PerformanceWarning",
    "ignore::UserWarning",
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::FutureWarning",
)


class Trade(msgspec.Struct):
    symbol: str
    price: float


class TradeOfVenue(msgspec.Struct):
    symbol: str
    price: float
    venue: str = "?"


def record(root: Path, rng: random.Random, start_ns: int, kind: type[Any] = Trade) -> list[Row]:
    """Append trades to two queues, one of them nested."""
    rows: list[Row] = []
    for name in ("kraken", "md/btc"):
        (root / name).parent.mkdir(exist_ok=True)
        codec: Codec[Any] = Codec(kind, name="Trade")
        with aiochronicle.open_writer(root / name, codec=codec, segment_size=1 << 20) as writer:
            for number in range(20):
                price = rng.random()
                venue = "X" if kind is TradeOfVenue else None
                message = kind("BTC", price) if venue is None else kind("BTC", price, venue)
                seq = writer.send(message, timestamp_ns=start_ns + number)
                rows.append((name, seq, price, venue))
            writer.append(b"\xc1", timestamp_ns=start_ns + 20)
    return rows


def read_delta(out: Path) -> dict[str, Any]:
    import deltalake

    table = deltalake.DeltaTable(str(out / "Trade"))
    return {
        "polars": pl.scan_delta(str(out / "Trade")).collect().to_arrow(),
        "delta-rs": table.to_pyarrow_table(),
    }


def read_iceberg(out: Path) -> dict[str, Any]:
    from pyiceberg.catalog import load_catalog

    where = f"sqlite:///{out}/_chronicle/iceberg.db"
    catalog: Any = load_catalog("aiochronicle", type="sql", uri=where)
    try:
        table = catalog.load_table("archive.Trade")
        return {
            "pyiceberg": table.scan().to_arrow(),
            "polars": pl.scan_iceberg(table).collect().to_arrow(),
        }
    finally:
        catalog.engine.dispose()


READERS: dict[TableFormat, Callable[[Path], dict[str, Any]]] = {
    "delta": read_delta,
    "iceberg": read_iceberg,
}


def check(table: TableFormat, out: Path, expected: list[Row]) -> None:
    for reader, found in READERS[table](out).items():
        del reader
        columns = "source, seq, price" + (", venue" if "venue" in found.column_names else "")
        rows = duckdb.execute(f"select {columns} from found order by source, seq").fetchall()
        assert rows == [row[: len(columns.split(","))] for row in sorted(expected)]


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_a_table_has_every_row_once(
    spark: SparkSession,
    root: Path,
    tmp_path: Path,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    table: TableFormat,
) -> None:
    pytest.importorskip("deltalake" if table == "delta" else "pyiceberg")
    out = tmp_path / "archive"

    def run() -> None:
        archive(spark, str(root), str(out), table=table)

    rows = record(root, rng, FIRST_NS)
    run()
    check(table, out, rows)

    # One driver dies before it changes the table, another one after.
    rows += record(root, rng, FIRST_NS + 10**9)
    with monkeypatch.context() as patch:
        patch.setattr(JOB, "commit_tables", killed_when_fresh())
        with pytest.raises(KeyboardInterrupt):
            run()
    check(table, out, rows[:40])
    with monkeypatch.context() as patch:
        patch.setattr(JOB, "tell_retention", killed)
        with pytest.raises(KeyboardInterrupt):
            run()
    check(table, out, rows)
    run()
    check(table, out, rows)

    # The type gains a field.
    rows += record(root, rng, FIRST_NS + 2 * 10**9, TradeOfVenue)
    run()
    check(table, out, rows)

    files = len(list((out / "Trade").rglob("*.parquet")))
    done = compact(spark, str(out))
    assert [(one.before, one.after) for one in done] == [(6, 3), (6, 3)], (
        "the type has changed once"
    )
    check(table, out, rows)
    run()
    check(table, out, rows)
    assert len(list((out / "Trade").rglob("*.parquet"))) == files - 2

    with pytest.raises(InvalidArgument, match=f"is archived there as table='{table}'"):
        archive(spark, str(root), str(out))
    assert archived(spark, str(out), type="trade").where("price is not null").count() == len(rows)
    digests = [digest_of(root / name) for name in ("kraken", "md/btc")]
    shutil.rmtree(root)
    replay(spark, str(out), str(tmp_path / "again"))
    assert [digest_of(tmp_path / "again" / name) for name in ("kraken", "md/btc")] == digests


def digest_of(path: Path) -> str:
    digest = StreamDigest([path.name])
    with aiochronicle.open_reader(path, start="first") as reader:
        digest.add(reader)
    return digest.hexdigest()


def test_small_files_become_one(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    rows = record(root, rng, FIRST_NS)
    options = {"minPartitions": 6}
    archive(spark, str(root), str(out), options=options)
    before = len(list(out.rglob("*.parquet")))
    compact(spark, str(out))
    assert len(list(out.rglob("*.parquet"))) == 4 < before
    query = f"select source, seq, price from '{out}/type=Trade/**/*.parquet' order by source, seq"
    found = duckdb.execute(query).fetchall()
    assert [(source.replace("%2F", "/"), seq, price) for source, seq, price in found] == [
        row[:3] for row in sorted(rows)
    ]
    replay(spark, str(out), str(tmp_path / "again"))
    for name in ("kraken", "md/btc"):
        assert digest_of(tmp_path / "again" / name) == digest_of(root / name)
