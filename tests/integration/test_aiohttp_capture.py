"""Whatever a session of aiohttp does by itself: each attempt is one call, and the host's traces see what they saw."""

import asyncio
import hashlib
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from loopback_servers import OneAnswer, Tunnel, running, trusting
from opentelemetry.instrumentation.utils import suppress_http_instrumentation, suppress_instrumentation
from scenarios import hidden

import mock_server
import occupancy
from occupancy import Call, Outcome
from occupancy.instrumentation import attempts
from occupancy.ledger import ledger

JSON = "/generate/plan?x-mock-delay-ms=0"


@pytest.fixture(autouse=True)
def at_rest(fresh: None) -> None:
    """Each test begins without open calls."""


def outcomes(calls: list[Call]) -> list[tuple[str, int | None]]:
    return [(str(call.outcome), call.status) for call in calls]


def check_one_logical(calls: list[Call], client: str = "aiohttp") -> None:
    assert [call.attempt for call in calls] == list(range(len(calls)))
    assert {call.logical_id for call in calls} == {calls[0].call_id}
    assert {call.client for call in calls} == {client}


async def get(session: Any, url: str, **options: Any) -> Any:
    async with session.get(url, **options) as response:
        return response.status, await response.read()


def record(scenario: Callable[[aiohttp.ClientSession], Any], **options: Any) -> tuple[Any, occupancy.OccupancyLog]:
    """Run a scenario in a session of its own."""

    async def main() -> Any:
        async with aiohttp.ClientSession(**options) as session:
            return await scenario(session)

    with occupancy.record() as log:
        return asyncio.run(main()), log


# Attempts of one call


def test_redirects(gateway: mock_server.GatewayUrl) -> None:
    result, log = record(lambda session: get(session, gateway + JSON, headers={"x-mock-redirect": "2"}))
    assert result[0] == 200
    assert outcomes(log.calls) == [("ok", 307), ("ok", 307), ("ok", 200)]
    check_one_logical(log.calls)
    assert log.peak == 1


def test_redirect_to_another_path(gateway: mock_server.GatewayUrl) -> None:
    headers = {"x-mock-redirect": "1", "x-mock-redirect-to": "/v1/models"}
    _, log = record(lambda session: get(session, gateway + JSON, headers=headers))
    assert [call.path for call in log.calls] == ["/generate/plan", "/v1/models"]
    check_one_logical(log.calls)


def test_lost_connection_is_tried_again(gateway: mock_server.GatewayUrl) -> None:
    headers = {"x-mock-cut": "before-headers", "x-mock-fail-first": "1", "x-mock-key": "aiohttp-lost"}

    async def lose(session: Any) -> Any:
        await get(session, gateway + JSON)
        return await get(session, gateway + JSON, headers=headers)

    (status, _), log = record(lose)
    assert status == 200
    assert [(call.outcome, call.error_type) for call in log.calls[1:]] == [
        (Outcome.ERROR, "ServerDisconnectedError"),
        (Outcome.OK, None),
    ]
    check_one_logical(log.calls[1:])
    assert log.peak == 1


def test_middleware_that_asks_again(gateway: mock_server.GatewayUrl) -> None:
    """It renews a token with a request of its own, and sends again."""

    async def renew(request: Any, handler: Any) -> Any:
        response = await handler(request)
        if response.status == 401:
            assert (await get(request.session, gateway + "/v1/models", middlewares=()))[0] == 200
            request.headers["x-mock-status"] = "200"
            response.release()
            response = await handler(request)
        return response

    (status, _), log = record(
        lambda session: get(session, gateway + JSON, headers={"x-mock-status": "401"}), middlewares=(renew,)
    )
    assert status == 200
    assert sorted((call.call_id, call.path, call.attempt) for call in log.calls) == [
        (log.calls[0].call_id, "/generate/plan", 0),
        (log.calls[0].call_id + 1, "/v1/models", 0),
        (log.calls[0].call_id + 2, "/generate/plan", 1),
    ]
    assert len({call.logical_id for call in log.calls}) == 2


# The way to the server


@pytest.mark.parametrize("way", ["direct", "tunnel"])
def test_tls(certificate: ssl.SSLContext, way: str) -> None:
    with running(OneAnswer, certificate) as port, running(Tunnel) as proxy:
        url = f"https://127.0.0.1:{port}/path"
        options = {"ssl": trusting(), "proxy": f"http://127.0.0.1:{proxy}" if way == "tunnel" else None}

        async def ask(session: Any) -> Any:
            return [(await get(session, url, **options))[1] for _ in range(2)]

        result, log = record(ask)
    assert result == [b"abc", b"abc"]
    first, second = log.calls
    assert (first.host, first.path, first.connection_reused) == (f"127.0.0.1:{port}", "/path", False)
    assert first.connect_ns > 0
    assert (first.tls_ns is None) == (way == "tunnel")  # there it is part of connecting
    assert (second.connect_ns, second.tls_ns, second.connection_reused) == (None, None, True)
    for call in (first, second):
        phases = (call.client_ns, call.pool_ns, call.connect_ns, call.tls_ns, call.send_ns, call.wait_ns)
        assert sum(phase or 0 for phase in phases) <= call.headers_ns - call.start_ns


@asynccontextmanager
async def together(count: int) -> AsyncIterator[str]:
    """A server that answers when so many ask."""
    barrier = asyncio.Barrier(count)

    async def answer(request: web.Request) -> web.Response:
        await barrier.wait()
        return web.Response(text="abc")

    app = web.Application()
    app.router.add_get("/path", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/path"))


def test_wait_for_a_connection() -> None:
    async def main() -> None:
        connector = aiohttp.TCPConnector(limit=2)
        async with together(2) as url, aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(get(session, url) for _ in range(4)))

    with occupancy.record() as log:
        asyncio.run(main())
    by_start = sorted(log.calls, key=lambda call: call.call_id)
    waited = [call for call in by_start if call.connection_reused]
    first_end_ns = min(call.end_ns for call in by_start)
    assert len(waited) == 2
    assert all(call.wire_ns >= first_end_ns for call in waited)
    assert log.peak == 4


def test_no_connection_in_time() -> None:
    async def main() -> None:
        connector = aiohttp.TCPConnector(limit=1)
        async with together(2) as url, aiohttp.ClientSession(connector=connector) as session:
            held = asyncio.ensure_future(get(session, url))
            while not connector._acquired:
                await asyncio.sleep(0)
            with pytest.raises(aiohttp.ConnectionTimeoutError):
                await get(session, url, timeout=aiohttp.ClientTimeout(connect=0.01))
            held.cancel()

    with occupancy.record() as log:
        asyncio.run(main())
    failed, _ = log.calls
    assert (failed.outcome, failed.error_type, failed.send_ns) == (Outcome.TIMEOUT, "ConnectionTimeoutError", None)
    assert failed.pool_ns > 0


def test_many_at_once() -> None:
    async def main() -> None:
        async with together(20) as url, aiohttp.ClientSession() as session:
            await asyncio.gather(*(get(session, url) for _ in range(60)))

    with occupancy.record() as log:
        asyncio.run(main())
    assert outcomes(log.calls) == [("ok", 200)] * 60
    assert (log.peak, log.in_flight, sum(call.bytes_received for call in log.calls)) == (60, 0, 180)
    assert len({call.logical_id for call in log.calls}) == 60
    assert len({call.async_task for call in log.calls}) == 60


# What the host finds


async def traced(url: str) -> list[str]:
    """The events that a host's own trace sees."""
    told: list[str] = []
    config = aiohttp.TraceConfig()
    for name in dir(config):
        if name.startswith("on_"):

            def note(session: Any, context: Any, params: Any, name: str = name) -> Any:
                told.append(f"{name} {type(params).__name__}")
                return asyncio.sleep(0)

            getattr(config, name).append(note)
    async with aiohttp.ClientSession(trace_configs=[config]) as session:
        for _ in range(2):
            await get(session, url, headers={"x-mock-redirect": "1"})
    return told


def test_traces_of_the_host(gateway: mock_server.GatewayUrl) -> None:
    without = asyncio.run(traced(gateway + JSON))
    with occupancy.record() as log:
        assert asyncio.run(traced(gateway + JSON)) == without
    assert "on_connection_create_start TraceConnectionCreateStartParams" in without
    assert "on_connection_reuseconn TraceConnectionReuseconnParams" in without
    assert len(log.calls) == 4


def test_websocket() -> None:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str((await socket.receive_str()).upper())
        await socket.close()
        return socket

    async def main() -> str:
        app = web.Application()
        app.router.add_get("/path", echo)
        async with (
            TestServer(app) as server,
            aiohttp.ClientSession() as session,
            session.ws_connect(server.make_url("/path")) as socket,
        ):
            await socket.send_str("abc")
            assert log.in_flight == 0
            return await socket.receive_str()

    with occupancy.record() as log:
        assert asyncio.run(main()) == "ABC"
    assert outcomes(log.calls) == [("ok", 101)]


def test_what_is_kept(gateway: mock_server.GatewayUrl) -> None:
    headers = {
        "x-mock-status": "429", "x-mock-retry-after": "7", "x-mock-ratelimit-requests": "60/0",
        "idempotency-key": "secret", "authorization": "Bearer secret",
    }  # fmt: skip
    body = {"model": "gpt-test", "messages": []}

    async def ask(session: Any) -> Any:
        async with session.post("chat/completions?key=secret", json=body, headers=headers) as response:
            return await response.read()

    _, log = record(ask, base_url=gateway + "/v1/")
    (call,) = log.calls
    assert (call.kind, call.model, call.retry_after_s, call.idempotency_key) == ("generate", "gpt-test", 7.0, True)
    assert (call.host, call.path) == (gateway.removeprefix("http://"), "/v1/chat/completions")
    assert call.method == "POST"
    assert (call.request_bytes, call.limit_requests, call.remaining_requests) == (len(json.dumps(body)), 60, 0)
    assert call.key_id == hashlib.sha256(b"secret").hexdigest()[:8]
    assert call.request_id
    assert call.receive_ns == call.end_ns - call.headers_ns
    assert call.call_site.file == __file__
    assert not call.sync_in_event_loop
    assert "secret" not in repr(call)


def test_wire_size_of_a_compressed_body(gateway: mock_server.GatewayUrl) -> None:
    async def ask(session: Any) -> Any:
        async with session.get(gateway + JSON, headers={"x-mock-gzip": "1"}) as response:
            return len(await response.read()), int(response.headers["content-length"])

    (plain, wire), log = record(ask)
    assert log.calls[0].bytes_received == wire != plain


def test_telemetry_is_not_counted(gateway: mock_server.GatewayUrl) -> None:
    async def ask(session: Any) -> None:
        with suppress_instrumentation():
            await get(session, gateway + "/v1/models")
        await get(session, gateway + "/v1/traces")
        with suppress_http_instrumentation():  # somebody above has a span for it
            await get(session, gateway + "/v1/models")

    _, log = record(ask)
    assert [(call.path, call.kind) for call in log.calls] == [("/v1/traces", "other"), ("/v1/models", "tool")]
    assert log.peak == 1


# Once, whatever lies above


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_sdk_over_aiohttp(gateway: mock_server.GatewayUrl, sdk: str) -> None:
    async def main() -> None:
        headers = {"x-mock-status": "429", "x-mock-fail-first": "1", "x-mock-key": f"{sdk}-aiohttp"}
        headers["x-mock-retry-after-ms"] = "1"
        messages: Any = [{"role": "user", "content": "hello"}]
        if sdk == "openai":
            http = openai.DefaultAioHttpClient()
            async with openai.AsyncOpenAI(base_url=gateway + "/v1", api_key="k", http_client=http) as client:
                stream: Any = await client.chat.completions.create(
                    model="m", messages=messages, stream=True, extra_headers=headers
                )
                assert len([event async for event in stream]) > 1
        else:
            http = anthropic.DefaultAioHttpClient()
            async with anthropic.AsyncAnthropic(base_url=gateway, api_key="k", http_client=http) as other:
                stream = await other.messages.create(
                    model="m", max_tokens=9, messages=messages, stream=True, extra_headers=headers
                )
                assert len([event async for event in stream]) > 1

    with occupancy.record() as log:
        asyncio.run(main())
    assert [call.status for call in log.calls] == [429, 200]
    check_one_logical(log.calls, "httpx2")
    last = log.calls[-1]
    assert (last.outcome, last.model) == (Outcome.OK, "m")
    assert last.first_event_ns is not None
    assert last.client_ns > 0


# Putting the hooks in and out


def hooked_methods() -> dict[tuple[Any, str], Any]:
    owners: dict[Any, tuple[str, ...]] = {
        aiohttp.ClientSession: ("_request",),
        aiohttp.BaseConnector: ("connect",),
        aiohttp.ClientRequest: ("send",),
        aiohttp.ClientResponse: ("start", "close", "release"),
        aiohttp.StreamReader: ("feed_data", "set_exception", "_wait"),
        sys.modules["aiohappyeyeballs"]: ("start_connection",),
    }
    return {(owner, name): vars(owner)[name] for owner, names in owners.items() for name in names}


def test_hooks_leave_what_they_found(gateway: mock_server.GatewayUrl) -> None:
    before = hooked_methods()
    for _ in range(2):
        with occupancy.record() as log:
            assert all(method is not before[place] for place, method in hooked_methods().items())
            asyncio.run(_get_once(gateway + JSON))
        assert len(log.calls) == 1
        assert hooked_methods() == before


async def _get_once(url: str) -> Any:
    async with aiohttp.ClientSession() as session:
        return await get(session, url)


@pytest.mark.parametrize("place", hooked_methods(), ids=lambda place: f"{place[0].__name__}.{place[1]}")
def test_wrapper_that_hides_a_hook(place: tuple[Any, str], gateway: mock_server.GatewayUrl) -> None:
    """It comes while we record and stays while we record again: one more hook comes on top, and each request is one."""
    before = hooked_methods()

    async def ask(session: aiohttp.ClientSession) -> None:
        await get(session, gateway + JSON, headers={"x-mock-redirect": "1"})
        await get(session, gateway + JSON, headers={"x-mock-gzip": "1"})
        await get(session, gateway + JSON, headers={"x-mock-status": "204"})
        async with session.get(gateway + JSON, headers={"x-mock-hang": "mid-body"}) as response:
            await response.content.read(1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(response.content.readexactly(99), 0.01)
        with pytest.raises(aiohttp.ClientPayloadError):
            await get(session, gateway + JSON, headers={"x-mock-cut": "mid-body"})

    def ask_all() -> Any:
        _, log = record(ask)
        assert log.in_flight == 0
        return [(call.outcome, call.status, call.attempt, call.bytes_received) for call in log.calls]

    calls: list[int] = []
    try:
        expected = ask_all()
        with occupancy.record():
            setattr(*place, hidden(vars(place[0])[place[1]], calls))
            assert ask_all() == expected
        assert ask_all() == expected
        assert ask_all() == expected
        assert calls
    finally:
        setattr(*place, before[place])
    with occupancy.record():
        pass
    assert hooked_methods() == before


def test_body_that_comes_when_the_hooks_have_gone(gateway: mock_server.GatewayUrl) -> None:
    before = hooked_methods()

    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            with occupancy.record() as log:
                headers = {"x-mock-chunks": "2", "x-mock-chunk-gap-ms": "50"}
                response = await session.get(gateway + JSON, headers=headers)
            await get(session, gateway + JSON)
            assert len(await response.read()) == log.calls[0].bytes_received
            assert outcomes(log.calls) == [("ok", 200)]

    asyncio.run(main())
    asyncio.run(_get_once(gateway + JSON))
    with occupancy.record() as log:
        asyncio.run(_get_once(gateway + JSON))
    assert len(log.calls) == 1
    assert hooked_methods() == before
    assert attempts.current.get() is None
    assert len(ledger._flights) == 0


IMPORTED_LATER = """
import asyncio, sys
import occupancy
log = occupancy.instrument()
assert "aiohttp" not in sys.modules
import aiohttp, mock_server

async def main(url):
    async with aiohttp.ClientSession() as session, session.get(url + "/v1/models") as response:
        await response.read()

with mock_server.serve(delay_ms=0) as url:
    asyncio.run(main(url))
assert [call.client for call in log.calls] == ["aiohttp"], log.calls
"""


def test_imported_later() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED_LATER], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
