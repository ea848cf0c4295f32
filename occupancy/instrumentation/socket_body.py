"""Response bodies of `http.client`, stamped as they come through the socket; what the host reads stays as it was.

Two things are put in: one around the file that the response reads from, which tells what is handed out, and one below
that file's buffer, which tells when it came. A program that reads ten megabytes in one go, or a line at a time out of
the buffer, gets the same stamps.
"""

import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from io import IOBase
from time import monotonic_ns
from types import FrameType
from typing import Any

from occupancy import _guard
from occupancy.instrumentation.stream import BodyStamps

MOST_FRAMES = 8
"""Closing passes through that many methods at most on its way from a finalizer to the file."""


class Arrivals:
    """When the bytes came that a file has not handed out yet. Stands in for the `readinto` of the raw file.

    Args:
        raw: The raw file below the buffer.
        buffered: Bytes that the buffer holds already.
        now_ns: When those came.
    """

    __slots__ = ("_pending", "_raw", "_readinto", "at_end")

    def __init__(self, raw: Any, buffered: int, now_ns: int) -> None:
        self._raw = weakref.ref(raw)  # the raw file holds us
        self._readinto = type(raw).readinto
        self._pending: deque[tuple[int, int]] = deque([(now_ns, buffered)])
        self.at_end = False
        """Whether the server has closed."""

    def __call__(self, buffer: Any) -> Any:
        """Read from the socket."""
        size = self._readinto(self._raw(), buffer)
        self._note(size)
        return size

    @_guard.guarded
    def _note(self, size: int | None) -> None:
        if size:
            self._pending.append((monotonic_ns(), size))
        elif size == 0:
            self.at_end = True

    @property
    def pending(self) -> int:
        """Bytes that have not been handed out."""
        return sum(size for _, size in self._pending)

    def take(self, size: int) -> Iterator[tuple[int, int]]:
        """Hand out `size` bytes, or all there are: when each piece of them came, ns, and its size."""
        while size > 0 and self._pending:
            at_ns, left = self._pending.popleft()
            if left > size:
                self._pending.appendleft((at_ns, left - size))
            if left:
                yield at_ns, min(left, size)
            size -= left


def watch_arrivals(file: Any, now_ns: int) -> Arrivals | None:
    """Put `Arrivals` below a buffered file; None where there is no such place."""
    raw = getattr(file, "raw", None)
    if raw is None or not hasattr(type(raw), "readinto"):
        return None
    raw.readinto = _read_nothing
    try:
        buffered = len(file.peek(0))
    finally:
        del raw.readinto
    raw.readinto = arrivals = Arrivals(raw, buffered, now_ns)
    return arrivals


def _read_nothing(buffer: Any) -> None:
    """What a raw file gives that has nothing now: a peek then tells what is buffered, and waits for nothing."""


class SocketBody:
    """The file that a response reads its body from.

    Args:
        file: The real one.
        stamps: Told of the body.
        response: The `http.client.HTTPResponse`, which knows how the body is framed.
        incomplete: Its exception for a body that breaks off.
    """

    def __init__(self, file: Any, stamps: BodyStamps, response: Any, incomplete: type[Exception]) -> None:
        self._file = file
        self._stamps = stamps
        self._chunked = bool(response.chunked)
        self._until_close = not self._chunked and response.length is None
        self._incomplete = incomplete
        self._chunk_left = 0
        self._arrivals = _guard.guarded(watch_arrivals)(file, monotonic_ns())

    def __getattr__(self, name: str) -> Any:
        if name == "_file":  # not there yet or no longer
            raise AttributeError(name)
        return getattr(self._file, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        line: bytes = self.readline()
        if not line:
            raise StopIteration
        return line

    def read(self, *size: Any) -> Any:
        """Read as the file does."""
        return self._read(self._file.read, *size)

    def read1(self, *size: Any) -> Any:
        """Read what is there."""
        return self._read(self._file.read1, *size)

    def readinto(self, buffer: Any) -> Any:
        """Read into a buffer."""
        return self._read(self._file.readinto, buffer, into=buffer)

    def readline(self, *limit: Any) -> Any:
        """Read a line. In a chunked body all lines are framing: the size of a chunk, or what follows the last."""
        return self._read(self._file.readline, *limit, is_framing=self._chunked)

    def close(self) -> None:
        """Close the file: early, unless the body was read to its end."""
        self._note_close()
        self._file.close()

    def _read(self, method: Any, *args: Any, into: Any = None, is_framing: bool = False) -> Any:
        try:
            data = method(*args)
        except BaseException as error:
            self._note_failure(error)
            raise
        self._note(data if into is None else bytes(memoryview(into)[:data]), is_framing)
        return data

    @_guard.guarded
    def _note(self, data: Any, is_framing: bool) -> None:
        if self._stamps.ended:
            return
        size = len(data)
        body = 0 if is_framing else min(size, self._chunk_left) if self._chunked else size
        done = 0
        for at_ns, piece in self._arrived(size):
            if done < body:  # what follows is the end of the chunk's line
                self._stamps.chunk(data[done : min(done + piece, body)], at_ns)
            done += piece
        self._chunk_left -= body
        if is_framing:
            self._note_chunk_size(data)
        if not size or (self._arrivals is not None and self._arrivals.at_end):
            self._note_end()

    def _arrived(self, size: int) -> Iterable[tuple[int, int]]:
        return [(monotonic_ns(), size)] if self._arrivals is None else self._arrivals.take(size)

    def _note_chunk_size(self, line: bytes) -> None:
        try:
            self._chunk_left = int(line.partition(b";")[0], 16)
        except ValueError:
            return  # the response's own to judge
        if not self._chunk_left:
            self._stamps.complete()

    @_guard.guarded
    def _note_failure(self, error: BaseException) -> None:
        """Reading failed: what has come before that stays in the buffer, and nobody will have it."""
        if self._arrivals is not None:
            for at_ns, piece in self._arrivals.take(self._chunk_left if self._chunked else self._arrivals.pending):
                self._stamps.count(piece, at_ns)
        self._stamps.fail(error)

    def _note_end(self) -> None:
        """The server has closed, which only a body of unknown length ends with."""
        if self._until_close:
            self._stamps.complete()
        elif not self._stamps.ended:
            self._stamps.fail(self._incomplete(b""))

    @_guard.guarded
    def _note_close(self) -> None:
        if self._stamps.ended:
            return
        if _is_finalizing():
            self._stamps.abandon()
        else:
            self._stamps.close()


def _is_finalizing() -> bool:
    """Whether a response that nobody holds any more closes itself: it was not the program that did."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(MOST_FRAMES):
        if frame is None:
            break
        owner = frame.f_locals.get("self")
        if frame.f_code.co_name == "__del__" or (isinstance(owner, IOBase) and getattr(owner, "_finalizing", False)):
            return True
        frame = frame.f_back
    return False
