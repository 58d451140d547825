"""Names of queues and types in the paths of an archive."""

import urllib.parse

__all__ = ["RAW", "directory_of", "escape"]

RAW = "raw"  # the dataset of messages without a known type


def escape(name: str) -> str:
    """Return the name of a queue or type as one part of a path, as Spark escapes partition values.

    >>> escape("md/binance")
    'md%2Fbinance'
    """
    return urllib.parse.quote(name, safe=" +,@~")


def directory_of(dataset: str, *, is_table: bool = False) -> str:
    """Return the directory of a dataset; a table is not a partition of the directory above it.

    >>> directory_of("Trade"), directory_of("Trade", is_table=True)
    ('type=Trade', 'Trade')
    """
    return escape(dataset) if is_table else f"type={escape(dataset)}"
