"""Converts objects to payloads and back.

A Codec is a msgspec.Struct type and a format. "msgpack" and "json" are msgspec's own. "struct" is a
fixed layout: the fields in the order of the class, little-endian, without padding. The annotation of
a field sets its width. A payload is one item of ``Codec.dtype``, so many payloads become columns
without being decoded.

========================================  =======  ====================
annotation                                typestr  in numpy
========================================  =======  ====================
``bool``                                  |b1      bool
``int``                                   <i8      int64
``float``                                 <f8      float64
``I1 I2 I4 I8``, ``U1 U2 U4 U8``          <i4 …    int8 … uint64
``F4``, ``F8``                            <f4 …    float32, float64
``Annotated[bytes, Width("S16")]``        |S16     bytes, at most 16
``Annotated[str, Width("S16")]``          |S16     UTF-8, at most 16 bytes
========================================  =======  ====================

As in numpy, strings are padded with zero bytes, so a value cannot end with one. A payload may end before
fields that have defaults: it was written before these fields were added, and gets their defaults.
"""

import builtins
import inspect
import re
import struct
import typing
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeAlias, get_args

import msgspec

from aiochronicle._base.arguments import expect, one_of
from aiochronicle._base.prepared import prepared
from aiochronicle.errors import ChronicleError, DecodeError, EncodeError, InvalidArgument

if TYPE_CHECKING:
    import numpy
    from typing_extensions import Buffer, TypeVar

    T = TypeVar("T", default=Any)
    T_co = TypeVar("T_co", default=Any, covariant=True)
    T_contra = TypeVar("T_contra", default=Any, contravariant=True)
else:
    T = typing.TypeVar("T")
    T_co = typing.TypeVar("T_co", covariant=True)
    T_contra = typing.TypeVar("T_contra", contravariant=True)

__all__ = [
    "F4",
    "F8",
    "I1",
    "I2",
    "I4",
    "I8",
    "U1",
    "U2",
    "U4",
    "U8",
    "Codec",
    "Format",
    "LayoutField",
    "Width",
]

Format = Literal["msgpack", "json", "struct"]


class Width(msgspec.Struct, frozen=True):
    """The layout of a field in the "struct" format: numpy's typestr, without the byte order.

    >>> from typing import Annotated
    >>> Symbol = Annotated[str, Width("S8")]
    """

    typestr: str


I1: TypeAlias = Annotated[int, Width("i1")]
I2: TypeAlias = Annotated[int, Width("i2")]
I4: TypeAlias = Annotated[int, Width("i4")]
I8: TypeAlias = Annotated[int, Width("i8")]
U1: TypeAlias = Annotated[int, Width("u1")]
U2: TypeAlias = Annotated[int, Width("u2")]
U4: TypeAlias = Annotated[int, Width("u4")]
U8: TypeAlias = Annotated[int, Width("u8")]
F4: TypeAlias = Annotated[float, Width("f4")]
F8: TypeAlias = Annotated[float, Width("f8")]


class LayoutField(typing.NamedTuple):
    """The place of a field in the "struct" format."""

    name: str
    typestr: str
    offset: int


class Codec(Generic[T_co]):
    """Encodes and decodes one msgspec.Struct type.

    ``name`` is the type's name in the queue's schema, by default that of the class. Give the old name after
    renaming the class, and it stays the same type.

    >>> class Trade(msgspec.Struct):
    ...     price: float
    ...     size: int
    >>> codec = Codec(Trade, format="struct")
    >>> codec.decode(codec.encode(Trade(101.5, 300)))
    Trade(price=101.5, size=300)
    >>> codec.layout[1]
    LayoutField(name='size', typestr='<i8', offset=8)
    """

    def __init__(
        self, type: type[T_co], format: Format = "msgpack", *, name: str | None = None
    ) -> None:
        if not _is_struct(type):
            raise InvalidArgument(f"a codec needs a msgspec.Struct type, not {type!r}")
        one_of("format", dict.fromkeys(get_args(Format)), format)
        self.type: builtins.type[T_co] = type
        self.format: Format = format
        self.name = type.__name__ if name is None else expect("name", "a str or None", str, name)
        if not self.name.isidentifier():
            raise InvalidArgument(
                f"{self.name!r} cannot be the name of a type: give a Python identifier"
            )
        self._layout: _Layout | None = None
        # The functions of msgspec or of the layout; encode and decode translate their exceptions.
        self.encoder: Callable[[Any], bytes]
        self.decoder: Callable[[Buffer], T_co]
        if format == "msgpack":
            self.encoder = msgspec.msgpack.Encoder().encode
            self.decoder = msgspec.msgpack.Decoder(prepared(type)).decode
        elif format == "json":
            self.encoder = msgspec.json.Encoder().encode
            self.decoder = msgspec.json.Decoder(prepared(type)).decode
        else:
            self._layout = _Layout(type)
            self.encoder = self._layout.encode
            self.decoder = self._layout.decode

    def encode(self, obj: object) -> bytes:
        """Return the payload for an object; EncodeError if it has another type or a value is out of range."""
        if builtins.type(obj) is not self.type:
            raise EncodeError(f"the codec of {self.name} cannot encode {obj!r}")
        try:
            return self.encoder(obj)
        except ChronicleError:
            raise
        except Exception as error:  # a value in the object may raise anything
            raise EncodeError(f"{self.name} cannot be encoded: {error}") from error

    def decode(self, buffer: "Buffer") -> T_co:
        """Return the object in a payload; DecodeError if the payload is not of this type."""
        try:
            return self.decoder(buffer)
        except ChronicleError:
            raise
        except Exception as error:  # the type's own checks may raise anything
            raise DecodeError(f"not a {self.name} in {self.format}: {error}") from error

    @property
    def layout(self) -> list[LayoutField]:
        """Name, numpy typestr and offset of each field; for the "struct" format only."""
        return list(self._fixed_layout().fields)

    @property
    def itemsize(self) -> int:
        """Length of every payload; for the "struct" format only."""
        return self._fixed_layout().itemsize

    @property
    def dtype(self) -> "numpy.dtype[Any]":
        """The layout as a numpy dtype; for the "struct" format only."""
        layout = self._fixed_layout()
        try:
            import numpy
        except ImportError as error:
            raise ImportError(
                'Codec.dtype needs numpy: pip install "aiochronicle[arrow]"'
            ) from error
        names, formats, offsets = zip(*layout.fields, strict=True)
        return numpy.dtype(
            {
                "names": list(names),
                "formats": list(formats),
                "offsets": list(offsets),
                "itemsize": layout.itemsize,
            }
        )

    def _fixed_layout(self) -> "_Layout":
        if self._layout is None:
            raise InvalidArgument(
                f'{self.name} is encoded as {self.format}; only the format "struct" has a layout'
            )
        return self._layout

    def __repr__(self) -> str:
        return f"Codec({self.name}, format={self.format!r})"


def _is_struct(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, msgspec.Struct)


_NUMBERS = {
    "i1": ("|i1", "b"),
    "i2": ("<i2", "h"),
    "i4": ("<i4", "i"),
    "i8": ("<i8", "q"),
    "u1": ("|u1", "B"),
    "u2": ("<u2", "H"),
    "u4": ("<u4", "I"),
    "u8": ("<u8", "Q"),
    "f4": ("<f4", "f"),
    "f8": ("<f8", "d"),
}
_STRING = re.compile(r"S([1-9][0-9]{0,5})", re.ASCII)
_ALLOWED: dict[Any, str] = {int: "iu", float: "f", bytes: "S", str: "S"}
_PLAIN: dict[Any, str] = {int: "i8", float: "f8"}
_SHORTER_MAX = 16  # cached layouts of older versions of a type


def _parse_width(owner: str, name: str, annotation: Any) -> tuple[Any, str, str]:
    """Return the Python type, numpy's typestr and struct's code of a field."""
    where = f"{owner}.{name}"
    python: Any = annotation
    metadata: Sequence[Any] = ()
    if typing.get_origin(annotation) is Annotated:
        python, *metadata = typing.get_args(annotation)
    given: list[str] = [entry.typestr for entry in metadata if isinstance(entry, Width)]
    if python is bool and not given:
        return bool, "|b1", "?"
    if python not in _ALLOWED:
        raise InvalidArgument(
            f"{where} cannot have a fixed layout: {annotation} is none of bool, int, float,"
            ' bytes, str; use the format "msgpack"'
        )
    typestr = given[-1].lstrip("<|") if given else _PLAIN.get(python, "")
    if typestr[:1] in _ALLOWED[python]:
        if typestr in _NUMBERS:
            return python, *_NUMBERS[typestr]
        if found := _STRING.fullmatch(typestr):
            return python, f"|{typestr}", f"{found[1]}s"
    example = 'Annotated[bytes, Width("S16")]' if "S" in _ALLOWED[python] else 'Width("i4")'
    raise InvalidArgument(f"{where} needs a width, as in {example}; it is {annotation}")


class _Layout:
    """The fixed layout of one type, compiled once."""

    def __init__(self, cls: type[Any]) -> None:
        hints = typing.get_type_hints(cls, include_extras=True)
        names: tuple[str, ...] = cls.__struct_fields__
        if not names:
            raise InvalidArgument(f"{cls.__name__} has no fields to lay out")
        widths = [_parse_width(cls.__name__, name, hints[name]) for name in names]
        codes = [code for _, _, code in widths]
        offsets = [0, *accumulate(struct.calcsize(f"<{code}") for code in codes)]
        self.itemsize = offsets.pop()
        self.fields = tuple(
            LayoutField(name, typestr, offset)
            for name, (_, typestr, _), offset in zip(names, widths, offsets, strict=True)
        )
        self._cls = cls
        self._names = names
        self._codes = codes
        self._whole = struct.Struct("<" + "".join(codes))
        self._strings = [
            (position, python is str, int(code[:-1]))
            for position, (python, _, code) in enumerate(widths)
            if code.endswith("s")
        ]
        self._values = attrgetter(*names)
        parameters = list(inspect.signature(cls).parameters.values())
        self._by_position = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        required = [place for place, p in enumerate(parameters, 1) if p.default is p.empty]
        counts = range(max(required, default=1), len(names))
        self._shorter = {offsets[count]: count for count in counts}  # number of fields by length
        self._shorter_compiled: dict[int, struct.Struct] = {}

    def decode(self, buffer: "Buffer") -> Any:
        try:
            values: Sequence[Any] = self._whole.unpack(buffer)
        except struct.error:
            values = self._unpack_shorter(buffer)
        if self._strings:
            values = self._decode_strings(values)
        if self._by_position:
            return self._cls(*values)
        return self._cls(**dict(zip(self._names, values, strict=False)))

    def _unpack_shorter(self, buffer: "Buffer") -> Sequence[Any]:
        size = memoryview(buffer).nbytes
        if size not in self._shorter:
            raise DecodeError(
                f"{self._cls.__name__} has {self.itemsize} bytes, the payload has {size}"
            )
        if size not in self._shorter_compiled:
            if len(self._shorter_compiled) >= _SHORTER_MAX:  # payloads may have any length
                self._shorter_compiled.clear()
            codes = "".join(self._codes[: self._shorter[size]])
            self._shorter_compiled[size] = struct.Struct(f"<{codes}")
        return self._shorter_compiled[size].unpack(buffer)

    def _decode_strings(self, values: Sequence[Any]) -> Sequence[Any]:
        decoded = list(values)
        for position, is_text, _ in self._strings:
            if position < len(decoded):
                stripped: bytes = decoded[position].rstrip(b"\0")
                decoded[position] = stripped.decode() if is_text else stripped
        return decoded

    def encode(self, obj: Any) -> bytes:
        values: Sequence[Any] = self._values(obj)
        if len(self._names) == 1:
            values = (values,)
        if self._strings:
            values = self._encode_strings(values)
        try:
            return self._whole.pack(*values)
        except struct.error:
            raise self._explain_misfit(values) from None

    def _encode_strings(self, values: Sequence[Any]) -> Sequence[Any]:
        encoded = list(values)
        for position, is_text, width in self._strings:
            value: bytes = encoded[position].encode() if is_text else bytes(encoded[position])
            if len(value) > width or value.endswith(b"\0"):
                what = "ends with a zero byte" if len(value) <= width else f"exceeds {width} bytes"
                raise EncodeError(f"{self._name_field(position)} {what}: {encoded[position]!r}")
            encoded[position] = value
        return encoded

    def _explain_misfit(self, values: Sequence[Any]) -> EncodeError:
        """Return an error that names the value that does not fit."""
        for position, (code, value) in enumerate(zip(self._codes, values, strict=True)):
            try:
                struct.pack(f"<{code}", value)
            except struct.error as error:
                return EncodeError(f"{self._name_field(position)} is {value!r}: {error}")
        raise AssertionError("each value fits, and all of them do not")

    def _name_field(self, position: int) -> str:
        return f"{self._cls.__name__}.{self._names[position]}"
