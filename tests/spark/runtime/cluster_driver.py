"""A driver that runs jobs on a cluster and reports which worker read what, with which code.

Arguments: master, archive with the package, root of the queues, directory for results. The last line
of standard output is JSON.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiochronicle
from aiochronicle.spark import session
from aiochronicle.spark.jobs import archive, audit, bars
from aiochronicle.spark.jobs.inputs import find_input
from aiochronicle.spark.source.plan import Range
from aiochronicle.spark.source.rows import read_range
from aiochronicle.spark.tasks import run_tasks


def main(master: str, package: str, root: str, out: str) -> None:
    spark = session(
        "cluster test",
        master=master,
        config={
            "spark.archives": f"{package}#lib",
            "spark.executorEnv.PYTHONPATH": "./lib",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            # Wait for both workers before the first task starts.
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        },
    )
    try:
        found = find_input(root, {"minPartitions": "8"})

        def who_reads(part: Range) -> Iterator[Any]:
            import pyarrow

            rows = sum(batch.num_rows for batch in read_range(part, ["seq"], found.options))
            place: dict[str, list[Any]] = {
                "cwd": [str(Path.cwd())],
                "code": [aiochronicle.__file__],
                "rows": [rows],
            }
            yield pyarrow.record_batch(place)

        readers = run_tasks(spark, found.parts(), who_reads, "cwd string, code string, rows long")
        result = {
            "readers": [row.asDict() for row in readers.collect()],
            "bars": [row.asDict() for row in bars(spark, root, every="1s").drop("start").collect()],
            "archived": sum(queue.rows for queue in archive(spark, root, f"{out}/archive")),
            "digest": audit(spark, root, options={"minPartitions": "4"}).digest,
            "rows": spark.read.format("chronicle").load(root).count(),
        }
    finally:
        spark.stop()
    print(json.dumps(result))
    Path(out, "done").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
