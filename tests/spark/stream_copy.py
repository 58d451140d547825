"""Copies queues by a stream, until it is killed. Started by test_stream_kills.py.

usage: stream_copy.py ROOT COPY CHECKPOINT
"""

import sys

from aiochronicle.spark import session


def main() -> None:
    root, copy, checkpoint = sys.argv[1:]
    spark = session(master="local[2]")
    query = (
        spark.readStream.format("chronicle")
        .options(startingOffsets="earliest", maxOffsetsPerTrigger=400)
        .load(root)
        .writeStream.format("chronicle")
        .options(checkpointLocation=checkpoint, segmentSize=1 << 20)
        .start(copy)
    )
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
