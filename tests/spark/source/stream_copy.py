"""Copy queues with a stream until killed. Started by test_stream_kills.py.

usage: stream_copy.py ROOT COPY CHECKPOINT format|scan
"""

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from aiochronicle.spark import scan_stream, session


def start_copying(
    spark: SparkSession, root: str, copy: str, checkpoint: str, door: str
) -> StreamingQuery:
    """Start the stream, or resume it from its checkpoint."""
    options: dict[str, Any] = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 400}
    if door == "scan":
        frame = scan_stream(spark, root, **options)
    else:
        frame = spark.readStream.format("chronicle").options(**options).load(root)
    return (
        frame.writeStream.format("chronicle")
        .options(checkpointLocation=checkpoint, segmentSize=1 << 20)
        .start(copy)
    )


def main() -> None:
    query = start_copying(session(master="local[2]"), *sys.argv[1:])
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
