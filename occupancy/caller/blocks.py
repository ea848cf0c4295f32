"""Blocks of the program as a `with` statement or a decorator, whatever context they are left in.

A block lives in a context variable whose value is a chain of entries, innermost first. Leaving a block takes its own
entry off the chain of the context in which that happens: where a generator is closed in another context there is none,
and nothing happens. A token would raise there, and replace the exception of the host.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from types import CoroutineType, TracebackType
from typing import Any, Protocol, Self, TypeVar, cast

from occupancy.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])

MAX_DEPTH = 64
"""Entries in a chain. Tasks that start their successor inside their own block would lengthen it for ever."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One entered block."""

    owner: object
    value: str
    after: tuple[str, ...]
    outer: "Entry | None"
    depth: int
    span: "RunSpan | None" = None


class RunSpan(AbstractContextManager[Any, None], Protocol):
    """The span that an agent run may have. It is left once, with what leaves the block, wherever that happens."""

    def above(self, current: Any) -> Any:
        """Give the span above a call that is made in the run, where OpenTelemetry's current span is this one."""


class Block:
    """A block of the program, as a `with` statement or a decorator.

    An object holds no state of its entries: many tasks and threads may enter it at once, and again inside itself.
    """

    _variable: ContextVar[Entry | None]

    def __init__(self, name: str, after: tuple[str, ...] = ()) -> None:
        self._name = checked_name(name, f"{type(self).__name__}()")
        self._after = after

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    def __enter__(self) -> Self:
        self._variable.set(self._new_entry())
        return self

    def __exit__(self, *_exception: object) -> None:
        self._variable.set(_without(self._variable.get(), self))

    def __call__(self, function: F) -> F:
        """Decorate a function, coroutine function, generator function or async generator function.

        A generator is in the block only while its own body runs, not while its consumer does.
        """
        if isinstance(function, (staticmethod, classmethod)):
            return cast(F, type(function)(self(function.__func__)))
        if not callable(function) or isinstance(function, type):
            raise InputError(f"{self!r} decorates functions, not {function!r}")
        return cast(F, functools.wraps(function)(self._wrapper(function)))

    def _value(self) -> str:
        """Give the value of a new entry."""
        return self._name

    def _new_span(self, value: str, outer: Entry | None) -> RunSpan | None:
        """Give what lasts as long as a new entry does."""
        return None

    def _for_one_entry(self) -> Self:
        """Give the block, or one like it, for a function that is called now."""
        return self

    def _new_entry(self) -> Entry:
        """Make an entry on top of the current context's chain."""
        outer = self._variable.get()
        depth = 0 if outer is None else outer.depth + 1
        if depth >= MAX_DEPTH:
            outer, depth = None, 0
        value = self._value()
        return Entry(self, value, self._after, outer, depth, self._new_span(value, outer))

    def _wrapper(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Choose the wrapper of the same kind as the function, so that frameworks that ask still see it."""
        if inspect.isasyncgenfunction(function):
            return self._wrap_async_generator(function)
        if inspect.isgeneratorfunction(function):
            return self._wrap_generator(function)
        if inspect.iscoroutinefunction(function):
            return self._wrap_coroutine(function)
        return self._wrap_function(function)

    def _wrap_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._for_one_entry():
                result = function(*args, **kwargs)
            # A decorator below may have hidden that the function is a coroutine function.
            return self._run_inside(result) if isinstance(result, CoroutineType) else result

        return wrapper

    async def _run_inside(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with self._for_one_entry():
            return await coroutine

    def _wrap_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._for_one_entry():
                return await function(*args, **kwargs)

        return wrapper

    def _wrap_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            view = _View(self)
            with view.span:
                with view:
                    inner: Generator[Any, Any, Any] = function(*args, **kwargs)
                step: Callable[[], Any] = functools.partial(next, inner)
                while True:
                    try:
                        with view:
                            value = step()
                    except StopIteration as stop:
                        return stop.value
                    try:
                        sent = yield value
                    except GeneratorExit:
                        with view:
                            inner.close()
                        raise
                    except BaseException as error:
                        step = functools.partial(inner.throw, error)
                    else:
                        step = functools.partial(inner.send, sent)

        return wrapper

    def _wrap_async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            view = _View(self)
            with view.span:
                with view:
                    inner: AsyncGenerator[Any, Any] = function(*args, **kwargs)
                step: Callable[[], Any] = functools.partial(_begin_unseen, inner)
                while True:
                    try:
                        with view:
                            value = await step()
                    except StopAsyncIteration:
                        return
                    try:
                        sent = yield value
                    except GeneratorExit:
                        with view:
                            await inner.aclose()
                        raise
                    except BaseException as error:
                        step = functools.partial(inner.athrow, error)
                    else:
                        step = functools.partial(inner.asend, sent)

        return wrapper


class _View:
    """How a generator's body sees the variable: set while a step of the body runs, put away between the steps.

    What the body itself enters and keeps open across a `yield` is put away with it.
    """

    def __init__(self, block: Block) -> None:
        self._variable = block._variable
        self._top: Entry | None = block._new_entry()
        self._own = self._top
        self.span: AbstractContextManager[Any, None] = self._top.span or nullcontext()
        """To be left with the generator."""
        self._consumer: Entry | None = None

    def __enter__(self) -> None:
        self._consumer = self._variable.get()
        self._variable.set(self._top)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        top = self._variable.get()
        # A step that is thrown away half done may be closed in another context, which is none of ours.
        if any(entry is self._own for entry in chain(top)):
            self._top = top
            self._variable.set(self._consumer)
        self._consumer = None


def _begin_unseen(generator: AsyncGenerator[Any, Any]) -> Any:
    """Begin the first step of an async generator without telling the event loop about it.

    The loop knows the wrapper, and the wrapper closes the generator. A loop that shuts down would close both at once,
    and report the one that it finds running.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return generator.__anext__()
    finally:
        sys.set_asyncgen_hooks(*hooks)


def chain(entry: Entry | None) -> Iterable[Entry]:
    """Walk from an entry outwards; nothing for None."""
    while entry is not None:
        yield entry
        entry = entry.outer


def checked_name(name: object, where: str) -> str:
    """Return a name, or raise `InputError` where it is no string or holds nothing but blanks."""
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"{where} needs a name, a string that is not empty, and got {name!r}")
    return name


def _without(top: Entry | None, owner: object) -> Entry | None:
    """Take the innermost entry of an owner off a chain; a chain without one stays as it is."""
    if top is not None and top.owner is owner:
        return top.outer
    above: list[Entry] = []
    for entry in chain(top):
        if entry.owner is owner:
            rest = entry.outer
            for kept in reversed(above):  # blocks that were entered later and are still open
                rest = dataclasses.replace(kept, outer=rest)
            return rest
        above.append(entry)
    return top
