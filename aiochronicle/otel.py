"""OpenTelemetry spans and metrics for messages, by the messaging conventions. Extra ``otel``.

Only wrapped objects are traced. ``Telemetry.writer`` and ``Telemetry.reader`` wrap one writer or reader; the
wrapped objects, and all others, are as fast as before. Without a wrapper, put ``with
telemetry.process(message)`` around the work.

A consumer finds the span of the producer because the W3C trace context travels with the message. It is in
the headers ``traceparent`` and ``tracestate``. If the message is a struct with ``traceparent: str = ""`` (and
optionally ``tracestate: str = ""``), ``send`` sets these fields instead.

Java queues have no headers, and neither have requests and answers. For these a Telemetry remembers the spans
of the last messages sent through it. It can then link an answer to its request, and messages that a process
sends to itself. Each span also has the identity of its message and of that message's cause, so that a query
can join spans without links.

The span of a message always links to that of the producer. It also continues the producer's trace, unless
there is a current span.
"""

import contextlib
import functools
import inspect
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from aiochronicle._base.printable import printable
from aiochronicle._core.fanin import FanIn
from aiochronicle._core.reader import Reader
from aiochronicle._core.writer import Writer
from aiochronicle._hot import Message
from aiochronicle._services.request import Request
from aiochronicle.codec import T
from aiochronicle.errors import ChronicleError

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        'spans and metrics need opentelemetry: pip install "aiochronicle[otel]"',
        name="opentelemetry",
    ) from error

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from opentelemetry.util.types import AttributeValue
    from typing_extensions import Buffer

__all__ = ["Telemetry", "TracedReader", "TracedWriter"]

SYSTEM = "aiochronicle"
PARENT, STATE = "traceparent", "tracestate"  # fields and headers, as W3C Trace Context names them

_REMEMBERED = 4096
_LINKS_MAX = 128  # of a batch; SDKs cut off more
_STATE_MAX = 512  # characters
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_KINDS = {
    "send": SpanKind.PRODUCER,
    "receive": SpanKind.CLIENT,
    "process": SpanKind.CONSUMER,
    "settle": SpanKind.CLIENT,
}

_w3c = TraceContextTextMapPropagator()

_Function = TypeVar("_Function", bound=Callable[..., Any])
Cause = Message | tuple[int, int] | None


class Telemetry:
    """Creates spans and metrics for the messages of a program; a program needs only one.

    ``tracer_provider`` and ``meter_provider`` default to the global ones. ``remembered`` is the number of
    sent messages whose spans are kept, for messages that cannot carry their context.

    >>> telemetry = Telemetry()
    >>> with open_writer(tmp_path / "orders") as writer:
    ...     telemetry.writer(writer).append(b"buy")
    0
    >>> with open_reader(tmp_path / "orders") as reader:
    ...     for order in reader:
    ...         with telemetry.process(order):
    ...             print(order.payload)
    b'buy'
    """

    def __init__(
        self,
        *,
        tracer_provider: "TracerProvider | None" = None,
        meter_provider: "MeterProvider | None" = None,
        remembered: int = _REMEMBERED,
    ) -> None:
        self._tracer = trace.get_tracer("aiochronicle", tracer_provider=tracer_provider)
        meter = metrics.get_meter("aiochronicle", meter_provider=meter_provider)
        self._operation_s = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of appending, receiving and committing.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )
        self._process_s = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of processing messages.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            unit="{message}",
            description="Messages that were appended, or that an append failed for.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            unit="{message}",
            description="Messages that were delivered to the program.",
        )
        self._remembered_max = remembered
        self._spans: dict[tuple[int, int], SpanContext] = {}  # by queue id and seq, oldest first

    def writer(self, writer: Writer) -> "TracedWriter":
        """Wrap a writer: each call that appends creates a span."""
        return TracedWriter(self, writer)

    def reader(self, reader: "Reader[T] | FanIn[T]") -> "TracedReader[T]":
        """Wrap a reader, fan-in or router: each delivery creates a span."""
        return TracedReader(self, reader)

    def process(
        self,
        work: "Message[Any] | Request[Any] | Sequence[Message[Any]]",
    ) -> contextlib.AbstractContextManager[Span]:
        """Return a context manager for the span of the work on a message, a request, or a batch of messages.

        The span is the current one inside ``with``, so messages sent there belong to the same trace. It
        records an exception that leaves the block. The messages are counted as consumed. A TracedReader
        counts its messages itself: for them, use its own ``process``.
        """
        return self._process(work, None, is_counted=False)

    def _process(
        self,
        work: "Message[Any] | Request[Any] | Sequence[Message[Any]]",
        subscription: str | None,
        *,
        is_counted: bool,
    ) -> contextlib.AbstractContextManager[Span]:
        messages = _messages_of(work)
        is_batch = not isinstance(work, Message | Request)
        details = _message_attributes(messages, is_batch, subscription)
        operation = _Operation(self, "process", "process", _common_source(messages), details)
        operation.links = self._links(messages)
        if not is_batch and not trace.get_current_span().get_span_context().is_valid:
            created = self.created_by(messages[0])
            if created is not None:
                operation.parent = trace.set_span_in_context(trace.NonRecordingSpan(created))
        operation.consumed = 0 if is_counted else len(messages)
        return operation.active()

    def handler(self, function: _Function) -> _Function:
        """Decorate a handler: each call creates a ``process`` span for the message that it gets.

        Use it for ``Responder.serve``, for ``reader.on`` with a handler that takes the message, and for your
        own functions, ``async`` or not. Calls without a message create no span.

        >>> @Telemetry().handler
        ... async def answer(request: Request) -> bytes:
        ...     return b"42"
        """

        def span(arguments: tuple[Any, ...]) -> contextlib.AbstractContextManager[object]:
            works: list[Message[Any] | Request[Any]]
            works = [one for one in arguments if isinstance(one, Message | Request)]  # pyright: ignore[reportUnknownVariableType]
            return self.process(works[0]) if works else contextlib.nullcontext()

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def asynchronous(*arguments: Any, **options: Any) -> Any:
                with span(arguments):
                    return await function(*arguments, **options)

            return asynchronous  # type: ignore[return-value]

        @functools.wraps(function)
        def plain(*arguments: Any, **options: Any) -> Any:
            with span(arguments):
                return function(*arguments, **options)

        return plain  # type: ignore[return-value]

    def inject(self, obj: T) -> T:
        """Return a copy of a struct whose ``traceparent`` is the current span.

        Returns the same object if it has no such field, if the field is set, or if there is no span. ``send``
        of a traced writer does this itself; call it for requests and answers.
        """
        fields: tuple[str, ...] = getattr(type(obj), "__struct_fields__", ())
        if PARENT not in fields or getattr(obj, PARENT):
            return obj
        carrier: dict[str, str] = {}
        _w3c.inject(carrier)
        found = {name: value for name, value in carrier.items() if name in fields}
        return msgspec.structs.replace(obj, **found) if found else obj  # type: ignore[type-var]

    def created_by(self, message: "Message[Any]") -> SpanContext | None:
        """Return the span in which a message was sent; None if it is unknown.

        If there is no header ``traceparent``, it decodes the message to read the field of that name.
        """
        found = _carried_by(message.headers)
        if found is not None:
            return found
        with contextlib.suppress(ChronicleError):  # there is no codec, or decoding fails
            found = _carried_context(message.decode())
            if found is not None:
                return found
        return self._spans.get((message.queue_id, message.seq))

    def _links(self, messages: "Sequence[Message[Any]]") -> list[Link]:
        """Return links to the spans in which messages and their causes were sent."""
        links: list[Link] = []
        for message in messages[:_LINKS_MAX]:
            created = self.created_by(message)
            if created is not None:
                links.append(Link(created, {"messaging.message.id": _identity(message)}))
            links += self._cause_links(message.cause, message.cause_epoch)
        return links[:_LINKS_MAX]

    def _cause_links(self, cause: Cause, epoch: int | None = None) -> list[Link]:
        if cause is None:
            return []
        if isinstance(cause, Message):
            created, name = self.created_by(cause), _identity(cause)
        else:
            created, name = self._spans.get(cause), _identity_of(*cause, epoch)
        return [] if created is None else [Link(created, {"messaging.message.id": name})]

    def _remember(self, queue_id: int, seqs: Iterable[int], span: SpanContext) -> None:
        if not span.is_valid or queue_id == 0:  # Java's queues have no identity
            return
        for seq in seqs:
            self._spans[queue_id, seq] = span
        with contextlib.suppress(RuntimeError, StopIteration):  # other threads remove entries, too
            while len(self._spans) > self._remembered_max:
                self._spans.pop(next(iter(self._spans)), None)


class _Operation:
    """One operation: its span, its duration, and the number of its messages."""

    def __init__(
        self,
        telemetry: Telemetry,
        name: str,
        kind: str,
        destination: str | None,
        details: "dict[str, AttributeValue]",
    ) -> None:
        self._telemetry = telemetry
        self._kind = kind
        self._name = name if destination is None else f"{name} {destination}"
        self._labels: dict[str, AttributeValue] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
        }
        if destination is not None:
            self._labels["messaging.destination.name"] = destination
        subscription = details.get("messaging.destination.subscription.name")
        if subscription is not None:
            self._labels["messaging.destination.subscription.name"] = subscription
        self._details = details
        self.links: list[Link] = []
        self.parent: context.Context | None = None
        self.sent = self.consumed = 0

    @contextlib.contextmanager
    def active(self) -> Generator[Span]:
        """Make this the current span until the block ends, normally or with an exception."""
        started = time.time_ns(), time.perf_counter()
        with self._start(started[0]) as span:
            try:
                yield span
            except Exception as error:  # not BaseException: cancelling the work is no failure of it
                self._record_failure(span, error)
                raise
            finally:
                self._measure(time.perf_counter() - started[1])

    def record(self, started: tuple[int, float], failure: Exception | None = None) -> None:
        """Create the span of an operation that began at that time and has ended now."""
        with self._start(started[0]) as span:
            if failure is not None:
                self._record_failure(span, failure)
        self._measure(time.perf_counter() - started[1])

    def _start(self, start_ns: int) -> contextlib.AbstractContextManager[Span]:
        return self._telemetry._tracer.start_as_current_span(  # pyright: ignore[reportPrivateUsage]
            self._name,
            self.parent,
            kind=_KINDS[self._kind],
            attributes={**self._labels, **self._details},
            links=self.links,
            start_time=start_ns,
            record_exception=False,
            set_status_on_exception=False,
        )

    def _record_failure(self, span: Span, error: Exception) -> None:
        kind = type(error)
        is_builtin = kind.__module__ == "builtins"
        name = kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"
        self._labels["error.type"] = name
        span.set_attribute("error.type", name)
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, printable(error)))

    def _measure(self, duration_s: float) -> None:
        telemetry = self._telemetry
        durations = telemetry._process_s if self._kind == "process" else telemetry._operation_s  # pyright: ignore[reportPrivateUsage]
        durations.record(duration_s, self._labels)
        counted = {
            name: value
            for name, value in self._labels.items()
            if name != "messaging.operation.type"
        }
        if self.sent:
            telemetry._sent.add(self.sent, counted)  # pyright: ignore[reportPrivateUsage]
        if self.consumed:
            telemetry._consumed.add(self.consumed, counted)  # pyright: ignore[reportPrivateUsage]


class TracedWriter:
    """Appends with a span for each call. ``writer`` is the wrapped writer, for all other methods."""

    def __init__(self, telemetry: Telemetry, writer: Writer) -> None:
        self.writer = writer
        self._telemetry = telemetry
        self._name = printable(Path(writer.path).name)
        statistics = writer.statistics()
        self._queue_id, self._epoch = statistics.queue_id, statistics.epoch

    def append(
        self,
        payload: "Buffer",
        *,
        type_id: int = 0,
        timestamp_ns: int | None = None,
        cause: Cause = None,
        key: "Buffer | None" = None,
        headers: "Mapping[str, Buffer] | None" = None,
    ) -> int:
        """Append a message and return its seq, as ``Writer.append``.

        The message gets the trace context in its headers. An existing ``traceparent`` is kept, and the span
        links to it.
        """
        with self._sending("append", 1, cause, _carried_by(headers)) as span:
            seq = self.writer.append(
                payload,
                type_id=type_id,
                timestamp_ns=timestamp_ns,
                cause=cause,
                key=key,
                headers=self._with_context(headers),
            )
            self._record_sent(span, range(seq, seq + 1))
        return seq

    def append_many(
        self,
        payloads: "Iterable[Buffer]",
        *,
        type_id: int = 0,
        timestamps_ns: Sequence[int] | None = None,
        cause: Cause = None,
        keys: "Iterable[Buffer | None] | None" = None,
        headers: "Iterable[Mapping[str, Buffer] | None] | None" = None,
    ) -> range:
        """Append messages that become visible together, as ``Writer.append_many``; one span."""
        several = list(payloads)
        given = [None] * len(several) if headers is None else list(headers)
        with self._sending("append_many", len(several), cause) as span:
            span.set_attribute("messaging.batch.message_count", len(several))
            seqs = self.writer.append_many(
                several,
                type_id=type_id,
                timestamps_ns=timestamps_ns,
                cause=cause,
                keys=keys,
                headers=[self._with_context(one) for one in given],
            )
            self._telemetry._remember(self._queue_id, seqs, span.get_span_context())  # pyright: ignore[reportPrivateUsage]
        return seqs

    def send(
        self,
        obj: msgspec.Struct,
        *,
        timestamp_ns: int | None = None,
        cause: Cause = None,
        expires_ns: int | None = None,
        key: "Buffer | None" = None,
        headers: "Mapping[str, Buffer] | None" = None,
    ) -> int:
        """Append an object as ``Writer.send``, with the trace context.

        The context goes into the field ``traceparent`` if the object has one, otherwise into the headers. An
        existing value is kept, and the span links to it.
        """
        given = _carried_context(obj) or _carried_by(headers)
        with self._sending("append", 1, cause, given) as span:
            carrying = self._telemetry.inject(obj)
            has_field = PARENT in getattr(type(obj), "__struct_fields__", ())
            seq = self.writer.send(
                carrying,
                timestamp_ns=timestamp_ns,
                cause=cause,
                expires_ns=expires_ns,
                key=key,
                headers=headers if has_field else self._with_context(headers),
            )
            self._record_sent(span, range(seq, seq + 1))
        return seq

    def _with_context(
        self, headers: "Mapping[str, Buffer] | None"
    ) -> "Mapping[str, Buffer] | None":
        """Return headers with the current span, unless they already have one or the queue has no headers."""
        if self.writer.format != "native" or PARENT in (headers or ()):
            return headers
        carrier: dict[str, str] = {}
        _w3c.inject(carrier)
        if not carrier:
            return headers
        return {**(headers or {}), **{name: text.encode() for name, text in carrier.items()}}

    def _sending(
        self, name: str, count: int, cause: Cause, given: SpanContext | None = None
    ) -> contextlib.AbstractContextManager[Span]:
        details: dict[str, AttributeValue] = {}
        if isinstance(cause, Message):
            details["messaging.aiochronicle.cause.id"] = _identity(cause)
        elif cause is not None:
            details["messaging.aiochronicle.cause.id"] = _identity_of(*cause, None)
        operation = _Operation(self._telemetry, name, "send", self._name, details)
        operation.links = self._telemetry._cause_links(cause)  # pyright: ignore[reportPrivateUsage]
        if given is not None:
            operation.links.append(Link(given))
        operation.sent = count
        return operation.active()

    def _record_sent(self, span: Span, seqs: range) -> None:
        name = _identity_of(self._queue_id, seqs[0], self._epoch)
        span.set_attribute("messaging.message.id", name)
        self._telemetry._remember(self._queue_id, seqs, span.get_span_context())  # pyright: ignore[reportPrivateUsage]

    def __repr__(self) -> str:
        return f"<TracedWriter of {self.writer!r}>"


class TracedReader(Generic[T]):
    """Reads with a span for each delivery. ``reader`` is the wrapped reader, for all other methods.

    The span lasts from the call until the message is delivered, including the wait. A call that returns no
    message creates no span. Cancelling loses nothing, as without the wrapper.
    """

    def __init__(self, telemetry: Telemetry, reader: "Reader[T] | FanIn[T]") -> None:
        self.reader = reader
        self._telemetry = telemetry
        self._subscription: str | None = getattr(reader, "name", None)

    def __iter__(self) -> "Iterator[Message[T]]":
        while (message := self.poll()) is not None:
            yield message

    async def __aiter__(self) -> "AsyncIterator[Message[T]]":
        started = _now()
        try:
            async for message in self.reader:
                self._record_receipt([message], started)
                yield message
                started = _now()
        except ChronicleError as error:
            self._record_failed_receipt(started, error)
            raise

    def poll(self) -> "Message[T] | None":
        """Return the next message if there is one, as ``Reader.poll``."""
        with self._receiving() as started:
            message = self.reader.poll()
        if message is not None:
            self._record_receipt([message], started)
        return message

    async def next(self, timeout: float | None = None) -> "Message[T]":
        """Wait for the next message, as ``Reader.next``."""
        with self._receiving() as started:
            message = await self.reader.next(timeout)
        self._record_receipt([message], started)
        return message

    def read_batch(
        self, max_messages: int = 1024, max_bytes: int | None = None
    ) -> "list[Message[T]]":
        """Return the available messages, as ``Reader.read_batch``; one span with a link per message."""
        with self._receiving() as started:
            batch = self.reader.read_batch(max_messages, max_bytes)
        if batch:
            self._record_receipt(batch, started, is_batch=True)
        return batch

    async def batches(
        self,
        max_messages: int = 1024,
        max_bytes: int | None = None,
        max_wait: float | None = None,
    ) -> "AsyncIterator[list[Message[T]]]":
        """Iterate over lists of messages, as ``Reader.batches``; one span each."""
        started = _now()
        async for batch in self.reader.batches(max_messages, max_bytes, max_wait):
            self._record_receipt(batch, started, is_batch=True)
            yield batch
            started = _now()

    def commit(self, message: "Message[T] | None" = None) -> None:
        """Commit as ``Reader.commit`` does, with a span."""
        messages = [] if message is None else [message]
        details = _message_attributes(messages, False, self._subscription)
        operation = _Operation(self._telemetry, "commit", "settle", self._destination(), details)
        operation.links = self._telemetry._links(messages)  # pyright: ignore[reportPrivateUsage]
        with operation.active():
            self.reader.commit(message)

    def process(
        self, work: "Message[T] | Sequence[Message[T]]"
    ) -> contextlib.AbstractContextManager[Span]:
        """Return a span for the work on messages read here, as ``Telemetry.process``."""
        return self._telemetry._process(work, self._subscription, is_counted=True)  # pyright: ignore[reportPrivateUsage]

    def _destination(self) -> str | None:
        return printable(self.reader.source) if isinstance(self.reader, Reader) else None

    @contextlib.contextmanager
    def _receiving(self) -> Generator[tuple[int, float]]:
        started = _now()
        try:
            yield started
        except ChronicleError as error:
            self._record_failed_receipt(started, error)
            raise

    def _record_receipt(
        self, messages: "list[Message[T]]", started: tuple[int, float], *, is_batch: bool = False
    ) -> None:
        details = _message_attributes(messages, is_batch, self._subscription)
        operation = _Operation(
            self._telemetry, "receive", "receive", _common_source(messages), details
        )
        operation.links = self._telemetry._links(messages)  # pyright: ignore[reportPrivateUsage]
        operation.consumed = len(messages)
        operation.record(started)

    def _record_failed_receipt(self, started: tuple[int, float], error: ChronicleError) -> None:
        details = _message_attributes([], False, self._subscription)
        operation = _Operation(self._telemetry, "receive", "receive", self._destination(), details)
        operation.record(started, error)

    def __repr__(self) -> str:
        return f"<TracedReader of {self.reader!r}>"


def _now() -> tuple[int, float]:
    return time.time_ns(), time.perf_counter()


def _messages_of(
    work: "Message[Any] | Request[Any] | Sequence[Message[Any]]",
) -> list[Message[Any]]:
    if isinstance(work, Message):
        return [work]
    return [work.message] if isinstance(work, Request) else list(work)


def _common_source(messages: "Sequence[Message[Any]]") -> str | None:
    """Return the name of the messages' queue; None if they are from several."""
    names = {message.source for message in messages}
    return printable(names.pop()) if len(names) == 1 else None


def _message_attributes(
    messages: "Sequence[Message[Any]]", is_batch: bool, subscription: str | None
) -> "dict[str, AttributeValue]":
    found: dict[str, AttributeValue] = {}
    if subscription is not None:
        found["messaging.destination.subscription.name"] = printable(subscription)
    if is_batch:
        found["messaging.batch.message_count"] = len(messages)
    elif messages:
        (message,) = messages
        found["messaging.message.id"] = _identity(message)
        found["messaging.message.body.size"] = len(message)
        cause = message.cause
        if cause is not None:
            name = _identity_of(*cause, message.cause_epoch)
            found["messaging.aiochronicle.cause.id"] = name
    return found


def _identity(message: "Message[Any]") -> str:
    return _identity_of(message.queue_id, message.seq, message.epoch)


def _identity_of(queue_id: int, seq: int, epoch: int | None) -> str:
    """Return the permanent identity of a message; the epoch distinguishes two uses of the same seq."""
    return f"{queue_id:016x}-{epoch or 0}-{seq}"


def _carried_context(obj: object) -> SpanContext | None:
    """Return the span context in the field ``traceparent`` of an object, if it is valid."""
    return _extract(getattr(obj, PARENT, None), getattr(obj, STATE, None))


def _carried_by(headers: "Mapping[str, Buffer] | None") -> SpanContext | None:
    """Return the span context in the header ``traceparent``, if it is valid."""
    if not headers or PARENT not in headers:
        return None
    parent, state = (
        bytes(headers.get(name, b"")).decode("ascii", "replace") for name in (PARENT, STATE)
    )
    return _extract(parent, state)


def _extract(parent: object, state: object) -> SpanContext | None:
    if not isinstance(parent, str) or not parent:
        return None
    carrier = {PARENT: parent}
    if isinstance(state, str) and len(state) <= _STATE_MAX:
        carrier[STATE] = state
    found = trace.get_current_span(_w3c.extract(carrier, context.Context())).get_span_context()
    return found if found.is_valid else None
