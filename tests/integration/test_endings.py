"""However an exchange ends: one call for each attempt, the right outcome and stamps, a host that notices nothing."""

import datetime
import gc
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from occupancy import Call, Outcome

ORDER = ("start_ns", "headers_ns", "first_byte_ns", "first_event_ns", "last_byte_ns", "end_ns", "released_ns")
JSON = "/generate/plan?x-mock-delay-ms=0"
CHAT = {"model": "gpt-test", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


@dataclass
class Ending:
    """What a scenario must leave in the log."""

    scenario: Callable[..., Any]
    outcome: Outcome
    status: int | None
    error_type: str | None
    stamps: set[str]
    hops: list[int] = field(default_factory=list)
    end: str | None = None
    flavours: tuple[str, ...] = ("sync", "asyncio", "trio")


ENDINGS: dict[str, Ending] = {}
ALL = "headers first_byte last_byte"
EVENTS = "headers first_byte first_event last_byte"
ASYNC = ("asyncio", "trio")


def ending(outcome: Outcome, status: int | None, stamps: str, *, error: str | None = None, **options: Any) -> Any:
    """Declare what a scenario must leave."""

    def declare(scenario: Callable[..., Any]) -> Callable[..., Any]:
        ENDINGS[scenario.__name__] = Ending(scenario, outcome, status, error, set(stamps.split()), **options)
        return scenario

    return declare


def facts(stack: Any, response: Any) -> dict[str, Any]:
    """What a host can ask a response."""
    varying = {"date", "x-request-id", "request-id"}
    base = stack.library.AsyncByteStream if stack.is_async else stack.library.SyncByteStream
    return {
        "status": response.status_code,
        "headers": [(name, value) for name, value in response.headers.multi_items() if name not in varying],
        "closed": response.is_closed,
        "consumed": response.is_stream_consumed,
        "stream": isinstance(response.stream, base),
        "history": [past.status_code for past in response.history],
        "elapsed": isinstance(response.elapsed, datetime.timedelta) if response.is_closed else None,
        "extensions": sorted(response.extensions),
    }


def masked(body: bytes) -> bytes:
    """A body without the numbers by which two answers differ."""
    return re.sub(rb"\d+", b"N", body)


async def opened_response(stack: Any, client: Any, target: str, **options: Any) -> Any:
    """A response whose body is not read."""
    request = client.build_request("GET", stack.gateway + target, **options)
    return await stack.done(client.send(request, stream=True))


# Read to the end


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
async def content_length(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await stack.done(client.get(stack.gateway + JSON))
        return facts(stack, response), response.content, response.num_bytes_downloaded


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
async def chunked(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        headers = {"x-mock-framing": "chunked", "x-mock-chunks": "5"}
        response = await stack.done(client.get(stack.gateway + JSON, headers=headers))
        return facts(stack, response), response.content, response.num_bytes_downloaded


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
async def compressed(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await stack.done(client.get(stack.gateway + JSON, headers={"x-mock-gzip": "1"}))
        return facts(stack, response), response.content, response.num_bytes_downloaded


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
async def compressed_events(stack: Any) -> Any:
    return await read_events(stack, "/v1/chat/completions", CHAT, {"x-mock-gzip": "1"})


@ending(Outcome.OK, 200, EVENTS, end="last_byte_ns")
async def chat_events(stack: Any) -> Any:
    return await read_events(stack, "/v1/chat/completions", CHAT, {"x-mock-ping": "2"})


@ending(Outcome.OK, 200, EVENTS, end="last_byte_ns")
async def response_events(stack: Any) -> Any:
    return await read_events(stack, "/v1/responses", {"model": "m", "stream": True, "input": "hello"}, {})


@ending(Outcome.OK, 200, EVENTS, end="last_byte_ns")
async def message_events(stack: Any) -> Any:
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    return await read_events(stack, "/v1/messages", body, {})


async def read_events(stack: Any, path: str, body: Any, headers: dict[str, str]) -> Any:
    async with (
        stack.opened(stack.client()) as client,
        stack.opened(client.stream("POST", stack.gateway + path, json=body, headers=headers)) as response,
    ):
        lines = [line async for line in stack.pieces(response, "lines")]
    return facts(stack, response), masked("\n".join(lines).encode())


@ending(Outcome.OK, 200, EVENTS, end="last_byte_ns")
async def last_event_then_no_end(stack: Any) -> Any:
    """The host leaves at the last event, as SDKs do; the server never ends the body."""
    headers = {"x-mock-hang": "after-body"}
    async with (
        stack.opened(stack.client()) as client,
        stack.opened(
            client.stream("POST", stack.gateway + "/v1/chat/completions", json=CHAT, headers=headers)
        ) as response,
    ):
        async for line in stack.pieces(response, "lines"):
            if line == "data: [DONE]":
                break
    return facts(stack, response)


@ending(Outcome.OK, 200, EVENTS, end="last_byte_ns")
async def last_event_then_cut(stack: Any) -> Any:
    """The answer is complete; what the host gets for the body's missing end is its own."""
    async with stack.opened(stack.client()) as client:
        headers = {"x-mock-cut": "after-body"}
        await stack.done(client.post(stack.gateway + "/v1/chat/completions", json=CHAT, headers=headers))


@ending(Outcome.OK, 204, "headers", end="headers_ns")
async def no_content(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await stack.done(client.get(stack.gateway + JSON, headers={"x-mock-status": "204"}))
        return facts(stack, response), response.content


@ending(Outcome.OK, 304, "headers", end="headers_ns")
async def not_modified(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await stack.done(client.get(stack.gateway + JSON, headers={"x-mock-status": "304"}))
        return facts(stack, response), response.content


@ending(Outcome.OK, 200, "headers", end="headers_ns")
async def head(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await stack.done(client.head(stack.gateway + JSON))
        return facts(stack, response), response.content


@ending(Outcome.OK, 200, ALL, end="last_byte_ns", hops=[307, 307, 200])
async def redirects(stack: Any) -> Any:
    async with stack.opened(stack.client(follow_redirects=True)) as client:
        response = await stack.done(client.get(stack.gateway + JSON, headers={"x-mock-redirect": "2"}))
        return facts(stack, response), response.content


@ending(Outcome.OK, 307, "headers", end="headers_ns")
async def redirect_not_followed(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await stack.done(client.get(stack.gateway + JSON, headers={"x-mock-redirect": "1"}))
        return facts(stack, response), str(response.next_request.url.path)


# Failed by the server's word


@ending(Outcome.HTTP_ERROR, 429, ALL, error="429", end="last_byte_ns")
async def too_many_requests(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await stack.done(client.get(stack.gateway + JSON, headers={"x-mock-status": "429"}))
        response.raise_for_status()


@ending(Outcome.HTTP_ERROR, 500, ALL, error="500", end="last_byte_ns")
async def server_error(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await stack.done(client.get(stack.gateway + JSON, headers={"x-mock-status": "500"}))
        return facts(stack, response), response.content


@ending(Outcome.CLOSED_EARLY, 404, "headers")
async def not_found_closed_unread(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await opened_response(stack, client, JSON, headers={"x-mock-status": "404"})
        await stack.close(response)
        return facts(stack, response)


@ending(Outcome.ABANDONED, 500, "headers", end="headers_ns")
async def server_error_never_closed(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await opened_response(stack, client, JSON, headers={"x-mock-status": "500"})
        status = response.status_code
        del response
        gc.collect()
        return status


# Left by the program


@ending(Outcome.CLOSED_EARLY, 200, ALL)
async def left_in_the_middle(stack: Any) -> Any:
    async with (
        stack.opened(stack.client()) as client,
        stack.opened(client.stream("GET", stack.gateway + JSON, headers={"x-mock-hang": "mid-body"})) as response,
    ):
        async for _ in stack.pieces(response):
            break
    return facts(stack, response)


@ending(Outcome.CLOSED_EARLY, 200, ALL)
async def left_bare_iterator(stack: Any) -> Any:
    """Letting go of the iterator closes the body, asynchronously a little later, although the response is held."""
    async with stack.opened(stack.client()) as client:
        response = await opened_response(stack, client, JSON, headers={"x-mock-hang": "mid-body"})
        async for _ in stack.pieces(response):
            break
        gc.collect()
        await stack.in_thread(stack.gateway.wait_in_flight, 0)
        return facts(stack, response)


@ending(Outcome.CLOSED_EARLY, 200, "headers")
async def closed_unread(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await opened_response(stack, client, JSON)
        await stack.close(response)
        return facts(stack, response)


@ending(Outcome.CLOSED_EARLY, 200, "headers")
async def stream_block_unread(stack: Any) -> Any:
    async with (
        stack.opened(stack.client()) as client,
        stack.opened(client.stream("GET", stack.gateway + JSON)) as response,
    ):
        pass
    return facts(stack, response)


@ending(Outcome.ABANDONED, 200, "headers", end="headers_ns")
async def never_read_and_collected(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await opened_response(stack, client, JSON)
        del response
        gc.collect()


@ending(Outcome.ABANDONED, 200, ALL, end="last_byte_ns")
async def half_read_and_collected(stack: Any) -> Any:
    """The collector runs the generators' clean-up, which closes the response: at its time, not the program's."""
    async with stack.opened(stack.client()) as client:
        response = await opened_response(stack, client, JSON, headers={"x-mock-hang": "mid-body"})
        cycle = [response, stack.pieces(response)]
        cycle.append(cycle)
        await cycle[1].__anext__()
        del response, cycle
        gc.collect()
        for _ in range(20):
            await stack.step()


class WorkError(Exception):
    """The host's."""


@ending(Outcome.CLOSED_EARLY, 200, ALL)
async def exception_in_the_loop(stack: Any) -> Any:
    async with (
        stack.opened(stack.client()) as client,
        stack.opened(client.stream("GET", stack.gateway + JSON, headers={"x-mock-hang": "mid-body"})) as response,
    ):
        async for _ in stack.pieces(response):
            raise WorkError("the host's own", 7)


async def chunks_of(stack: Any, client: Any) -> Any:
    """A host's own generator over a response."""
    async with stack.opened(
        client.stream("GET", stack.gateway + JSON, headers={"x-mock-hang": "mid-body"})
    ) as response:
        async for chunk in stack.pieces(response):
            yield chunk


@ending(Outcome.CLOSED_EARLY, 200, ALL)
async def generator_closed_in_another_task(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        chunks = chunks_of(stack, client)
        first = await chunks.__anext__()
        await stack.at_once(chunks.aclose)
        return first


# Cancelled


@ending(Outcome.CANCELLED, None, "", error="CANCELLED", flavours=ASYNC)
async def cancelled_before_headers(stack: Any) -> Any:
    async with stack.client() as client:
        return await stack.cancel_when(
            lambda: stack.in_thread(stack.gateway.wait_in_flight, 1),
            lambda: client.get(stack.gateway + JSON, headers={"x-mock-hang": "before-headers"}),
        )


@ending(Outcome.CANCELLED, 200, ALL, error="CANCELLED", flavours=ASYNC)
async def cancelled_in_the_body(stack: Any) -> Any:
    pieces = []

    async def read() -> None:
        async with client.stream("GET", stack.gateway + JSON, headers={"x-mock-hang": "mid-body"}) as response:
            async for piece in response.aiter_raw():
                pieces.append(piece)

    async with stack.client() as client:
        return await stack.cancel_when(lambda: stack.until(lambda: bool(pieces)), read), pieces


@ending(Outcome.CANCELLED, None, "", error="CANCELLED", flavours=ASYNC)
async def timed_out_by_the_loop(stack: Any) -> Any:
    """`asyncio.timeout` and `trio.fail_after` cancel."""
    async with stack.client() as client:
        await stack.time_out_when(
            lambda: stack.in_thread(stack.gateway.wait_in_flight, 1),
            lambda: client.get(stack.gateway + JSON, headers={"x-mock-hang": "before-headers"}),
        )


# Failed


@pytest.fixture(scope="module")
def refusing_port() -> Any:
    """A loopback port that is taken, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@ending(Outcome.ERROR, None, "", error="ConnectError")
async def connect_error(stack: Any, port: int) -> Any:
    async with stack.opened(stack.client()) as client:
        await stack.done(client.get(f"http://127.0.0.1:{port}{JSON}"))


@ending(Outcome.TIMEOUT, None, "", error="ReadTimeout")
async def read_timeout(stack: Any) -> Any:
    async with stack.opened(stack.client(timeout=stack.library.Timeout(5, read=0.02))) as client:
        await stack.done(client.get(stack.gateway + JSON, headers={"x-mock-hang": "before-headers"}))


@ending(Outcome.TIMEOUT, 200, ALL, error="ReadTimeout")
async def read_timeout_in_the_body(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        response = await opened_response(stack, client, JSON, headers={"x-mock-hang": "mid-body"})
        response.request.extensions["timeout"]["read"] = 0.02  # from here on
        await stack.read(response)


@ending(Outcome.ERROR, None, "", error="RemoteProtocolError")
async def cut_before_headers(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        await stack.done(client.get(stack.gateway + JSON, headers={"x-mock-cut": "before-headers"}))


@ending(Outcome.ERROR, 200, ALL, error="RemoteProtocolError")
async def cut_in_the_body(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        await stack.done(client.get(stack.gateway + JSON, headers={"x-mock-cut": "mid-body"}))


@ending(Outcome.ERROR, 200, "headers", error="RemoteProtocolError")
async def cut_before_the_body(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        await stack.done(client.get(stack.gateway + JSON, headers={"x-mock-cut": "before-body"}))


@pytest.mark.parametrize("name", ENDINGS)
def test_ending(stack: Any, compare: Any, refusing_port: int, name: str) -> None:
    expected = ENDINGS[name]
    if stack.flavour not in expected.flavours:
        pytest.skip("nothing cancels a synchronous call")
    arguments = [refusing_port] if expected.scenario is connect_error else []
    seen, log = compare(stack, expected.scenario, *arguments)
    assert seen.result is not None or seen.error is not None or "collected" in name
    assert log.in_flight == 0
    assert log.open_calls == []
    hops = expected.hops or [expected.status]
    assert [call.status for call in log.calls] == hops
    check_attempts(log.calls)
    for call in log.calls:
        check_order(call)
    check_ending(log.calls[-1], expected, stack)


def check_attempts(calls: list[Call]) -> None:
    assert [call.attempt for call in calls] == list(range(len(calls)))
    assert {call.logical_id for call in calls} == {calls[0].call_id}
    assert len({call.call_id for call in calls}) == len(calls)


def check_order(call: Call) -> None:
    stamps = [getattr(call, name) for name in ORDER]
    present = [stamp for stamp in stamps if stamp is not None]
    assert present == sorted(present), dict(zip(ORDER, stamps, strict=True))
    assert (call.first_byte_ns is None) == (call.last_byte_ns is None) == (call.chunks == 0)


def check_ending(call: Call, expected: Ending, stack: Any) -> None:
    cancelled = {"asyncio": "CancelledError", "trio": "Cancelled"}.get(stack.flavour)
    error = cancelled if expected.error_type == "CANCELLED" else expected.error_type
    assert (call.outcome, call.status, call.error_type) == (expected.outcome, expected.status, error)
    named = ("headers", "first_byte", "first_event", "last_byte")
    assert {name for name in named if getattr(call, f"{name}_ns") is not None} == expected.stamps
    if expected.end is not None:
        assert call.end_ns == getattr(call, expected.end)
    assert call.client == stack.name


async def wait_in_the_pool(stack: Any, wait: Callable[[Any], Any]) -> Any:
    """One call holds the only connection while another waits for it."""
    limits = stack.library.Limits(max_connections=1)
    async with stack.opened(stack.client(limits=limits)) as client:
        holder = await opened_response(stack, client, JSON)
        try:
            return await wait(client)
        finally:
            await stack.read(holder)


async def cancelled_in_the_pool(stack: Any) -> Any:
    async def wait(client: Any) -> Any:
        return await stack.cancel_when(
            lambda: stack.until(lambda: "1 queued" in repr(client._transport._pool)),
            lambda: client.get(stack.gateway + JSON),
        )

    return await wait_in_the_pool(stack, wait)


async def pool_timeout(stack: Any) -> Any:
    async def wait(client: Any) -> Any:
        timeout = stack.library.Timeout(5, pool=0.01)
        return await stack.done(client.get(stack.gateway + JSON, timeout=timeout))

    return await wait_in_the_pool(stack, wait)


def test_cancelled_in_the_pool(async_stack: Any, compare: Any) -> None:
    seen, log = compare(async_stack, cancelled_in_the_pool)
    waiter, holder = log.calls
    assert seen.result is True
    assert (waiter.outcome, waiter.status) == (Outcome.CANCELLED, None)
    assert holder.outcome == Outcome.OK
    assert waiter.connection_reused is None
    assert 0 < waiter.pool_ns <= waiter.end_ns - waiter.start_ns - waiter.client_ns
    assert log.in_flight == 0


def test_pool_timeout(stack: Any, compare: Any) -> None:
    seen, log = compare(stack, pool_timeout)
    waiter, holder = log.calls
    assert seen.error[0] is stack.library.PoolTimeout
    assert (waiter.outcome, waiter.error_type, waiter.connection_reused) == (Outcome.TIMEOUT, "PoolTimeout", None)
    assert waiter.pool_ns > 0
    assert (holder.outcome, holder.status) == (Outcome.OK, 200)
    assert log.in_flight == 0
