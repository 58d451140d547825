"""``with`` and ``async with`` for every object that has a ``close``."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from aiochronicle._base.background import in_background

__all__ = ["Closing"]


class Closing:
    """Makes an object a context manager: ``with`` calls ``close``, ``async with`` awaits ``aclose``."""

    if TYPE_CHECKING:  # another base class has it

        def close(self) -> None: ...

    async def aclose(self) -> None:
        """Close without blocking the loop. If the caller is cancelled, it is still closed."""
        await in_background(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
