"""An answer on its way out: its waits, its pieces, and the place where it stops."""

import copy
from collections.abc import Mapping
from dataclasses import replace

import anyio
from starlette.types import Receive, Scope, Send

from mock_server.content import PING, Content, compress, split_evenly
from mock_server.faults import Faults, Framing, Place

BODILESS_STATUSES = frozenset({204, 304})
# Key in the ASGI scope's state; the server puts a function there that closes the connection.
HANG_UP = "mock_server.hang_up"


class Reply:
    """An ASGI response that obeys the faults of its request.

    Args:
        content: the body.
        faults: what goes wrong, and when.
        status: HTTP status.
        headers: further headers.
        delay_ms: wait before the headers, unless the faults name another.
    """

    def __init__(
        self, content: Content, faults: Faults, *, status: int, headers: Mapping[str, str], delay_ms: float
    ) -> None:
        self._faults = faults
        self._status = status
        self._pieces = [] if status in BODILESS_STATUSES else _wire_pieces(content, faults)
        self._headers = {**headers, **self._body_headers(content)}
        self._delay_ms = delay_ms if faults.delay_ms is None else faults.delay_ms
        self._is_events = content.is_events

    def taking(self, service_ms: float, *, spread: bool) -> "Reply":
        """The same answer with another delay; one that its faults name still wins.

        Args:
            service_ms: time from now to the last byte, in ms.
            spread: let the pieces of an event stream come evenly within that time, not all at its end.
        """
        other = copy.copy(self)
        other._delay_ms = service_ms if self._faults.delay_ms is None else self._faults.delay_ms
        if spread and self._is_events and self._pieces and self._faults.delay_ms is None:
            other._delay_ms = gap_ms = service_ms / len(self._pieces)
            other._faults = replace(self._faults, chunk_gap_ms=self._faults.chunk_gap_ms + gap_ms)
        return other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, as the faults have it."""
        await _pause(self._delay_ms)
        await self._stop_at(Place.BEFORE_HEADERS, scope)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await _pause(self._faults.body_delay_ms)
        await self._stop_at(Place.BEFORE_BODY, scope)
        if scope["method"] != "HEAD":
            await self._send_pieces(scope, send)
        await self._stop_at(Place.AFTER_BODY, scope)
        # An empty last message, so that the server has drained the last piece before this one counts as sent.
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_pieces(self, scope: Scope, send: Send) -> None:
        half = (len(self._pieces) + 1) // 2
        for index, piece in enumerate(self._pieces):
            if index == half:
                await self._stop_at(Place.MID_BODY, scope)
            if index:
                await _pause(self._faults.chunk_gap_ms)
            await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _stop_at(self, place: Place, scope: Scope) -> None:
        if self._faults.cut == place:
            hang_up = scope.get("state", {}).get(HANG_UP)
            if hang_up is None:
                raise ConnectionAbortedError(f"cut {place}, and the server offers no way to close the connection")
            hang_up()
        # After a cut too: the count falls when the connection is really gone, which ends this wait.
        if place in (self._faults.cut, self._faults.hang):
            await anyio.sleep_forever()

    def _body_headers(self, content: Content) -> dict[str, str]:
        if self._status in BODILESS_STATUSES:
            return {}
        headers = {"content-type": content.media_type}
        if self._faults.gzip:
            headers["content-encoding"] = "gzip"
        if _framing(content, self._faults) is Framing.LENGTH:
            headers["content-length"] = str(sum(map(len, self._pieces)))
        return headers


def _wire_pieces(content: Content, faults: Faults) -> list[bytes]:
    pings = [PING] * faults.ping if content.is_events else []
    pieces = pings + content.pieces
    if len(pieces) == 1 and Place.MID_BODY in (faults.cut, faults.hang):
        pieces = split_evenly(pieces[0], 2)
    return compress(pieces) if faults.gzip else pieces


def _framing(content: Content, faults: Faults) -> Framing:
    if faults.framing is not None:
        return faults.framing
    endless = Place.AFTER_BODY in (faults.cut, faults.hang)
    return Framing.CHUNKED if content.is_events or endless else Framing.LENGTH


async def _pause(duration_ms: float) -> None:
    if duration_ms > 0:
        await anyio.sleep(duration_ms / 1000)
