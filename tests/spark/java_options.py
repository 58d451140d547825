"""Java options for the tests and the processes that they start.

No JVM here runs long enough for the second compiler or a concurrent collector to pay off. Each would load
the same thousands of classes from Spark's jars. Java maps them from a file instead (class data sharing),
which `make` writes once with this program, beside the packages. Without the file the tests are slower.

usage: java_options.py    write that file
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["JAVA_OPTIONS"]

CLASSES = Path(sys.prefix, "spark-classes.jsa")
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Java warns about a file made by another Java or from other jars, and then ignores the file.
SILENT = "-Xlog:disable"
JAVA_OPTIONS = SHORT_LIVED + (
    f" -XX:SharedArchiveFile={CLASSES} {SILENT}" if CLASSES.exists() else ""
)


def write_classes() -> None:
    """Use Spark as the tests do, and have Java save the classes that it loaded."""
    CLASSES.unlink(missing_ok=True)
    kept = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={CLASSES} {SILENT}"
    os.environ["SPARK_SUBMIT_OPTS"] = kept

    import aiochronicle
    from aiochronicle.spark import scan, session
    from aiochronicle.spark.jobs import archive

    with tempfile.TemporaryDirectory() as directory:
        root = f"{directory}/bus"
        Path(root).mkdir()
        with aiochronicle.open_writer(f"{root}/q", segment_size=1 << 20) as writer:
            writer.append_many([b"x"] * 100)
        spark = session(master="local[2]")
        frame = spark.read.format("chronicle").load(root)
        frame.where("seq > 5").groupBy("source").count().orderBy("source").collect()
        scan(spark, root).write.parquet(f"{directory}/parquet")
        spark.read.parquet(f"{directory}/parquet").count()
        archive(spark, root, f"{directory}/archive")
        stream = (
            spark.readStream.format("chronicle").option("startingOffsets", "earliest").load(root)
        )
        query = stream.writeStream.format("chronicle").trigger(availableNow=True)
        query.option("checkpointLocation", f"{directory}/c").start(
            f"{directory}/copy"
        ).awaitTermination()
        gateway: Any = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # ends Java
        gateway.proc.wait(120)


if __name__ == "__main__":
    write_classes()
