"""Reads, follows and writes queues over Spark Connect; run by test_connect.py."""

import sys

from pyspark.sql import SparkSession

from aiochronicle.spark import register, scan
from aiochronicle.spark.jobs import archive


def main(root: str) -> None:
    spark = SparkSession.builder.remote("local[1]").getOrCreate()
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
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
