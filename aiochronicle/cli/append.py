"""``append``: messages from the command line, from files, from standard input."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

import aiochronicle
from aiochronicle import Registry, Writer
from aiochronicle.cli.arguments import Json, QueuePath, Seconds
from aiochronicle.cli.exits import NOT_FOUND, Refused
from aiochronicle.cli.finding import is_queue
from aiochronicle.cli.output import Output, say
from aiochronicle.cli.units import seq_text
from aiochronicle.errors import QueueNotFound, SchemaNotFound

__all__ = ["append"]


def append(
    queue: QueuePath,
    /,
    *texts: Annotated[
        str, Parameter(metavar="TEXT", help="messages; default: one per line of standard input")
    ],
    file: Annotated[
        tuple[Path, ...],
        Parameter(
            name="--file",
            metavar="FILE",
            negative=(),
            show_default=False,
            help="a message that is the content of this file; may be repeated",
        ),
    ] = (),
    type_: Annotated[
        str | None,
        Parameter(
            name="--type",
            metavar="TYPE",
            help="a type of schema.json, of which messages are given as JSON; or a type_id, for bytes",
        ),
    ] = None,
    key: Annotated[
        str | None, Parameter(metavar="TEXT", help="a key for each of the messages")
    ] = None,
    header: Annotated[
        tuple[str, ...],
        Parameter(
            name="--header",
            metavar="NAME=VALUE",
            negative=(),
            show_default=False,
            help="a header for each of the messages; may be repeated",
        ),
    ] = (),
    create: Annotated[
        bool, Parameter(negative=(), show_default=False, help="create the queue if there is none")
    ] = False,
    flush: Annotated[
        bool, Parameter(negative=(), show_default=False, help="return when they are on disk")
    ] = False,
    lock_timeout: Annotated[
        Seconds | None, Parameter(help="how long to wait for another writer to end")
    ] = None,
    json: Json = False,
) -> None:
    """Append messages to a queue. The queue must not have another writer.

    Example: echo '{"symbol": "ALFA", "price": 101.5}' | aioc append trades --type Trade
    """
    if not is_queue(queue):
        if not create:
            _explain(queue)
        _refuse_inside(queue)
    with aiochronicle.open_writer(queue, lock_timeout=lock_timeout) as writer:
        send = _sender(writer, queue, type_, _options(key, header))
        count, first, last = 0, None, None
        form = writer.format
        try:
            for payload in _payloads(texts, file):
                last = send(payload)
                first = last if first is None else first
                count += 1
            if flush:
                writer.flush_now()
        except BaseException:
            if count:
                say(f"{queue}: {_appended(count, first, last, form)} before this:")
            raise
    out = Output(as_json=json)
    if json:
        out.json({"path": str(queue), "messages": count, "first_seq": first, "last_seq": last})
    elif count == 0:
        out.line("nothing was appended")
    else:
        out.line(_appended(count, first, last, form))


def _appended(count: int, first: int | None, last: int | None, form: str) -> str:
    if count == 1:
        return f"appended seq {seq_text(first, form)}"
    return f"appended {count:,} messages, seq {seq_text(first, form)} to {seq_text(last, form)}"


def _explain(queue: Path) -> None:
    """Report why there is no queue to append to: this user may lack the permission to see it."""
    try:
        aiochronicle.inspect(queue)
    except QueueNotFound:
        raise Refused(
            f"{queue}: there is no queue. Check the path, or make one with --create.", NOT_FOUND
        ) from None


def _refuse_inside(queue: Path) -> None:
    above = next((one for one in queue.resolve().parents if is_queue(one)), None)
    if above is not None:
        raise Refused(f"{queue}: is inside of a queue, {above}; choose a directory elsewhere.")


def _payloads(texts: Iterable[str], files: Iterable[Path]) -> Iterator[bytes]:
    given = False
    for text in texts:
        given = True
        yield _bytes(text)
    for file in files:
        given = True
        yield file.read_bytes()
    if not given:
        for line in sys.stdin.buffer:
            yield line.removesuffix(b"\n")


def _options(key: str | None, headers: Iterable[str]) -> dict[str, Any]:
    """Return what ``Writer.append`` takes for key and headers."""
    found: dict[str, bytes] = {}
    for given in headers:
        name, separator, value = given.partition("=")
        if not separator or not name or name in found:
            raise Refused(f"--header {given!r}: give NAME=VALUE, each name once")
        found[name] = _bytes(value)
    return {"key": None if key is None else _bytes(key), "headers": found or None}


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _sender(
    writer: Writer, queue: Path, wanted: str | None, options: dict[str, Any]
) -> Callable[[bytes], int]:
    if wanted is None or wanted.isdecimal():
        type_id = int(wanted or 0)
        return lambda payload: writer.append(payload, type_id=type_id, **options)
    try:
        registry = Registry.load(queue)
        entry = registry.named(wanted)
    except (SchemaNotFound, KeyError):
        raise Refused(f"{queue}: its schema.json has no type {wanted!r}.", NOT_FOUND) from None
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(entry.codec.type).decode

    def send(payload: bytes) -> int:
        try:
            made = decode(payload)
        except (msgspec.MsgspecError, ValueError) as error:
            shown = payload[:80].decode("utf-8", "backslashreplace")
            raise Refused(f"not a {wanted}: {error}: {shown}. It was not appended.") from None
        return writer.append(entry.codec.encode(made), type_id=entry.type_id, **options)

    return send
