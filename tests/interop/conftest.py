"""One JVM for all tests of a module; without Java or Maven they are skipped with the reason."""

from collections.abc import Iterator

import pytest

from .building import missing
from .judge import Judge


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    reason = missing()
    if reason is not None:
        pytest.skip(f"no Java Chronicle Queue to compare with: {reason}")
    with Judge() as running:
        yield running
