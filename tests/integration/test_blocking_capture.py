"""Whatever lies above `http.client`: each request is one call, retries and redirects share a number, phases add up."""

import asyncio
import gc
import hashlib
import http.client
import io
import json
import pickle
import socketserver
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import botocore.config
import botocore.session
import httpx
import pytest
import requests
import requests.adapters
import urllib3
from blocking_clients import CLIENTS
from loopback_servers import OneAnswer, ScriptedServer, Tunnel, running, trusting
from opentelemetry.instrumentation.utils import suppress_http_instrumentation, suppress_instrumentation
from scenarios import hidden

import mock_server
import occupancy
from occupancy import Call, Outcome
from occupancy.instrumentation import attempts
from occupancy.instrumentation.http_client_hooks import KEY
from occupancy.ledger import ledger

JSON = "/generate/plan?x-mock-delay-ms=0"
CHAT = b'{"model":"gpt-test","messages":[]}'


@pytest.fixture(autouse=True)
def at_rest(fresh: None) -> None:
    """Each test begins without open calls."""


@pytest.fixture
def server() -> Iterator[Callable[..., str]]:
    """Serve one connection with these pieces, then close: `server(*pieces)` gives the URL."""
    with ScriptedServer() as scripted:
        yield scripted.serve


@pytest.fixture
def one_answer() -> Iterator[str]:
    """Where three bytes answer each request, and connections stay open."""
    with running(OneAnswer) as port:
        yield f"http://127.0.0.1:{port}/path"


def outcomes(calls: list[Call]) -> list[tuple[str, int | None]]:
    return [(str(call.outcome), call.status) for call in calls]


def check_one_logical(calls: list[Call], client: str) -> None:
    assert [call.attempt for call in calls] == list(range(len(calls)))
    assert {call.logical_id for call in calls} == {calls[0].call_id}
    assert {call.client for call in calls} == {client}


# Attempts of one call


def redirect(stack: Any) -> Any:
    if not stack.client.follows:
        return None
    with stack.client() as client:
        response = client.send("GET", stack.gateway + JSON, headers={"x-mock-redirect": "2"})
        return client.status(response), client.read(response)


def test_redirects(blocking: Any, compare: Any) -> None:
    seen, log = compare(blocking, redirect)
    if seen.result is None:
        return
    assert seen.result[0] == 200
    assert outcomes(log.calls) == [("ok", 307), ("ok", 307), ("ok", 200)]
    check_one_logical(log.calls, blocking.name)
    assert log.peak == 1


def test_redirects_of_requests_by_hand(gateway: mock_server.GatewayUrl) -> None:
    with occupancy.record() as log, requests.Session() as session:
        first = session.get(gateway + JSON, headers={"x-mock-redirect": "2"}, allow_redirects=False)
        hops = session.resolve_redirects(first, first.request)
        assert next(hops).status_code == 307
        other = session.get(gateway + JSON)  # between two hops, and no part of them
        assert [hop.status_code for hop in hops] == [200]
        assert pickle.loads(pickle.dumps(first)).status_code == 307
    assert other.status_code == 200
    assert [call.attempt for call in log.calls] == [0, 1, 0, 2]
    check_one_logical([log.calls[0], log.calls[1], log.calls[3]], "requests")


def test_redirects_of_requests_that_never_end(gateway: mock_server.GatewayUrl) -> None:
    with occupancy.record() as log, requests.Session() as session:
        session.max_redirects = 2
        with pytest.raises(requests.TooManyRedirects):
            session.get(gateway + JSON, headers={"x-mock-redirect": "9"})
    assert outcomes(log.calls) == [("ok", 307)] * 3
    check_one_logical(log.calls, "requests")


def failing(times: int, **faults: str) -> dict[str, str]:
    """Headers of a request that fails so often, then succeeds."""
    failing.keys += 1  # type: ignore[attr-defined]
    key = f"blocking-{failing.keys}"  # type: ignore[attr-defined]
    return {"x-mock-fail-first": str(times), "x-mock-key": key, **faults}


failing.keys = 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["urllib3", "requests"])
def test_retries_of_urllib3(gateway: mock_server.GatewayUrl, name: str) -> None:
    retry = urllib3.Retry(3, status_forcelist=[503], backoff_factor=0)
    with occupancy.record() as log:
        if name == "urllib3":
            status = urllib3.PoolManager().request("GET", gateway + JSON, headers=failing(2), retries=retry).status
        else:
            with requests.Session() as session:
                session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
                status = session.get(gateway + JSON, headers=failing(2)).status_code
    assert status == 200
    assert outcomes(log.calls) == [("http_error", 503), ("http_error", 503), ("ok", 200)]
    check_one_logical(log.calls, name)
    assert log.peak == 1


def test_retry_after_a_lost_connection(gateway: mock_server.GatewayUrl) -> None:
    headers = failing(1, **{"x-mock-cut": "before-headers"})
    with occupancy.record() as log, urllib3.PoolManager() as pools:
        assert pools.request("GET", gateway + JSON, headers=headers).status == 200
    assert outcomes(log.calls) == [("error", None), ("ok", 200)]
    check_one_logical(log.calls, "urllib3")
    assert log.peak == 1


def test_retry_that_is_redirected(gateway: mock_server.GatewayUrl) -> None:
    """Both in one call of the program: the pool manager's redirects, and the pool's retries."""
    retry = urllib3.Retry(5, status_forcelist=[503], backoff_factor=0)
    headers = {**failing(1), "x-mock-redirect": "1"}
    with occupancy.record() as log, urllib3.PoolManager() as pools:
        assert pools.request("GET", gateway + JSON, headers=headers, retries=retry).status == 200
    assert [call.status for call in log.calls] == [307, 503, 200]
    check_one_logical(log.calls, "urllib3")


def test_connections_refused(gateway: mock_server.GatewayUrl) -> None:
    with occupancy.record() as log, urllib3.PoolManager() as pools, running(OneAnswer) as port:
        pass  # nobody listens there any more
    with occupancy.record() as log, urllib3.PoolManager() as pools, pytest.raises(urllib3.exceptions.MaxRetryError):
        pools.request("GET", f"http://127.0.0.1:{port}/", retries=urllib3.Retry(2, backoff_factor=0))
    assert [(call.outcome, call.error_type) for call in log.calls] == [(Outcome.ERROR, "NewConnectionError")] * 3
    check_one_logical(log.calls, "urllib3")
    assert log.peak == 1


def test_a_request_inside_another_is_its_own(gateway: mock_server.GatewayUrl) -> None:
    """A retry policy that asks elsewhere, as for a new token."""

    class Asking(urllib3.Retry):
        def increment(self, *args: Any, **kwargs: Any) -> Any:
            assert tokens.request("GET", gateway + "/v1/models").status == 200
            return super().increment(*args, **kwargs)

    tokens = urllib3.PoolManager()
    with occupancy.record() as log, urllib3.PoolManager() as pools:
        retries = Asking(3, status_forcelist=[503], backoff_factor=0)
        assert pools.request("GET", gateway + JSON, headers=failing(1), retries=retries).status == 200
    assert [call.path for call in log.calls] == ["/generate/plan", "/v1/models", "/generate/plan"]
    assert [call.attempt for call in log.calls] == [0, 0, 1]
    check_one_logical(log.calls[::2], "urllib3")


# botocore's clients


class Storage(socketserver.StreamRequestHandler):
    """A store of objects that is busy at first, and says so before it reads a body."""

    busy = 0

    def handle(self) -> None:
        while self.rfile.readline():
            headers = {}
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                headers[name.lower()] = value.strip()
            if Storage.busy:
                Storage.busy -= 1
                self.wfile.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            if headers.get(b"expect") == b"100-continue":
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = self.rfile.read(int(headers.get(b"content-length", b"0")))
            answer = b"" if body else b"abc"
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))


def storage_client(port: int, mode: str = "standard") -> Any:
    session = botocore.session.Session()
    session.set_credentials("key", "secret")
    config = botocore.config.Config(
        retries={"mode": mode, "max_attempts": 3},
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
    )
    return session.create_client("s3", "us-east-1", endpoint_url=f"http://127.0.0.1:{port}", config=config)


@pytest.mark.parametrize("mode", ["legacy", "standard"])
def test_botocore_retries(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
    with running(Storage) as port:
        client = storage_client(port, mode)
        monkeypatch.setattr(Storage, "busy", 2)
        with occupancy.record() as log:
            assert client.get_object(Bucket="b", Key="k")["Body"].read() == b"abc"
        client.close()
    assert outcomes(log.calls) == [("http_error", 503), ("http_error", 503), ("ok", 200)]
    check_one_logical(log.calls, "botocore")
    assert [call.path for call in log.calls] == ["/b/k"] * 3


@pytest.mark.parametrize("busy", [0, 1])
def test_botocore_asks_before_it_sends_the_body(busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
    with running(Storage) as port:
        client = storage_client(port)
        monkeypatch.setattr(Storage, "busy", busy)
        with occupancy.record() as log:
            answer = client.put_object(Bucket="b", Key="k", Body=io.BytesIO(b"x" * 100_000))
        client.close()
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert [call.status for call in log.calls] == [503] * busy + [200]
    check_one_logical(log.calls, "botocore")
    assert log.calls[-1].request_bytes == 100_000


# The way to the server


def ask_twice(stack: Any, url: str, proxy: str | None) -> list[bytes]:
    """Over TLS that trusts anybody, through a proxy's tunnel or not."""
    return list(TWICE[stack.name](url, proxy))


def twice_http_client(url: str, proxy: str | None) -> Iterator[bytes]:
    target = urlsplit(url)
    connection = http.client.HTTPSConnection(proxy or target.netloc, context=trusting())
    if proxy:
        connection.set_tunnel(target.netloc)
    for _ in range(2):
        connection.request("GET", target.path)
        yield connection.getresponse().read()
    connection.close()


def twice_urllib(url: str, proxy: str | None) -> Iterator[bytes]:
    proxies = urllib.request.ProxyHandler({"https": f"http://{proxy}"} if proxy else {})
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trusting()), proxies)
    for _ in range(2):
        with opener.open(url) as response:
            yield response.read()


def twice_urllib3(url: str, proxy: str | None) -> Iterator[bytes]:
    options: Any = {"cert_reqs": ssl.CERT_NONE, "retries": False}
    with urllib3.ProxyManager(f"http://{proxy}", **options) if proxy else urllib3.PoolManager(**options) as pools:
        for _ in range(2):
            yield pools.request("GET", url).data


def twice_requests(url: str, proxy: str | None) -> Iterator[bytes]:
    with requests.Session() as session:
        session.trust_env, session.verify = False, False
        for _ in range(2):
            yield session.get(url, proxies={"https": f"http://{proxy}"} if proxy else None).content


def twice_botocore(url: str, proxy: str | None) -> Iterator[bytes]:
    proxies = {"https": f"http://{proxy}"} if proxy else {}
    session = botocore.httpsession.URLLib3Session(verify=False, proxies=proxies)
    for _ in range(2):
        yield session.send(botocore.awsrequest.AWSRequest("GET", url, {}, b"").prepare()).content
    session.close()


TWICE: dict[str, Callable[[str, str | None], Iterator[bytes]]] = {
    "http.client": twice_http_client,
    "urllib": twice_urllib,
    "urllib3": twice_urllib3,
    "requests": twice_requests,
    "botocore": twice_botocore,
}


@pytest.mark.parametrize("way", ["direct", "tunnel"])
def test_tls(blocking: Any, compare: Any, certificate: ssl.SSLContext, way: str) -> None:
    with running(OneAnswer, certificate) as port, running(Tunnel) as proxy:
        url = f"https://127.0.0.1:{port}/path"
        seen, log = compare(blocking, ask_twice, url, f"127.0.0.1:{proxy}" if way == "tunnel" else None)
    assert seen.result == [b"abc", b"abc"], seen.error
    first, second = log.calls
    assert (first.host, first.path, first.connection_reused) == (f"127.0.0.1:{port}", "/path", False)
    assert first.connect_ns > 0
    assert first.tls_ns > 0
    if blocking.name != "urllib":  # which opens a connection for each
        assert (second.connect_ns, second.tls_ns, second.connection_reused) == (None, None, True)
    for call in (first, second):
        assert call.outcome == Outcome.OK
        assert call.wait_ns > 0
        phases = (call.client_ns, call.pool_ns, call.connect_ns, call.tls_ns, call.send_ns, call.wait_ns)
        assert sum(phase or 0 for phase in phases) <= call.headers_ns - call.start_ns


def test_tunnel_refused(blocking: Any, compare: Any) -> None:
    with running(Tunnel) as proxy:
        seen, log = compare(blocking, ask_twice, "https://127.0.0.1:1/path", f"127.0.0.1:{proxy}")
    assert seen.error is not None
    (call,) = log.calls
    assert (call.outcome, call.status, call.send_ns, call.tls_ns) == (Outcome.ERROR, None, None, None)
    assert call.host == "127.0.0.1:1"


def test_plain_proxy(server: Any) -> None:
    """What counts is whom the request is for."""
    url = "http://example.test:81/a%20b?q=1"
    proxies = {"http": server(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", target=url).rpartition("/")[0]}
    with occupancy.record() as log:
        assert requests.get(url, proxies=proxies).content == b"abc"
        assert urllib.request.build_opener(urllib.request.ProxyHandler(proxies)).open(url).read() == b"abc"
    assert [(call.host, call.path) for call in log.calls] == [("example.test:81", "/a b")] * 2


def test_connections_are_reused(one_answer: str) -> None:
    with occupancy.record() as log, requests.Session() as session:
        session.trust_env = False
        for _ in range(3):
            session.get(one_answer)
    assert [call.connection_reused for call in log.calls] == [False, True, True]
    assert [call.connect_ns is None for call in log.calls] == [False, True, True]


def test_wait_for_a_connection(one_answer: str) -> None:
    port = urlsplit(one_answer).port
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=1, block=True)
    with occupancy.record() as log:
        held = pool.request("GET", "/path", preload_content=False)
        waiter = threading.Thread(target=pool.request, args=("GET", "/path"))
        waiter.start()
        while log.in_flight < 2:
            time.sleep(0)
        released_ns = time.monotonic_ns()
        held.read()
        held.release_conn()
        waiter.join()
    first, second = log.calls
    assert (first.connection_reused, second.connection_reused) == (False, True)
    assert second.wire_ns >= released_ns
    assert second.pool_ns > 0
    assert log.peak == 2


def test_no_connection_in_time(one_answer: str) -> None:
    pool = urllib3.HTTPConnectionPool("127.0.0.1", urlsplit(one_answer).port, maxsize=1, block=True)
    with occupancy.record() as log:
        held = pool.request("GET", "/path", preload_content=False)
        with pytest.raises(urllib3.exceptions.EmptyPoolError):
            pool.request("GET", "/path", pool_timeout=0.01)
        held.close()
    failed, _ = log.calls
    assert (failed.outcome, failed.error_type, failed.send_ns) == (Outcome.TIMEOUT, "EmptyPoolError", None)
    assert failed.pool_ns > 0


# When bytes came


@pytest.mark.parametrize("chunked", [False, True])
def test_one_read_of_a_slow_body(blocking: Any, chunked: bool) -> None:
    """A body that is read in one go has come in two pieces, and each when it came."""
    go_on, sizes = threading.Event(), (b"5\r\nfirst\r\n", b"4\r\nlast\r\n0\r\n\r\n") if chunked else (b"first", b"last")
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 9"

    class Slow(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n" + sizes[0])
            go_on.wait(30)
            self.wfile.write(sizes[1])

    between: list[int] = []
    with running(Slow) as port, occupancy.record() as log, blocking.client() as client:
        response = client.send("GET", f"http://127.0.0.1:{port}/path")
        reader = threading.Thread(target=lambda: between.append(len(client.read(response))))
        reader.start()
        time.sleep(0.05)  # it reads by now; if not, nothing else comes out
        middle_ns = time.monotonic_ns()
        go_on.set()
        reader.join()
    (call,) = log.calls
    assert (between, call.bytes_received, call.chunks) == ([9], 9, 2)
    assert call.headers_ns <= call.first_byte_ns < middle_ns <= call.last_byte_ns == call.end_ns


def test_what_was_there_all_along(one_answer: str) -> None:
    """A body that came with its headers came then, however late it is read."""
    connection = http.client.HTTPConnection(urlsplit(one_answer).netloc)
    with occupancy.record() as log:
        connection.request("GET", "/path")
        response = connection.getresponse()
        assert response.fp.peek(1)
        arrived_ns = time.monotonic_ns()
        time.sleep(0.002)
        assert response.read() == b"abc"
        connection.close()
    (call,) = log.calls
    assert call.end_ns < arrived_ns < call.released_ns


# What the host finds


def test_the_file_below_is_what_it_was(one_answer: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(one_answer).netloc)
    with occupancy.record() as log:
        connection.request("GET", "/path")
        response = connection.getresponse()
        assert response.fp.raw._sock is not None  # as some libraries reach for the socket
        assert response.fileno() == connection.sock.fileno()
        assert not response.fp.closed
        with io.TextIOWrapper(response) as text:
            assert text.read() == "abc"
        connection.request("GET", "/path")
        response = connection.getresponse()
        with response.fp as file:
            assert file.read(3) == b"abc"
        response.fp = None
        connection.close()
    assert outcomes(log.calls) == [("ok", 200)] * 2
    del response, text, file
    gc.collect()
    assert len(ledger._flights) == 0


def test_lines_of_the_file_below(server: Any) -> None:
    with occupancy.record() as log:
        response = urllib.request.urlopen(server(b"HTTP/1.0 200 OK\r\n\r\none\ntwo\n"))
        assert list(response.fp) == [b"one\n", b"two\n"]
        response.close()
    assert outcomes(log.calls) == [("ok", 200)]
    assert log.calls[0].bytes_received == 8


# What a request says


@pytest.mark.parametrize("name", ["http.client", "requests", "urllib"])
def test_what_is_kept(gateway: mock_server.GatewayUrl, name: str) -> None:
    headers = {
        "x-mock-status": "429", "x-mock-retry-after": "7", "x-mock-ratelimit-requests": "60/0",
        "idempotency-key": "secret", "authorization": "Bearer secret",
    }  # fmt: skip
    url = gateway + "/v1/chat/completions?key=secret"
    with occupancy.record() as log:
        if name == "requests":
            requests.post(url, data=CHAT, headers=headers)
        elif name == "urllib":
            with pytest.raises(urllib.request.HTTPError) as error:
                urllib.request.urlopen(urllib.request.Request(url, CHAT, headers))
            error.value.read()
        else:
            connection = http.client.HTTPConnection(urlsplit(url).netloc)
            connection.request("POST", "/v1/chat/completions?key=secret", CHAT, headers)
            connection.getresponse().read()
            connection.close()
    (call,) = log.calls
    assert (call.kind, call.model, call.retry_after_s, call.idempotency_key) == ("generate", "gpt-test", 7.0, True)
    assert (call.host, call.path, call.method) == (urlsplit(url).netloc, "/v1/chat/completions", "POST")
    assert (call.request_bytes, call.limit_requests, call.remaining_requests) == (len(CHAT), 60, 0)
    assert call.key_id == hashlib.sha256(b"secret").hexdigest()[:8]
    assert call.request_id
    assert call.receive_ns == call.end_ns - call.headers_ns
    assert call.call_site.file == __file__
    assert "secret" not in json.dumps(repr(call))
    assert attempts.current.get() is None


def test_a_call_inside_an_event_loop(one_answer: str) -> None:
    async def ask() -> None:
        requests.get(one_answer)  # noqa: ASYNC210

    with occupancy.record() as log:
        asyncio.run(ask())
    assert [call.sync_in_event_loop for call in log.calls] == [True]


def test_telemetry_is_not_counted(gateway: mock_server.GatewayUrl) -> None:
    with occupancy.record() as log:
        with suppress_instrumentation():
            requests.post(gateway + "/v1/models")
        requests.post(gateway + "/v1/traces")
        with suppress_http_instrumentation():  # somebody above has a span for it
            requests.post(gateway + "/v1/messages")
    assert [(call.path, call.kind) for call in log.calls] == [("/v1/traces", "other"), ("/v1/messages", "generate")]
    assert log.peak == 1


# Requests that do not go to their end


def test_response_asked_for_as_urllib3_1_does(one_answer: str) -> None:
    connection: Any = http.client.HTTPConnection(urlsplit(one_answer).netloc)
    with occupancy.record() as log:
        connection.request("GET", "/path")
        with pytest.raises(TypeError):
            connection.getresponse(buffering=True)
        assert connection.getresponse().read() == b"abc"
        connection.close()
    assert outcomes(log.calls) == [("ok", 200)]


def test_closed_before_the_response(one_answer: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(one_answer).netloc)
    with occupancy.record() as log:
        connection.request("GET", "/path")
        connection.close()
        connection.request("GET", "/path")
        assert connection.getresponse().read() == b"abc"
        connection.close()
    assert outcomes(log.calls) == [("closed_early", None), ("ok", 200)]
    assert not hasattr(connection, KEY)


def test_dropped_before_the_response(one_answer: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(one_answer).netloc)
    with occupancy.record() as log:
        connection.request("GET", "/path")
        connection.sock.close()
        del connection
    gc.collect()
    assert outcomes(log.calls) == [("abandoned", None)]


def test_header_that_cannot_be_sent(one_answer: str) -> None:
    with occupancy.record() as log:
        with pytest.raises(ValueError, match="Invalid header"):
            urllib3.PoolManager().request("GET", one_answer, headers={"x": "a\nb"})
        with pytest.raises(ValueError, match="Invalid header"):
            urllib.request.urlopen(urllib.request.Request(one_answer, headers={"x": "a\nb"}))
    assert [(call.outcome, call.error_type) for call in log.calls] == [(Outcome.ERROR, "ValueError")] * 2


def test_answer_before_the_request_is_sent() -> None:
    """A server that answers and closes, of which urllib3 reads the answer all the same."""

    class Hasty(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with running(Hasty) as port, occupancy.record() as log:
        try:
            urllib3.PoolManager().request("PUT", f"http://127.0.0.1:{port}/", body=b"x" * 20_000_000, retries=False)
        except urllib3.exceptions.ProtocolError:
            assert [call.outcome for call in log.calls] == [Outcome.ERROR]  # the reset has come before the answer
        else:
            assert outcomes(log.calls) == [("http_error", 413)]
    assert log.in_flight == 0


# Once, whatever lies above and below


class OverRequests(httpx.BaseTransport):
    """An httpx transport over requests."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = requests.request(request.method, str(request.url))
        return httpx.Response(response.status_code, content=response.content)


def test_httpx_over_requests(one_answer: str) -> None:
    with occupancy.record() as log, httpx.Client(transport=OverRequests()) as client:
        assert client.get(one_answer).content == b"abc"
    (call,) = log.calls
    assert (call.client, call.outcome, call.bytes_received, call.connection_reused) == ("httpx", "ok", 3, False)


class Canned:
    """A connection of somebody's that has all answers."""

    is_closed, is_verified, proxy_is_verified, proxy, timeout = True, True, None, None, None

    def __init__(self, **options: Any) -> None:
        pass

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is sent."""

    def getresponse(self) -> Any:
        return urllib3.HTTPResponse(body=io.BytesIO(b"canned"), status=203, preload_content=False)

    def close(self) -> None:
        """Nothing is open."""


def test_connections_that_are_none() -> None:
    pool = urllib3.HTTPConnectionPool("canned.test")
    pool.ConnectionCls = Canned  # type: ignore[assignment]
    with occupancy.record() as log:
        assert pool.request("GET", "/").data == b"canned"
    (call,) = log.calls
    assert (call.client, call.outcome, call.status, call.host) == ("urllib3", "ok", 203, "canned.test")


@pytest.mark.parametrize("clients", [1, 8])
def test_threads(blocking: Any, clients: int) -> None:
    threads, rounds = 8, 10
    together = threading.Barrier(threads)

    class Together(OneAnswer):
        """Answers when all have asked."""

        def handle(self) -> None:
            while self.rfile.readline():
                while self.rfile.readline() not in (b"\r\n", b""):
                    pass
                together.wait(30)
                self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc")

    if clients == 1 and blocking.name == "http.client":
        clients = 8  # a connection is one thread's
    with running(Together) as port, occupancy.record() as log:
        shared = [blocking.client() for _ in range(clients)]

        def ask(number: int) -> None:
            for _ in range(rounds):
                client = shared[number % clients]
                assert client.read(client.send("GET", f"http://127.0.0.1:{port}/path")) == b"abc"

        workers = [threading.Thread(target=ask, args=(number,), name=f"worker-{number}") for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for client in shared:
            client.close()
    assert outcomes(log.calls) == [("ok", 200)] * threads * rounds
    assert (log.peak, log.in_flight, sum(call.bytes_received for call in log.calls)) == (threads, 0, 240)
    assert Counter(call.thread for call in log.calls) == {worker.name: rounds for worker in workers}
    assert len({call.logical_id for call in log.calls}) == threads * rounds


# Putting the hooks in and out


def hooked_methods() -> dict[tuple[type, str], Any]:
    owners: dict[type, tuple[str, ...]] = {
        http.client.HTTPConnection: ("putrequest", "send", "connect", "_tunnel", "getresponse", "close"),
        http.client.HTTPSConnection: ("connect",),
        urllib.request.AbstractHTTPHandler: ("do_open",),
        urllib.request.HTTPRedirectHandler: ("redirect_request",),
        urllib3.connection.HTTPConnection: ("connect", "_new_conn"),
        urllib3.connection.HTTPSConnection: ("connect",),
        urllib3.HTTPConnectionPool: ("urlopen", "_get_conn"),
        urllib3.Retry: ("increment",),
        requests.adapters.HTTPAdapter: ("send",),
        requests.sessions.SessionRedirectMixin: ("resolve_redirects",),
        botocore.httpsession.URLLib3Session: ("send",),
    }
    return {(owner, name): vars(owner)[name] for owner, names in owners.items() for name in names}


def test_hooks_leave_what_they_found(one_answer: str) -> None:
    before = hooked_methods()
    for _ in range(2):
        with occupancy.record() as log:
            assert all(method is not before[place] for place, method in hooked_methods().items())
            requests.get(one_answer)
        assert len(log.calls) == 1
        assert hooked_methods() == before


@pytest.mark.parametrize("place", hooked_methods(), ids=lambda place: f"{place[0].__name__}.{place[1]}")
def test_wrapper_that_hides_a_hook(
    place: tuple[type, str], gateway: mock_server.GatewayUrl, certificate: ssl.SSLContext
) -> None:
    """It comes while we record and stays while we record again: one more hook comes on top, and each request is one."""
    before = hooked_methods()

    def ask_all() -> list[tuple[str | None, int, int]]:
        with occupancy.record() as log:
            for client_class in CLIENTS.values():
                with client_class() as client:
                    headers = {"x-mock-redirect": "1"} if client.follows else {}
                    client.read(client.send("GET", gateway + JSON, headers=headers))
            with running(OneAnswer, certificate) as port, running(Tunnel) as proxy:
                for ask in TWICE.values():
                    list(ask(f"https://127.0.0.1:{port}/path", f"127.0.0.1:{proxy}"))
            retry = urllib3.Retry(2, status_forcelist=[503], backoff_factor=0)
            urllib3.PoolManager().request("GET", gateway + JSON, headers=failing(1), retries=retry)
        assert log.in_flight == 0
        return [(call.client, call.attempt, call.bytes_received) for call in log.calls]

    calls: list[int] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TLS that trusts anybody
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


def test_request_under_way_when_the_hooks_go(one_answer: str) -> None:
    """It is followed to its end, and with the next recording the hooks are ours no more than before."""
    before = hooked_methods()
    connection = http.client.HTTPConnection(urlsplit(one_answer).netloc)
    with occupancy.record() as log:
        connection.request("GET", "/path")
    requests.get(one_answer)
    assert connection.getresponse().read() == b"abc"
    connection.close()
    assert outcomes(log.calls) == [("ok", 200)]
    with occupancy.record() as log:
        requests.get(one_answer)
    assert outcomes(log.calls) == [("ok", 200)]
    assert hooked_methods() == before


def test_request_begun_before_the_hooks_come(one_answer: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(one_answer).netloc)
    connection.request("GET", "/path")
    with occupancy.record() as log:
        assert connection.getresponse().read() == b"abc"
    connection.close()
    assert log.calls == []


IMPORTED_LATER = """
import sys
import occupancy
log = occupancy.instrument()
heavy = {"http.client", "urllib.request", "urllib3", "requests", "botocore", "aiohttp", "httpx", "httpx2"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
import mock_server
sys.path.insert(0, "tests/integration")
from blocking_clients import CLIENTS
with mock_server.serve(delay_ms=0) as url:
    for client_class in CLIENTS.values():
        with client_class() as client:
            client.read(client.send("GET", url + "/v1/models"))
assert [call.client for call in log.calls] == list(CLIENTS), log.calls
"""


def test_clients_imported_later() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED_LATER], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
