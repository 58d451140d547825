"""Objects that were never initialised behave like closed ones instead of crashing."""

import pytest

import aiochronicle
from aiochronicle import errors


def test_reader_without_a_handle_is_closed() -> None:
    reader = aiochronicle.Reader.__new__(aiochronicle.Reader)
    assert reader.closed
    with pytest.raises(errors.ClosedError):
        reader.poll()
    with pytest.raises(errors.ClosedError):
        next(iter(reader))
    with pytest.raises(errors.ClosedError):
        reader.commit()
    assert reader.statistics().messages == 0
    reader.close()


def test_writer_without_a_handle_is_closed() -> None:
    writer = aiochronicle.Writer.__new__(aiochronicle.Writer)
    assert writer.closed
    with pytest.raises(errors.ClosedError):
        writer.append(b"x")
    with pytest.raises(errors.ClosedError):
        writer.append_many([b"x"])
    with pytest.raises(errors.ClosedError):
        writer.heartbeat()
    assert writer.statistics().messages == 0
    writer.close()


def test_fan_in_that_was_not_initialised_is_closed() -> None:
    fan_in = aiochronicle.FanIn.__new__(aiochronicle.FanIn)
    assert fan_in.closed
    with pytest.raises(errors.ClosedError):
        fan_in.poll()
    with pytest.raises(errors.ClosedError):
        fan_in.commit()
    assert fan_in.statistics().sources == fan_in.lag.messages == 0
    fan_in.close()


async def test_awaiting_a_reader_without_a_handle_ends_at_once() -> None:
    reader = aiochronicle.Reader.__new__(aiochronicle.Reader)
    assert [message async for message in reader] == []
    with pytest.raises(errors.ClosedError):
        await reader.next()
