# pyright: basic, reportMissingImports=false
"""nautilus_trader over queues: back-test on recorded quotes, record its events, fill a catalog."""

import shutil
import tempfile
from decimal import Decimal
from pathlib import Path

from nautilus_trader.backtest.engine import BacktestEngine, BacktestEngineConfig
from nautilus_trader.config import LoggingConfig
from nautilus_trader.model.currencies import USD
from nautilus_trader.model.data import QuoteTick
from nautilus_trader.model.enums import AccountType, OmsType, OrderSide
from nautilus_trader.model.objects import Money
from nautilus_trader.persistence.catalog import ParquetDataCatalog
from nautilus_trader.test_kit.providers import TestInstrumentProvider
from nautilus_trader.trading.strategy import Strategy

from aiochronicle import open_reader, open_writer
from aiochronicle.nautilus import BusRecorder, append_objects, read_objects, write_catalog

ROOT = Path(tempfile.mkdtemp(prefix="nautilus-"))
QUOTES = 1000
START_NS, SECOND_NS = 1_700_000_000_000_000_000, 1_000_000_000
instrument = TestInstrumentProvider.default_fx_ccy("EUR/USD")


class EveryHundredth(Strategy):  # type: ignore[misc,unused-ignore]
    """Buy at every hundredth quote."""

    def on_start(self) -> None:
        self.seen = 0
        self.subscribe_quote_ticks(instrument.id)

    def on_quote_tick(self, tick: QuoteTick) -> None:
        self.seen += 1
        if self.seen % 100 == 0:
            quantity = instrument.make_qty(Decimal(1000))
            self.submit_order(self.order_factory.market(instrument.id, OrderSide.BUY, quantity))


def quote(number: int) -> QuoteTick:
    bid = Decimal("1.10000") + Decimal(number % 50) / 100_000
    at_ns = START_NS + number * SECOND_NS
    return QuoteTick(
        instrument.id,
        instrument.make_price(bid),
        instrument.make_price(bid + Decimal("0.00002")),
        instrument.make_qty(1_000_000),
        instrument.make_qty(1_000_000),
        at_ns,
        at_ns,
    )


def quotes_topic(tick: QuoteTick) -> str:
    return f"data.quotes.{tick.instrument_id.venue}.{tick.instrument_id.symbol}"


# A feed handler would have recorded these.
with open_writer(ROOT / "quotes") as writer:
    append_objects(writer, (quote(number) for number in range(QUOTES)), topic=quotes_topic)

engine = BacktestEngine(BacktestEngineConfig(logging=LoggingConfig(bypass_logging=True)))
engine.add_venue(
    instrument.venue,
    OmsType.NETTING,
    AccountType.MARGIN,
    [Money(1_000_000, USD)],
    base_currency=USD,
)
engine.add_instrument(instrument)
with open_reader(ROOT / "quotes") as reader:
    engine.add_data(list(read_objects(reader)))
engine.add_strategy(EveryHundredth())

# Record what the bus of the back-test publishes, at the time of the back-test.
kernel = engine.kernel
with open_writer(ROOT / "events", clock=kernel.clock.timestamp_ns) as writer:
    recorder = BusRecorder(kernel.msgbus, writer)
    engine.run()
    recorder.close()
    if recorder.failure is not None:
        raise recorder.failure
engine.dispose()

fills = 0
with open_reader(ROOT / "events") as reader:
    for message in reader:
        assert message.key is not None  # the topic
        fills += message.key.startswith(b"events.fills.")

catalog = ParquetDataCatalog(str(ROOT / "catalog"))
with open_reader(ROOT / "quotes") as reader:
    write_catalog(reader, catalog, types=QuoteTick)
stored = len(catalog.quote_ticks())

shutil.rmtree(ROOT)
print(f"{QUOTES} quotes, {fills} fills recorded, {stored} quotes in the catalog")
