"""Publishers and subscribers."""

# FastStream's parts of a broker are private, and every broker has its own parameters.
# pyright: reportPrivateUsage=false, reportIncompatibleMethodOverride=false

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from faststream import AckPolicy
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.mixins import ConcurrentMixin, TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import FeatureNotSupportedException
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

from aiochronicle._services.topic_group import TopicGroup
from aiochronicle.faststream.message import ChronicleMessage, Parser, Raw

if TYPE_CHECKING:
    from aiochronicle._services.bus import Bus

__all__ = ["ChroniclePublisher", "ChronicleSubscriber", "Command", "Config"]


@dataclass(kw_only=True)
class Config(BrokerConfig):
    """The broker as its publishers and subscribers see it."""

    bus: "Bus | None" = None

    @property
    def connected(self) -> "Bus":
        """The bus of a broker that is connected."""
        if self.bus is None:
            raise RuntimeError("the broker is not connected: start it, or use `async with broker`")
        return self.bus


class Command(BatchPublishCommand):
    """A message, or several, to be appended to a topic."""

    @classmethod
    def from_cmd(cls, cmd: "PublishCommand", *, batch: bool = False) -> "Command":
        if isinstance(cmd, cls):
            return cmd
        return cls(
            cmd.body,
            _publish_type=cmd.publish_type,
            destination=cmd.destination,
            reply_to=cmd.reply_to,
            correlation_id=cmd.correlation_id,
            headers=cmd.headers,
        )


# ---- publishers ----


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    topic: str
    headers: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(kw_only=True)
class PublisherDescription(PublisherSpecificationConfig):
    topic: str


class PublisherDocument(PublisherSpecification[Config, PublisherDescription]):
    @property
    def name(self) -> str:
        return self.config.title_ or f"{self._outer_config.prefix}{self.config.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=f"{self._outer_config.prefix}{self.config.topic}",
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class ChroniclePublisher(PublisherUsecase):
    """Publishes to one topic. Created by ``ChronicleBroker.publisher``."""

    _outer_config: Config

    def __init__(self, config: PublisherConfig, specification: Any) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.headers = config.headers

    @property
    def topic(self) -> str:
        """Its topic, with the prefix of its router."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> Any:
        """Append a message; return its seq. Waits while the topic is at its capacity."""
        command = Command(
            message,
            _publish_type=PublishType.PUBLISH,
            destination=topic or self.topic,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to,
        )
        return await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=()
        )

    async def _publish(self, cmd: "PublishCommand", *, _extra_middlewares: Iterable[Any]) -> None:
        """Publish what a handler returned."""
        command = Command.from_cmd(cmd)
        command.destination = command.destination or self.topic
        command.add_headers(self.headers, override=False)
        await self._basic_publish(
            command,
            producer=self._outer_config.producer,
            _extra_middlewares=_extra_middlewares,
        )

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        """Raise FeatureNotSupportedException: use ``aiochronicle.Requester``."""
        raise FeatureNotSupportedException("a request over aiochronicle is made by a Requester")


class _Reply(FakePublisher):
    """Publishes what a handler returned to the topic that the message names."""

    def __init__(self, producer: Any, topic: str) -> None:
        super().__init__(producer=producer)
        self.topic = topic

    def patch_command(self, cmd: "PublishCommand") -> Command:
        command = Command.from_cmd(super().patch_command(cmd))
        command.destination = self.topic
        return command


# ---- subscribers ----


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    topic: str
    group: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def ack_policy(self) -> AckPolicy:
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class SubscriberDescription(SubscriberSpecificationConfig):
    topic: str


class SubscriberDocument(SubscriberSpecification[Config, SubscriberDescription]):
    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        payload = resolve_payloads(self.get_payloads())
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class ChronicleSubscriber(TasksMixin, SubscriberUsecase[Raw]):
    """A member of a group of one topic. Created by ``ChronicleBroker.subscriber``."""

    _outer_config: Config

    def __init__(self, config: SubscriberConfig, specification: Any, calls: Any) -> None:
        config.parser = Parser.parse_message
        config.decoder = Parser.decode_message
        super().__init__(config, specification, calls)
        self._topic = config.topic
        self.group = config.group
        self._options = config.options
        self._member: TopicGroup[Any] | None = None

    @property
    def topic(self) -> str:
        """Its topic, with the prefix of its router."""
        return f"{self._outer_config.prefix}{self._topic}"

    def get_log_context(self, message: Any) -> dict[str, str]:
        """Return the fields of a message for the log."""
        return {"topic": self.topic, "message_id": getattr(message, "message_id", "")}

    def _make_response_publisher(self, message: Any) -> Sequence[Any]:
        return (_Reply(self._outer_config.producer, message.reply_to),)

    async def start(self) -> None:
        """Join the group, and start to take messages if there are handlers."""
        await super().start()
        await self._join()
        if self.calls:
            self.add_task(self._consume_all)
        self._post_start()

    async def _join(self) -> TopicGroup[Any]:
        if self._member is None or self._member.closed:
            path = self._outer_config.connected.path(self.topic)
            self._member = await TopicGroup.aopen(
                path, self.group, wait_for_queue=True, **self._options
            )
        return self._member

    async def stop(self) -> None:
        """Stop taking messages, wait for the handlers, and leave the group."""
        await super().stop()
        member, self._member = self._member, None
        if member is not None:
            await member.aclose()

    async def _consume_all(self) -> None:
        member = await self._join()
        async for delivery in member:
            await self._take(delivery)

    async def _take(self, delivery: Any) -> None:
        await self.consume(delivery)

    async def _process(self, delivery: Any) -> ChronicleMessage:
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        message = await process_msg(
            msg=delivery,
            middlewares=(one(delivery, context=context) for one in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        return cast("ChronicleMessage", message)

    async def get_one(self, *, timeout: float = 5.0) -> ChronicleMessage | None:
        """Return the next message, which the caller acknowledges; None after ``timeout``."""
        member = await self._join()
        with contextlib.suppress(TimeoutError):
            return await self._process(await member.next(timeout))
        return None

    async def __aiter__(self) -> AsyncIterator[ChronicleMessage]:
        async for delivery in await self._join():
            yield await self._process(delivery)


class ConcurrentSubscriber(ConcurrentMixin[Raw], ChronicleSubscriber):
    """Handles several messages at once."""

    async def start(self) -> None:
        await super().start()
        self.start_consume_task()

    async def _take(self, delivery: Any) -> None:
        await self._put_msg(delivery)
