"""A standalone cluster: a master and two workers, real processes on the loopback interface."""

import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from aiochronicle.spark.jobs import audit, bars
from aiochronicle.spark.pack import pack
from aiochronicle.spark.runtime.java import ensure_java
from spark.java_options import JAVA_OPTIONS
from spark.market import record

START_TIMEOUT_S = 120.0
DEPLOY = "org.apache.spark.deploy"


@contextmanager
def daemon(log: Path, kind: str, *arguments: str) -> Generator[None]:
    """Run a process of the cluster: yield once it is ready, end it afterwards."""
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(ensure_java()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_JAVA_OPTS": f"-Dspark.master.rest.enabled=false {JAVA_OPTIONS}",
    }
    command = [str(home / "bin" / "spark-class"), f"{DEPLOY}.{kind.lower()}.{kind}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        ready = {"Master": "I have been elected leader", "Worker": "Successfully registered"}[kind]
        while ready not in log.read_text(errors="replace"):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline_s, log.read_text(errors="replace")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.timeout(600)
def test_jobs_run_on_two_workers_with_the_package_that_was_shipped(
    spark: SparkSession, root: Path, rng: random.Random, tmp_path: Path
) -> None:
    record(root / "binance", rng, 4000)
    record(root / "kraken", rng, 1000)
    package = pack(str(tmp_path / "lib.tar.gz"))
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    worker = ["-c", "1", "-m", "600m", master]
    with (
        daemon(tmp_path / "master.log", "Master", "--port", port),
        daemon(tmp_path / "one.log", "Worker", "-d", str(tmp_path / "one"), *worker),
        daemon(tmp_path / "two.log", "Worker", "-d", str(tmp_path / "two"), *worker),
    ):
        driver = Path(__file__).with_name("cluster_driver.py")
        done = subprocess.run(
            [sys.executable, str(driver), master, str(package), str(root), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    readers = result["readers"]
    assert sum(reader["rows"] for reader in readers) == 5000
    workers = {re.sub(r"/app-.*", "", reader["cwd"]) for reader in readers if reader["rows"]}
    assert workers == {str(tmp_path / "one"), str(tmp_path / "two")}, "one of them read nothing"
    for reader in readers:
        assert reader["code"].startswith(f"{reader['cwd']}/"), "not the package that was shipped"
    assert result["archived"] == result["rows"] == 5000
    assert result["digest"] == audit(spark, str(root)).digest
    here = bars(spark, str(root), every="1s").drop("start").collect()
    assert result["bars"] == [row.asDict() for row in here]
