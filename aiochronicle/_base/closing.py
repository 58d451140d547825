"""Context managers, ``with`` and ``async with``, for everything that has a ``close``."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from aiochronicle._base.background import in_background

__all__ = ["Closing"]


class Closing:
    """``with`` closes it; ``async with`` awaits ``aclose``."""

    if TYPE_CHECKING:  # the other base class has it

        def close(self) -> None: ...

    async def aclose(self) -> None:
        """Close it without blocking the loop. Cancelled, it is still closed."""
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
