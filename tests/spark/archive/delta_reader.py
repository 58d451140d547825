"""Read a Delta table with delta-spark and print its rows; run by test_delta_spark.py."""

import json
import sys

from aiochronicle.spark import session


def main(package: str, table: str) -> None:
    spark = session(
        master="local[1]",
        config={
            "spark.jars.packages": package,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    )
    try:
        rows = spark.read.format("delta").load(table).orderBy("source", "seq")
        last = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").count()
        found = [list(row) for row in rows.select("source", "seq", "price").collect()]
        print(json.dumps({"rows": found, "versions": last}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
