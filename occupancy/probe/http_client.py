"""Sends a target's request over plain HTTP/1.1: no retries, no redirects, no time-out but the probe's own."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from occupancy.call import Call
from occupancy.instrumentation.httpx_hooks import trail_of
from occupancy.probe.client import Answer, Opener, Request, describe, retry_after
from occupancy.probe.target import Target

KEEP_ALIVE_S = 300.0
MOST_BODY_BYTES = 16 * 2**20
NS = 1e9


@asynccontextmanager
async def open_target(target: Target, workers: int) -> AsyncIterator[Opener]:
    """Open one client for a whole probe, so that a level meets the connections of the one before.

    Args:
        target: What to ask.
        workers: The most that will be in flight: the size of the pool.
    """
    limits = httpx2.Limits(max_connections=workers, max_keepalive_connections=workers, keepalive_expiry=KEEP_ALIVE_S)
    async with httpx2.AsyncClient(limits=limits, timeout=None, http2=False, follow_redirects=False) as client:
        request = _request_of(client, target)

        @asynccontextmanager
        async def open_request(workers: int) -> AsyncIterator[Request]:
            yield request

        yield open_request


def _request_of(client: httpx2.AsyncClient, target: Target) -> Request:
    url, headers = target.full_url, target.request_headers()

    async def send() -> Answer:
        request = client.build_request(target.method, url, headers=headers, content=target.request_body() or None)
        try:
            return await _exchange(client, request, target)
        except httpx2.TimeoutException as error:
            raise TimeoutError(target.scrub(describe(error))) from None
        except httpx2.HTTPError as error:
            return Answer(error=target.scrub(fault_of(error, target.shown_url)))

    return send


async def _exchange(client: httpx2.AsyncClient, request: httpx2.Request, target: Target) -> Answer:
    loop = asyncio.get_running_loop()
    response = await client.send(request, stream=True)
    try:
        first_byte_s, body = None, bytearray()
        async for piece in response.aiter_bytes():
            first_byte_s = first_byte_s or loop.time()
            body += piece
            if len(body) > MOST_BODY_BYTES:
                return Answer(status=response.status_code, error=f"the answer is longer than {MOST_BODY_BYTES} bytes")
    finally:
        await response.aclose()
    return _answer(response, bytes(body), first_byte_s, target, _call_of(request))


def _answer(
    response: httpx2.Response, body: bytes, first_byte_s: float | None, target: Target, call: Call | None
) -> Answer:
    stamps = {} if call is None else _stamps(call)
    status = response.status_code
    if status >= 300:
        error: str | None = f"status {status}{_reason(response, body, target)}"
    else:
        error = target.fault_of(response.headers.get("content-type", ""), body)
        if error is not None and b'"error"' in body:  # a gateway that answers 200 all the same
            error += _reason(response, body, target)
    tokens = target.tokens_of(body) if status < 300 else (None, None)
    return Answer(
        status=status,
        first_byte_s=first_byte_s,
        error=error,
        retry_after_s=retry_after(response.headers),
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        **stamps,
    )


def _stamps(call: Call) -> dict[str, float | None]:
    """Give what the trace knows better: the phases, and the first event of a stream."""

    def seconds(ns: int | None) -> float | None:
        return None if ns is None else ns / NS

    return {
        "first_event_s": seconds(call.first_event_ns),
        "pool_s": seconds(call.pool_ns),
        "connect_s": seconds(call.connect_ns),
        "tls_s": seconds(call.tls_ns),
        "wire_s": None if call.wait_ns is None or call.receive_ns is None else (call.wait_ns + call.receive_ns) / NS,
    }


def _call_of(request: httpx2.Request) -> Call | None:
    trail = trail_of(request)
    return None if trail is None else trail.call


def _reason(response: httpx2.Response, body: bytes, target: Target) -> str:
    """Give an error's message in one line, without secrets; nothing where there is none."""
    if 300 <= response.status_code < 400:
        return ": a redirect, which is not followed"
    try:
        told: Any = json.loads(body)
        told = told.get("error", told)
        told = told.get("message", told) if isinstance(told, dict) else told
    except (ValueError, AttributeError):
        return ""
    return f": {target.scrub(' '.join(str(told).split()))[:150]}"


def fault_of(error: BaseException, url: str) -> str:
    """Say in one line what failed, and in which layer: name look-up, TLS, connecting, or the answer itself."""
    causes = list(_chain(error))
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        layer = "the name cannot be looked up"
    elif any(isinstance(cause, ssl.SSLError) for cause in causes):
        layer = "TLS failed"
    elif isinstance(error, httpx2.ConnectError):
        layer = "nobody accepts connections"
    else:
        return describe(error)
    return f"cannot connect to {url}: {layer}: {describe(error)}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Give an exception with all that led to it; those of a group too, as when every address fails."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                yield from _chain(inner)
        error = error.__cause__ or error.__context__
