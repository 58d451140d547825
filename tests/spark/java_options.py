"""How the tests start Java, here and in the processes that they start.

None runs for so long that code of Java's second compiler, or a concurrent collector, would pay. And each
would load the same thousands of classes from Spark's archives: Java maps them from a file (class data
sharing) that `make` has this program write once, beside the packages. Without the file things take longer.

usage: java_options.py    writes that file
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["JAVA_OPTIONS"]

CLASSES = Path(sys.prefix, "spark-classes.jsa")
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# What Java says about a file of another Java, or of other archives, which it then does without.
SILENT = "-Xlog:disable"
JAVA_OPTIONS = SHORT_LIVED + (
    f" -XX:SharedArchiveFile={CLASSES} {SILENT}" if CLASSES.exists() else ""
)


def write_classes() -> None:
    """Use Spark as the tests do, and have Java keep the classes that this took."""
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
        gateway.proc.stdin.close()  # which ends Java
        gateway.proc.wait(120)


if __name__ == "__main__":
    write_classes()
