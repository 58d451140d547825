"""Making the next thing while the last one is in use."""

import threading
from collections.abc import Iterator

import pytest

from aiochronicle.spark.ahead import ahead


def test_the_next_one_is_made_while_the_last_is_in_use() -> None:
    made = [threading.Event() for _ in range(3)]

    def items() -> Iterator[int]:
        for number, event in enumerate(made):
            event.set()
            yield number

    seen = []
    for number in ahead(items()):
        seen.append(number)
        if number < 2:
            assert made[number + 1].wait(10)
    assert seen == [0, 1, 2]


def test_an_error_comes_when_its_item_would() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    taken = ahead(items())
    assert next(taken) == 1
    with pytest.raises(ValueError, match="broken"):
        next(taken)


def test_no_thread_is_left_when_the_rest_is_not_wanted() -> None:
    taken = ahead(iter(range(100)))
    assert next(taken) == 0
    taken.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]
