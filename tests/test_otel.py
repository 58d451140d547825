"""Spans and metrics by the messaging conventions, with the real SDK and its in-memory exporters."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from aiochronicle import (
    Codec,
    FanIn,
    Message,
    Request,
    Requester,
    Responder,
    Width,
    open_reader,
    open_writer,
)
from aiochronicle.errors import CorruptionError, InvalidArgument
from aiochronicle.otel import Telemetry

WAIT_S = 30.0


class Order(msgspec.Struct, frozen=True):
    quantity: int
    traceparent: str = ""
    tracestate: str = ""


class Plain(msgspec.Struct):
    quantity: int


class Recorded:
    """A program's telemetry and its exported spans and metrics."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.telemetry = Telemetry(tracer_provider=self.tracers, meter_provider=self.meters)
        self.tracer = self.tracers.get_tracer("test")

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans() if span.name == name]
        return found

    def metrics(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    made = Recorded()
    yield made
    made.tracers.shutdown()
    made.meters.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def identity(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def test_importing_the_package_imports_no_opentelemetry() -> None:
    code = "import sys, aiochronicle; sys.exit(any('opentelemetry' in m for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_extra_the_error_says_how_to_get_it() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
try:
    import aiochronicle.otel
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "aiochronicle[otel]"' in done.stdout


def test_append_is_a_producer_span_with_the_identity_of_its_message(
    queue_path: Path, recorded: Recorded
) -> None:
    with open_writer(queue_path) as writer, open_reader(queue_path) as reader:
        assert recorded.telemetry.writer(writer).append(b"buy", type_id=7) == 0
        message = reader.poll()
        assert message is not None
        assert (message.payload, message.type_id) == (b"buy", 7)
        name = f"{message.queue_id:016x}-{message.epoch}-0"
        del message
    span = recorded.span("append queue")
    assert span.kind is SpanKind.PRODUCER
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span) == {
        "messaging.system": "aiochronicle",
        "messaging.operation.name": "append",
        "messaging.operation.type": "send",
        "messaging.destination.name": "queue",
        "messaging.message.id": name,
    }


def test_a_struct_with_the_field_carries_the_trace_to_another_program(
    queue_path: Path, recorded: Recorded
) -> None:
    elsewhere = Recorded()  # as in another process, which does not remember the messages sent here
    with (
        open_writer(queue_path, codec=Order) as writer,
        recorded.tracer.start_as_current_span("trade") as trade,
    ):
        recorded.telemetry.writer(writer).send(Order(100))
    with open_reader(queue_path, "risk", codec=Order) as reader:
        traced = elsewhere.telemetry.reader(reader)
        message = traced.poll()
        assert message is not None
        order = message.decode()
        with traced.process(message):
            pass
        del message
    sent = recorded.span("append queue")
    assert sent.parent is not None
    assert sent.parent.span_id == trade.get_span_context().span_id
    context = trade.get_span_context()
    parts = f"00-{context.trace_id:032x}-{identity(sent):016x}-{context.trace_flags:02x}"
    assert order == Order(100, parts)
    received, processed = elsewhere.span("receive queue"), elsewhere.span("process queue")
    assert received.kind is SpanKind.CLIENT
    assert processed.kind is SpanKind.CONSUMER
    assert linked(received) == linked(processed) == [identity(sent)]
    assert processed.parent is not None
    assert processed.parent.span_id == identity(sent), "the trace goes on"
    assert attributes(processed)["messaging.destination.subscription.name"] == "risk"
    assert attributes(received)["messaging.message.body.size"] > 0


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_every_format_carries_it(queue_path: Path, recorded: Recorded, form: Any) -> None:
    codec = Codec(Order, form)
    with open_writer(queue_path, codec=codec) as writer:
        recorded.telemetry.writer(writer).send(Order(1))
    with (
        open_reader(queue_path, codec=codec) as reader,
        Recorded().telemetry.process(message := next(iter(reader))) as span,
    ):
        assert f"{span.get_span_context().trace_id:032x}" in message.decode().traceparent
        del message


def test_fixed_layouts_carry_it_where_they_have_room(queue_path: Path, recorded: Recorded) -> None:
    class Fixed(msgspec.Struct):
        quantity: int
        traceparent: Annotated[str, Width("S55")] = ""

    codec = Codec(Fixed, "struct")
    with open_writer(queue_path, codec=codec) as writer:
        recorded.telemetry.writer(writer).send(Fixed(1))
    with open_reader(queue_path, codec=codec) as reader:
        found = Recorded().telemetry.created_by(next(iter(reader)))
    assert found is not None
    assert found.span_id == identity(recorded.span("append queue"))


def test_a_context_that_the_program_gave_is_kept_and_linked(
    queue_path: Path, recorded: Recorded
) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with open_writer(queue_path, codec=Order) as writer:
        recorded.telemetry.writer(writer).send(Order(1, given))
    with open_reader(queue_path, codec=Order) as reader:
        assert [message.decode().traceparent for message in reader] == [given]
    assert linked(recorded.span("append queue")) == [0xB7AD6B7169203331]


@pytest.mark.parametrize(
    "hostile",
    ["x", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "00-\n", "0" * 100_000, "ff-" + "1" * 52],
)
def test_a_context_that_makes_no_sense_is_ignored(
    queue_path: Path, recorded: Recorded, hostile: str
) -> None:
    with open_writer(queue_path, codec=Order) as writer:
        writer.send(Order(1, hostile, "a=" + "b" * 100_000))
    with open_reader(queue_path, codec=Order) as reader:
        for message in recorded.telemetry.reader(reader):
            assert recorded.telemetry.created_by(message) is None
            del message
    assert linked(recorded.span("receive queue")) == []


def test_a_result_links_to_what_its_cause_was_sent_in(tmp_path: Path, recorded: Recorded) -> None:
    """This works even for a cause (queue_id, seq), which is remembered within a process."""
    telemetry = recorded.telemetry
    with (
        open_writer(tmp_path / "orders") as orders,
        open_writer(tmp_path / "fills") as fills,
        open_reader(tmp_path / "orders") as reader,
        open_reader(tmp_path / "fills") as results,
    ):
        telemetry.writer(orders).append(b"buy")
        (order,) = reader
        telemetry.writer(fills).append(b"bought", cause=order)
        (fill,) = results
        with telemetry.process(fill):
            pass
        telemetry.writer(fills).append(b"again", cause=(order.queue_id, order.seq))
        name = f"{order.queue_id:016x}-{order.epoch}-0"
        del order, fill
    sent = recorded.span("append orders")
    caused, unknown_epoch = [span for span in recorded.spans() if span.name == "append fills"]
    assert linked(caused) == linked(unknown_epoch) == [identity(sent)]
    assert attributes(caused)["messaging.aiochronicle.cause.id"] == name
    assert attributes(sent)["messaging.message.id"] == name
    processed = recorded.span("process fills")
    assert linked(processed) == [identity(caused), identity(sent)]
    assert attributes(processed)["messaging.aiochronicle.cause.id"] == name


def test_what_is_remembered_is_bounded(queue_path: Path, recorded: Recorded) -> None:
    telemetry = Telemetry(tracer_provider=recorded.tracers, remembered=10)
    with open_writer(queue_path) as writer, open_reader(queue_path) as reader:
        traced = telemetry.writer(writer)
        traced.append_many([b"x"] * 25)
        causes = [(message.queue_id, message.seq) for message in reader]
        recorded.exporter.clear()
        for cause in reversed(causes):  # without the message, whose headers have the context
            telemetry.writer(writer).append(b"y", cause=cause)
    known = [bool(span.links) for span in recorded.spans()]
    assert known == [True] * 5 + [False] * 20  # each new entry evicted an old one


def test_context_travels_in_the_headers_of_bytes(queue_path: Path, recorded: Recorded) -> None:
    """The consumer is another Telemetry, which remembers nothing, as in another process."""
    consumer = Telemetry(tracer_provider=recorded.tracers)
    with open_writer(queue_path, codec=Plain) as writer, open_reader(queue_path) as reader:
        traced = recorded.telemetry.writer(writer)
        traced.append(b"one", key=b"k", headers={"a": b"b"})
        traced.send(Plain(1), headers={"c": b"d"})
        traced.append_many([b"two", b"three"], headers=[None, {"e": b"f"}])
        traced.append(
            b"own", headers={"traceparent": b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"}
        )
        traced.append(b"bad", headers={"traceparent": b"\xff no such thing"})
        created = [consumer.created_by(message) for message in reader]
        reader.seek_first()
        messages = [(m.payload, m.key, {**m.headers}) for m in reader]
    sent = [span for span in recorded.spans() if span.name.startswith("append")]
    assert [one and one.span_id for one in created] == [
        identity(sent[0]),
        identity(sent[1]),
        identity(sent[2]),
        identity(sent[2]),
        int("2" * 16, 16),
        None,
    ]
    assert linked(sent[3]) == [int("2" * 16, 16)]
    assert messages[0][:2] == (b"one", b"k")
    assert [sorted(headers) for _, _, headers in messages] == [
        ["a", "traceparent"],
        ["c", "traceparent"],
        ["traceparent"],
        ["e", "traceparent"],
        ["traceparent"],
        ["traceparent"],
    ]


def test_a_java_queue_takes_no_context_in_headers(tmp_path: Path, recorded: Recorded) -> None:
    with open_writer(tmp_path / "java", format="cq4") as writer:
        recorded.telemetry.writer(writer).append(b"x")
    with open_reader(tmp_path / "java") as reader:
        assert [(message.payload, dict(message.headers)) for message in reader] == [(b"x", {})]


def test_what_is_remembered_is_bounded_with_threads(queue_path: Path, recorded: Recorded) -> None:
    telemetry = Telemetry(tracer_provider=recorded.tracers, remembered=100)
    with open_writer(queue_path) as writer:
        traced = telemetry.writer(writer)

        def append() -> None:
            for _ in range(300):
                traced.append(b"x")

        threads = [threading.Thread(target=append) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        traced.append(b"x")
    assert len(telemetry._spans) == 100
    assert len(recorded.spans()) == 1201


def test_queues_without_an_identity_are_not_confused(tmp_path: Path, recorded: Recorded) -> None:
    """Java queues have no id, and all of them use the same indexes."""
    telemetry = recorded.telemetry
    with (
        open_writer(tmp_path / "a", format="cq4") as a,
        open_writer(tmp_path / "b", format="cq4") as b,
        open_reader(tmp_path / "b") as reader,
    ):
        telemetry.writer(a).append(b"1")
        b.append(b"2")
        (message,) = telemetry.reader(reader)
        assert message.payload == b"2"
        del message
    assert linked(recorded.span("receive b")) == []


def test_what_is_not_wrapped_is_as_it_was(queue_path: Path, recorded: Recorded) -> None:
    with open_writer(queue_path) as writer, open_reader(queue_path) as reader:
        recorded.telemetry.writer(writer).append(b"x")
        assert [type(call).__name__ for call in (writer.append, reader.poll)] == [
            "builtin_function_or_method"
        ] * 2
        writer.append(b"y")
        assert len(list(reader)) == 2
    assert len(recorded.spans()) == 1


def test_a_batch_is_one_span_with_links(queue_path: Path, recorded: Recorded) -> None:
    telemetry = recorded.telemetry
    with open_writer(queue_path) as writer, open_reader(queue_path, "risk") as reader:
        assert telemetry.writer(writer).append_many([b"1", b"2", b"3"]) == range(3)
        traced = telemetry.reader(reader)
        batch = traced.read_batch()
        assert len(batch) == 3
        with traced.process(batch):
            traced.commit(batch[-1])
        assert traced.read_batch() == []
        del batch
    sent, received = recorded.span("append_many queue"), recorded.span("receive queue")
    for span in (sent, received, recorded.span("process queue")):
        assert attributes(span)["messaging.batch.message_count"] == 3
    assert linked(received) == [identity(sent)] * 3
    committed = recorded.span("commit queue")
    assert attributes(committed)["messaging.operation.type"] == "settle"
    assert committed.parent is not None
    assert committed.parent.span_id == identity(recorded.span("process queue"))


def test_sources_of_a_fan_in_are_named_by_their_messages(
    tmp_path: Path, recorded: Recorded
) -> None:
    for name in ("a", "b"):
        with open_writer(tmp_path / name) as writer:
            writer.append(name.encode())
    with open_reader(tmp_path / "a") as a, open_reader(tmp_path / "b") as b, FanIn([a, b]) as both:
        assert len(list(recorded.telemetry.reader(both))) == 2
    assert {span.name for span in recorded.spans()} == {"receive a", "receive b"}


async def test_asynchronous_reading(queue_path: Path, recorded: Recorded) -> None:
    telemetry = recorded.telemetry
    with open_writer(queue_path) as writer, open_reader(queue_path) as reader:
        traced = telemetry.reader(reader)
        telemetry.writer(writer).append_many([b"1", b"2", b"3", b"4"])
        assert (await traced.next(WAIT_S)).payload == b"1"
        message = await anext(aiter(traced))
        assert message.payload == b"2"
        batch = await anext(aiter(traced.batches()))
        assert [one.payload for one in batch] == [b"3", b"4"]
        waiting = asyncio.create_task(traced.next())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        writer.append(b"5")
        assert (await traced.next(WAIT_S)).payload == b"5", "cancelling took nothing"
        del message, batch
    names = [span.name for span in recorded.spans()]
    assert names == ["append_many queue", *["receive queue"] * 4]
    assert all(span.status.status_code is StatusCode.UNSET for span in recorded.spans())


def test_failures_are_recorded_and_raised(queue_path: Path, recorded: Recorded) -> None:
    telemetry = recorded.telemetry
    with open_writer(queue_path) as writer, open_reader(queue_path) as reader:
        with pytest.raises(InvalidArgument):
            telemetry.writer(writer).append(b"x", type_id=-1)
        writer.append(b"x")
        with pytest.raises(ZeroDivisionError), telemetry.process(message := next(iter(reader))):
            raise ZeroDivisionError
        with pytest.raises(KeyboardInterrupt), telemetry.process(message):
            raise KeyboardInterrupt
        del message
        with (queue_path / "000000000.q").open("r+b") as segment:
            segment.seek(64 + 64)
            segment.write(b"y")
        reader.seek_first()
        with pytest.raises(CorruptionError):
            telemetry.reader(reader).poll()
    sent, divided, interrupted, received = recorded.spans()
    assert attributes(sent)["error.type"] == "aiochronicle.errors.InvalidArgument"
    assert attributes(divided)["error.type"] == "ZeroDivisionError"
    assert attributes(received)["error.type"] == "aiochronicle.errors.CorruptionError"
    for span in (sent, divided, received):
        assert span.status.status_code is StatusCode.ERROR
        assert span.events[0].name == "exception"
    assert interrupted.status.status_code is StatusCode.UNSET


def test_metrics_are_those_of_the_conventions(queue_path: Path, recorded: Recorded) -> None:
    telemetry = recorded.telemetry
    with open_writer(queue_path) as writer, open_reader(queue_path, "risk") as reader:
        traced = telemetry.writer(writer)
        traced.append_many([b"1", b"2"])
        traced.append(b"3")
        for message in telemetry.reader(reader):
            with telemetry.reader(reader).process(message):
                pass
            del message
        reader.seek_first()
        with telemetry.process(next(iter(reader))):
            pass
    found = recorded.metrics()
    sent = {
        point.attributes["messaging.operation.name"]: point.value
        for point in found["messaging.client.sent.messages"]
    }
    assert sent == {"append_many": 2, "append": 1}
    consumed = {
        point.attributes["messaging.operation.name"]: point.value
        for point in found["messaging.client.consumed.messages"]
    }
    assert consumed == {"receive": 3, "process": 1}, "each delivery is counted once"
    operations = {
        point.attributes["messaging.operation.type"]: point.count
        for point in found["messaging.client.operation.duration"]
        if point.attributes["messaging.operation.name"] != "append_many"
    }
    assert operations == {"send": 1, "receive": 3}
    assert sum(point.count for point in found["messaging.process.duration"]) == 4
    point = found["messaging.process.duration"][0]
    assert point.explicit_bounds[:3] == (0.005, 0.01, 0.025)
    assert 0 <= point.sum < 60
    # No attribute that differs per message, which would create a series per message.
    for points in found.values():
        for point in points:
            assert set(point.attributes) <= {
                "messaging.system",
                "messaging.operation.name",
                "messaging.operation.type",
                "messaging.destination.name",
                "messaging.destination.subscription.name",
            }


async def test_an_answer_links_to_its_request(tmp_path: Path, recorded: Recorded) -> None:
    telemetry = recorded.telemetry
    elsewhere = Recorded()

    @elsewhere.telemetry.handler
    async def answer(request: Request[Order]) -> Order:
        return elsewhere.telemetry.inject(Order(request.decode().quantity + 1))

    roots = tmp_path / "asked", tmp_path / "answered"
    async with (
        Requester(*roots, "desk", codec=Order, reply_codec=Order) as desk,
        Responder(*roots, codec=Order, reply_codec=Order) as responder,
    ):
        serving = asyncio.create_task(responder.serve(answer))
        with recorded.tracer.start_as_current_span("quote") as quote:
            reply = await desk.request(telemetry.inject(Order(1)), timeout=WAIT_S)
            with telemetry.process(reply):
                assert reply.decode().quantity == 2
        del reply
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
    handled, processed = elsewhere.span("process desk"), recorded.span("process desk")
    assert linked(handled) == [quote.get_span_context().span_id]
    assert linked(processed) == [identity(handled)]


def test_handlers_of_dispatch(queue_path: Path, recorded: Recorded) -> None:
    with open_writer(queue_path, codec=Plain) as writer:
        recorded.telemetry.writer(writer).send(Plain(3))
    with open_reader(queue_path, codec=Plain) as reader:
        seen: list[int] = []

        @reader.on(Plain)
        @recorded.telemetry.handler
        def handle(plain: Plain, message: Message[Plain]) -> None:
            seen.append(plain.quantity)

        assert reader.dispatch_now() == 1
    assert seen == [3]
    assert linked(recorded.span("process queue")) == [identity(recorded.span("append queue"))]


def test_without_an_sdk_nothing_is_made(queue_path: Path) -> None:
    telemetry = Telemetry()
    with open_writer(queue_path, codec=Order) as writer:
        telemetry.writer(writer).send(Order(1))
    with open_reader(queue_path, codec=Order) as reader:
        for message in telemetry.reader(reader):
            assert message.decode() == Order(1)
            del message
    assert telemetry._spans == {}


def test_names_from_outside_are_printable(tmp_path: Path, recorded: Recorded) -> None:
    with open_writer(tmp_path / "evil\nname\udcff") as writer:
        recorded.telemetry.writer(writer).append(b"x")
    assert recorded.spans()[0].name == "append evil\\nname\\xff"
