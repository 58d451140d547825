"""Lets Spark find ``format("chronicle")`` by itself.

On first use of a Python data source Spark imports the installed modules whose names begin with
``pyspark_`` and takes their DefaultSource.
"""

from aiochronicle.spark.data_source import ChronicleSource as DefaultSource

__all__ = ["DefaultSource"]
