"""Response bodies of aiohttp, stamped as they come: which is when aiohttp reads them, whoever reads on."""

from collections.abc import Mapping
from time import monotonic_ns
from types import ModuleType
from typing import Any

from occupancy import _guard
from occupancy.flight import Flight
from occupancy.instrumentation.patching import Make, Owner, Patch
from occupancy.instrumentation.stream import BodyStamps

KEY = "_occupancy"


class Incoming:
    """The body of a response as it comes; told of its end as aiohttp tells it.

    Args:
        stamps: Told of the body.
        reader: aiohttp's stream reader.
        encoded: Whether the body is compressed, so that what the reader gets is not what came.
    """

    __slots__ = ("_encoded", "_seen", "error", "stamps")

    def __init__(self, stamps: BodyStamps, reader: Any, *, encoded: bool) -> None:
        self.stamps = stamps
        self.error: BaseException | None = None
        """What the program was told when it waited for more last."""
        self._encoded = encoded
        self._seen = 0
        if reader.total_bytes:  # it came with the headers
            self.feed(reader, b"".join(reader._buffer))

    def __call__(self) -> None:
        """The body has come to its end."""
        self.stamps.complete()

    def feed(self, reader: Any, data: bytes) -> None:
        """The reader has got a piece; a second hook of ours may say so too."""
        came = getattr(reader, "total_raw_bytes", reader.total_bytes)
        size, self._seen = came - self._seen, came
        if size and self._encoded:
            self.stamps.count(size, monotonic_ns())
        elif size:
            self.stamps.chunk(data)


def incoming_of(reader: Any) -> Incoming | None:
    """What stamps the body that a reader gets."""
    for callback in getattr(reader, "_eof_callbacks", ()):
        if isinstance(callback, Incoming):
            return callback
    return None


def attach(response: Any, flight: Flight, headers: Mapping[str, str]) -> None:
    """Have the body of a response stamped that has its headers."""
    reader = response.content
    encoded = headers.get("content-encoding", "identity") != "identity"
    incoming = Incoming(BodyStamps(flight, headers), reader, encoded=encoded)
    error = reader.exception()
    if error is not None:
        incoming.stamps.fail(error)
        return
    reader.on_eof(incoming)
    setattr(response, KEY, incoming)


@_guard.guarded
def note_piece(reader: Any, data: bytes) -> None:
    """A reader has got a piece of a body."""
    incoming = incoming_of(reader)
    if incoming is not None:
        incoming.feed(reader, data)


@_guard.guarded
def note_error(reader: Any, error: BaseException) -> None:
    """A body cannot come to its end."""
    incoming = incoming_of(reader)
    if incoming is not None:
        incoming.stamps.fail(error)


@_guard.guarded
def note_wait(reader: Any, error: BaseException | None) -> None:
    """The program has waited for more, and got it or an exception: its own time-out, or a cancellation."""
    incoming = incoming_of(reader)
    if incoming is not None:
        incoming.error = error


@_guard.guarded
def close(response: Any) -> None:
    """The program lets go of a response: early, or because waiting for more has failed, unless all has come."""
    incoming = getattr(response, KEY, None)
    if not isinstance(incoming, Incoming) or incoming.stamps.ended:
        return
    if incoming.error is None:
        incoming.stamps.close()
    else:
        incoming.stamps.fail(incoming.error)


# Putting them in


def hooks(module: ModuleType) -> tuple[tuple[Owner, str, Make], ...]:
    """The methods of aiohttp that bodies pass through, and what makes ours."""
    response, reader = module.ClientResponse, module.StreamReader
    return (
        (response, "close", _hook_close),
        (response, "release", _hook_close),
        (reader, "feed_data", _hook_feed_data),
        (reader, "set_exception", _hook_set_exception),
        (reader, "_wait", _hook_wait),
    )


def _hook_close(original: Any, patch: Patch) -> Any:
    def close_response(response: Any) -> Any:
        close(response)
        return original(response)

    return close_response


def _hook_feed_data(original: Any, patch: Patch) -> Any:
    def feed_data(reader: Any, data: bytes, *args: Any) -> Any:
        result = original(reader, data, *args)
        note_piece(reader, data)
        return result

    return feed_data


def _hook_set_exception(original: Any, patch: Patch) -> Any:
    def set_exception(reader: Any, exc: BaseException, *args: Any) -> Any:
        note_error(reader, exc)
        return original(reader, exc, *args)

    return set_exception


def _hook_wait(original: Any, patch: Patch) -> Any:
    async def _wait(reader: Any, func_name: str) -> Any:
        try:
            result = await original(reader, func_name)
        except BaseException as error:
            note_wait(reader, error)
            raise
        note_wait(reader, None)
        return result

    return _wait
