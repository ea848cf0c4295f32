"""Response bodies, stamped as they are read; what the host reads stays as it was."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from time import monotonic_ns
from typing import Any

from occupancy import _guard
from occupancy._guard import quietly
from occupancy.flight import Flight
from occupancy.instrumentation import evidence

CARRY = 64
"""Bytes of an unfinished line that are enough to know it by."""

_DATA = re.compile(rb"(?:\A|[\r\n])data:")
_DONE = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]")
_LAST_EVENT = re.compile(
    rb"(?:\A|[\r\n])event: ?(?:message_stop|response\.(?:completed|failed|incomplete)|error)(?=[\r\n])"
)
_BLANK_LINE = re.compile(rb"\n[\r\n]|\r\r")  # "\r\n" is one line's end; what follows any end is a line of nothing


class EventScanner:
    """Finds the first and the last event in an event stream that comes in pieces, cut anywhere.

    The last one is `data: [DONE]`, or an event of a name that ends a model's answer, complete with its blank line.
    """

    __slots__ = ("_carry", "_closing", "first_seen", "last_seen")

    def __init__(self) -> None:
        self._carry = b""
        self._closing = False
        self.first_seen = False
        """Whether a `data:` line has come; comments are none."""
        self.last_seen = False
        """Whether the last event has come, whole."""

    def feed(self, chunk: bytes) -> None:
        """Take the next piece."""
        text = self._carry + chunk
        if not self.first_seen and _DATA.search(text):
            self.first_seen = True
        if _DONE.search(text):
            self.last_seen = True
            return
        if not self._closing:
            last = _LAST_EVENT.search(text)
            if last is None:
                self._carry = _unfinished_line(text, 0)
                return
            self._closing = True
            text = text[last.end() :]
        if _BLANK_LINE.search(text):
            self.last_seen = True
        self._carry = _unfinished_line(text, 1)


def _unfinished_line(text: bytes, before: int) -> bytes:
    """The line that `text` breaks off in, cut short, and `before` bytes before it.

    What was cut off is marked, so that no false line comes of it.
    """
    start = max(0, max(text.rfind(b"\n"), text.rfind(b"\r")) + 1 - before)
    return text[start:] if len(text) - start <= CARRY else text[start : start + CARRY] + b"~"


class BodyStamps:
    """Stamps a body's pieces on its flight and knows when the last has come.

    Args:
        flight: The call.
        headers: The response's headers, names in lower case.
    """

    __slots__ = ("_flight", "_length", "_reader", "_scanner")

    def __init__(self, flight: Flight, headers: Mapping[str, str]) -> None:
        self._flight = flight
        self._length = content_length(headers)
        encoded = headers.get("content-encoding", "identity") != "identity"
        is_events = headers.get("content-type", "").startswith("text/event-stream")
        self._scanner = EventScanner() if is_events and not encoded else None
        self._reader = quietly(evidence.reader_of, flight.call, headers)

    @property
    def ended(self) -> bool:
        """Whether the call has ended."""
        return self._flight.ended

    @_guard.guarded
    def chunk(self, chunk: bytes, now_ns: int | None = None) -> None:
        """A piece has come: now, or when it is said to."""
        flight = self._flight
        if now_ns is None:
            now_ns = monotonic_ns()
        if flight.ended:
            return
        flight.chunk(len(chunk), now_ns)
        if self._reader is not None:
            quietly(self._reader.feed, chunk)
        scanner = self._scanner
        if scanner is not None:
            scanner.feed(chunk)
            if flight.call.first_event_ns is None and scanner.first_seen:
                flight.call.first_event_ns = now_ns
        if (scanner is not None and scanner.last_seen) or flight.call.bytes_received == self._length:
            flight.complete()
            self._end_reader()

    @_guard.guarded
    def count(self, size: int, now_ns: int) -> None:
        """A piece has come of which the size alone is known."""
        self._flight.chunk(size, now_ns)

    @_guard.guarded
    def complete(self) -> None:
        """The body has been read to its end."""
        self._flight.complete()
        self._end_reader()

    @_guard.guarded
    def close(self) -> None:
        """The program closes the body."""
        self._flight.close()
        self._end_reader()

    def _end_reader(self) -> None:
        if self._reader is not None:
            reader, self._reader = self._reader, None
            quietly(reader.end)

    @_guard.guarded
    def abandon(self) -> None:
        """Nobody holds the body any more. No lock is taken."""
        self._flight.abandon()

    @_guard.guarded
    def drop(self) -> None:
        """The program lets go of the iterator: that closes what it reads, as with a generator. No lock is taken."""
        if not self._flight.ended:
            self._flight.close(settle=False)

    @_guard.guarded
    def fail(self, error: BaseException) -> None:
        """Reading the body failed."""
        self._flight.fail(error)


def content_length(headers: Mapping[str, str]) -> int | None:
    """Size of the body on the wire, in bytes; None where the headers do not say."""
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() and "transfer-encoding" not in headers else None


class _Wrapper:
    """Passes what it does not know on to what it wraps."""

    def __init__(self, wrapped: Any, stamps: BodyStamps) -> None:
        self._wrapped = wrapped
        self._stamps = stamps

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # not there yet or no longer
            raise AttributeError(name)
        return getattr(self._wrapped, name)


class Body(_Wrapper):
    """A synchronous body."""

    def __iter__(self) -> Iterator[bytes]:
        return Chunks(iter(self._wrapped), self._stamps)

    def close(self) -> None:
        """Close the body: early, unless it was read to its end."""
        self._stamps.close()
        close_wrapped = getattr(self._wrapped, "close", None)
        if close_wrapped is not None:
            close_wrapped()


class Chunks(_Wrapper):
    """The pieces of a synchronous body."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            chunk: bytes = next(self._wrapped)
        except StopIteration:
            self._stamps.complete()
            raise
        except BaseException as error:
            self._stamps.fail(error)
            raise
        self._stamps.chunk(chunk)
        return chunk

    def close(self) -> None:
        """Close the iterator as a generator is closed."""
        self._stamps.close()
        close_wrapped = getattr(self._wrapped, "close", None)
        if close_wrapped is not None:
            close_wrapped()

    def __del__(self) -> None:
        self._stamps.drop()


class AsyncBody(_Wrapper):
    """An asynchronous body."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return AsyncChunks(self._wrapped.__aiter__(), self._stamps)

    async def aclose(self) -> None:
        """Close the body: early, unless it was read to its end."""
        self._stamps.close()
        close_wrapped = getattr(self._wrapped, "aclose", None)
        if close_wrapped is not None:
            await close_wrapped()


class AsyncChunks(_Wrapper):
    """The pieces of an asynchronous body; a class, since a generator would leave the inner one unclosed."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await self._step(self._wrapped.__anext__())

    async def asend(self, value: None) -> bytes:
        """Ask for the next piece, as of a generator."""
        return await self._step(self._wrapped.asend(value))

    async def athrow(self, *error: Any) -> bytes:
        """Throw into the inner generator."""
        return await self._step(self._wrapped.athrow(*error))

    async def _step(self, step: Any) -> bytes:
        try:
            chunk: bytes = await step
        except StopAsyncIteration:
            self._stamps.complete()
            raise
        except BaseException as error:
            self._stamps.fail(error)
            raise
        self._stamps.chunk(chunk)
        return chunk

    async def aclose(self) -> None:
        """Close the iterator as a generator is closed."""
        self._stamps.close()
        close_wrapped = getattr(self._wrapped, "aclose", None)
        if close_wrapped is not None:
            await close_wrapped()

    def __del__(self) -> None:
        self._stamps.drop()
