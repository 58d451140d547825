"""Archives in object storage, tested against an S3 server on loopback that sometimes fails."""

import os
import random
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from pyspark.sql import SparkSession

import aiochronicle
from aiochronicle.digest import StreamDigest
from aiochronicle.errors import CorruptionError, ExportFailed, LockedError
from aiochronicle.spark.archive import objects
from aiochronicle.spark.archive.manifest import Manifest
from aiochronicle.spark.archive.store import open_store
from aiochronicle.spark.archive.table_format import TableFormat
from aiochronicle.spark.jobs import archive, archived, compact, replay
from spark.archive.killed_driver import JOB, killed_when_fresh

moto_server = pytest.importorskip("moto.server", reason="moto is not installed")
serving = pytest.importorskip("werkzeug.serving")
s3fs = pytest.importorskip("s3fs")

# Warnings of moto, pyiceberg and its database.
pytestmark = pytest.mark.filterwarnings(
    "ignore::polars.exceptions.PerformanceWarning",
    "ignore::UserWarning",
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::FutureWarning",
)

Environment = dict[str, Any]
Start = Callable[..., Any]


class Faults:
    """The faults to inject into the next data requests."""

    def __init__(self, application: Callable[[Environment, Start], Iterable[bytes]]) -> None:
        self._application = application
        self.unavailable = 0  # number of requests to answer with 503
        self.changed = 0  # number of uploads in which to flip a bit
        self.refused = False  # refuse every upload

    def __call__(self, environment: Environment, start: Start) -> Iterable[bytes]:
        is_data = environment["PATH_INFO"].endswith(".parquet")
        is_upload = is_data and environment["REQUEST_METHOD"] == "PUT"
        if is_data and self.unavailable:
            self.unavailable -= 1
            return self._answer(environment, start, "503 Slow Down")
        if is_upload and self.refused:
            return self._answer(environment, start, "403 Forbidden")
        if is_upload and self.changed:
            self.changed -= 1
            content = bytearray(environment["wsgi.input"].read(int(environment["CONTENT_LENGTH"])))
            content[len(content) // 2] ^= 1
            environment["wsgi.input"] = Body(bytes(content))
            # As on a server that does not support checksums.
            for name in [name for name in environment if "CHECKSUM" in name]:
                del environment[name]
        return self._application(environment, start)

    @staticmethod
    def _answer(environment: Environment, start: Start, status: str) -> Iterable[bytes]:
        environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        start(status, [("Content-Type", "text/plain")])
        return [b""]


class Body:
    """The body of a request."""

    def __init__(self, content: bytes) -> None:
        self._rest = content

    def read(self, size: int = -1) -> bytes:
        size = len(self._rest) if size < 0 else size
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Start a server with the bucket ``market``, point the environment at it, and yield its faults."""
    application = moto_server.DomainDispatcherApplication(moto_server.create_backend_app)
    made = Faults(application)
    server = serving.make_server("127.0.0.1", 0, made, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "user",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(objects, "FIRST_PAUSE_S", 0.01)
    reset = f"http://127.0.0.1:{server.server_port}/moto-api/reset"
    urllib.request.urlopen(urllib.request.Request(reset, method="POST")).close()
    file_system().call_s3("create_bucket", Bucket="market")
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def file_system() -> Any:
    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)


def keys() -> list[str]:
    found: list[str] = file_system().find("market")
    return found


class Trade(msgspec.Struct):
    symbol: str
    price: float


def record(path: Path, rng: random.Random, messages: int) -> list[float]:
    prices = [rng.random() for _ in range(messages)]
    path.parent.mkdir(exist_ok=True)
    with aiochronicle.open_writer(path, codec=Trade, segment_size=1 << 20) as writer:
        for price in prices:
            writer.send(Trade("BTCUSDT", price))
    return prices


def digest_of(path: Path) -> str:
    digest = StreamDigest([path.name])
    with aiochronicle.open_reader(path, start="first") as reader:
        digest.add(reader)
    return digest.hexdigest()


def write(url: str, content: bytes) -> None:
    names = ("type=raw", "date=2026-11-16", "source=md%2Fbtc")
    with open_store(url).new_file(names, "0-run.parquet", 0o600) as target:
        target.path.write_bytes(content)


def test_an_upload_is_tried_again_and_compared_and_leaves_nothing_behind(
    faults: Faults, rng: random.Random
) -> None:
    url, content = "s3a://market/archive", rng.randbytes(100_000)
    faults.unavailable = 3
    write(url, content)
    path = "type=raw/date=2026-11-16/source=md%2Fbtc/0-run.parquet"
    with open_store(url).opened(path, "") as copy:
        assert copy.read_bytes() == content
    faults.changed = 1
    with pytest.raises(CorruptionError, match=r"s3://market/archive/.*is not what was uploaded"):
        write(url, content)
    assert keys() == []
    faults.refused = True
    with pytest.raises(ExportFailed, match="Check the bucket, its policy, and credentials"):
        write(url, content)
    assert keys() == []
    with pytest.raises(CorruptionError, match=r"is gone\. Restore"):
        open_store(url).opened(path, "Restore it.").__enter__()
    with pytest.raises(ExportFailed, match="bucket does not exist"):
        open_store("s3://nothing/a").replace("a.json", b"", 0)


def test_what_a_killed_job_has_left_is_removed_and_nothing_else(faults: Faults) -> None:
    store, s3 = open_store("s3://market/archive"), file_system()
    write("s3://market/archive", b"not listed")
    others = (
        "archive/type=raw/date=2026-11-16/source=eth/0.parquet",
        "elsewhere/source=md%2Fbtc/0",
    )
    for key in others:
        s3.pipe_file(f"market/{key}", b"of others")
    begun = [
        f"archive/type=raw/date=2026-11-16/source={name}/1.parquet" for name in ("md%2Fbtc", "eth")
    ]
    for key in begun:
        s3.call_s3("create_multipart_upload", Bucket="market", Key=key)
    store.clean({"md/btc": set()})
    assert keys() == sorted(f"market/{key}" for key in others)
    left = s3.call_s3("list_multipart_uploads", Bucket="market")["Uploads"]
    assert [upload["Key"] for upload in left] == begun[1:]


def test_an_archive_in_object_storage_is_like_any_other(
    spark: SparkSession, faults: Faults, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    url = "s3a://market/desk/archive"
    prices = record(root / "md" / "btc", rng, 200)
    with open_store(url).locked(), pytest.raises(LockedError):
        archive(spark, str(root), url)
    faults.unavailable = 2
    assert [one.rows for one in archive(spark, str(root), url)] == [200]
    prices += record(root / "md" / "btc", rng, 50)
    assert [one.rows for one in archive(spark, str(root), url)] == [50]
    manifest = Manifest.load(url, "md/btc")
    assert manifest is not None
    data = [key for key in keys() if key.endswith(".parquet")]
    assert data == [f"market/desk/archive/{file.path}" for file in manifest.files]
    rows = archived(spark, url, type="Trade").orderBy("seq").select("source", "price").collect()
    assert [tuple(row) for row in rows] == [("md/btc", price) for price in prices]
    digest = digest_of(root / "md" / "btc")
    # A corrupted upload fails the run; the archive stays unchanged.
    record(root / "md" / "btc", rng, 10)
    before = keys()
    faults.changed = 1
    with pytest.raises(CorruptionError, match="is not what was uploaded"):
        archive(spark, str(root), url)
    assert keys() == before
    shutil.rmtree(root)
    assert [one.rows for one in replay(spark, url, str(tmp_path / "again"))] == [250]
    assert digest_of(tmp_path / "again" / "md" / "btc") == digest


class TradeOfVenue(msgspec.Struct):
    symbol: str
    price: float
    venue: str = "?"


def read_table(table: TableFormat, catalog: dict[str, str] | None) -> dict[str, Any]:
    """Return the table of trades, read from the bucket with several libraries."""
    if table == "delta":
        import deltalake

        where = "s3://market/lake/Trade"
        options = {"AWS_ALLOW_HTTP": "true"}
        found = deltalake.DeltaTable(where, storage_options=options)
        return {
            "delta-rs": found.to_pyarrow_table(),
            "polars": pl.scan_delta(where, storage_options=options).collect().to_arrow(),
        }
    from pyiceberg.catalog import load_catalog

    server = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"], "s3.region": "us-east-1"}
    opened: Any = load_catalog("aiochronicle", **server, **(catalog or {}))
    try:
        return {"pyiceberg": opened.load_table("archive.Trade").scan().to_arrow()}
    finally:
        opened.engine.dispose()


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_tables_in_object_storage_have_every_row_once(
    spark: SparkSession,
    faults: Faults,
    root: Path,
    tmp_path: Path,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    table: TableFormat,
) -> None:
    pytest.importorskip("deltalake" if table == "delta" else "pyiceberg")
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    given = None if table == "delta" else catalog
    url = "s3://market/lake"

    def run() -> None:
        archive(spark, str(root), url, table=table, catalog=given)

    def check(expected: list[float]) -> None:
        wanted = [("md/btc", seq, price) for seq, price in enumerate(expected)]
        for reader, found in read_table(table, given).items():
            columns = [found.column(name).to_pylist() for name in ("source", "seq", "price")]
            assert sorted(zip(*columns, strict=True)) == wanted, reader

    prices = record(root / "md" / "btc", rng, 30)
    run()
    check(prices)
    # The driver dies before the table is changed.
    prices += record(root / "md" / "btc", rng, 20)
    with monkeypatch.context() as patch:
        patch.setattr(JOB, "commit_tables", killed_when_fresh())
        with pytest.raises(KeyboardInterrupt):
            run()
    check(prices[:30])
    # The type gains a field, and the server is busy.
    codec = aiochronicle.Codec(TradeOfVenue, name="Trade")
    with aiochronicle.open_writer(root / "md" / "btc", codec=codec) as writer:
        writer.send(TradeOfVenue("BTCUSDT", 7.0, "X"))
    prices.append(7.0)
    faults.unavailable = 2
    run()
    check(prices)
    done = compact(spark, url, catalog=given)
    assert [(one.before, one.after) for one in done] == [(3, 2)], "the type has changed once"
    check(prices)
    run()
    check(prices)
    assert len([key for key in keys() if "/Trade/" in key and ".parquet" in key]) == 2
    digest = digest_of(root / "md" / "btc")
    shutil.rmtree(root)
    replay(spark, url, str(tmp_path / "again"))
    assert digest_of(tmp_path / "again" / "md" / "btc") == digest
