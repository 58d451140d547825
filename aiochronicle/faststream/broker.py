"""The broker: a Bus whose topics have many writers."""

# FastStream's parts of a broker are private, and every broker has its own parameters.
# pyright: reportPrivateUsage=false, reportIncompatibleMethodOverride=false

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from typing import Any

from fast_depends import dependency_provider
from faststream import AckPolicy
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import BrokerRouter
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException
from faststream.message import gen_cor_id
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from aiochronicle._base.background import in_background
from aiochronicle._core.writer import Writer
from aiochronicle._services.bus import Bus
from aiochronicle.faststream.endpoints import (
    ChroniclePublisher,
    ChronicleSubscriber,
    Command,
    ConcurrentSubscriber,
    Config,
    PublisherConfig,
    PublisherDescription,
    PublisherDocument,
    SubscriberConfig,
    SubscriberDescription,
    SubscriberDocument,
)
from aiochronicle.faststream.message import ENVELOPE, Parser, Raw, pack

__all__ = ["ChronicleBroker", "ChronicleRouter", "Producer"]


class Registry(Registrator[Raw, Config]):
    """Common to brokers and routers."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        group: str = "faststream",
        *,
        lease_s: float = 30,
        max_in_flight: int = 1024,
        max_deliver: int | None = None,
        dead_letter: str | os.PathLike[str] | None = None,
        start: Any = "first",
        max_workers: int = 1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> ChronicleSubscriber:
        """Subscribe a handler to a topic, as a member of a group: each message goes to one of them.

        ``lease_s`` to ``start`` are those of ``TopicGroup``. By default a message is acknowledged when the
        handler returns, and given back when it raises.
        """
        config = SubscriberConfig(
            topic=topic,
            group=group,
            options={
                "lease_s": lease_s,
                "max_in_flight": max_in_flight,
                "max_deliver": max_deliver,
                "dead_letter": dead_letter,
                "start": start,
            },
            no_reply=no_reply,
            _outer_config=self.config,  # type: ignore[arg-type]
            _ack_policy=ack_policy,
        )
        calls = CallsCollection[Any]()
        described = SubscriberDescription(
            topic=topic,
            title_=title,
            description_=description,
            include_in_schema=include_in_schema,
        )
        document = SubscriberDocument(self.config, described, calls)  # type: ignore[arg-type]
        made: ChronicleSubscriber
        if max_workers > 1:
            made = ConcurrentSubscriber(config, document, calls, max_workers=max_workers)
        else:
            made = ChronicleSubscriber(config, document, calls)
        super().subscriber(made, persistent=persistent)
        return made.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        headers: dict[str, Any] | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> ChroniclePublisher:
        """Return a publisher to a topic; as a decorator it publishes what the handler returns."""
        config = PublisherConfig(
            topic=topic,
            headers=headers or {},
            _outer_config=self.config,  # type: ignore[arg-type]
        )
        described = PublisherDescription(
            topic=topic,
            schema_=schema,
            title_=title,
            description_=description,
            include_in_schema=include_in_schema,
        )
        document = PublisherDocument(self.config, described)  # type: ignore[arg-type]
        made = ChroniclePublisher(config, document)
        super().publisher(made, persistent=persistent)
        return made


class ChronicleRouter(Registry, BrokerRouter[Raw, Config]):
    """Subscribers and publishers for inclusion in a broker."""

    def __init__(self, prefix: str = "", handlers: Iterable[Any] = (), **options: Any) -> None:
        super().__init__(config=Config(prefix=prefix, **options), handlers=handlers, routers=())


class Producer(ProducerProto[Command]):
    """Appends to the topics of a bus."""

    def __init__(self, parser: Any, decoder: Any) -> None:
        self._parser = ParserComposition(parser, Parser.parse_message)
        self._decoder = ParserComposition(decoder, Parser.decode_message)
        self.codec: Any = DefaultCodec()
        self.serializer: Any = None
        self.bus: Bus | None = None
        self.durable = False
        self._writers: dict[str, Writer] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    async def _pack(self, cmd: Command, body: Any) -> bytes:
        encoded, content_type = await self.codec.encode(body, self.serializer)
        return pack(encoded, content_type, cmd.correlation_id, cmd.reply_to, cmd.headers)

    async def publish(self, cmd: Command) -> int:
        payload = await self._pack(cmd, cmd.body)
        writer = await self._open_writer(cmd.destination)
        seq = await writer.append_async(payload, type_id=ENVELOPE)
        if self.durable:
            await writer.flush()
        return seq

    async def publish_batch(self, cmd: Command) -> range:
        payloads = [await self._pack(cmd, body) for body in cmd.batch_bodies]
        writer = await self._open_writer(cmd.destination)
        seqs = writer.append_many(payloads, type_id=ENVELOPE)
        if self.durable:
            await writer.flush()
        return seqs

    async def _open_writer(self, topic: str) -> Writer:
        if self.bus is None:
            raise RuntimeError("the broker is not connected: start it, or use `async with broker`")
        known = self._writers.get(topic)
        if known is None or known.closed:
            opening = self._opening.setdefault(topic, asyncio.Lock())
            async with opening:
                known = self._writers.get(topic)
                if known is None or known.closed:
                    known = self._writers[topic] = await self.bus.awriter(topic, shared=True)
        return known

    async def request(self, cmd: Command) -> Any:
        raise FeatureNotSupportedException("a request over aiochronicle is made by a Requester")


class _LogStorage(DefaultLoggerStorage):
    """The format of log lines."""

    def __init__(self) -> None:
        super().__init__()
        self._topic_length = 4
        self._level = logging.INFO

    def set_level(self, level: int) -> None:
        self._level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        self._topic_length = max(self._topic_length, len(params.get("topic", "")))

    def get_logger(self, *, context: ContextRepo) -> Any:
        found = self._get_logger_ref()
        if not found:
            found = get_broker_logger(
                name="aiochronicle",
                default_context={"topic": ""},
                message_id_ln=10,
                fmt=(
                    f"%(asctime)s %(levelname)-8s - %(topic)-{self._topic_length}s | "
                    "%(message_id)-10s - %(message)s"
                ),
                context=context,
                log_level=self._level,
            )
            self._logger_ref.add(found)
        return found


class ChronicleBroker(Registry, BrokerUsecase[Raw, Bus, Config]):
    """A FastStream broker without a server: topics are directories below ``root``.

    Every process has a writer of its own in a topic, and subscribers of one ``group`` share its messages
    (``TopicGroup``). With ``durable`` a publish returns when the message is on disk. ``config`` is
    that of ``Bus``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        namespace: str = "",
        config: str | os.PathLike[str] | None = None,
        durable: bool = False,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        decoder: Any = None,
        parser: Any = None,
        codec: Any = None,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[Any] = (),
        description: str | None = None,
        tags: Iterable[Any] = (),
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Any = None,
        context: ContextRepo | None = None,
    ) -> None:
        producer = Producer(parser, decoder)
        producer.durable = durable
        super().__init__(
            routers=routers,
            config=Config(
                producer=producer,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_logger_state(
                    logger=logger, log_level=log_level, default_storage_cls=_LogStorage
                ),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=gen_cor_id,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=[f"file://{os.path.abspath(root)}"],
                protocol="aiochronicle",
                protocol_version=None,
                description=description,
                tags=tags,
                security=None,
            ),
            root=root,
            namespace=namespace,
            config_file=config,
        )

    async def _connect(self) -> Bus:
        options = {**self._connection_kwargs}
        root = options.pop("root")
        namespace = options.pop("namespace")
        config = options.pop("config_file")
        settings = {"config": config} if config is not None else {}
        if namespace:
            settings["namespace"] = namespace
        bus = await in_background(lambda: Bus(root, **settings))
        self.config.broker_config.bus = bus
        producer: Any = self.config.producer
        producer.bus = bus
        producer.serializer = self.config.fd_config._serializer
        producer.codec = self.config.broker_codec or DefaultCodec()
        return bus

    async def start(self) -> None:
        """Open the bus and join the groups."""
        await self.connect()
        await super().start()

    async def stop(self, exc_type: Any = None, exc_val: Any = None, exc_tb: Any = None) -> None:
        """Wait for the handlers, leave the groups, close the bus."""
        await super().stop(exc_type, exc_val, exc_tb)
        bus, self._connection = self._connection, None
        self.config.broker_config.bus = None
        producer: Any = self.config.producer
        producer.bus = None
        if bus is not None:
            await in_background(bus.close)

    async def ping(self, timeout: float | None = None) -> bool:
        """Return whether the bus is open and no writer of it has failed."""
        return self._connection is not None and bool(self._connection.healthy)

    def _command(self, body: Any, kind: PublishType, topic: str, **options: Any) -> Command:
        options["correlation_id"] = options.get("correlation_id") or self.config.id_generator()
        return Command(body, _publish_type=kind, destination=topic, **options)

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> Any:
        """Append a message to a topic; return its seq. Waits while the topic is at its capacity."""
        command = self._command(
            message,
            PublishType.PUBLISH,
            topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
        )
        return await self._basic_publish(command, producer=self.config.producer)

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> Any:
        """Append messages that become visible all at once; return their seqs."""
        if not messages:
            return range(0)
        first, *rest = messages
        command = Command(
            first,
            *rest,
            _publish_type=PublishType.PUBLISH,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
        )
        return await self._basic_publish_batch(command, producer=self.config.producer)

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        """Raise FeatureNotSupportedException: use ``aiochronicle.Requester``."""
        raise FeatureNotSupportedException("a request over aiochronicle is made by a Requester")
