"""Spark Connect and Declarative Pipelines: the same code works with another session."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark.filling import fill

CLIENT = Path(__file__).with_name("connect_client.py")


def test_queues_are_read_followed_written_archived_and_piped_over_connect(root: Path) -> None:
    pytest.importorskip("grpc", reason="grpcio is not installed")
    pytest.importorskip("grpc_status", reason="grpcio-status is not installed")
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    fill(root / "q", 100)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    environment.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, str(CLIENT), str(root)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=root.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    words = [line.split()[-2:] for line in done.stdout.splitlines() if line.strip()]
    found = {name: int(number) for name, number in words if number.isdigit()}
    assert found == {"frame": 100, "scan": 100, "stream": 100, "copy": 100, "archive": 100}
    tables = {path.name: path for path in root.parent.rglob("spark-warehouse/*")}
    assert pq.read_table(tables["ticks"]).num_rows == 100
    assert pq.read_table(tables["per_queue"]).to_pylist() == [{"source": "q", "count": 100}]
