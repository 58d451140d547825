"""Arguments that several jobs have.

Groups of arguments are dataclasses, which cyclopts turns into options.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number

from aiochronicle._base.locations import archive_path, local_path
from aiochronicle.cli.arguments import Json

__all__ = [
    "ALL",
    "LOCAL",
    "SHOWN",
    "Amount",
    "Count",
    "Flag",
    "Place",
    "Plot",
    "Reading",
    "Result",
    "Root",
    "Running",
    "Trades",
    "place",
    "place_of_archive",
]

ROWS_SHOWN = 20

_READING: Group = Group.create_ordered("What is read")  # pyright: ignore[reportUnknownMemberType]
_RESULT: Group = Group.create_ordered("The result")  # pyright: ignore[reportUnknownMemberType]
_RUNNING: Group = Group.create_ordered("How it runs")  # pyright: ignore[reportUnknownMemberType]


def _local(_: Any, tokens: Sequence[Token]) -> str:
    return local_path(tokens[0].value)


def _archive(_: Any, tokens: Sequence[Token]) -> str:
    return archive_path(tokens[0].value)


def _above_zero(_: Any, tokens: Sequence[Token]) -> float:
    try:
        value = float(tokens[0].value)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise ValueError(f"must be a number above 0, not {tokens[0].value!r}")
    return value


def place(metavar: str, help_: str) -> Parameter:
    """Describe an argument that is the place of an input or output."""
    return Parameter(converter=_local, metavar=metavar, n_tokens=1, help=help_)


def place_of_archive(metavar: str, help_: str) -> Parameter:
    """Describe an argument that is the place of an archive, which may be object storage."""
    return Parameter(converter=_archive, metavar=metavar, n_tokens=1, help=help_)


def _flag(help_: str) -> Parameter:
    return Parameter(negative=(), show_default=False, help=help_)


Flag: Callable[[str], Parameter] = _flag
Place = str
Root = Annotated[Place, place("DIR", "directory that contains the queues, at any depth")]
Plot = Annotated[Place | None, place("FILE", "also draw it, as PNG")]
Amount = Annotated[float, Parameter(converter=_above_zero, metavar="SIZE", n_tokens=1)]
Count = Annotated[int, Parameter(validator=Number(gte=1), metavar="N")]
Trades = Annotated[str, Parameter(metavar="TYPE", help="type of the trades")]


@Parameter(name="*", group=_READING)
@dataclass(frozen=True, kw_only=True)
class Reading:
    """Which messages of which queues are read."""

    queues: Annotated[str | None, Parameter(metavar="NAME,NAME", help="only these queues")] = None
    pattern: Annotated[
        str | None,
        Parameter(metavar="REGEX", help="only queues whose names match this regular expression"),
    ] = None
    start: Annotated[
        str | None,
        Parameter(metavar="TIME", help="start: ISO 8601, or nanoseconds since 1970"),
    ] = None
    end: Annotated[str | None, Parameter(metavar="TIME", help="before that time")] = None
    moved: Annotated[
        Place | None,
        place("DIR", "directory to which retention moves segments, to read those, too"),
    ] = None
    skip_corrupt: Annotated[bool, _flag("skip damaged messages, and list them at the end")] = False
    bad_records: Annotated[
        Place | None,
        place(
            "DIR",
            "with --skip-corrupt: directory for the list, as JSON; every machine of a cluster needs access",
        ),
    ] = None


@Parameter(name="*", group=_RESULT)
@dataclass(frozen=True, kw_only=True)
class Result:
    """The output table."""

    out: Annotated[Place | None, place("DIR", "write it there, as Parquet")] = None
    overwrite: Annotated[bool, _flag("replace what is at --out")] = False
    show: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=0),
            metavar="N",
            help=f"print the first N rows; default: {ROWS_SHOWN}, or 0 with --out",
        ),
    ] = None

    @property
    def rows_shown(self) -> int:
        """How many rows are printed."""
        if self.show is not None:
            return self.show
        return ROWS_SHOWN if self.out is None else 0


@Parameter(name="*", group=_RUNNING)
@dataclass(frozen=True, kw_only=True)
class Running:
    """How a job runs, and how it reports."""

    dry_run: Annotated[bool, _flag("print what would be done, and do nothing")] = False
    master: Annotated[
        str | None,
        Parameter(
            metavar="URL",
            help="where Spark runs: local[N], spark://HOST:PORT …; default: local[*], or what"
            " spark-submit says",
        ),
    ] = None
    ui: Annotated[
        bool, _flag("serve Spark's web page while the job runs, and print its address")
    ] = False
    json: Json = False


ALL = Reading()
SHOWN = Result()
LOCAL = Running()
