"""Appends objects: the types of a writer, and their encoders."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal

from aiochronicle import _hot
from aiochronicle._base.arguments import expect_several
from aiochronicle._base.binding import check, ffi, lib, new_error
from aiochronicle._core.writer_java import refuse_codecs
from aiochronicle._typed.registry import Registry, TypeOrCodec, registry_of
from aiochronicle.codec import T_contra
from aiochronicle.errors import EncodeError, InvalidArgument, NotSupported

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Format", "SendingWriter"]

Format = Literal["native", "cq4"]


class SendingWriter(_hot.Writer, Generic[T_contra]):
    """Base of Writer that encodes objects."""

    def __init__(
        self,
        address: int,
        clock: Callable[[], int] | None,
        format: Format,  # noqa: A002
    ) -> None:
        super().__init__(address, clock)
        self._format: Format = format
        self._types: dict[type[Any], tuple[int, Callable[[Any], bytes]]] = {}

    @property
    def _handle(self) -> Any:
        return ffi.cast("ac_writer_t *", self._address)

    @property
    def path(self) -> str:
        """Directory of the queue."""
        return os.fsdecode(ffi.string(lib.ac_writer_path(self._handle)))

    @property
    def format(self) -> Format:
        """Format of the queue: "native", or "cq4" for a Java Chronicle Queue."""
        return self._format

    def send(
        self,
        obj: T_contra,
        *,
        timestamp_ns: int | None = None,
        cause: "_hot.Message | tuple[int, int] | None" = None,
        expires_ns: int | None = None,
        key: "Buffer | None" = None,
        headers: "Mapping[str, Buffer] | None" = None,
    ) -> int:
        """Append an object of one of the codec's types; return its seq.

        EncodeError if it has another type or a value that does not fit. ``expires_ns`` is that of
        ``append_expiring`` and excludes a cause; ``key`` and ``headers`` are those of ``append``. Never
        blocks on I/O.

        A Java queue that was opened without a codec accepts everything that ``cq4.encode_message`` accepts:
        strings, numbers, lists, dicts, Structs as objects with the same fields, and ``cq4.Call``.

        >>> import msgspec
        >>> class Trade(msgspec.Struct):
        ...     price: float
        >>> with open_writer(tmp_path / "trades", codec=Trade) as writer:
        ...     writer.send(Trade(101.5))
        0
        """
        type_id, encode = self._types.get(obj.__class__) or self._type_of(obj)
        payload = encode(obj)
        if expires_ns is not None:
            if cause is not None:
                raise InvalidArgument(
                    "a message can have expires_ns or a cause, but not both: omit one of them"
                )
            return self.append_expiring(
                payload,
                expires_ns,
                type_id=type_id,
                timestamp_ns=timestamp_ns,
                key=key,
                headers=headers,
            )
        if key is None and headers is None:
            return self.append(payload, type_id=type_id, timestamp_ns=timestamp_ns, cause=cause)
        return self.append(
            payload,
            type_id=type_id,
            timestamp_ns=timestamp_ns,
            cause=cause,
            key=key,
            headers=headers,
        )

    def send_many(
        self,
        objects: Iterable[Any],
        *,
        cause: "_hot.Message | tuple[int, int] | None" = None,
        keys: "Iterable[Buffer | None] | None" = None,
        headers: "Iterable[Mapping[str, Buffer] | None] | None" = None,
    ) -> range:
        """Append objects of one type that become visible all at once or not at all; return their seqs.

        ``keys`` and ``headers`` are those of ``append_many``. If the objects have several types, or one
        cannot be encoded, nothing is appended and EncodeError is raised.

        >>> import msgspec
        >>> class Trade(msgspec.Struct):
        ...     price: float
        >>> with open_writer(tmp_path / "trades", codec=Trade) as writer:
        ...     writer.send_many(Trade(price) for price in (101.5, 102.0))
        range(0, 2)
        """
        expect_several("objects", "several objects", objects)
        found: tuple[int, Callable[[Any], bytes]] | None = None
        payloads: list[bytes] = []
        for obj in objects:
            one = self._types.get(obj.__class__) or self._type_of(obj)
            found = found or one
            if one[0] != found[0]:
                raise EncodeError(
                    f"{type(obj).__name__} differs from the type of the objects before it: send a batch for"
                    " each type"
                )
            payloads.append(one[1](obj))
        return self.append_many(
            payloads, type_id=found[0] if found else 0, cause=cause, keys=keys, headers=headers
        )

    def _type_of(self, obj: object) -> tuple[int, Callable[[Any], bytes]]:
        """Return type_id and encoder for an object whose type is not in the codec."""
        known = ", ".join(known.__name__ for known in self._types)
        if known:
            raise EncodeError(
                f"{type(obj).__name__} is not a type of the writer, which has {known}"
            )
        if self._format == "native":
            raise EncodeError("the writer has no codec: open it with codec=, or append bytes")
        from aiochronicle import cq4

        return 0, cq4.encode_message

    def method(self, name: str | int, *args: Any) -> int:
        """Append a method call to a Java queue, like a Java MethodWriter; return its index.

        A number as ``name`` is that of @MethodId. NotSupported in a native queue.

        >>> with open_writer(tmp_path / "java", format="cq4") as writer:
        ...     _ = writer.method("price", "EURUSD", 1.25)
        """
        if self._format == "native":
            raise NotSupported(
                "only Java queues have method calls: send an object of a codec's type",
                path=self.path,
                advice='Open the queue with format="cq4" to write calls that Java reads.',
            )
        from aiochronicle import cq4

        return self.append(cq4.encode_call(name, *args))

    def register(self, codec: TypeOrCodec | Registry | Sequence[TypeOrCodec]) -> None:
        """Make ``send`` accept these types, too; ``codec`` is that of ``open_writer``.

        When it returns, the queue's schema.json is on disk, before any message of these types. A Java queue
        has no schema.json: its messages contain field names, and no ``type_id``.
        """
        if self._format == "cq4":
            self._register_java(codec)
            return
        from aiochronicle._typed.schema_check import writer_types

        types, schema = writer_types(registry_of(codec), self.path)
        if schema is not None:
            error = new_error()
            check(lib.ac_writer_publish_schema(self._handle, schema, error), error)
        for type_id, entry in types.items():
            self._types[entry.codec.type] = (type_id, entry.codec.encode)

    def _register_java(self, codec: TypeOrCodec | Registry | Sequence[TypeOrCodec]) -> None:
        from aiochronicle import cq4

        refuse_codecs(codec, self.path)
        for entry in registry_of(codec):
            self._types[entry.codec.type] = (0, cq4.encode_message)
