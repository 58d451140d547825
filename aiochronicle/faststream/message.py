"""FastStream messages in a queue, and a group's deliveries as FastStream messages."""

from typing import Any, Protocol

import msgspec
from faststream.message import StreamMessage, decode_message

from aiochronicle._base.prepared import prepared

__all__ = ["ENVELOPE", "ChronicleMessage", "Envelope", "Parser", "Raw", "pack"]

ENVELOPE = 0x4653  # type_id of messages that are an Envelope

_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 30.0


@prepared
class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """What FastStream sends: the body and its metadata. MessagePack in the queue."""

    body: bytes
    content_type: str | None = None
    correlation_id: str | None = None
    reply_to: str = ""
    headers: dict[str, Any] = {}


class Payload(Protocol):
    """The part of ``Message`` that is used here."""

    @property
    def payload(self) -> bytes: ...
    @property
    def type_id(self) -> int: ...


class Raw(Protocol):
    """The part of ``Delivery`` that is used here."""

    @property
    def message(self) -> Payload: ...
    @property
    def attempt(self) -> int: ...
    def ack(self) -> None: ...
    def nack(self, delay_s: float = 0, error: str | None = None) -> None: ...


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode


def pack(
    body: bytes,
    content_type: str | None,
    correlation_id: str | None,
    reply_to: str,
    headers: dict[str, Any] | None,
) -> bytes:
    """Return the payload of an Envelope."""
    return _encode(Envelope(body, content_type, correlation_id, reply_to, headers or {}))


class ChronicleMessage(StreamMessage[Raw]):
    """A delivery: ``raw_message`` is the ``Delivery``."""

    async def ack(self) -> None:
        """Acknowledge it: it is not delivered again."""
        if self.committed is None:
            self.raw_message.ack()
        await super().ack()

    async def nack(self, delay_s: float | None = None) -> None:
        """Return it to the group. None: redelivered after 0.1 s, then twice as long each time, at most 30
        s."""
        if self.committed is None:
            doublings = min(self.raw_message.attempt - 1, 10)
            later_s = min(_RETRY_FIRST_S * float(2**doublings), _RETRY_MAX_S)
            self.raw_message.nack(
                later_s if delay_s is None else delay_s, "given back by its FastStream handler"
            )
        await super().nack()

    async def reject(self) -> None:
        """Acknowledge it although it failed."""
        if self.committed is None:
            self.raw_message.ack()
        await super().reject()


class Parser:
    """Turns deliveries into messages. A payload that is not an Envelope, from any other writer, is the
    body."""

    @staticmethod
    async def parse_message(raw: Raw) -> ChronicleMessage:
        """Return the message."""
        message = raw.message
        if message.type_id != ENVELOPE:
            return ChronicleMessage(raw, body=message.payload)
        envelope = _decode(message.payload)
        return ChronicleMessage(
            raw,
            body=envelope.body,
            headers=dict(envelope.headers),
            reply_to=envelope.reply_to,
            content_type=envelope.content_type,
            correlation_id=envelope.correlation_id,
        )

    @staticmethod
    async def decode_message(message: "StreamMessage[Any]") -> Any:
        """Return the body, decoded by its content type."""
        return decode_message(message)
