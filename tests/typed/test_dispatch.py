"""Handlers by type: which handler gets a message, sync and async handlers, undecodable payloads."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from asynchronous.both_loops import on_both_loops

from aiochronicle import FanIn, Message, Reader, open_reader, open_writer
from aiochronicle.errors import DecodeError, InvalidArgument


class Trade(msgspec.Struct):
    price: float


class Quote(msgspec.Struct):
    bid: float


@pytest.fixture
def mixed(queue_path: Path) -> Path:
    """Return a queue with a Trade, a Quote, an untyped message, an unknown type, a bad Trade, and a
    Trade."""
    with open_writer(queue_path, codec=[Trade, Quote]) as writer:
        writer.send(Trade(1.0))
        writer.send(Quote(2.0))
        writer.append(b"untyped")
        writer.append(b"unknown", type_id=900)
        writer.append(b"\xc1", type_id=1)
        writer.send(Trade(6.0))
    return queue_path


def test_each_type_goes_to_its_handler_and_the_rest_is_raw(mixed: Path) -> None:
    seen: list[Any] = []
    errors: list[tuple[int | None, int]] = []
    with open_reader(mixed, codec=[Trade, Quote]) as reader:

        @reader.on(Trade)
        def on_trade(trade: Trade, message: Message) -> None:
            seen.append((message.seq, trade))

        reader.on(Quote)(seen.append)

        @reader.on(Message)
        def on_rest(message: Message) -> None:
            seen.append(message.payload)

        count = reader.dispatch_now(on_error=lambda e, message: errors.append((e.seq, message.seq)))
        assert reader.dispatch_now() == 0
    assert count == 6
    assert seen == [(0, Trade(1.0)), Quote(2.0), b"untyped", b"unknown", (5, Trade(6.0))]
    assert errors == [(4, 4)]


def test_what_nobody_handles_is_passed_over(mixed: Path) -> None:
    seen: list[Trade] = []
    with open_reader(mixed, codec=[Trade, Quote]) as reader:
        reader.on(Trade)(seen.append)
        with pytest.raises(DecodeError) as raised:
            reader.dispatch_now()
        assert raised.value.seq == 4
        assert seen == [Trade(1.0)]
        assert reader.dispatch_now() == 1  # continues after the bad one
    assert seen == [Trade(1.0), Trade(6.0)]


def test_handlers_of_a_fan_in_see_all_sources(mixed: Path, tmp_path: Path) -> None:
    with open_writer(tmp_path / "quotes", codec=Quote) as writer:
        writer.send(Quote(9.0))
    seen: list[Quote] = []
    with (
        open_reader(mixed, codec=[Trade, Quote]) as one,
        open_reader(tmp_path / "quotes", codec=Quote) as other,
        FanIn([one, other]) as fan_in,
    ):
        fan_in.on(Quote)(seen.append)
        assert fan_in.dispatch_now(on_error=lambda error, message: None) == 7
    assert seen == [Quote(2.0), Quote(9.0)]


@on_both_loops
async def test_async_handlers_are_awaited_in_order(mixed: Path) -> None:
    seen: list[float] = []
    with open_reader(mixed, codec=[Trade, Quote]) as reader:

        @reader.on(Trade)
        async def on_trade(trade: Trade) -> None:
            await asyncio.sleep(0)
            seen.append(trade.price)
            if trade.price == 6.0:
                reader.close()

        reader.on(Quote)(lambda quote: seen.append(quote.bid))

        async def on_error(error: DecodeError, message: Message) -> None:
            await asyncio.sleep(0)
            seen.append(-1.0)

        count = await asyncio.wait_for(reader.dispatch(on_error=on_error), 30)
    assert count == 6
    assert seen == [1.0, 2.0, -1.0, 6.0]


@on_both_loops
async def test_cancelled_while_waiting_it_has_taken_nothing(queue_path: Path) -> None:
    seen: list[Trade] = []
    with (
        open_writer(queue_path, codec=Trade) as writer,
        open_reader(queue_path, codec=Trade) as reader,
    ):
        caught = asyncio.Event()

        @reader.on(Trade)
        def on_trade(trade: Trade) -> None:
            seen.append(trade)
            caught.set()

        for price in (1.0, 2.0):
            task = asyncio.create_task(reader.dispatch())
            writer.send(Trade(price))
            await asyncio.wait_for(caught.wait(), 30)
            caught.clear()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            writer.send(Trade(price + 10))  # while dispatch is not running
        assert reader.dispatch_now() >= 1
    assert [trade.price for trade in seen] == [1.0, 11.0, 2.0, 12.0]


def test_an_exception_of_a_handler_comes_out_and_is_no_reason_to_repeat(mixed: Path) -> None:
    seen: list[Any] = []
    with open_reader(mixed, codec=[Trade, Quote], start=1) as reader:
        reader.on(Message)(seen.append)

        @reader.on(Quote)
        def on_quote(quote: Quote) -> None:
            raise LookupError(quote.bid)

        with pytest.raises(LookupError):
            reader.dispatch_now()
        assert reader.dispatch_now(on_error=lambda error, message: None) == 4
        assert len(seen) == 3
        seen.clear()


def test_misuse_is_said(mixed: Path) -> None:
    def nothing(obj: object) -> None:
        pass

    async def asynchronous(obj: object) -> None:
        pass

    with open_reader(mixed, codec=Trade) as reader:
        reader.on(Trade)(nothing)
        with pytest.raises(InvalidArgument, match="Trade already has a handler"):
            reader.on(Trade)(nothing)
        with pytest.raises(InvalidArgument, match=r"Quote.* is not a type of the codec"):
            reader.on(Quote)
        reader.on(Message)(asynchronous)
        with pytest.raises(InvalidArgument, match="handler of Message is async"):
            reader.dispatch_now()
        assert reader.statistics().messages == 0


def test_handlers_belong_to_one_reader(mixed: Path) -> None:
    def nothing(obj: object) -> None:
        pass

    def opened() -> Reader[Trade]:
        return open_reader(mixed, codec=Trade)

    with opened() as one, opened() as other:
        one.on(Trade)(nothing)
        other.on(Trade)(nothing)


@pytest.fixture
def trades(queue_path: Path) -> Path:
    with open_writer(queue_path, codec=Trade) as writer:
        for number in range(10):
            writer.send(Trade(number))
    return queue_path


class Supervised:
    """A handler that sometimes fails, and a record of the prices it has handled."""

    def __init__(self, fails: dict[float, int]) -> None:
        self.fails = fails  # price to number of failures
        self.done: list[float] = []
        self.tried: list[float] = []

    def handle(self, trade: Trade) -> None:
        self.tried.append(trade.price)
        if self.fails.get(trade.price, 0) > 0:
            self.fails[trade.price] -= 1
            raise LookupError(trade.price)
        self.done.append(trade.price)


@pytest.mark.parametrize("commit", ["auto", 3])
@pytest.mark.parametrize("fan_in", [False, True])
@on_both_loops
async def test_a_supervisor_that_restarts_dispatch_loses_nothing(
    trades: Path, commit: Any, fan_in: bool
) -> None:
    """With automatic commits, a failed message comes again first, and is not committed before that."""
    handler = Supervised({0.0: 1, 3.0: 2, 4.0: 1, 9.0: 3})
    failures: list[tuple[float, int | None, int]] = []  # price, seq that failed, seq committed
    with contextlib.ExitStack() as opened:
        reader = opened.enter_context(open_reader(trades, "view", commit=commit, codec=Trade))
        source = opened.enter_context(FanIn([reader])) if fan_in else reader

        async def handle(trade: Trade) -> None:
            await asyncio.sleep(0)
            handler.handle(trade)
            if trade.price == 9:
                source.close()

        source.on(Trade)(handle)
        for _ in range(20):
            try:
                async with asyncio.timeout(30):
                    await source.dispatch()
                break
            except LookupError as error:
                failed, committed = source.failed_message, reader.committed_seq
                failures.append((error.args[0], getattr(failed, "seq", None), committed or 0))
        assert source.failed_message is None
    assert handler.done == list(range(10))
    assert [price for price, _, _ in failures] == [0, 3, 3, 4, 9, 9, 9]
    assert all(price == seq for price, seq, _ in failures)
    assert all(committed <= price for price, _, committed in failures)
    if commit == "auto":
        assert all(committed == price for price, _, committed in failures)


def test_a_message_that_always_fails_can_be_skipped(trades: Path) -> None:
    handler = Supervised({3.0: 1000})
    with open_reader(trades, "view", commit="auto", codec=Trade) as reader:
        reader.on(Trade)(handler.handle)
        for _ in range(5):
            with pytest.raises(LookupError):
                reader.dispatch_now()
            assert reader.committed_seq == 3
        with pytest.raises(InvalidArgument, match='"again" or "skip"'):
            reader.dispatch_now(failed="perhaps")  # type: ignore[arg-type]
        assert reader.dispatch_now(failed="skip") == 6
        assert reader.failed_message is None
        assert reader.committed_seq == 10
    assert handler.tried == [0, 1, 2, 3, 3, 3, 3, 3, 4, 5, 6, 7, 8, 9]


@on_both_loops
async def test_a_message_whose_handler_was_cancelled_comes_again(trades: Path) -> None:
    begun: list[float] = []
    done: list[float] = []
    with open_reader(trades, "view", commit="auto", codec=Trade) as reader:
        entered = asyncio.Event()

        @reader.on(Trade)
        async def slow(trade: Trade) -> None:
            begun.append(trade.price)
            entered.set()
            if len(begun) == 1:
                await asyncio.Event().wait()
            done.append(trade.price)
            if trade.price == 9:
                reader.close()

        task = asyncio.create_task(reader.dispatch())
        await asyncio.wait_for(entered.wait(), 30)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert reader.committed_seq == 0
        assert await asyncio.wait_for(reader.dispatch(), 30) == 10
    assert done == list(range(10))


def test_an_undecodable_message_comes_again_until_it_is_taken_care_of(mixed: Path) -> None:
    with open_reader(mixed, "view", commit="auto", codec=[Trade, Quote]) as reader:
        for _ in range(3):
            with pytest.raises(DecodeError):
                reader.dispatch_now()
            assert reader.committed_seq == 4
        bad: list[int] = []
        assert reader.dispatch_now(on_error=lambda _, message: bad.append(message.seq)) == 2
        assert bad == [4]
        assert reader.committed_seq == 6


def test_who_commits_by_hand_may_have_it_again(trades: Path) -> None:
    handler = Supervised({2.0: 1, 5.0: 1, 7.0: 1})
    with open_reader(trades, "view", codec=Trade) as reader:
        reader.on(Trade)(handler.handle)
        with pytest.raises(LookupError):
            reader.dispatch_now()
        with pytest.raises(LookupError):
            reader.dispatch_now(failed="again")
        with pytest.raises(LookupError):
            reader.dispatch_now()  # on with the next one
        reader.seek(7)  # an explicit seek: the failed message is not repeated
        assert reader.dispatch_now(failed="again") == 3
    assert handler.done == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_after_close_nothing_is_handed_over(trades: Path) -> None:
    handler = Supervised({2.0: 1})
    with open_reader(trades, "view", commit="auto", codec=Trade) as reader:
        reader.on(Trade)(handler.handle)
        with pytest.raises(LookupError):
            reader.dispatch_now()
    assert asyncio.run(reader.dispatch()) == 0
    assert handler.done == [0, 1]
    del reader


@on_both_loops
async def test_several_tasks_that_fail_at_once(trades: Path) -> None:
    """Each task fails with its own message; all come again, in the order in which they failed."""
    done: list[float] = []
    attempts = 0
    with open_reader(trades, "view", commit="auto", codec=Trade) as reader:

        @reader.on(Trade)
        async def handle(trade: Trade) -> None:
            nonlocal attempts
            attempts += 1
            await asyncio.sleep(0)
            if attempts <= 3:
                raise LookupError(trade.price)
            done.append(trade.price)
            if trade.price == 9:
                reader.close()

        tasks = [asyncio.create_task(reader.dispatch()) for _ in range(3)]
        await asyncio.wait(tasks)
        assert [type(task.exception()) for task in tasks] == [LookupError] * 3
        assert await asyncio.wait_for(reader.dispatch(), 30) == 10
    assert done == list(range(10))
