"""TLS through a tunnel, SOCKS and HTTP/2: each attempt is one call there too, with its phases."""

import socketserver
import ssl
from typing import Any

import pytest
from loopback_servers import OneAnswer, Socks, Tunnel, running, trusting

from occupancy import Outcome

JSON = "/generate/plan?x-mock-delay-ms=0"


async def ask(stack: Any, url: str, proxy: str | None) -> Any:
    transport = stack.transport(verify=trusting(), proxy=proxy)
    async with stack.opened(stack.client(mounts={"all://": transport})) as client:
        return [(await stack.done(client.get(url))).content for _ in range(2)]


@pytest.mark.parametrize("way", ["direct", "tunnel"])
def test_tls(stack: Any, compare: Any, certificate: ssl.SSLContext, way: str) -> None:
    with running(OneAnswer, certificate) as port, running(Tunnel) as proxy:
        url = f"https://127.0.0.1:{port}/path"
        seen, log = compare(stack, ask, url, f"http://127.0.0.1:{proxy}" if way == "tunnel" else None)
    assert seen.result == [b"abc", b"abc"]
    first, second = log.calls
    assert (first.host, first.path, first.connection_reused) == (f"127.0.0.1:{port}", "/path", False)
    assert first.connect_ns > 0
    assert first.tls_ns > 0
    assert (second.connect_ns, second.tls_ns, second.connection_reused) == (None, None, True)
    for call in (first, second):
        assert call.wait_ns > 0
        phases = (call.client_ns, call.pool_ns, call.connect_ns, call.tls_ns, call.send_ns, call.wait_ns)
        assert sum(phase or 0 for phase in phases) <= call.headers_ns - call.start_ns


def test_tunnel_refused(stack: Any, compare: Any) -> None:
    with running(Tunnel) as proxy:
        seen, log = compare(stack, ask, "https://127.0.0.1:1/path", f"http://127.0.0.1:{proxy}")
    assert seen.error[0] is stack.library.ProxyError
    (call,) = log.calls
    assert (call.outcome, call.error_type, call.status, call.send_ns) == (Outcome.ERROR, "ProxyError", None, None)


def test_socks(stack: Any, compare: Any) -> None:
    pytest.importorskip("socksio", reason="the clients need socksio for SOCKS, and it is not installed")
    with running(Socks) as proxy, running(OneAnswer) as port:
        seen, log = compare(stack, ask, f"http://127.0.0.1:{port}/path", f"socks5://127.0.0.1:{proxy}")
    assert seen.result == [b"abc", b"abc"]
    first, second = log.calls
    assert (first.connection_reused, second.connection_reused) == (False, True)
    assert first.connect_ns > 0


class Http2(socketserver.BaseRequestHandler):
    """Answers on one connection, in reverse, once three requests are open: they share it."""

    def handle(self) -> None:
        from h2.config import H2Configuration
        from h2.connection import H2Connection
        from h2.events import RequestReceived

        state = H2Connection(H2Configuration(client_side=False))
        state.initiate_connection()
        self.request.sendall(state.data_to_send())
        waiting: list[int] = []
        while data := self.request.recv(65536):
            waiting += [event.stream_id for event in state.receive_data(data) if isinstance(event, RequestReceived)]
            if len(waiting) >= 3:
                while waiting:
                    stream_id = waiting.pop()
                    state.send_headers(stream_id, [(":status", "200"), ("content-type", "text/plain")])
                    state.send_data(stream_id, b"abc", end_stream=True)
            self.request.sendall(state.data_to_send())


async def share_connection(stack: Any, port: int) -> Any:
    async with stack.opened(stack.client(http1=False, http2=True)) as client:
        url = f"http://127.0.0.1:{port}/path"

        async def get() -> Any:
            response = await stack.done(client.get(url))
            return response.http_version, response.content

        return await stack.at_once(get, get, get)


def test_http2(stack: Any, compare: Any) -> None:
    pytest.importorskip("h2", reason="the clients need h2 for HTTP/2, and it is not installed")
    with running(Http2) as port:
        seen, log = compare(stack, share_connection, port)
    assert seen.result == [("HTTP/2", b"abc")] * 3
    assert [(call.outcome, call.status, call.bytes_received) for call in log.calls] == [(Outcome.OK, 200, 3)] * 3
    assert sorted(call.connection_reused for call in log.calls) == [False, True, True]
    assert log.peak == 3
    assert log.in_flight == 0
