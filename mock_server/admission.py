"""Drives the model of `mock_server.gateway` in an asyncio event loop, by the loop's own clock: real or virtual."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from mock_server.gateway import Limits, Line, RefusedError, Ticket


class OverdueError(Exception):
    """A request has not been finished within the gateway's time-out."""


class Desk:
    """Lets requests in and out of a `Line`, and tells those in line when their turn has come."""

    def __init__(self, limits: Limits) -> None:
        self.line = Line(limits)
        self._turns: dict[int, asyncio.Future[None] | None] = {}

    @asynccontextmanager
    async def admit(self, tokens: int = 0, prompt: str | None = None) -> AsyncIterator[Ticket]:
        """Wait for a slot and hold it for the block, whose work takes the ticket's `service_s`.

        Raises:
            RefusedError: The answer is 429.
            OverdueError: The time-out has passed, or will before the work ends; raised when it passes.
        """
        loop = asyncio.get_running_loop()
        limits = self.line.limits
        arrived_s = loop.time()
        if limits.outside_s:
            await asyncio.sleep(limits.outside_s)
        ticket = self.line.arrive(loop.time(), tokens, prompt)
        deadline_s = math.inf if limits.timeout_s is None else arrived_s + limits.timeout_s
        try:
            await self._wait_turn(ticket, deadline_s)
            yield ticket
        except (asyncio.CancelledError, OverdueError):
            if limits.keep_working:
                self._work_on(ticket)
            else:
                self._leave(ticket)
            raise
        except BaseException:
            self._leave(ticket)
            raise
        self._leave(ticket)

    async def _wait_turn(self, ticket: Ticket, deadline_s: float) -> None:
        """Wait for a slot; where the work would end after the deadline, stay in the slot until then."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline_s if deadline_s < math.inf else None):
                if ticket.started_s is None:
                    turn = self._turns[ticket.number] = loop.create_future()
                    await turn
                if ticket.ends_s > deadline_s:
                    await loop.create_future()
        except TimeoutError:
            raise OverdueError(f"not done after {self.line.limits.timeout_s} s") from None

    def _leave(self, ticket: Ticket) -> None:
        self._turns.pop(ticket.number, None)
        loop = asyncio.get_running_loop()
        for started in self.line.leave(ticket, loop.time()):
            turn = self._turns[started.number]
            if turn is None:
                loop.call_at(started.ends_s, self._leave, started)
            elif not turn.done():
                turn.set_result(None)

    def _work_on(self, ticket: Ticket) -> None:
        """Let nobody's request keep its place, to the end of its work."""
        if ticket.started_s is None:
            self._turns[ticket.number] = None
        else:
            asyncio.get_running_loop().call_at(ticket.ends_s, self._leave, ticket)


class Queued:
    """An ASGI response that waits for a slot, holds it while it is sent, and may be refused instead.

    Args:
        desk: Where it waits.
        reply: Gives the response, when told its service time in ms.
        refusal: Gives the error's response, when told its status, a message and further headers.
        tokens: Counted against the gateway's tokens per minute.
        prompt: The beginning of its prompt.
    """

    def __init__(
        self,
        desk: Desk,
        reply: Callable[[float], ASGIApp],
        refusal: Callable[[int, str, Mapping[str, str]], ASGIApp],
        tokens: int,
        prompt: str | None,
    ) -> None:
        self._desk = desk
        self._reply = reply
        self._refusal = refusal
        self._tokens = tokens
        self._prompt = prompt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            async with self._desk.admit(self._tokens, self._prompt) as ticket:
                await self._reply(ticket.service_s * 1000)(scope, receive, send)
        except RefusedError as error:
            refusal = self._refusal(429, str(error), _retry_after(error.retry_after_s))
            await refusal(scope, receive, send)
        except OverdueError as error:
            await self._refusal(504, str(error), {})(scope, receive, send)


def _retry_after(wait_s: float | None) -> dict[str, str]:
    """Whole seconds in the header that all know, as HTTP wants it; the exact ms in the other."""
    if wait_s is None:
        return {}
    return {"retry-after": str(math.ceil(wait_s)), "retry-after-ms": str(math.ceil(wait_s * 1000))}
