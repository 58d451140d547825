"""Messages of FastStream in a queue, and deliveries of a group as messages of FastStream."""

from typing import Any, Protocol

import msgspec
from faststream.message import StreamMessage, decode_message

from aiochronicle._base.prepared import prepared

__all__ = ["ENVELOPE", "ChronicleMessage", "Envelope", "Parser", "Raw", "pack"]

ENVELOPE = 0x4653  # type_id of messages that are an Envelope

_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 30.0


@prepared
class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """What FastStream sends: the body, and what it wants to know about it. MessagePack in the queue."""

    body: bytes
    content_type: str | None = None
    correlation_id: str | None = None
    reply_to: str = ""
    headers: dict[str, Any] = {}


class Payload(Protocol):
    """What is needed of a ``Message``."""

    @property
    def payload(self) -> bytes: ...
    @property
    def type_id(self) -> int: ...


class Raw(Protocol):
    """What is needed of a ``Delivery``."""

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
        """Give it back; None: it comes again after 0.1 s, twice as long each time, 30 s at most."""
        if self.committed is None:
            doublings = min(self.raw_message.attempt - 1, 10)
            later_s = min(_RETRY_FIRST_S * float(2**doublings), _RETRY_MAX_S)
            self.raw_message.nack(
                later_s if delay_s is None else delay_s, "given back by its FastStream handler"
            )
        await super().nack()

    async def reject(self) -> None:
        """Be done with it, though it failed."""
        if self.committed is None:
            self.raw_message.ack()
        await super().reject()


class Parser:
    """Makes messages of deliveries. What is no Envelope, of any other writer, is the body."""

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
        """Return what its body is, by its content type."""
        return decode_message(message)
