"""What the workers of a session are given before they start."""

import resource
import sys
from collections.abc import Iterator

import numpy as np
from pyspark.sql import SparkSession

from aiochronicle.spark.arrow import Batch, pa

ROUNDS = 50
ARRAYS, ARRAY_BYTES = 8, 512 << 10


def test_tasks_keep_their_memory_and_have_what_they_need(spark: SparkSession) -> None:
    def make_and_drop_arrays(batches: Iterator[Batch]) -> Iterator[Batch]:
        for _ in batches:
            faults: list[int] = []
            for _ in range(1 + ROUNDS):
                held = [np.ones(ARRAY_BYTES, np.uint8) for _ in range(ARRAYS)]
                del held
                faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
            # The first round has to get them from somewhere.
            again = faults[-1] - faults[0]
            yield pa.record_batch({"faults": [again], "is_loaded": ["pandas" in sys.modules]})

    columns = "faults long, is_loaded boolean"
    (row,) = spark.range(1).mapInArrow(make_and_drop_arrays, columns).collect()
    assert row.is_loaded
    pages = ROUNDS * ARRAYS * ARRAY_BYTES // resource.getpagesize()
    assert row.faults < pages // 10
