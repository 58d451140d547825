"""Read, follow and write queues over Spark Connect, and run a pipeline; run by test_connect.py."""

import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from aiochronicle.spark import register, scan
from aiochronicle.spark.jobs import archive
from aiochronicle.spark.runtime.interpreter import DAEMON, chosen_interpreter

SPEC = """
name: market
storage: file://{home}/storage
libraries:
  - glob:
      include: transformations/**
"""

DEFINITIONS = """
from pyspark import pipelines as dp

@dp.table
def ticks():
    queues = spark.readStream.format("chronicle").option("startingOffsets", "earliest")
    return queues.load("{root}")

@dp.materialized_view
def per_queue():
    return spark.read.table("ticks").groupBy("source").count()
"""


def run_pipeline(root: str, home: Path) -> None:
    """Run a pipeline on the running server as ``spark-pipelines run`` does."""
    (home / "transformations").mkdir(parents=True)
    (home / "transformations" / "ticks.py").write_text(DEFINITIONS.format(root=root))
    (home / "spark-pipeline.yml").write_text(SPEC.format(home=home))
    environment = {**os.environ, "SPARK_REMOTE": "sc://localhost"}
    del environment["SPARK_LOCAL_REMOTE"]  # else it would start and stop its own server
    command = [sys.executable, "-m", "pyspark.pipelines.cli", "run"]
    subprocess.run(command, cwd=home, env=environment, check=True)


def main(root: str) -> None:
    builder = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2")
    # As in session(); otherwise each planning step and each stream compiles PySpark again.
    with chosen_interpreter(is_local=True):
        spark = builder.config("spark.python.daemon.module", DAEMON).getOrCreate()
    try:
        assert type(spark).__module__ == "pyspark.sql.connect.session"
        register(spark)
        frame = spark.read.format("chronicle").load(root)
        print("frame", frame.count())
        print("scan", scan(spark, root, columns=["source", "seq"]).count())
        stream = (
            spark.readStream.format("chronicle").option("startingOffsets", "earliest").load(root)
        )
        query = (
            stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
        )
        query.awaitTermination()
        print("stream", spark.table("seen").count())
        frame.write.format("chronicle").mode("append").save(f"{root}-copy")
        print("copy", spark.read.format("chronicle").load(f"{root}-copy").count())
        print("archive", archive(spark, root, f"{root}-archive")[0].rows)
        run_pipeline(root, Path(f"{root}-pipeline"))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
