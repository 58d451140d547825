"""Objects to payloads and back in the three formats; values that do not fit raise and are not truncated."""

import math
import random
import tracemalloc
from typing import Annotated, Any, cast

import msgspec
import numpy
import pytest

from aiochronicle import Codec, Width
from aiochronicle.codec import F4, I1, I2, I4, I8, U1, U2, U4, U8, Format
from aiochronicle.errors import DecodeError, EncodeError, InvalidArgument


class Trade(msgspec.Struct):
    symbol: str
    price: float
    sizes: list[int] = []


class Tick(msgspec.Struct):
    live: bool
    sequence: int
    price: float
    level: I1
    lots: I4
    flags: U2
    order_id: U8
    rate: F4
    symbol: Annotated[str, Width("S8")]
    venue: Annotated[bytes, Width("S4")] = b""


TICK = Tick(True, -5, 101.25, -128, 1 << 30, 65535, 2**64 - 1, 0.5, "ÄBC", b"XETR")


@pytest.mark.parametrize("form", ["msgpack", "json"])
def test_round_trip_as_msgspec_does_it(form: Format) -> None:
    codec = Codec(Trade, form)
    trade = Trade("ABC", 1.5, [1, 2])
    payload = codec.encode(trade)
    assert payload == getattr(msgspec, form).encode(trade)
    assert codec.decode(payload) == trade
    assert codec.decode(memoryview(payload)) == trade


def test_fixed_layout_is_what_numpy_reads() -> None:
    codec = Codec(Tick, "struct")
    payload = codec.encode(TICK)
    assert codec.decode(payload) == TICK
    assert (
        len(payload) == codec.itemsize == codec.dtype.itemsize == 1 + 8 + 8 + 1 + 4 + 2 + 8 + 4 + 12
    )
    assert codec.layout[0] == ("live", "|b1", 0)
    assert codec.layout[-1] == ("venue", "|S4", codec.itemsize - 4)
    item = numpy.frombuffer(payload, dtype=codec.dtype)[0]
    assert item.dtype.names == Tick.__struct_fields__
    for name in Tick.__struct_fields__:
        value = getattr(TICK, name)
        assert item[name] == (value.encode() if isinstance(value, str) else value), name


def test_what_numpy_writes_is_decoded() -> None:
    codec = Codec(Tick, "struct")
    items = numpy.zeros(3, dtype=codec.dtype)
    items["symbol"] = [b"A", b"BB", b"CCCCCCCC"]
    items["price"] = [1.0, math.inf, -0.0]
    decoded = [codec.decode(item.tobytes()) for item in items]
    assert [tick.symbol for tick in decoded] == ["A", "BB", "CCCCCCCC"]
    assert [tick.price for tick in decoded] == [1.0, math.inf, -0.0]


@pytest.mark.parametrize(
    ("annotation", "low", "high"),
    [
        (I1, -(2**7), 2**7 - 1),
        (I2, -(2**15), 2**15 - 1),
        (I4, -(2**31), 2**31 - 1),
        (I8, -(2**63), 2**63 - 1),
        (int, -(2**63), 2**63 - 1),
        (U1, 0, 2**8 - 1),
        (U2, 0, 2**16 - 1),
        (U4, 0, 2**32 - 1),
        (U8, 0, 2**64 - 1),
    ],
)
def test_integers_up_to_their_limits_and_no_further(annotation: Any, low: int, high: int) -> None:
    one = msgspec.defstruct("One", [("value", annotation)])
    codec = Codec(one, "struct")
    for value in (low, high):
        assert cast(Any, codec.decode(codec.encode(one(value)))).value == value
    for value in (low - 1, high + 1):
        with pytest.raises(EncodeError, match=r"One\.value is"):
            codec.encode(one(value))


def test_values_that_do_not_fit_name_their_field() -> None:
    codec = Codec(Tick, "struct")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"symbol": "123456789"}, "Tick.symbol exceeds 8 bytes: '123456789'"),
        ({"venue": b"A\0"}, "Tick.venue ends with a zero byte"),
        ({"lots": 1 << 31}, f"Tick.lots is {1 << 31}"),
        ({"price": "high"}, "Tick.price is 'high'"),
    ]
    for changes, text in cases:
        with pytest.raises(EncodeError, match=text):
            codec.encode(msgspec.structs.replace(TICK, **changes))


def test_a_payload_from_before_a_field_was_added_gets_the_default() -> None:
    class Old(msgspec.Struct):
        a: int
        b: float

    class New(msgspec.Struct, kw_only=True):
        a: int
        b: float
        c: I4 = 7
        d: bool = True

    payload = Codec(Old, "struct").encode(Old(1, 2.0))
    assert Codec(New, "struct").decode(payload) == New(a=1, b=2.0, c=7, d=True)
    with pytest.raises(DecodeError, match="New has 21 bytes, the payload has 8"):
        Codec(New, "struct").decode(payload[:8])  # b is required
    with pytest.raises(DecodeError, match="the payload has 22"):
        Codec(New, "struct").decode(bytes(22))


def test_undecodable_bytes_are_decode_errors(rng: random.Random) -> None:
    """All bytes that do not encode a Trade raise DecodeError, and no other exception."""
    codecs: list[Codec[Any]] = [Codec(Trade), Codec(Trade, "json"), Codec(Tick, "struct")]
    refused = 0
    for _ in range(2_000):
        codec = rng.choice(codecs)
        valid = codec.encode(TICK if codec.format == "struct" else Trade("ABC", 1.5, [1, 2]))
        damaged = bytearray(valid)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        damaged = damaged[: rng.randrange(len(damaged) + 1)]
        try:
            assert isinstance(codec.decode(damaged), codec.type)
        except DecodeError:
            refused += 1
    assert refused > 500


def test_deeply_nested_input_is_refused() -> None:
    class Free(msgspec.Struct):
        x: Any

    with pytest.raises(DecodeError):
        Codec(Free, "json").decode(b'{"x":' + b"[" * 100_000)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (str, 'needs a width, as in Annotated.bytes, Width."S16"'),
        (bytes, "needs a width"),
        (int | None, "none of bool, int, float, bytes, str"),
        (list[int], "cannot have a fixed layout"),
        (Annotated[int, Width("f8")], "needs a width, as in Width"),
        (Annotated[int, Width("i3")], "needs a width"),
        (Annotated[int, Width(">i4")], "needs a width"),
        (Annotated[str, Width("S0")], "needs a width"),
        (Annotated[str, Width("U4")], "needs a width"),
    ],
)
def test_a_field_without_a_fixed_width_is_refused(annotation: Any, text: str) -> None:
    odd = msgspec.defstruct("Odd", [("field", annotation)])
    with pytest.raises(InvalidArgument, match=rf"Odd\.field .*{text}"):
        Codec(odd, "struct")


def test_misuse_is_said() -> None:
    with pytest.raises(InvalidArgument, match=r"msgspec\.Struct type, not <class 'int'>"):
        Codec(int)
    with pytest.raises(InvalidArgument, match="not 'pickle'"):
        Codec(Trade, "pickle")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="has no fields"):
        Codec(msgspec.defstruct("Empty", []), "struct")
    with pytest.raises(InvalidArgument, match="cannot be the name"):
        Codec(Trade, name="a/b")
    with pytest.raises(
        InvalidArgument, match='Trade is encoded as msgpack; only the format "struct" has a layout'
    ):
        _ = Codec(Trade).layout
    with pytest.raises(EncodeError, match="the codec of Trade cannot encode 5"):
        Codec(Trade).encode(5)
    with pytest.raises(EncodeError, match=r"Trade cannot be encoded: .*object"):
        Codec(Trade).encode(Trade("A", object()))  # type: ignore[arg-type]


def test_a_layout_of_many_fields_takes_little_memory() -> None:
    """A schema may come from another party, which chooses how many fields have defaults."""
    fields = [(f"f{number}", int, 0) for number in range(3000)]
    many = msgspec.defstruct("Many", fields)
    tracemalloc.start()
    try:
        codec = Codec(many, "struct")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert codec.decode(bytes(8 * 1999)) == many()
    for count in range(1, 40):
        assert codec.decode(bytes(8 * count)) == many()
