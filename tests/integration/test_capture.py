"""Whatever lies between the program and the wire: each physical attempt is one call, and the host notices nothing."""

import asyncio
import copy
import gc
import hashlib
import pickle
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import mock_server
import occupancy
from occupancy import Call, Outcome
from occupancy.instrumentation import attempts, httpx_hooks
from occupancy.ledger import ledger

JSON = "/generate/plan?x-mock-delay-ms=0"


async def get(stack: Any, client: Any, target: str = JSON, **options: Any) -> Any:
    return await stack.done(client.get(stack.gateway + target, **options))


def outcomes(calls: list[Call]) -> list[tuple[str, int | None]]:
    return [(str(call.outcome), call.status) for call in calls]


def check_one_logical(calls: list[Call]) -> None:
    assert [call.attempt for call in sorted(calls, key=lambda call: call.call_id)] == list(range(len(calls)))
    assert len({call.logical_id for call in calls}) == 1
    assert len({call.call_id for call in calls}) == len(calls)


# What the client does by itself


def make_auth(stack: Any) -> Any:
    class Challenged(stack.library.Auth):
        """Sends again, with the same request, after the server's word."""

        def auth_flow(self, request: Any) -> Iterator[Any]:
            response = yield request
            request.headers["x-mock-status"] = "200"
            request.headers["x-seen"] = str(response.status_code)
            yield request

    return Challenged()


async def authenticate(stack: Any) -> Any:
    async with stack.opened(stack.client(auth=make_auth(stack))) as client:
        response = await get(stack, client, headers={"x-mock-status": "401"})
        return response.status_code, [past.status_code for past in response.history]


def test_auth_flow(stack: Any, compare: Any) -> None:
    seen, log = compare(stack, authenticate)
    assert seen.result == (200, [401])
    assert outcomes(log.calls) == [("http_error", 401), ("ok", 200)]
    check_one_logical(log.calls)


async def use_hooks_and_cookies(stack: Any) -> Any:
    told: list[str] = []

    def note(message: Any) -> None:
        told.append(type(message).__name__)

    async def note_async(message: Any) -> None:
        told.append(type(message).__name__)

    hook = note_async if stack.is_async else note
    client = stack.client(event_hooks={"request": [hook], "response": [hook]}, cookies={"flavour": "plain"})
    async with stack.opened(client) as client:
        response = await get(stack, client)
        return told, response.request.headers["cookie"], response.json()


def test_event_hooks_and_cookies(stack: Any, compare: Any) -> None:
    seen, log = compare(stack, use_hooks_and_cookies)
    assert seen.result[0] == ["Request", "Response"]
    assert outcomes(log.calls) == [("ok", 200)]


async def raise_in_response_hook(stack: Any) -> Any:
    def refuse(response: Any) -> None:
        raise LookupError("the host's hook")

    async def refuse_async(response: Any) -> None:
        raise LookupError("the host's hook")

    hook = refuse_async if stack.is_async else refuse
    async with stack.opened(stack.client(event_hooks={"response": [hook]})) as client:
        await get(stack, client)


def test_response_hook_that_raises(stack: Any, compare: Any) -> None:
    seen, log = compare(stack, raise_in_response_hook)
    assert seen.error[0] is LookupError
    assert outcomes(log.calls) == [("closed_early", 200)]


async def send_own_extensions(stack: Any) -> Any:
    mine = {"timeout": {"read": 5.0}, "mine": [1]}
    async with stack.opened(stack.client()) as client:
        response = await get(stack, client, extensions=mine)
        kept = response.request.extensions
        return (
            mine,
            kept["mine"] is mine["mine"],
            sorted(copy.deepcopy(kept)["mine"]),
            pickle.loads(pickle.dumps(kept))["mine"],
        )


def test_extensions_of_the_host(stack: Any, compare: Any) -> None:
    seen, _ = compare(stack, send_own_extensions)
    assert seen.result == ({"timeout": {"read": 5.0}, "mine": [1]}, True, [1], [1])


async def copy_extensions_in_transport(stack: Any) -> Any:
    async def handle(send: Any, request: Any) -> Any:
        pickle.dumps(request.extensions)
        request.extensions = copy.deepcopy(request.extensions)
        return await send(request)

    async with stack.opened(stack.client(transport=wrapping(stack, handle))) as client:
        return (await get(stack, client)).json()


def test_transport_that_copies_extensions(stack: Any, compare: Any) -> None:
    """A deep copy or a pickle of them meets no lock of ours, and the copy is the same request."""
    seen, log = compare(stack, copy_extensions_in_transport)
    assert seen.result["step"] == "plan"
    assert outcomes(log.calls) == [("ok", 200)]
    assert log.calls[0].client == stack.name


# Other transports


class Proxy(socketserver.ThreadingTCPServer):
    """A forward proxy of one request a connection, and a tunnel for CONNECT."""

    daemon_threads = True
    allow_reuse_address = True


class ProxyHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split()
        headers = b""
        while (line := self.rfile.readline()) != b"\r\n":
            headers += line
        host, path = target.removeprefix("http://").partition("/")[::2]
        name, port = host.rsplit(":", 1)
        with socket.create_connection((name, int(port))) as upstream:
            if method == "CONNECT":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                self._tunnel(upstream)
                return
            upstream.sendall(f"{method} /{path} HTTP/1.1\r\n".encode() + headers + b"connection: close\r\n\r\n")
            while data := upstream.recv(65536):
                self.wfile.write(data)

    def _tunnel(self, upstream: socket.socket) -> None:
        back = threading.Thread(target=_pump, args=(upstream, self.connection), daemon=True)
        back.start()
        _pump(self.connection, upstream)
        back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture(scope="module")
def proxy() -> Iterator[str]:
    with Proxy(("127.0.0.1", 0), ProxyHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


async def go_through_proxy(stack: Any, proxy: str) -> Any:
    mounts = {"http://": stack.transport(proxy=proxy)}
    async with stack.opened(stack.client(mounts=mounts)) as client:
        response = await get(stack, client)
        return response.json()


def test_proxy_by_mounts(stack: Any, compare: Any, proxy: str) -> None:
    seen, log = compare(stack, go_through_proxy, proxy)
    assert seen.result["step"] == "plan"
    assert outcomes(log.calls) == [("ok", 200)]
    (call,) = log.calls
    assert call.host == stack.gateway.removeprefix("http://")
    assert call.connect_ns > 0
    assert call.connection_reused is False


class OneAnswer(socketserver.StreamRequestHandler):
    """Answers each request of a connection with three bytes."""

    def handle(self) -> None:
        while self.rfile.readline():
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc")


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def unix_socket(tmp_path: Any) -> Iterator[str]:
    path = str(tmp_path / "s")
    with UnixServer(path, OneAnswer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield path
        server.shutdown()


async def use_unix_socket(stack: Any, path: str) -> Any:
    async with stack.opened(stack.client(transport=stack.transport(uds=path))) as client:
        return (await stack.done(client.get("http://tool.local/read?secret=1"))).content


def test_unix_socket(stack: Any, compare: Any, unix_socket: str) -> None:
    seen, log = compare(stack, use_unix_socket, unix_socket)
    assert seen.result == b"abc"
    (call,) = log.calls
    assert (call.host, call.path, call.bytes_received, call.connection_reused) == ("tool.local", "/read", 3, False)


async def use_mock_transport(stack: Any, content: Callable[[], Any]) -> Any:
    def answer(request: Any) -> Any:
        return stack.library.Response(200, content=content())

    async with stack.opened(stack.client(transport=stack.library.MockTransport(answer))) as client:
        response = await stack.done(client.get("http://mock/path"))
        return response.content, response.is_closed, response.is_stream_consumed, response.num_bytes_downloaded


def test_mock_transport_with_bytes(stack: Any, compare: Any) -> None:
    seen, log = compare(stack, use_mock_transport, lambda: b"abcd")
    assert seen.result[:2] == (b"abcd", True)
    (call,) = log.calls
    assert (call.outcome, call.end_ns, call.first_byte_ns) == (Outcome.OK, call.headers_ns, None)
    assert call.pool_ns is None


def test_mock_transport_with_a_stream(stack: Any, compare: Any) -> None:
    async def parts() -> Any:
        yield b"ab"
        yield b"cd"

    content = parts if stack.is_async else lambda: iter([b"ab", b"cd"])
    seen, log = compare(stack, use_mock_transport, content)
    assert seen.result == (b"abcd", True, True, 4)
    (call,) = log.calls
    assert (call.outcome, call.end_ns, call.bytes_received, call.chunks) == (Outcome.OK, call.last_byte_ns, 4, 2)


async def leave_mock_stream(stack: Any) -> Any:
    closed = []

    async def parts() -> Any:
        try:
            yield b"ab"
            yield b"cd"
        finally:
            closed.append(True)

    def sync_parts() -> Any:
        try:
            yield b"ab"
            yield b"cd"
        finally:
            closed.append(True)

    def answer(request: Any) -> Any:
        return stack.library.Response(200, content=parts() if stack.is_async else sync_parts())

    async with (
        stack.opened(stack.client(transport=stack.library.MockTransport(answer))) as client,
        stack.opened(client.stream("GET", "http://mock/path")) as response,
    ):
        async for _ in stack.pieces(response):
            break
    for _ in range(20):
        await stack.step()
    return response.is_closed, closed


def test_mock_stream_left_in_the_middle(stack: Any, compare: Any) -> None:
    _, log = compare(stack, leave_mock_stream)
    assert outcomes(log.calls) == [("closed_early", 200)]


async def use_asgi(stack: Any) -> Any:
    transport = stack.library.ASGITransport(mock_server.create_app(delay_ms=0))
    async with stack.client(transport=transport) as client:
        response = await client.get("http://app" + JSON)
        return response.json()


def test_asgi(async_stack: Any, compare: Any) -> None:
    seen, log = compare(async_stack, use_asgi)
    assert seen.result["step"] == "plan"
    (call,) = log.calls
    assert (call.outcome, call.status, call.host, call.bytes_received > 0) == (Outcome.OK, 200, "app", True)


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_wsgi(fresh: None, name: str) -> None:
    library = __import__(name)

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [("content-type", "text/plain")])
        return [b"ab", b"c"]

    with occupancy.record() as log, library.Client(transport=library.WSGITransport(app)) as client:
        assert client.get("http://app/path").content == b"abc"
    (call,) = log.calls
    assert (call.outcome, call.bytes_received, call.chunks) == (Outcome.OK, 3, 2)


def wrapping(stack: Any, handle: Callable[[Any, Any], Any]) -> Any:
    """A transport around the network's: `handle(send, request)` is awaited, `send` gives a response."""
    inner = stack.transport()

    async def send(request: Any) -> Any:
        answer = inner.handle_async_request if stack.is_async else inner.handle_request
        return await stack.done(answer(request))

    class Around(stack.library.AsyncBaseTransport if stack.is_async else stack.library.BaseTransport):
        def handle_request(self, request: Any) -> Any:
            coroutine = handle(send, request)
            try:
                coroutine.send(None)
            except StopIteration as stop:
                return stop.value
            raise AssertionError("suspended")

        async def handle_async_request(self, request: Any) -> Any:
            return await handle(send, request)

        def close(self) -> None:
            inner.close()

        async def aclose(self) -> None:
            await inner.aclose()

    return Around()


async def retry_in_transport(stack: Any, way: str) -> Any:
    async def handle(send: Any, request: Any) -> Any:
        statuses = []
        for attempt in range(3):
            request.headers["x-mock-status"] = "503" if attempt < 2 else "200"
            if way == "rebuilt":
                content = request.stream
                request = stack.library.Request(request.method, request.url, headers=request.headers, stream=content)
            response = await send(request)
            statuses.append(response.status_code)
            if response.status_code == 200:
                response.extensions["statuses"] = statuses
                return response
            if way != "dropped":
                await stack.close(response)
            del response
        raise AssertionError

    async with stack.opened(stack.client(transport=wrapping(stack, handle))) as client:
        response = await get(stack, client)
        return response.extensions["statuses"], response.json()


@pytest.mark.parametrize("way", ["closed", "dropped", "rebuilt"])
def test_retrying_transport(stack: Any, compare: Any, way: str) -> None:
    seen, log = compare(stack, retry_in_transport, way)
    assert seen.result[0] == [503, 503, 200]
    left = "abandoned" if way == "dropped" else "closed_early"
    assert outcomes(log.calls) == [(left, 503), (left, 503), ("ok", 200)]
    check_one_logical(log.calls)
    assert log.peak == 1


async def rotate_keys(stack: Any) -> Any:
    async def handle(send: Any, request: Any) -> Any:
        for key, status in (("first", "429"), ("second", "200")):
            request.headers["authorization"], request.headers["x-mock-status"] = f"Bearer {key}", status
            response = await send(request)
            if response.status_code == 200:
                return response
            await stack.close(response)

    async with stack.opened(stack.client(transport=wrapping(stack, handle))) as client:
        return (await get(stack, client, headers={"authorization": "Bearer none"})).status_code


def test_key_that_a_transport_sets(stack: Any, compare: Any) -> None:
    _, log = compare(stack, rotate_keys)
    keys = [hashlib.sha256(key).hexdigest()[:8] for key in (b"first", b"second")]
    assert [call.key_id for call in log.calls] == keys


async def answer_from_cache(stack: Any) -> Any:
    async def handle(send: Any, request: Any) -> Any:
        return stack.library.Response(200, content=b"cached")

    async with stack.opened(stack.client(transport=wrapping(stack, handle))) as client:
        return (await get(stack, client)).content


def test_caching_transport(stack: Any, compare: Any) -> None:
    seen, log = compare(stack, answer_from_cache)
    assert seen.result == b"cached"
    assert outcomes(log.calls) == [("ok", 200)]
    assert log.calls[0].pool_ns is None


async def forward_by_another_client(stack: Any, way: str) -> Any:
    inner = stack.client()

    async def handle(send: Any, request: Any) -> Any:
        if way == "rebuilt":
            request = inner.build_request(request.method, request.url)
        response = await stack.done(inner.send(request, stream=True))
        return stack.library.Response(response.status_code, stream=response.stream)

    async with (
        stack.opened(inner),
        stack.opened(stack.client(transport=wrapping(stack, handle))) as client,
    ):
        return (await get(stack, client)).json()


@pytest.mark.parametrize("way", ["passed on", "rebuilt"])
def test_client_below_a_transport(stack: Any, compare: Any, way: str) -> None:
    seen, log = compare(stack, forward_by_another_client, way)
    assert seen.result["step"] == "plan"
    assert outcomes(log.calls) == [("ok", 200)]
    assert log.peak == 1


async def renew_token_in_transport(stack: Any) -> Any:
    tokens = stack.client()

    async def handle(send: Any, request: Any) -> Any:
        await stack.done(tokens.get(stack.gateway + "/v1/models"))
        request = stack.library.Request(request.method, request.url, headers=request.headers)
        return await send(request)

    async with stack.opened(tokens), stack.opened(stack.client(transport=wrapping(stack, handle))) as client:
        return (await get(stack, client)).json()


def test_request_for_a_token_below_a_transport(stack: Any, compare: Any) -> None:
    _, log = compare(stack, renew_token_in_transport)
    assert [(call.path, call.attempt) for call in log.calls] == [("/v1/models", 0), ("/generate/plan", 0)]
    assert len({call.logical_id for call in log.calls}) == 2
    assert log.peak == 2


async def hedge(stack: Any) -> Any:
    """Two attempts of one request at once; the first answer wins, the other is closed."""

    async def handle(send: Any, request: Any) -> Any:
        first, second = await stack.at_once(lambda: send(request), lambda: send(request))
        await stack.close(second)
        return first

    async with stack.client(transport=wrapping(stack, handle)) as client:
        return (await get(stack, client)).json()


def test_hedging_transport(async_stack: Any, compare: Any) -> None:
    seen, log = compare(async_stack, hedge)
    assert seen.result["step"] == "plan"
    assert sorted(outcomes(log.calls)) == [("closed_early", 200), ("ok", 200)]
    check_one_logical(log.calls)
    assert log.peak == 2


async def use_core(stack: Any) -> Any:
    pool = stack.core.AsyncConnectionPool() if stack.is_async else stack.core.ConnectionPool()
    async with stack.opened(pool):
        whole = await stack.done(pool.request("GET", stack.gateway + JSON))
        async with stack.opened(pool.stream("GET", stack.gateway + JSON)) as response:
            pieces = response.aiter_stream() if stack.is_async else response.iter_stream()
            parts = [part async for part in stack.over(pieces)]
        return whole.content, b"".join(parts)


def test_core_pool_itself(stack: Any, compare: Any) -> None:
    seen, log = compare(stack, use_core)
    assert seen.result[0] == seen.result[1]
    assert outcomes(log.calls) == [("ok", 200), ("ok", 200)]
    first, second = log.calls
    assert (first.client, first.path, first.method) == (stack.core.__name__, "/generate/plan", "GET")
    assert first.host == stack.gateway.removeprefix("http://")
    assert first.logical_id != second.logical_id
    assert (first.connection_reused, second.connection_reused) == (False, True)


# Logs that come and go


async def one_get(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        return (await get(stack, client)).status_code


def test_client_made_before(stack: Any) -> None:
    class Own(stack.library.AsyncClient if stack.is_async else stack.library.Client):
        """A host's own client."""

    client = Own(trust_env=False)

    async def use() -> None:
        async with stack.opened(client):
            await get(stack, client)

    with occupancy.record() as log:
        stack.run(use)
    assert outcomes(log.calls) == [("ok", 200)]
    assert log.calls[0].client == stack.name


def test_record_inside_instrument(stack: Any) -> None:
    log = occupancy.instrument()
    try:
        before = log.finished
        stack.run(one_get, stack)
        with occupancy.record() as inner:
            stack.run(one_get, stack)
        stack.run(one_get, stack)
    finally:
        occupancy.uninstrument()
    stack.run(one_get, stack)
    assert (log.finished - before, inner.finished) == (3, 1)
    assert inner.calls[0].in_flight_start == 1


async def overlap(stack: Any) -> Any:
    """Two recordings, each with a stream of the other's time."""
    first, second = occupancy.record(), occupancy.record()
    async with stack.opened(stack.client()) as client:
        one = first.__enter__()
        a = await stack.done(client.send(client.build_request("GET", stack.gateway + JSON), stream=True))
        two = second.__enter__()
        b = await stack.done(client.send(client.build_request("GET", stack.gateway + JSON), stream=True))
        first.__exit__(None, None, None)
        c = await stack.done(client.send(client.build_request("GET", stack.gateway + JSON), stream=True))
        levels = one.in_flight, two.in_flight
        second.__exit__(None, None, None)
        for response in (a, b, c):
            await stack.read(response)
    return one, two, levels


def test_two_recordings_overlap(stack: Any) -> None:
    one, two, levels = stack.run(overlap, stack)
    assert levels == (2, 2)
    assert [call.in_flight_start for call in one.calls] == [1, 2]
    assert [call.in_flight_start for call in two.calls] == [1, 2]
    assert [call.in_flight_end for call in one.calls] == [2, 1]
    assert (one.peak, two.peak, one.in_flight, two.in_flight) == (2, 2, 0, 0)


async def open_and_read_later(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        recording = occupancy.record()
        log = recording.__enter__()
        response = await stack.done(client.send(client.build_request("GET", stack.gateway + JSON), stream=True))
        recording.__exit__(None, None, None)
        still = log.in_flight
        body = await stack.read(response)
        return log, still, body


def test_stream_open_when_the_hooks_go(stack: Any) -> None:
    log, still, body = stack.run(open_and_read_later, stack)
    assert still == 1
    assert (log.in_flight, log.calls[0].bytes_received) == (0, len(body))
    assert log.calls[0].outcome == Outcome.OK


# Hooks beside other people's


TARGETS = [
    ("Client", "_send_single_request", "sync", False),
    ("AsyncClient", "_send_single_request", "asyncio", False),
    ("ConnectionPool", "handle_request", "sync", True),
    ("AsyncConnectionPool", "handle_async_request", "asyncio", True),
]


def owner_of(stack: Any, name: str, core: bool) -> Any:
    return getattr(stack.core if core else stack.library, name)


def opaque(method: Any, calls: list[int]) -> Any:
    """A wrapper that does not say what it wraps."""

    def wrapper(self: Any, request: Any) -> Any:
        calls.append(1)
        return method(self, request)

    return wrapper


def told(method: Any, calls: list[int]) -> Any:
    import functools

    return functools.wraps(method)(opaque(method, calls))


def wrapt_wrapper(method: Any, calls: list[int]) -> Any:
    import wrapt

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        assert instance is not None
        calls.append(1)
        return wrapped(*args, **kwargs)

    return wrapt.FunctionWrapper(method, wrapper)


@pytest.fixture(params=TARGETS, ids=lambda target: target[0])
def target(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["httpx", "httpx2"])
def target_stack(request: pytest.FixtureRequest, target: Any, make_stack: Any) -> Any:
    return make_stack(request.param, target[2])


@pytest.fixture(params=[opaque, told, wrapt_wrapper], ids=["opaque", "told", "wrapt"])
def wrap(request: pytest.FixtureRequest) -> Any:
    return request.param


def record_one(stack: Any) -> list[Call]:
    """Record one call, which both hooks must have seen."""
    with occupancy.record() as log:
        stack.run(one_get, stack)
    check_both_hooks(stack, log.calls)
    return log.calls


def check_both_hooks(stack: Any, calls: list[Call]) -> None:
    assert {call.client for call in calls} == {stack.name}
    assert all(call.pool_ns is not None for call in calls)


def test_hooks_leave_what_they_found(target_stack: Any, target: Any) -> None:
    owner = owner_of(target_stack, target[0], target[3])
    before = vars(owner)[target[1]]
    path = list(sys.meta_path)
    for _ in range(2):
        assert len(record_one(target_stack)) == 1
        assert vars(owner)[target[1]] is before
    assert sys.meta_path == path


def test_wrapper_below_ours(target_stack: Any, target: Any, wrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, calls = owner_of(target_stack, target[0], target[3]), list[int]()
    theirs = wrap(vars(owner)[target[1]], calls)
    monkeypatch.setattr(owner, target[1], theirs)
    for _ in range(2):
        assert len(record_one(target_stack)) == 1
        assert vars(owner)[target[1]] is theirs
    assert len(calls) == 2


def test_wrapper_on_top_of_ours(target_stack: Any, target: Any, wrap: Any) -> None:
    """They come while we record and go after we have gone: then ours, inert, stays below; and all over again."""
    owner, calls = owner_of(target_stack, target[0], target[3]), list[int]()
    before = vars(owner)[target[1]]
    try:
        for _ in range(2):
            with occupancy.record() as log:
                setattr(owner, target[1], wrap(vars(owner)[target[1]], calls))
                target_stack.run(one_get, target_stack)
            assert len(log.calls) == 1
            check_both_hooks(target_stack, log.calls)
            assert len(record_one(target_stack)) == 1
            target_stack.run(one_get, target_stack)
        assert len(log.calls) == 1
    finally:
        setattr(owner, target[1], before)
    assert len(record_one(target_stack)) == 1
    assert vars(owner)[target[1]] is before


def test_wrapper_that_comes_and_goes_inside(target_stack: Any, target: Any, wrap: Any) -> None:
    """A recording that begins while a wrapper hides our hook counts once, and leaves the longer one its hook."""
    owner, calls = owner_of(target_stack, target[0], target[3]), list[int]()
    with occupancy.record() as outer:
        ours = vars(owner)[target[1]]
        setattr(owner, target[1], wrap(ours, calls))
        assert len(record_one(target_stack)) == 1
        setattr(owner, target[1], ours)
        target_stack.run(one_get, target_stack)
    assert len(outer.calls) == 2
    check_both_hooks(target_stack, outer.calls)
    assert all(call.attempt == 0 for call in outer.calls)


ALIAS = """
import sys
{before}
import occupancy
{middle}
log = occupancy.instrument()
{after}
import httpx, httpx2, httpcore, httpcore2
assert httpx is httpx2 and httpcore is httpcore2
import mock_server
with mock_server.serve(delay_ms=0) as url, httpx.Client(trust_env=False) as client:
    client.get(url + "/v1/models")
    with occupancy.record() as inner:
        client.get(url + "/v1/models")
print(len(log.calls), len(inner.calls), log.calls[0].client, log.in_flight)
occupancy.uninstrument()
"""


@pytest.mark.parametrize("place", ["before", "middle", "after"])
def test_alias_httpx(place: str) -> None:
    alias = "import httpx2; httpx2.alias_httpx()"
    program = ALIAS.format(**{"before": "", "middle": "", "after": "", place: alias})
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "2 1 httpx2 0\n", done.stderr


def test_importing_us_imports_no_client() -> None:
    program = (
        "import sys, occupancy; occupancy.instrument(); "
        "print([name for name in ('httpx', 'httpx2', 'httpcore', 'httpcore2', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[]\n", done.stderr


# Loops, pools, traces


async def send_in_new_loop(stack: Any, client: Any) -> Any:
    return (await get(stack, client)).status_code


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_one_client_across_loops(name: str, make_stack: Any) -> None:
    stack = make_stack(name, "asyncio")

    def use() -> list[Any]:
        client, seen = stack.client(limits=stack.library.Limits(max_keepalive_connections=0)), []
        for _ in range(3):
            seen.append(asyncio.run(send_in_new_loop(stack, client)))
        asyncio.run(client.aclose())
        return seen

    without = use()
    with occupancy.record() as log:
        assert use() == without == [200, 200, 200]
    assert outcomes(log.calls) == [("ok", 200)] * 3


async def crowd(stack: Any) -> Any:
    limits = stack.library.Limits(max_connections=2)
    async with stack.opened(stack.client(limits=limits)) as client:
        target = "/generate/crowd?x-mock-delay-ms=150"
        responses = await stack.at_once(*[lambda: get(stack, client, target) for _ in range(8)])
    return [response.status_code for response in responses]


def test_pool_of_two(stack: Any) -> None:
    from occupancy.analysis.steps import steps_on_wire

    with occupancy.record() as log:
        assert stack.run(crowd, stack) == [200] * 8
    assert log.peak == 8
    assert stack.gateway.stats()["peak"] == 2
    assert log.steps().peak == 8
    assert steps_on_wire(log.columns()).peak == 2
    calls = sorted(log.calls, key=lambda call: call.wire_ns)
    assert [call.connection_reused for call in calls] == [False] * 2 + [True] * 6
    assert all(call.pool_ns > 0 for call in calls)
    assert all(call.wire_ns > min(early.end_ns for early in calls[:2]) for call in calls[2:])
    assert all(call.connect_ns is None for call in calls[2:])


async def trace(stack: Any, fail_at: str | None) -> Any:
    events: list[tuple[str, list[str]]] = []

    def note(event: str, info: Any) -> None:
        events.append((event, sorted(info)))
        if event == fail_at:
            raise LookupError(event)

    async def note_async(event: str, info: Any) -> None:
        note(event, info)

    async with stack.opened(stack.client()) as client:
        try:
            await get(stack, client, extensions={"trace": note_async if stack.is_async else note})
        except LookupError as error:
            return events, str(error), type(error.__context__)
        return events, None, None


EVENTS = [
    None,
    "connection.connect_tcp.started",
    "http11.send_request_headers.complete",
    "http11.receive_response_headers.complete",
    "http11.receive_response_body.started",
    "http11.response_closed.complete",
]


@pytest.mark.parametrize("fail_at", EVENTS)
def test_trace_of_the_host(stack: Any, compare: Any, fail_at: str | None) -> None:
    seen, log = compare(stack, trace, fail_at)
    assert seen.result[0]
    assert seen.result[1] == fail_at
    assert log.in_flight == 0
    assert len(log.calls) == 1


async def events_of_the_body(stack: Any) -> Any:
    """What of ours httpcore still calls once the headers are there."""
    traces = []
    async with (
        stack.opened(stack.client()) as client,
        stack.opened(client.stream("GET", stack.gateway + JSON)) as response,
    ):
        core = response.stream
        while not hasattr(core, "_request"):
            core = next(vars(core)[name] for name in ("_stream", "_httpcore_stream", "_wrapped") if name in vars(core))
        traces.append(core._request.extensions.keys() & {"trace", httpx_hooks.IN_POOL})
        await stack.read(response)
    return traces


def test_trace_goes_with_the_headers(stack: Any, compare: Any) -> None:
    """After them nothing is told apart by it, and it would cost as much as all before."""
    seen, _ = compare(stack, events_of_the_body)
    assert seen.result == [set()]


async def stop_at_length(stack: Any) -> Any:
    async with stack.opened(stack.client()) as client:
        request = client.build_request("GET", stack.gateway + JSON)
        response = await stack.done(client.send(request, stream=True))
        chunks = stack.pieces(response)
        got = b""
        while len(got) < int(response.headers["content-length"]):
            got += await chunks.__anext__()
        levels = [log.in_flight for log in ledger.logs]
        assert [chunk async for chunk in chunks] == []
    return levels


def test_a_body_ends_with_its_length(stack: Any) -> None:
    """Before anybody asks for more, or closes."""
    with occupancy.record() as log:
        assert stack.run(stop_at_length, stack) == [0]
    assert outcomes(log.calls) == [("ok", 200)]


async def wrong_trace(stack: Any) -> Any:
    async def coroutine(event: str, info: Any) -> None:
        raise AssertionError("never run")

    def plain(event: str, info: Any) -> None:
        return None

    async with stack.opened(stack.client()) as client:
        await get(stack, client, extensions={"trace": plain if stack.is_async else coroutine})


def test_trace_of_the_wrong_kind(stack: Any, compare: Any) -> None:
    """A host's mistake is told in httpcore's own words."""
    seen, log = compare(stack, wrong_trace)
    assert seen.error[0] is TypeError
    assert "callback of the `trace` extension" in seen.error[1]
    assert outcomes(log.calls) == [("error", None)]


# Who calls


async def call_here(client: Any, url: str) -> Any:
    return await client.get(url)


def test_who_calls(async_stack: Any) -> None:
    async def main() -> None:
        async with async_stack.client() as client:
            with occupancy.label("step"), occupancy.agent_run("agent"):
                await call_here(client, async_stack.gateway + JSON)

    with occupancy.record() as log:
        async_stack.run(main)
    (call,) = log.calls
    assert (call.label, call.sync_in_event_loop, call.thread) == ("step", False, "MainThread")
    assert call.run.startswith("agent")
    assert call.async_task is not None
    here, there = call.call_stack[:2]
    assert (here.file, here.function, here.line) == (__file__, "call_here", call_here.__code__.co_firstlineno + 1)
    assert there.function.endswith("main")


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_synchronous_call_in_a_loop(name: str, make_stack: Any) -> None:
    stack = make_stack(name, "sync")

    async def block(client: Any) -> int:
        return client.get(stack.gateway + JSON).status_code

    with occupancy.record() as log, stack.client() as client:
        asyncio.run(block(client))
        client.get(stack.gateway + JSON)
    inside, outside = log.calls
    assert (inside.sync_in_event_loop, outside.sync_in_event_loop) == (True, False)
    assert inside.call_site.function.endswith("block")


def test_sub_fields_of_a_call(stack: Any) -> None:
    async def send() -> None:
        async with stack.opened(stack.client()) as client:
            body = {"model": "gpt-test", "messages": []}
            headers = {"x-mock-status": "429", "x-mock-retry-after": "7", "idempotency-key": "k", "api-key": "secret"}
            headers |= {"x-mock-ratelimit-requests": "60/0", "x-mock-ratelimit-tokens": "9000/8000"}
            await stack.done(client.post(stack.gateway + "/v1/chat/completions", json=body, headers=headers))

    with occupancy.record() as log:
        stack.run(send)
    (call,) = log.calls
    assert (call.kind, call.model, call.retry_after_s, call.idempotency_key) == ("generate", "gpt-test", 7.0, True)
    assert call.request_bytes == len(b'{"model":"gpt-test","messages":[]}')
    assert call.key_id == hashlib.sha256(b"secret").hexdigest()[:8]
    assert (call.limit_requests, call.remaining_requests) == (60, 0)
    assert (call.limit_tokens, call.remaining_tokens) == (9000, 8000)
    assert call.request_id
    assert call.send_ns > 0
    assert call.wait_ns > 0
    assert call.receive_ns == call.end_ns - call.headers_ns
    assert attempts.current.get() is None
    gc.collect()
    assert len(ledger._flights) == 0
