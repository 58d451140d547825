"""The proof at the end: was every order executed exactly once?

The proof uses nothing that a process reported. It derives the orders that must exist from the market's
queues; then it reads each queue on their way from its beginning. Each must have the same orders per strategy
in the same sequence: the same count, and the same digest. Risk's positions must be their sum.
"""

import hashlib
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

import aiochronicle
from aiochronicle.demo.board import Board
from aiochronicle.demo.market import TRADE, TYPES, number_of
from aiochronicle.demo.orders import FILLS, ORDERS, Order, decide
from aiochronicle.demo.screen import make_table
from aiochronicle.errors import ChronicleError

__all__ = ["Proof", "prove", "show"]

STAGES = ("expected", "ordered", "routed", "filled", "replied")


class Tally:
    """How many orders, and a digest of them in their sequence."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = hashlib.sha256()

    def add(self, order: Order) -> None:
        """Count an order."""
        self.count += 1
        self._digest.update(msgspec.msgpack.encode(order))

    @property
    def digest(self) -> str:
        """The first characters of the digest."""
        return self._digest.hexdigest()[:12]


class Proof:
    """The result, and every problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.ticks: Counter[str] = Counter()
        self.orders: dict[str, dict[str, Tally]] = {}
        self.positions: Counter[str] = Counter()
        self.problems = list(problems)


def prove(root: Path, board: Board, problems: Iterable[str]) -> Proof:
    """Read all queues and compare them."""
    proof = Proof(problems)
    venues = [process.name for process in board.of("venue")]
    strategies = [process.name for process in board.of("strategy")]
    proof.orders = {stage: {strategy: Tally() for strategy in strategies} for stage in STAGES}
    with _noting(proof):
        _derive(proof, root, venues, strategies)
    for strategy in strategies:
        _tally(proof, "ordered", root / "orders" / strategy, ORDERS)
        _tally(proof, "replied", root / "orders.replies" / strategy, FILLS)
    _tally(proof, "routed", root / "routed", ORDERS)
    _tally(proof, "filled", root / "fills", FILLS)
    for path in _queues(root, venues, strategies):
        _verify(proof, root, path)
    proof.problems += _compare(proof, board, strategies)
    return proof


@contextmanager
def _noting(proof: Proof) -> Generator[None]:
    """An exception of one queue is recorded as a problem, and the other queues are still read."""
    try:
        yield
    except ChronicleError as error:
        proof.problems.append(str(error))


def _derive(proof: Proof, root: Path, venues: list[str], strategies: list[str]) -> None:
    with ExitStack() as stack:
        ticks = stack.enter_context(aiochronicle.FanIn[Any](order="strict"))
        for venue in venues:
            reader = aiochronicle.open_reader(root / "market" / venue, start="first", codec=TYPES)
            ticks.attach(stack.enter_context(reader))
        for tick in ticks:
            venue = tick.source
            if tick.seq != proof.ticks[venue] or number_of(tick.payload) != tick.seq:
                raise aiochronicle.errors.CorruptionError(
                    f"{venue}: message {tick.seq} is another one"
                )
            proof.ticks[venue] += 1
            if tick.type_id == TRADE:
                trade = tick.decode()
                for strategy in strategies:
                    order = decide(strategy, venue, trade, tick.timestamp_ns)
                    if order is not None:
                        proof.orders["expected"][strategy].add(order)
                        proof.positions[order.symbol] += order.side * order.size


def _tally(proof: Proof, stage: str, path: Path, codec: aiochronicle.Registry) -> None:
    with _noting(proof), aiochronicle.open_reader(path, start="first", codec=codec) as reader:
        for message in reader:
            found = message.decode()
            order: Order = found if isinstance(found, Order) else found.order
            # Strategies of an earlier run over the same root are not part of this one.
            if order.strategy in proof.orders[stage]:
                proof.orders[stage][order.strategy].add(order)


def _queues(root: Path, venues: list[str], strategies: list[str]) -> Iterable[Path]:
    yield from (root / "market" / venue for venue in venues)
    for strategy in strategies:
        yield root / "orders" / strategy
        yield root / "orders.replies" / strategy
    yield from (root / "routed", root / "fills")


def _verify(proof: Proof, root: Path, path: Path) -> None:
    with _noting(proof):
        found = aiochronicle.verify(path)
        if found.corrupt:
            name = path.relative_to(root)
            proof.problems.append(f"{name}: {found.corrupt} corrupt records: {found.first_problem}")


def _compare(proof: Proof, board: Board, strategies: list[str]) -> Iterable[str]:
    expected = proof.orders["expected"]
    for venue in board.of("venue"):
        if not proof.ticks[venue.name]:
            yield f"{venue.name}: nothing was written"
    for stage in STAGES[1:]:
        for strategy in strategies:
            wanted, found = expected[strategy], proof.orders[stage][strategy]
            if found.count != wanted.count:
                yield f"{strategy}: {wanted.count:,} orders expected, {found.count:,} {stage}"
            elif found.digest != wanted.digest:
                yield f"{strategy}: the orders {stage} are not those expected, or in another sequence"
    for risk in board.of("risk"):
        positions = risk.report.positions if risk.report else {}
        if positions != dict(proof.positions):
            yield "risk: the positions are not the sum of the orders"


def show(proof: Proof) -> RenderableType:
    """Return the proof as a table and a verdict."""
    table = make_table("ORDERS OF", *STAGES, "digests")
    for strategy in proof.orders["expected"]:
        tallies = [proof.orders[stage][strategy] for stage in STAGES]
        equal = len({(tally.count, tally.digest) for tally in tallies}) == 1
        table.add_row(
            Text(strategy, style="cyan"),
            *(f"{tally.count:,}" for tally in tallies),
            Text(f"= {tallies[0].digest}", style="green")
            if equal
            else Text("differ", style="bold red"),
        )
    return Group(Text(), table, Text(), *_verdict(proof))


def _verdict(proof: Proof) -> list[Text]:
    if proof.problems:
        return [Text(f"✗ {problem}", style="bold red") for problem in proof.problems]
    orders = sum(tally.count for tally in proof.orders["expected"].values())
    return [
        Text.assemble(
            ("✓ ", "bold green"),
            f"{sum(proof.ticks.values()):,} ticks, {orders:,} orders:"
            " each routed, filled and replied exactly once",
        ),
        Text.assemble(
            ("✓ ", "bold green"),
            f"risk: {len(proof.positions)} positions are the sum of the orders",
        ),
    ]
