"""TestChronicleBroker: calls handlers without a queue, as FastStream's other test brokers do."""

# FastStream's parts of a broker are private, and every broker has its own parameters.
# pyright: reportPrivateUsage=false, reportIncompatibleMethodOverride=false

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

from faststream._internal.testing.broker import EnterType, TestBroker, change_producer

from aiochronicle.faststream.broker import ChronicleBroker, Producer
from aiochronicle.faststream.endpoints import Command
from aiochronicle.faststream.message import ENVELOPE

__all__ = ["TestChronicleBroker"]


class _Posted:
    """A message that is in no queue."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.type_id = ENVELOPE
        self.attempt = 1

    @property
    def message(self) -> "_Posted":
        return self

    def ack(self) -> None:
        pass

    def nack(self, delay_s: float = 0, error: str | None = None) -> None:
        pass


class _TestProducer(Producer):
    """Calls one subscriber of each group at once."""

    def __init__(self, broker: ChronicleBroker, brokers: Any) -> None:
        super().__init__(broker._parser, broker._decoder)
        self._brokers = brokers
        self.serializer = broker.config.fd_config._serializer
        self.codec = broker.config.broker_codec or self.codec
        self._seq = 0

    async def publish(self, cmd: Command) -> int:
        await self._post(cmd.destination, await self._pack(cmd, cmd.body))
        self._seq += 1
        return self._seq - 1

    async def publish_batch(self, cmd: Command) -> range:
        first = self._seq
        for body in cmd.batch_bodies:
            await self._post(cmd.destination, await self._pack(cmd, body))
            self._seq += 1
        return range(first, self._seq)

    async def _post(self, topic: str, payload: bytes) -> None:
        groups: set[str] = set()
        for subscriber in [one for broker in self._brokers for one in broker.subscribers]:
            if subscriber.topic == topic and subscriber.group not in groups:
                groups.add(subscriber.group)
                await subscriber.process_message(_Posted(payload))


class TestChronicleBroker(TestBroker[ChronicleBroker, EnterType], broker=ChronicleBroker):
    """Runs handlers in memory: ``async with TestChronicleBroker(broker) as br``.

    ``with_real=True`` uses the queues of the broker instead.
    """

    __test__ = False

    def create_publisher_fake_subscriber(
        self, broker: ChronicleBroker, publisher: Any
    ) -> tuple[Any, bool]:
        for subscriber in (one for each in self.brokers for one in each.subscribers):
            if subscriber.topic == publisher.topic:  # type: ignore[attr-defined]
                return subscriber, True
        return broker.subscriber(publisher.topic, "faststream-test", persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: ChronicleBroker) -> Generator[None, None, None]:
        producer = _TestProducer(broker, self.brokers)
        with change_producer(broker.config.broker_config, producer):
            yield

    async def _fake_connect(self, broker: ChronicleBroker, *args: Any, **kwargs: Any) -> Any:
        return MagicMock()
