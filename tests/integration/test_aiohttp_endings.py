"""However an exchange of aiohttp ends: one call, the right outcome and stamps, a host that notices nothing."""

import asyncio
import gc
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from loopback_servers import ScriptedServer
from scenarios import ALL, EVENTS, Endings, check_ending

import mock_server
from occupancy import Outcome

JSON = "/generate/plan?x-mock-delay-ms=0"
CHAT = {"model": "gpt-test", "stream": True, "messages": []}
HANG_BEFORE, HANG_IN = {"x-mock-hang": "before-headers"}, {"x-mock-hang": "mid-body"}


class AiohttpStack:
    """aiohttp, in the ways of `conftest.watch`."""

    name, flavour = "aiohttp", "asyncio"

    def __init__(self, gateway: mock_server.GatewayUrl) -> None:
        self.gateway = gateway

    def run(self, scenario: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        async def main() -> Any:
            async with aiohttp.ClientSession() as session:
                return await scenario(session, *args[1:])

        return asyncio.run(main())

    async def in_flight(self, count: int) -> None:
        """Wait until the server has so many requests."""
        await asyncio.to_thread(self.gateway.wait_in_flight, count)


@pytest.fixture
def stack(fresh: None, gateway: mock_server.GatewayUrl) -> AiohttpStack:
    return AiohttpStack(gateway)


ENDINGS = Endings()
ending = ENDINGS.declare


@dataclass
class Servers:
    """Where requests go."""

    stack: AiohttpStack
    script: Callable[..., str]

    @property
    def json(self) -> str:
        return self.stack.gateway + JSON

    @property
    def chat(self) -> str:
        return self.stack.gateway + "/v1/chat/completions"


def masked(body: bytes) -> bytes:
    return re.sub(rb"\d+", b"N", body)


# Read to the end


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
async def content_length(session: Any, servers: Servers) -> Any:
    async with session.get(servers.json) as response:
        return response.status, await response.read()


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
async def chunked(session: Any, servers: Servers) -> Any:
    async with session.get(servers.json, headers={"x-mock-framing": "chunked", "x-mock-chunks": "5"}) as response:
        return b"".join([piece async for piece in response.content.iter_any()])


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
async def compressed(session: Any, servers: Servers) -> Any:
    async with session.get(servers.json, headers={"x-mock-gzip": "1"}) as response:
        return await response.json()


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
async def compressed_events(session: Any, servers: Servers) -> Any:
    async with session.post(servers.chat, json=CHAT, headers={"x-mock-gzip": "1"}) as response:
        return masked(await response.read())


@ending(Outcome.OK, 200, EVENTS, end="last_byte_ns")
async def events(session: Any, servers: Servers) -> Any:
    async with session.post(servers.chat, json=CHAT, headers={"x-mock-ping": "2"}) as response:
        return masked(b"".join([line async for line in response.content]))


@ending(Outcome.OK, 200, EVENTS, end="last_byte_ns")
async def last_event_then_no_end(session: Any, servers: Servers) -> Any:
    """The host leaves at the last event; the server never ends the body."""
    async with session.post(servers.chat, json=CHAT, headers={"x-mock-hang": "after-body"}) as response:
        async for line in response.content:
            if line == b"data: [DONE]\n":
                assert await response.content.readline() == b"\n"
                return response.status


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
async def never_read(session: Any, servers: Servers) -> Any:
    """Its bytes come all the same."""
    response = await session.get(servers.json)
    while not response.content.is_eof():
        await asyncio.sleep(0)
    return response.status


@ending(Outcome.OK, 204, "headers", end="headers_ns")
async def no_content(session: Any, servers: Servers) -> Any:
    async with session.get(servers.json, headers={"x-mock-status": "204"}) as response:
        return await response.read()


@ending(Outcome.OK, 304, "headers", end="headers_ns")
async def not_modified(session: Any, servers: Servers) -> Any:
    async with session.get(servers.json, headers={"x-mock-status": "304"}) as response:
        return await response.read()


@ending(Outcome.OK, 200, "headers", end="headers_ns")
async def head(session: Any, servers: Servers) -> Any:
    async with session.head(servers.json) as response:
        return await response.read()


@ending(Outcome.OK, 200, "headers", end="headers_ns")
async def length_of_none(session: Any, servers: Servers) -> Any:
    async with session.get(servers.script(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as response:
        return await response.read()


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
async def until_close(session: Any, servers: Servers) -> Any:
    async with session.get(servers.script(b"HTTP/1.0 200 OK\r\n\r\n", b"half ", b"and half")) as response:
        return await response.read()


@ending(Outcome.OK, 200, "headers", end="headers_ns")
async def nothing_until_close(session: Any, servers: Servers) -> Any:
    async with session.get(servers.script(b"HTTP/1.0 200 OK\r\n\r\n")) as response:
        return await response.read()


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
async def continued(session: Any, servers: Servers) -> Any:
    answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"
    async with session.get(servers.script(answer)) as response:
        return await response.read()


@ending(Outcome.OK, 101, "headers", end="headers_ns")
async def websocket(session: Any, servers: Servers) -> Any:
    """A protocol of its own begins at the headers; the key it must answer to is known beforehand here."""
    answer = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
        b"Sec-WebSocket-Accept: wrong\r\n\r\n"
    )
    await session.ws_connect(servers.script(answer))


# Failed by the server's word


@ending(Outcome.HTTP_ERROR, 429, ALL, error="429", end="last_byte_ns")
async def too_many_requests(session: Any, servers: Servers) -> Any:
    async with session.get(servers.json, headers={"x-mock-status": "429"}) as response:
        return await response.read()


# Left by the program


@ending(Outcome.CLOSED_EARLY, 200, ALL)
async def left_in_the_middle(session: Any, servers: Servers) -> Any:
    async with session.get(servers.json, headers=HANG_IN) as response:
        return len(await response.content.read(1))


@ending(Outcome.CLOSED_EARLY, 200, ALL)
async def closed_in_the_middle(session: Any, servers: Servers) -> Any:
    response = await session.get(servers.json, headers=HANG_IN)
    await response.content.read(1)
    response.close()
    return response.status


@ending(Outcome.CLOSED_EARLY, 500, ALL)
async def raised_for_status(session: Any, servers: Servers) -> Any:
    headers = {"x-mock-status": "500", **HANG_IN}
    response = await session.get(servers.json, headers=headers)
    await response.content.read(1)
    response.raise_for_status()


class WorkError(Exception):
    """The host's."""


@ending(Outcome.CLOSED_EARLY, 200, ALL)
async def exception_in_the_loop(session: Any, servers: Servers) -> Any:
    async with session.get(servers.json, headers=HANG_IN) as response:
        async for _ in response.content.iter_any():
            raise WorkError("the host's own", 7)


@ending(Outcome.ABANDONED, 200, ALL, end="last_byte_ns")
async def session_closed_over_a_body(session: Any, servers: Servers) -> Any:
    response = await session.get(servers.json, headers=HANG_IN)
    got = len(await response.content.read(1))
    del response
    await session.close()
    await asyncio.sleep(0)
    gc.collect()
    return got


# Cancelled, or out of time


@ending(Outcome.CANCELLED, None, "", error="CancelledError")
async def cancelled_before_headers(session: Any, servers: Servers) -> Any:
    task = asyncio.ensure_future(session.get(servers.json, headers=HANG_BEFORE))
    await servers.stack.in_flight(1)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


@ending(Outcome.CANCELLED, 200, ALL, error="CancelledError")
async def cancelled_in_the_body(session: Any, servers: Servers) -> Any:
    got = asyncio.Event()

    async def read() -> None:
        async with session.get(servers.json, headers=HANG_IN) as response:
            async for _ in response.content.iter_any():
                got.set()

    task = asyncio.ensure_future(read())
    await got.wait()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


@ending(Outcome.CLOSED_EARLY, 200, ALL)
async def waited_in_vain(session: Any, servers: Servers) -> Any:
    """A wait that was given up is no failure where the program goes on, and had more to read."""
    headers = {"x-mock-hang": "after-body", "x-mock-framing": "chunked", "x-mock-chunks": "2"}
    async with session.get(servers.json, headers=headers) as response:
        await response.content.readexactly(9)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.readexactly(99), 0.05)
        waiting = asyncio.ensure_future(response.content.readany())
        await asyncio.sleep(0)
        response.content.feed_data(b"more")
        return await waiting


@ending(Outcome.TIMEOUT, None, "", error="SocketTimeoutError")
async def read_timeout(session: Any, servers: Servers) -> Any:
    await session.get(servers.json, headers=HANG_BEFORE, timeout=aiohttp.ClientTimeout(sock_read=0.02))


@ending(Outcome.TIMEOUT, None, "", error="TimeoutError")
async def total_timeout(session: Any, servers: Servers) -> Any:
    await session.get(servers.json, headers=HANG_BEFORE, timeout=aiohttp.ClientTimeout(total=0.05))


@ending(Outcome.TIMEOUT, 200, ALL, error="SocketTimeoutError")
async def read_timeout_in_the_body(session: Any, servers: Servers) -> Any:
    async with session.get(servers.json, headers=HANG_IN, timeout=aiohttp.ClientTimeout(sock_read=0.05)) as response:
        await response.read()


@ending(Outcome.TIMEOUT, 200, ALL, error="TimeoutError")
async def total_timeout_in_the_body(session: Any, servers: Servers) -> Any:
    async with session.get(servers.json, headers=HANG_IN, timeout=aiohttp.ClientTimeout(total=0.2)) as response:
        async for _ in response.content.iter_any():
            pass


# Failed


@ending(Outcome.ERROR, None, "", error="ClientConnectorError")
async def connect_error(session: Any, servers: Servers) -> Any:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        await session.get(f"http://127.0.0.1:{taken.getsockname()[1]}{JSON}")


@ending(Outcome.ERROR, None, "", error="ServerDisconnectedError")
async def cut_before_headers(session: Any, servers: Servers) -> Any:
    await session.post(servers.json, headers={"x-mock-cut": "before-headers"})  # a GET is sent again


@ending(Outcome.ERROR, None, "", error="ClientResponseError")
async def no_http(session: Any, servers: Servers) -> Any:
    await session.post(servers.script(b"SSH-2.0-OpenSSH_9.6\r\n"))


@ending(Outcome.ERROR, 200, "headers", error="ClientPayloadError")
async def cut_before_the_body(session: Any, servers: Servers) -> Any:
    async with session.get(servers.script(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")) as response:
        await response.read()


@ending(Outcome.ERROR, 200, ALL, error="ClientPayloadError")
async def cut_in_the_body(session: Any, servers: Servers) -> Any:
    async with session.get(servers.script(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"half")) as response:
        await response.read()


@ending(Outcome.ERROR, 200, ALL, error="ClientPayloadError")
async def cut_between_chunks(session: Any, servers: Servers) -> Any:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with session.get(servers.script(head, b"2\r\nab\r\n")) as response:
        await response.read()


@pytest.fixture
def script() -> Iterator[Callable[..., str]]:
    """Serve one connection with these pieces, then close: `script(*pieces)` gives the URL."""
    with ScriptedServer() as scripted:
        yield scripted.serve


@pytest.mark.parametrize("name", ENDINGS)
def test_ending(stack: Any, compare: Any, script: Any, name: str) -> None:
    expected = ENDINGS[name]
    seen, log = compare(stack, expected.scenario, Servers(stack, script))
    assert seen.result is not None or seen.error is not None
    assert log.in_flight == 0
    (call,) = log.calls
    check_ending(call, expected, "aiohttp", expected.error)
