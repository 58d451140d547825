"""Finds the decoder for a message.

``Message.decode`` is a C method (csrc/python/message.c). It caches decoders per segment, and calls
``find_decoder`` for those that are not cached.
"""

import contextlib
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from aiochronicle import _hot
from aiochronicle._base.binding import lib
from aiochronicle._layout import schema_path, segment_name
from aiochronicle._typed.registry import Registry
from aiochronicle.codec import Codec, Format
from aiochronicle.errors import ChronicleError, DecodeError, QueueGone, UnknownType

__all__ = ["Decoders"]


class Decoders:
    """Finds the decoders for the messages of one reader.

    The schema is read when the reader is opened or, if there is none yet, when the first message is decoded.
    It is read again at an unknown type_id, because the writer may have added a type.
    """

    def __init__(
        self,
        directory: str,
        registry: Registry | None,
        identity: tuple[int, int, int] | None = None,
    ) -> None:
        self.directory = directory
        self._identity = identity  # of the directory, if discovery found it
        self._registry = registry
        self._codecs: dict[int, Codec[Any]] = {}
        self._codecs_stamp: tuple[int, int, int] | None = None  # of the schema they come from
        if registry is not None and self._stamp() is not None:
            self._load_codecs(registry)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.lstat(schema_path(self.directory))
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _load_codecs(self, registry: Registry) -> None:
        from aiochronicle._typed.schema_check import reader_types

        stamp = self._stamp()  # before reading, so that a change during it is noticed later
        types = reader_types(registry, self.directory, self._identity)
        self._codecs = {type_id: entry.codec for type_id, entry in types.items()}
        if len(registry) == 1:  # then messages without a type are of this one
            self._codecs.setdefault(0, next(iter(registry)).codec)
        self._codecs_stamp = stamp

    def can_decode_to(self, wanted: type[Any]) -> bool:
        """Return whether messages may decode to this type.

        With a codec, only its types. Without one, messages of a Java queue decode to any type except the
        program's own Structs.
        """
        if self._registry is None:
            is_java = lib.ac_queue_format(os.fsencode(self.directory)) == lib.AC_FORMAT_CQ4
            return is_java and not _is_own_struct(wanted)
        return wanted in {entry.codec.type for entry in self._registry}

    def codec(self, message: _hot.Message) -> Codec[Any]:
        """Return the codec for this type_id, or UnknownType."""
        registry, type_id = self._registry, message.type_id
        if registry is None:
            raise UnknownType(
                "the reader has no codec: open it with codec=, or use message.decode(type)",
                **self.place(message),
            )
        stamp = self._codecs_stamp
        if type_id not in self._codecs and (stamp is None or stamp != self._stamp()):
            self._load_codecs(registry)
        if type_id not in self._codecs:
            raise UnknownType(f"type_id {type_id} is not in {registry!r}", **self.place(message))
        return self._codecs[type_id]

    def decoder_as(self, message: _hot.Message, wanted: Any) -> Callable[[Any], Any]:
        """Return the decoder for this message as a type of the caller's choice."""
        if isinstance(wanted, Codec):
            return wanted.decoder
        if self._registry is not None:
            with contextlib.suppress(KeyError):
                return self._registry.of(wanted).codec.decoder
            if message.type_id in self._codecs:
                return _codec_of(wanted, self._codecs[message.type_id].format).decoder
        return _codec_of(wanted, "msgpack").decoder

    def java_decoder(self, message: _hot.Message, wanted: Any) -> Callable[[Any], Any]:
        """Return the decoder for a message of a Java queue, which has no type_id.

        It decodes to the wanted type or the only one of the codec; without either, to what Java wrote.
        """
        from aiochronicle import cq4

        types = [] if self._registry is None else [entry.codec.type for entry in self._registry]
        if wanted is None and not types:
            return lambda message: cq4.decode(message.view)
        if wanted is None and len(types) > 1:
            raise UnknownType(
                "messages of a Java queue have no type_id, and the reader's codec has several types:"
                " use message.decode(type), or a codec with one type",
                **self.place(message),
            )
        kind: type[Any] = types[0] if wanted is None else wanted
        if isinstance(wanted, Codec):
            kind = wanted.type  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return lambda message: cq4.decode_as(message.view, kind)

    def place(self, message: _hot.Message) -> dict[str, Any]:
        """Return path, offset and seq of a message, for errors."""
        segment, offset = message.position
        file = message._java_file or segment_name(segment)
        return {
            "path": f"{self.directory}/{file}",
            "offset": offset,
            "seq": message.seq,
        }


def _is_own_struct(wanted: type[Any]) -> bool:
    """Return whether this is a Struct of the program, not one of aiochronicle.cq4."""
    is_ours = wanted.__module__.startswith("aiochronicle.cq4.")
    return issubclass(wanted, msgspec.Struct) and not is_ours


@lru_cache(maxsize=256)
def _codec_of(wanted: type[Any], form: Format) -> Codec[Any]:
    return Codec(wanted, form)


def find_decoder(decoders: Decoders, message: _hot.Message, wanted: Any) -> Callable[[Any], Any]:
    """Return the decoder for a message; called from C, once per segment and type."""
    if message._java_file is not None:
        return decoders.java_decoder(message, wanted)
    if wanted is None:
        return decoders.codec(message).decoder
    return decoders.decoder_as(message, wanted)


def decode_failed(decoders: Decoders, message: _hot.Message, error: Exception) -> DecodeError:
    """Return the exception for a payload that its decoder refused; called from C."""
    detail = error.detail if isinstance(error, ChronicleError) else str(error)
    if message._java_file is None:
        detail = f"type_id {message.type_id} cannot be decoded: {detail}"
    return DecodeError(detail, **decoders.place(message))


def message_cut(decoders: Decoders, message: _hot.Message) -> QueueGone:
    """Return the exception for a payload that no longer exists; called from C."""
    place = decoders.place(message)
    return QueueGone(
        f"another program truncated the file before message {message.seq} was copied out of it",
        path=place["path"],
        offset=place["offset"],
    )


_hot.set_decoding(find_decoder, decode_failed, message_cut)
