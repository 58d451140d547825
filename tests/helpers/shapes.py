"""All types that a field of a msgspec.Struct can have, with values of each.

``plain`` returns the column's value for a decoded value, independently of the code that makes columns.
"""

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    TypedDict,
    TypeVar,
)

import msgspec

__all__ = ["REFUSED", "SHAPES", "Shape", "plain"]

T = TypeVar("T")
Price = NewType("Price", float)


class Level(msgspec.Struct, array_like=True, frozen=True):
    price: float
    size: float


class Named(msgspec.Struct, frozen=True):
    price: float
    note: str | None = None


class Renamed(msgspec.Struct, rename="camel"):
    best_bid: float
    ask_size: int = 7


class TaggedArray(msgspec.Struct, array_like=True, tag="L"):
    price: float
    count: int


class Tagged(msgspec.Struct, tag="t", tag_field="k"):
    text: str


class OtherTagged(msgspec.Struct, tag="o", tag_field="k"):
    number: int


class Short(msgspec.Struct, array_like=True):
    """An array-like struct of which older messages have fewer items."""

    price: float
    size: float = 1.5
    venue: str | None = None


class Book(msgspec.Struct, array_like=True):
    """A struct with arrays in arrays."""

    bids: list[Level]
    asks: list[Level]
    best: Level | None = None


class Deep(msgspec.Struct):
    books: dict[str, Book]
    raw: bytes = b"\x00\xff"


class Box(msgspec.Struct, Generic[T]):
    inside: T


class Sparse(msgspec.Struct, omit_defaults=True):
    a: int = 0
    levels: list[Level] = []


class Unset(msgspec.Struct):
    a: int | msgspec.UnsetType = msgspec.UNSET
    levels: list[Level] | msgspec.UnsetType | None = msgspec.UNSET


class Checked(msgspec.Struct, array_like=True):
    price: float

    def __post_init__(self) -> None:
        if self.price < 0:
            raise ValueError("negative")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Rank(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Mode(enum.StrEnum):
    FAST = "fast"


class Pair(NamedTuple):
    a: int
    b: str


@dataclass
class Data:
    a: int


class Typed(TypedDict):
    a: int


class Recursive(msgspec.Struct):
    inner: Optional["Recursive"] = None


class Shape(msgspec.Struct, frozen=True):
    """A type, values of it, and whether their column is JSON text."""

    name: str
    type: Any
    values: tuple[Any, ...]
    is_json: bool = False


_AWARE = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)

SHAPES = [
    Shape("bool", bool, (True, False)),
    Shape("int", int, (0, -1, 2**63 - 1, -(2**63))),
    Shape("float", float, (0.0, -1.5, 1e300, 7)),
    Shape("str", str, ("", "zł€", "a\0b")),
    Shape("bytes", bytes, (b"", b"\xff\0")),
    Shape("bytearray", bytearray, (bytearray(b"x"), bytearray())),
    Shape("optional", int | None, (1, None)),
    Shape("bounded", Annotated[int, msgspec.Meta(ge=0)], (0, 5)),
    Shape("newtype", Price, (1.25, 2.5)),
    Shape("datetime", datetime, (_AWARE, _AWARE.astimezone(timezone(timedelta(hours=5))))),
    Shape("date", date, (date(2026, 1, 2), date(1970, 1, 1))),
    Shape("time", time, (time(9, 30), time(1, 2, 3, 4))),
    Shape("timedelta", timedelta, (timedelta(seconds=1.5), timedelta(days=-1))),
    Shape("uuid", uuid.UUID, (uuid.UUID(int=5),)),
    Shape("decimal", Decimal, (Decimal("101.25"), Decimal("-0.000001"))),
    Shape("enum", Colour, (Colour.RED, Colour.BLUE)),
    Shape("int_enum", Rank, (Rank.LOW, Rank.HIGH)),
    Shape("str_enum", Mode, (Mode.FAST,)),
    Shape("optional_enum", Colour | None, (Colour.RED, None)),
    Shape("literal", Literal["buy", "sell"], ("buy", "sell")),
    Shape("literal_int", Literal[1, 2], (1, 2)),
    Shape("literal_none", Literal["a", None], ("a", None)),
    Shape("literal_mixed", Literal["a", 1], ("a", 1), is_json=True),
    Shape("list", list[int], ([], [1, 2])),
    Shape("list_optional", list[float | None], ([1.5, None], [])),
    Shape("optional_list", list[str] | None, (["a"], None)),
    Shape("lists", list[list[int]], ([[1], [], [2, 3]], [])),
    Shape("set", set[int], ({1}, set())),
    Shape("frozenset", frozenset[str], (frozenset("a"),)),
    Shape("tuple_any", tuple[int, ...], ((1, 2, 3), ())),
    Shape("tuple", tuple[float, str], ((1.5, "x"),), is_json=True),
    Shape("list_tuple", list[tuple[float, float]], ([(1.5, 2.5)], []), is_json=True),
    Shape("list_enum", list[Colour], ([Colour.RED, Colour.BLUE], [])),
    Shape("list_uuid", list[uuid.UUID], ([uuid.UUID(int=7)],)),
    Shape("list_time", list[time], ([time(1, 2)],)),
    Shape("list_decimal", list[Decimal], ([Decimal("1.5")],)),
    Shape("list_datetime", list[datetime], ([_AWARE],)),
    Shape("list_bytes", list[bytes], ([b"\xff"],)),
    Shape("dict", dict[str, int], ({"a": 1}, {})),
    Shape("dict_levels", dict[str, list[Level]], ({"a": [Level(1.0, 2.0)]}, {"b": []}, {})),
    Shape("dict_optional", dict[str, float | None], ({"a": None, "b": 1.5},)),
    Shape("dict_int", dict[int, str], ({1: "a"},), is_json=True),
    Shape("dict_enum", dict[Colour, int], ({Colour.RED: 1},), is_json=True),
    Shape("any", Any, (None, [1, {"b": None}], "x", 1.5), is_json=True),
    Shape("null", None, (None,), is_json=True),
    Shape("union", int | str, (1, "a"), is_json=True),
    Shape("number", int | float, (1, 1.5), is_json=True),
    Shape("level", Level, (Level(1.5, 2.5), Level(0.0, 0.0))),
    Shape("optional_level", Level | None, (Level(1.5, 2.5), None)),
    Shape("levels", list[Level], ([Level(1.5, 2.5), Level(3.5, 4.5)], [])),
    Shape("optional_levels", list[Level] | None, ([Level(1.5, 2.5)], None, [])),
    Shape("levels_optional", list[Level | None], ([Level(1.5, 2.5), None],)),
    Shape("named", Named, (Named(1.5), Named(2.5, "x"))),
    Shape("list_named", list[Named], ([Named(1.5), Named(2.5, "x")], [])),
    Shape("renamed", Renamed, (Renamed(1.5), Renamed(2.5, 3))),
    Shape("list_renamed", list[Renamed], ([Renamed(1.5)],)),
    Shape("tagged", Tagged, (Tagged("x"),)),
    Shape("list_tagged", list[Tagged], ([Tagged("x"), Tagged("y")],)),
    Shape("tagged_array", TaggedArray, (TaggedArray(1.5, 2),)),
    Shape("list_tagged_array", list[TaggedArray], ([TaggedArray(1.5, 2)], [])),
    Shape("tagged_union", Tagged | OtherTagged, (Tagged("x"), OtherTagged(1)), is_json=True),
    Shape("short", list[Short], ([Short(1.0), Short(2.0, 3.0, "k")],)),
    Shape("book", Book, (Book([Level(1.0, 2.0)], []), Book([], [], Level(3.0, 4.0)))),
    Shape("list_book", list[Book], ([Book([Level(1.0, 2.0)], []), Book([], [])],)),
    Shape("deep", Deep, (Deep({"a": Book([Level(1.0, 2.0)], [])}), Deep({}, b"x"))),
    Shape("list_deep", list[Deep], ([Deep({}), Deep({"a": Book([], [])})],)),
    Shape("generic", Box[int], (Box(1),)),
    Shape("list_generic", list[Box[list[Level]]], ([Box([Level(1.0, 2.0)])],)),
    Shape("sparse", Sparse, (Sparse(), Sparse(1, [Level(1.0, 2.0)]))),
    Shape("unset", Unset, (Unset(), Unset(1, [Level(1.0, 2.0)]), Unset(levels=None))),
    Shape("list_unset", list[Unset], ([Unset(), Unset(1)],)),
    Shape("checked", list[Checked], ([Checked(1.5)],)),
    Shape("any_inside", Box[Any], (Box([1, "a"]), Box(None)), is_json=True),
    Shape("list_union", list[int | str], ([1, "a"],), is_json=True),
    Shape("list_any", list[Any], ([1, None, "a"],), is_json=True),
]

# No schema can describe these, so writers refuse them.
REFUSED = [Pair, Data, Typed, Recursive, msgspec.Raw, msgspec.msgpack.Ext]


def plain(value: Any, *, is_json: bool = False) -> Any:
    """Return the column's value for a decoded value, as Arrow's ``to_pylist`` gives it."""
    if is_json:
        return None if value is None else msgspec.json.encode(value).decode()
    match value:
        case msgspec.Struct():
            names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
            return {encoded: plain(getattr(value, name)) for name, encoded in names}
        case enum.Enum():
            return value.value
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case Mapping():
            return [(key, plain(item)) for key, item in value.items()]
        case uuid.UUID() | time():
            return str(value)
        case msgspec.UnsetType():
            return None
        case bytearray():
            return bytes(value)
        case _:
            return value
