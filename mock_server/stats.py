"""Counts of what the server itself saw: the oracle that no client can distort.

A request is in flight from its arrival in the application until its last byte has been handed to the operating system,
or its client has left. `/stats` and `/stats/reset` are not counted.
"""

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNCOUNTED_PATHS = frozenset({"/stats", "/stats/reset"})


@dataclass(slots=True)
class Counter:
    """Requests in flight now, the most at once, and all arrivals; the last two since the start or the last reset."""

    in_flight: int = 0
    peak: int = 0
    total: int = 0

    def arrive(self) -> None:
        """Count one more in flight."""
        self.in_flight += 1
        self.total += 1
        self.peak = max(self.peak, self.in_flight)

    def leave(self) -> None:
        """Count one less in flight."""
        self.in_flight -= 1

    def reset(self) -> None:
        """Start anew; what is in flight stays so, and is the first peak."""
        self.peak, self.total = self.in_flight, 0


class Stats:
    """Counters of one application, over all and for each path. Safe to read from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._all = Counter()
        self._paths: dict[str, Counter] = {}

    def arrive(self, path: str) -> Callable[[], None]:
        """Count a request in.

        Returns:
            The function that counts it out; only its first call counts.
        """
        with self._changed:
            counters = [self._all, self._paths.setdefault(path, Counter())]
            for counter in counters:
                counter.arrive()
            self._changed.notify_all()

        def leave() -> None:
            with self._changed:
                while counters:
                    counters.pop().leave()
                self._changed.notify_all()

        return leave

    def snapshot(self) -> dict[str, Any]:
        """`in_flight`, `peak` and `total`, and the same three under `paths` for each path."""
        with self._changed:
            return {**asdict(self._all), "paths": {path: asdict(counter) for path, counter in self._paths.items()}}

    def reset(self) -> None:
        """Start peaks and totals anew; requests in flight stay counted."""
        with self._changed:
            self._all.reset()
            self._paths = {path: counter for path, counter in self._paths.items() if counter.in_flight}
            for counter in self._paths.values():
                counter.reset()

    def wait_in_flight(self, count: int, timeout_s: float) -> bool:
        """Block until exactly `count` requests are in flight; False if that did not happen within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._all.in_flight == count, timeout_s)


class CountInFlight:
    """ASGI middleware that counts each request, and ends it when its client leaves."""

    def __init__(self, app: ASGIApp, stats: Stats) -> None:
        self._app = app
        self._stats = stats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, counted while it is in flight."""
        if scope["type"] != "http" or scope["path"] in UNCOUNTED_PATHS:
            await self._app(scope, receive, send)
            return
        leave = self._stats.arrive(scope["path"])
        try:
            await self._answer(scope, receive, _leave_at_end(send, leave))
        finally:
            leave()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        if body is None:
            return
        # Only a pending receive() tells that the client has left, while the application waits or streams.
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(watch)
            await self._app(scope, _replay(body), send)
            group.cancel_scope.cancel()


def _leave_at_end(send: Send, leave: Callable[[], None]) -> Send:
    async def counted(message: Message) -> None:
        await send(message)
        # At once: leaving only after the task group has closed would let the client's next request arrive first.
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            leave()

    return counted


async def _read_body(receive: Receive) -> bytes | None:
    """The whole request body, or None if the client left before it was complete."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await anyio.sleep_forever()
        return messages.pop()

    return receive
