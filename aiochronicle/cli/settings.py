"""Settings of writers in words."""

from aiochronicle import Batch, Capacity, Retention
from aiochronicle.cli.units import age, amount

__all__ = ["capacity_of", "flush_of", "retention_of"]


def flush_of(flush: str | Batch) -> str:
    """Describe when messages become durable."""
    return flush if isinstance(flush, str) else f"{amount(flush.bytes)}, {age(flush.seconds)}"


def capacity_of(capacity: int | Capacity | None) -> str:
    """Describe how far a writer may run ahead of its readers."""
    if capacity is None:
        return "no limit"
    if isinstance(capacity, int):
        return amount(capacity)
    timeout = "" if capacity.timeout_s is None else f" {age(capacity.timeout_s)}"
    return f"{amount(capacity.bytes)}, {capacity.policy}{timeout}"


def retention_of(retention: Retention | None) -> str:
    """Describe which segments are removed."""
    if retention is None:
        return "everything stays"
    words: list[str] = []
    if retention.max_age_s is not None:
        words.append(f"max age {age(retention.max_age_s)}")
    if retention.max_bytes is not None:
        words.append(f"max {amount(retention.max_bytes)}")
    if not words:
        words.append("until all have read it")
    if retention.wait_for is not None:
        words.append(f"waits for {retention.wait_for}")
    if retention.reader_ttl_s is not None:
        words.append(f"reader ttl {age(retention.reader_ttl_s)}")
    if retention.max_reader_lag is not None:
        words.append(f"reader lag {amount(retention.max_reader_lag)}")
    if retention.archive is not None:
        words.append(f"to {retention.archive}")
    return ", ".join(words)
