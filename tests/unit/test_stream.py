"""Bodies stamped as they are read, and iterators that behave as what they wrap."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from occupancy import Call, Outcome
from occupancy.instrumentation.stream import AsyncBody, Body, BodyStamps
from occupancy.ledger import Ledger

DONE = b"data: 1\n\ndata: [DONE]\n\n"
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


def stamps(**headers: str) -> tuple[BodyStamps, Call]:
    """Stamps of a fresh call; names of headers with `_` for `-`."""
    flight = Ledger().start(Call(start_ns=1), ())
    flight.headers(200, 2)
    return BodyStamps(flight, {name.replace("_", "-"): value for name, value in headers.items()}), flight.call


@pytest.mark.parametrize(
    ("headers", "ended"),
    [
        (EVENTS, True),
        ({**EVENTS, "content-encoding": "identity"}, True),
        ({**EVENTS, "content-encoding": "gzip"}, False),
        ({"content-type": "text/plain"}, False),
        ({}, False),
        ({"content-length": str(len(DONE))}, True),
        ({"content-length": str(len(DONE)), "transfer-encoding": "chunked"}, False),
        ({"content-length": str(len(DONE) + 1)}, False),
    ],
)
def test_what_ends_a_body(headers: dict[str, str], ended: bool) -> None:
    body, call = stamps(**{name.replace("-", "_"): value for name, value in headers.items()})
    body.chunk(DONE)
    assert (call.outcome == Outcome.OK) is ended
    assert (call.first_event_ns is not None) is ("text/event-stream" in str(headers) and "gzip" not in str(headers))
    body.chunk(b"more")
    assert call.bytes_received == len(DONE) + (0 if ended else 4)


class Source:
    """A stream with a name of its own, and without a `close`."""

    own = "its own"

    def __iter__(self) -> Iterator[bytes]:
        yield b"ab"
        yield b"cd"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


def test_unknown_attributes_and_no_close() -> None:
    body_stamps, call = stamps()
    body = Body(Source(), body_stamps)
    assert body.own == "its own"
    with pytest.raises(AttributeError, match="nothing"):
        body.nothing  # noqa: B018
    body.close()
    assert call.outcome == Outcome.CLOSED_EARLY


def test_chunks_close_as_a_generator_does() -> None:
    body_stamps, call = stamps()
    chunks = iter(Body(Source(), body_stamps))
    assert next(chunks) == b"ab"
    chunks.close()
    assert call.outcome == Outcome.CLOSED_EARLY
    with pytest.raises(StopIteration):
        next(chunks)


def step(awaitable: Any) -> Any:
    """Run what is never suspended."""
    try:
        awaitable.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("suspended")


def test_async_chunks_as_a_generator() -> None:
    body_stamps, call = stamps()
    chunks = AsyncBody(Source(), body_stamps).__aiter__()
    assert step(chunks.asend(None)) == b"ab"
    with pytest.raises(LookupError):
        step(chunks.athrow(LookupError("thrown in")))
    assert (call.outcome, call.error_type, call.chunks) == (Outcome.ERROR, "LookupError", 1)
    step(chunks.aclose())
    with pytest.raises(StopAsyncIteration):
        step(chunks.__anext__())


def test_async_chunks_closed_by_their_generator_exit() -> None:
    body_stamps, call = stamps()
    chunks = AsyncBody(Source(), body_stamps).__aiter__()
    step(chunks.__anext__())
    with pytest.raises(GeneratorExit):
        step(chunks.athrow(GeneratorExit))
    assert (call.outcome, call.error_type) == (Outcome.CLOSED_EARLY, None)


def test_async_body_without_aclose() -> None:
    body_stamps, call = stamps()
    step(AsyncBody(Source(), body_stamps).aclose())
    assert call.outcome == Outcome.CLOSED_EARLY
