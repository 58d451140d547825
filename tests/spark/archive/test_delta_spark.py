"""Delta Lake's own reader for Spark, where installed, reads our Delta tables."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiochronicle.spark.jobs import archive, compact
from spark.archive.test_tables import FIRST_NS, TradeOfVenue, record

READER = Path(__file__).with_name("delta_reader.py")
PACKAGE = os.environ.get("AIOCHRONICLE_DELTA_SPARK")


@pytest.mark.skipif(
    not PACKAGE, reason="needs delta-spark, which is for PySpark 4.2: make test-spark-matrix"
)
def test_delta_spark_reads_what_was_archived(
    spark: SparkSession, root: Path, tmp_path: Path, rng: random.Random
) -> None:
    out = tmp_path / "archive"
    rows = record(root, rng, FIRST_NS)
    archive(spark, str(root), str(out), table="delta")
    rows += record(root, rng, FIRST_NS + 10**9, TradeOfVenue)
    archive(spark, str(root), str(out), table="delta")
    compact(spark, str(out))
    done = subprocess.run(
        [sys.executable, str(READER), str(PACKAGE), str(out / "Trade")],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == [list(row[:3]) for row in sorted(rows)]
    assert found["versions"] >= 3
