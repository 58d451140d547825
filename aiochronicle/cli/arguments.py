"""Types of arguments that several commands have."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter, Token

from aiochronicle._base.locations import local_path
from aiochronicle.cli.units import age, amount, parse_amount, parse_moment, parse_seconds

__all__ = [
    "Amount",
    "Directory",
    "File",
    "Flag",
    "Json",
    "Moment",
    "QueuePath",
    "Seconds",
    "path_argument",
]

T = TypeVar("T")


def _converter(parse: Callable[[str], T]) -> Callable[[Any, Sequence[Token]], T]:
    return lambda _, tokens: parse(tokens[0].value)


def _default(spell: Callable[[float], str]) -> Callable[[float | None], str | None]:
    """Return what the help says of a default value, which is nothing if there is none."""
    return lambda value: None if value is None else spell(value)


def _moment(text: str) -> int | datetime:
    return parse_moment(text, datetime.now(UTC))


def _path(text: str) -> Path:
    if not text:  # a variable of a script that is not set; Path("") is the current directory
        raise ValueError("the path is empty; . is the current directory")
    return Path(local_path(text))


def path_argument(metavar: str, help_: str | None = None) -> Parameter:
    """Describe an argument that is a path, or a ``file:`` URL."""
    convert = _converter(_path)
    if help_ is None:  # Parameter(help=None) would hide what the docstring of a command says
        return Parameter(converter=convert, metavar=metavar, n_tokens=1)
    return Parameter(converter=convert, metavar=metavar, n_tokens=1, help=help_)


Flag = Parameter(negative=())

Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="print JSON")]
QueuePath = Annotated[Path, path_argument("QUEUE", "directory of the queue")]
Directory = Annotated[Path, path_argument("DIR")]
File = Annotated[Path, path_argument("FILE")]
Amount = Annotated[
    int,
    Parameter(
        converter=_converter(parse_amount),
        metavar="SIZE",
        n_tokens=1,
        show_default=_default(amount),
    ),
]
Seconds = Annotated[
    float,
    Parameter(
        converter=_converter(parse_seconds), metavar="TIME", n_tokens=1, show_default=_default(age)
    ),
]
Moment = Annotated[
    int | datetime, Parameter(converter=_converter(_moment), metavar="SEQ|TIME", n_tokens=1)
]
