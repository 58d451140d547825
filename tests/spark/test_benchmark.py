"""The benchmarks of the pipeline run and produce results; their speed is not judged here."""

from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.spark import QUICK, answer


def test_quick_run_answers(spark: SparkSession, tmp_path: Path) -> None:
    results = list(answer(spark, tmp_path, QUICK))
    assert len(results) == 31
    assert all(0 < result.measured < float("inf") for result in results)
