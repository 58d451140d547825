"""Copies queues by a stream, until it is killed. Started by test_stream_kills.py.

usage: stream_copy.py ROOT COPY CHECKPOINT format|scan
"""

import sys
from typing import Any

from aiochronicle.spark import scan_stream, session


def main() -> None:
    root, copy, checkpoint, door = sys.argv[1:]
    spark = session(master="local[2]")
    options: dict[str, Any] = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 400}
    if door == "scan":
        frame = scan_stream(spark, root, **options)
    else:
        frame = spark.readStream.format("chronicle").options(**options).load(root)
    query = (
        frame.writeStream.format("chronicle")
        .options(checkpointLocation=checkpoint, segmentSize=1 << 20)
        .start(copy)
    )
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
