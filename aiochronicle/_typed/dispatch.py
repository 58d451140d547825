"""Calls handlers by message type, for readers, fan-ins and replays.

Messages of Java queues may be method calls, which have handlers by name (aiochronicle.cq4).
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

import msgspec

from aiochronicle._base.arguments import one_of
from aiochronicle._base.position import Position
from aiochronicle._hot import Message
from aiochronicle.errors import DecodeError, InvalidArgument, UnknownType

if TYPE_CHECKING:
    from aiochronicle.cq4 import MethodReader
    from aiochronicle.cq4._methods import FunctionReader

    _T = TypeVar("_T")
    _R = TypeVar("_R")

    class _Registering(Protocol[_T]):
        """Takes a function of an object, or of an object and its message, and returns it."""

        @overload
        def __call__(self, function: Callable[[_T], _R], /) -> Callable[[_T], _R]: ...
        @overload
        def __call__(
            self, function: Callable[[_T, Message[Any]], _R], /
        ) -> Callable[[_T, Message[Any]], _R]: ...


__all__ = ["Dispatching", "ErrorHandler", "Failed"]

ErrorHandler = Callable[[DecodeError, Message[Any]], object]
Failed = Literal["again", "skip"]

_Function = TypeVar("_Function", bound=Callable[..., object])


class _Handler(msgspec.Struct, frozen=True):
    function: Callable[..., object]
    wants_message: bool
    is_async: bool


class Committing(Protocol):
    """What dispatching needs of a reader: its position, and whether it commits by itself."""

    @property
    def position(self) -> Position: ...
    @property
    def commit_every(self) -> int: ...
    def _is_of(self, message: Message[Any], /) -> bool: ...


class Dispatching:
    """``on`` registers handlers by type; ``dispatch`` and ``dispatch_now`` call them."""

    _handlers: Mapping[type[Any], _Handler] = MappingProxyType({})
    _functions: "FunctionReader | None" = None  # handlers of method calls, by name
    _method_readers: "tuple[MethodReader, ...]" = ()  # with _functions, in order
    _failed: tuple[Message[Any], ...] = ()  # several if several tasks dispatch

    if TYPE_CHECKING:  # another base class has them

        @property
        def closed(self) -> bool: ...
        def __iter__(self) -> Iterator[Message[Any]]: ...
        def __aiter__(self) -> AsyncIterator[Message[Any]]: ...

    @overload
    def on(self, type: str) -> Callable[[_Function], _Function]: ...
    @overload
    def on(self, type: "type[_T]") -> "_Registering[_T]": ...
    def on(self, type: type[Any] | str) -> Callable[[Any], Any]:
        """Register a function, ``async`` or not, as the handler of a type, or of a Java method.

        The handler is called with the decoded object and, if it takes two arguments, with the message. The
        handler of ``Message`` gets all messages that no other handler takes, undecoded, including those of
        unknown type. Without it they are skipped.

        In a Java queue a name means the calls of that method by a MethodWriter. The handler is called with
        the arguments, converted to the annotated types. If it has a keyword-only parameter ``message``, it
        also gets the message.

        >>> class Trade(msgspec.Struct):
        ...     price: float
        >>> with open_writer(tmp_path / "trades", codec=Trade) as writer:
        ...     _ = writer.send(Trade(101.5))
        >>> with open_reader(tmp_path / "trades", codec=Trade) as reader:
        ...     @reader.on(Trade)
        ...     def show(trade: Trade, message: Message) -> None:
        ...         print(message.seq, trade.price)
        ...     reader.dispatch_now()
        0 101.5
        1
        """

        if isinstance(type, str):
            return self._on_call(type)
        wanted = type

        def register(function: _Function) -> _Function:
            if wanted in self._handlers:
                raise InvalidArgument(
                    f"{wanted.__name__} already has a handler: a type can have one only"
                )
            handler = _Handler(
                function,
                wanted is not Message and _takes_two(function),
                inspect.iscoroutinefunction(function),
            )
            self._handlers = {**self._handlers, wanted: handler}
            return function

        if wanted is not Message and not self.decodes_to(wanted):
            raise InvalidArgument(
                f"{wanted!r} is not a type of the codec, so no message can have it:"
                " add it to codec= of the reader"
            )
        return register

    def _on_call(self, name: str) -> Callable[[_Function], _Function]:
        from aiochronicle.cq4._methods import FunctionReader

        functions = self._functions or FunctionReader()

        def register(function: _Function) -> _Function:
            functions.add(name, function)
            if self._functions is None:
                self._functions = functions
                self.on_calls(functions)
            return function

        self._refuse_calls()
        return register

    def on_calls(self, calls: "MethodReader") -> None:
        """Have this ``cq4.MethodReader`` make the method calls in messages of a Java queue.

        A call for which it has no method goes to handlers that were registered later, and finally to the
        handler of ``Message``.
        """
        self._refuse_calls()
        self._method_readers = (*self._method_readers, calls)

    def _refuse_calls(self) -> None:
        """Raise if no message can be a method call; a fan-in may always get a Java queue."""

    def decodes_to(self, wanted: type[Any]) -> bool:
        """Return whether messages may decode to this type; those of a fan-in may be of any type."""
        return True

    @property
    def failed_message(self) -> Message[Any] | None:
        """The message whose handler raised, was cancelled, or could not be called.

        None after ``dispatch`` has delivered it again or skipped it.
        """
        return self._failed[0] if self._failed else None

    async def dispatch(
        self, *, on_error: ErrorHandler | None = None, failed: Failed | None = None
    ) -> int:
        """Call the handler of every message, present and future, until this is closed.

        Returns how many messages this call took; earlier calls that raised do not count. An ``async``
        handler is awaited before the next message is taken. A payload that cannot be decoded raises
        DecodeError unless there is an ``on_error``, which is called with the error and the message. An
        exception of a handler is raised.

        After an exception the message has been taken, and is ``failed_message``. ``failed`` sets what the
        next call does with it: "again" delivers it once more, before all others; "skip" continues with the
        next one. For a reader that commits by itself the default is "again", because requesting the next
        message would commit one that was not processed. For other readers it is "skip", because the program
        commits what it has processed. With "again", a message that always fails comes again at each call.

        If it is cancelled while it waits, no message is lost. If it is cancelled in a handler, the message
        of that handler has failed.
        """
        count = 0
        for message in self._messages_again(failed):
            count += 1
            try:
                result = self._deliver(message, on_error)
                if inspect.isawaitable(result):
                    await result
            except BaseException:
                self._failed = (message, *self._failed)
                raise
        async for message in self:
            count += 1
            try:
                result = self._deliver(message, on_error)
                if inspect.isawaitable(result):
                    await result
            except BaseException:
                self._failed = (*self._failed, message)
                raise
        return count

    def dispatch_now(
        self, *, on_error: ErrorHandler | None = None, failed: Failed | None = None
    ) -> int:
        """Do what ``dispatch`` does for the messages available now; return how many."""
        for handled, handler in self._handlers.items():
            if handler.is_async:
                name = handled.__name__
                raise InvalidArgument(f"the handler of {name} is async: await dispatch() instead")
        if any(calls.is_asynchronous for calls in self._method_readers):
            raise InvalidArgument("a handler of method calls is async: await dispatch() instead")
        count = 0
        for message in chain(self._messages_again(failed), self):
            count += 1
            try:
                self._deliver(message, on_error)
            except BaseException:
                self._failed = (message, *self._failed)
                raise
        return count

    def _messages_again(self, failed: Failed | None) -> Iterator[Message[Any]]:
        """Remove and return, one by one, the failed messages that are to be delivered again."""
        if failed is not None:
            one_of("failed", {"again": True, "skip": False}, failed)
        self._failed = tuple(
            message for message in self._failed if self._is_redelivered(message, failed)
        )
        while self._failed and not self.closed:
            message, *rest = self._failed
            self._failed = tuple(rest)
            yield message

    def _is_redelivered(self, message: Message[Any], failed: Failed | None) -> bool:
        readers = self._readers_of_messages()
        reader = next((one for one in readers if one._is_of(message)), None)  # pyright: ignore[reportPrivateUsage]
        if reader is not None and reader.position <= message.position:
            return False  # the reader was moved back, and delivers it by itself
        if failed is None:
            return reader is not None and reader.commit_every > 0
        return failed == "again"

    def _readers_of_messages(self) -> Iterable[Committing]:
        """Return the readers that may commit a message; none if there is nothing to commit."""
        return ()

    def _deliver(self, message: Message[Any], on_error: ErrorHandler | None) -> object:
        """Call the handler of one message; return its result."""
        if self._method_readers and message._java_file is not None:  # pyright: ignore[reportPrivateUsage]
            result = self._make_calls(message, on_error)
            if result is not False:
                return result
        handler = None
        obj: Any = message
        try:
            obj = message.decode()
            handler = self._handlers.get(obj.__class__)
        except UnknownType:
            pass  # for the handler of Message
        except DecodeError as error:
            if on_error is None:
                raise
            return on_error(error, message)
        if handler is None:
            handler, obj = self._handlers.get(Message), message
        if handler is None:
            return None
        return handler.function(obj, message) if handler.wants_message else handler.function(obj)

    def _make_calls(self, message: Message[Any], on_error: ErrorHandler | None) -> object:
        """Make the method calls of a message; False if no reader has a method for them."""

        def report(error: DecodeError) -> object:
            explained = DecodeError(f"{message.source}: {error.detail}", seq=message.seq)
            if on_error is None:
                raise explained from error
            return on_error(explained, message)

        results = (calls.begin(message, report) for calls in self._method_readers)
        return next((result for result in results if result is not False), False)


def _takes_two(function: Callable[..., object]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some C functions have no signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
