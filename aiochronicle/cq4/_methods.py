"""Method calls in messages: reads those of a Java MethodWriter, and writes those for a Java MethodReader."""

import inspect
import typing
from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from aiochronicle.errors import DecodeError, InvalidArgument, NotSupported

from ._codes import is_name
from ._decoding import MAX_VALUES, Decoder
from ._encoding import encode_call
from ._structs import convert
from ._values import Call

if TYPE_CHECKING:
    from aiochronicle._hot import Message

Payload: TypeAlias = "bytes | bytearray | memoryview | Message[Any]"

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_EMPTY = inspect.Parameter.empty
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_MESSAGE = "message"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def method(*, name: str | None = None, id: int | None = None) -> Callable[[F], F]:  # noqa: A002
    """Give a method its Java name, or its number of @MethodId.

    >>> class Listener:
    ...     @method(name="onTrade")
    ...     def on_trade(self, symbol: str, price: float) -> None:
    ...         print(symbol, price)
    >>> MethodReader(Listener()).handle(encode_call("onTrade", "EURUSD", 1.25))
    EURUSD 1.25
    True
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, (name, id))
        return function

    return mark


_MARK = "__cq4_method__"


class _Method(msgspec.Struct, frozen=True):
    """A method that messages can call: its names, parameters, and the class of the next call of a chain."""

    attribute: str
    names: tuple[str | int, ...]
    signature: inspect.Signature
    types: tuple[Any, ...]
    required: int
    takes_any_number: bool
    is_asynchronous: bool
    wants_message: bool
    chained: type | None


def _methods(kind: type) -> Iterator[_Method]:
    for attribute, function in _public(kind):
        yield _describe(kind, attribute, function)


def _public(kind: type) -> list[tuple[str, Callable[..., Any]]]:
    found = inspect.getmembers(kind, _is_method)
    return [(name, function) for name, function in found if not name.startswith("_")]


def _is_method(member: object) -> bool:
    """Return whether it is written in Python; a target that is also a list must not offer clear()."""
    return inspect.isfunction(member) or inspect.ismethod(member)


def _describe(kind: type | None, attribute: str, function: Callable[..., Any]) -> _Method:
    """Describe a method of a class, or a function if ``kind`` is None."""
    try:
        signature = inspect.signature(function)
        # A class inside a function is in no namespace.
        own = {} if kind is None else {kind.__name__: kind}
        hints = typing.get_type_hints(function, localns=own, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the signature of {function.__qualname__} cannot be determined: {error}"
        ) from None
    parameters = list(signature.parameters.values())
    if kind is not None and not inspect.ismethod(function):
        static = isinstance(inspect.getattr_static(kind, attribute), staticmethod)
        parameters = parameters if static else parameters[1:]
    wants_message = any(each.name == _MESSAGE and each.kind is _KEYWORD for each in parameters)
    parameters = [each for each in parameters if not (wants_message and each.name == _MESSAGE)]
    positional = [each for each in parameters if each.kind in _POSITIONAL]
    name, number = getattr(function, _MARK, (None, None))
    return _Method(
        attribute=attribute,
        names=tuple(each for each in (name or attribute, number) if each is not None),
        signature=signature.replace(parameters=parameters),
        types=tuple(hints.get(each.name, Any) for each in positional),
        required=sum(each.default is _EMPTY for each in positional),
        takes_any_number=any(each.kind is each.VAR_POSITIONAL for each in parameters),
        is_asynchronous=inspect.iscoroutinefunction(function),
        wants_message=wants_message,
        chained=_chain_type(kind, hints.get("return")),
    )


def _chain_type(kind: type | None, returns: Any) -> type | None:
    """Return the class that has the next method of a chain, or None if the class has no methods."""
    if returns is typing.Self:  # pyright: ignore[reportUnknownMemberType]
        return kind
    return returns if isinstance(returns, type) and _public(returns) else None


class MethodReader:
    """Calls the public methods of an object as messages request.

    Arguments are converted to the annotated types, so a Java object arrives as a msgspec.Struct. Only
    methods of the object's class that are written in Python can be called, and none whose name begins with
    an underscore. With a protocol, only its methods can be called.

    A method whose annotated result is a class with methods begins a chain: the next call of the message
    calls a method of that class on the returned object. A method with a keyword-only parameter ``message``
    also gets the argument of `handle`.

    After ``reader.on_calls(MethodReader(listener))``, ``reader.dispatch()`` makes the calls.

    >>> class Listener:
    ...     def note(self, text: str) -> None:
    ...         print(text)
    >>> reader = MethodReader(Listener())
    >>> reader.handle(encode_call("note", "hi"))
    hi
    True
    >>> reader.handle(encode_call("other", "hi"))
    False
    """

    def __init__(
        self, target: object, protocol: type | None = None, *, max_values: int = MAX_VALUES
    ) -> None:
        self._target = target
        self._protocol = protocol or type(target)
        self._max_values = max_values
        self._by_kind = {self._protocol: _by_name(self._protocol)}

    @property
    def is_asynchronous(self) -> bool:
        """Whether any of the methods is asynchronous."""
        return any(each.is_asynchronous for each in self._methods_of(self._protocol).values())

    def handle(self, payload: Payload) -> bool:
        """Make the calls of one message; False if it has none, or one for which there is no method.

        Calls before that one have been made. DecodeError if the payload cannot be decoded or its arguments do
        not fit the parameters. Exceptions of methods are raised.
        """
        steps = self._steps(payload, False)
        result: Any = None
        try:
            while True:
                result = steps.send(result)()
                if inspect.iscoroutine(result):
                    result.close()
                    raise InvalidArgument("the method is asynchronous: await ahandle() instead")
        except StopIteration as ended:
            return bool(ended.value)

    async def ahandle(self, payload: Payload) -> bool:
        """Do the same as `handle` if some methods are asynchronous.

        If it is cancelled, the current call is cancelled, and the rest of the message is not called.
        """
        result = self.begin(payload)
        return bool(await result if inspect.iscoroutine(result) else result)

    def begin(
        self, payload: Payload, on_error: Callable[[DecodeError], object] | None = None
    ) -> object:
        """Make the calls up to the first asynchronous one.

        Returns whether all were made, or a coroutine that makes the rest and returns that. `dispatch` passes
        ``on_error``. Then a message without calls returns False instead of raising. For an invalid payload,
        ``on_error`` is called, and the result is what it returns, or True.
        """
        return self._run(self._steps(payload, on_error is not None), None, on_error)

    def _run(
        self, steps: "_Steps", result: Any, on_error: Callable[[DecodeError], object] | None
    ) -> object:
        while True:
            try:
                call = steps.send(result)
            except StopIteration as ended:
                return ended.value
            except DecodeError as error:
                if on_error is None:
                    raise
                return on_error(error) or True
            result = call()
            if inspect.isawaitable(result):
                return self._wait(steps, result, on_error)

    async def _wait(
        self,
        steps: "_Steps",
        pending: Awaitable[Any],
        on_error: Callable[[DecodeError], object] | None,
    ) -> object:
        result = self._run(steps, await pending, on_error)
        return await result if inspect.iscoroutine(result) else result

    def _steps(self, payload: Payload, may_have_no_calls: bool) -> "_Steps":
        """Yield each call for the caller to make, which sends back the result."""
        decoder = Decoder(bytes(payload), self._max_values, whole_floats=True)
        if may_have_no_calls and not is_name(decoder.peek(decoder.size)):
            return False
        calls = decoder.calls()
        chain: tuple[Any, type] | None = None
        for call in calls:
            found = self._find(call.name, chain)
            if found is None:
                return False
            described, function = found
            arguments = _arguments(described, call, decoder.has_empty_blocks)
            keywords = {_MESSAGE: payload} if described.wants_message else {}
            result = yield partial(function, *arguments, **keywords)
            chained = described.chained
            chain = (result, chained) if chained is not None and result is not None else None
        return bool(calls)

    def _find(
        self, name: str | int, chain: tuple[Any, type] | None
    ) -> "tuple[_Method, Callable[..., Any]] | None":
        target, kind = (self._target, self._protocol) if chain is None else chain
        found = self._methods_of(kind).get(name)
        return None if found is None else (found, getattr(target, found.attribute))

    def _methods_of(self, kind: type) -> dict[str | int, _Method]:
        if kind not in self._by_kind:
            self._by_kind[kind] = _by_name(kind)
        return self._by_kind[kind]


_Steps = Generator[Callable[[], Any], Any, bool]


class FunctionReader(MethodReader):
    """A MethodReader that calls functions by the names of calls, for ``reader.on``."""

    def __init__(self) -> None:
        super().__init__(None, object)
        self._functions: dict[str | int, tuple[_Method, Callable[..., Any]]] = {}

    @property
    def is_asynchronous(self) -> bool:
        return any(described.is_asynchronous for described, _ in self._functions.values())

    def add(self, name: str | int, function: Callable[..., Any]) -> None:
        if name in self._functions:
            raise InvalidArgument(
                f"calls of {name} already have a handler: a name can have one only"
            )
        self._functions[name] = _describe(None, str(name), function), function

    def _find(
        self, name: str | int, chain: tuple[Any, type] | None
    ) -> tuple[_Method, Callable[..., Any]] | None:
        return self._functions.get(name) if chain is None else super()._find(name, chain)


def _by_name(kind: type) -> dict[str | int, _Method]:
    return {name: each for each in _methods(kind) for name in each.names}


def _arguments(found: _Method, call: Call, has_empty_blocks: bool) -> tuple[Any, ...]:
    most = len(found.types)
    if found.takes_any_number:
        return call.args
    if most == 1 and (found.required or call.value != ""):
        args = call.args_for(1)
    else:
        args = call.args if most else ()
    if not found.required <= len(args) <= most:
        raise DecodeError(
            f"the call of {call.name} has {len(args)} arguments, but the method takes"
            f" {found.required if found.required == most else f'{found.required} to {most}'}"
        )
    return tuple(
        arg if wanted in (Any, object) else convert(arg, wanted, has_empty_blocks)
        for arg, wanted in zip(args, found.types, strict=False)
    )


class Appending(typing.Protocol):
    """What `method_writer` needs of a writer."""

    @property
    def format(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def append(self) -> Callable[[bytes], object]: ...


def method_writer(protocol: type[T], to: "Appending | Callable[[bytes], object]") -> T:
    """Return an object with the methods of a class or Protocol; each call writes a message, as in Java.

    ``to`` is the writer of a Java queue, or a function that is called with the message.

    A method whose annotated result is a class with methods begins a chain: the first method of the chain with
    another result sends the message. An asynchronous method awaits what the function returns, if that is
    awaitable; cancelling the method cancels it.

    >>> class Listener:
    ...     def note(self, text: str) -> None: ...
    >>> sent: list[bytes] = []
    >>> method_writer(Listener, sent.append).note("hi")
    >>> sent == [encode_call("note", "hi")]
    True
    """
    kind: type = protocol
    send = to if callable(to) else _append_of(to)
    return typing.cast(T, _writer_class(kind)(send, b""))


def _append_of(writer: "Appending") -> Callable[[bytes], object]:
    if writer.format != "cq4":
        raise NotSupported(
            "only Java queues have method calls",
            path=writer.path,
            advice='Open a queue with format="cq4" to write calls that Java reads.',
        )
    return writer.append


class _Writer:
    """The bytes of a chain so far, and the function that sends the message."""

    __slots__ = ("_state",)

    def __init__(self, send: Callable[[bytes], object], before: bytes) -> None:
        self._state = (before, send)

    def __repr__(self) -> str:
        before, send = self._state
        to = getattr(send, "__self__", send)  # the writer, or a function
        return f"<{type(self).__name__} to {to!r}{', in a chain' if before else ''}>"


@lru_cache(maxsize=256)
def _writer_class(protocol: type) -> type[_Writer]:
    functions: dict[str, Any] = {each.attribute: _sender(each) for each in _methods(protocol)}
    return type(f"{protocol.__name__}Writer", (_Writer,), {"__slots__": (), **functions})


def _sender(found: _Method) -> Callable[..., Any]:
    name = found.names[-1]  # Java writes the number if there is one

    def send(self: _Writer, *args: Any, **kwargs: Any) -> Any:
        bound = found.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        before, give = self._state  # pyright: ignore[reportPrivateUsage]
        message = before + encode_call(name, *bound.args)
        if found.chained is not None:
            return _writer_class(found.chained)(give, message)
        return give(message) if found.is_asynchronous else _discard(give(message))

    async def send_and_wait(self: _Writer, *args: Any, **kwargs: Any) -> Any:
        result = send(self, *args, **kwargs)
        if inspect.isawaitable(result):
            await result
            return None
        return result if isinstance(result, _Writer) else None

    chosen = send_and_wait if found.is_asynchronous else send
    chosen.__name__ = found.attribute
    return chosen


def _discard(result: object) -> None:
    """Discard the result of sending, because the method's annotation promises another result."""
