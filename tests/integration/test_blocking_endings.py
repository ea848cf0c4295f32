"""However an exchange of a client on `http.client` ends: one call, the right outcome and stamps, an unharmed host."""

import gc
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from loopback_servers import ScriptedServer
from scenarios import ALL, EVENTS, Endings, check_ending

from occupancy import Outcome

JSON = "/generate/plan?x-mock-delay-ms=0"
CHAT = b'{"model": "gpt-test", "stream": true, "messages": []}'


ENDINGS = Endings()
ending = ENDINGS.declare


def masked(body: bytes) -> bytes:
    return re.sub(rb"\d+", b"N", body)


# Read to the end


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
def content_length(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        response = client.send("GET", stack.gateway + JSON)
        return client.status(response), client.read(response)


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
def chunked(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        headers = {"x-mock-framing": "chunked", "x-mock-chunks": "5"}
        response = client.send("GET", stack.gateway + JSON, headers=headers)
        return client.read(response)


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
def chunked_in_pieces(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        headers = {"x-mock-framing": "chunked", "x-mock-chunks": "5"}
        response = client.send("GET", stack.gateway + JSON, headers=headers)
        return b"".join(client.pieces(response))


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
def length_in_pieces(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        response = client.send("GET", stack.gateway + JSON, headers={"x-mock-chunks": "5"})
        return b"".join(client.pieces(response))


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
def into_a_buffer(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        raw, got, buffer = client.raw(client.send("GET", stack.gateway + JSON)), b"", bytearray(7)
        while size := raw.readinto(buffer):
            got += buffer[:size]
        return got


@ending(Outcome.OK, 200, EVENTS, end="last_byte_ns")
def events_in_lines(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        response = client.send("POST", stack.gateway + "/v1/chat/completions", CHAT, {"x-mock-ping": "2"})
        return masked(b"".join(iter(client.raw(response))))


@ending(Outcome.OK, 200, EVENTS, end="last_byte_ns")
def events_at_once(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        response = client.send("POST", stack.gateway + "/v1/chat/completions", CHAT)
        return masked(client.read(response))


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
def compressed(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        headers = {"x-mock-gzip": "1", "accept-encoding": "gzip"}
        response = client.send("GET", stack.gateway + JSON, headers=headers)
        return len(client.read(response)) > 0


@ending(Outcome.OK, 200, EVENTS, end="last_byte_ns")
def last_event_then_no_end(stack: Any, server: Any) -> Any:
    """The host leaves at the last event; the server never ends the body."""
    with stack.client() as client:
        headers = {"x-mock-hang": "after-body"}
        response = client.send("POST", stack.gateway + "/v1/chat/completions", CHAT, headers)
        got = b""
        for piece in client.pieces(response):
            got += piece
            if b"[DONE]\n\n" in got:
                break
        client.raw(response).close()
        return masked(got)


@ending(Outcome.OK, 204, "headers", end="headers_ns")
def no_content(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        return client.read(client.send("GET", stack.gateway + JSON, headers={"x-mock-status": "204"}))


@ending(Outcome.OK, 304, "headers", end="headers_ns")
def not_modified(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        return client.read(client.send("GET", stack.gateway + JSON, headers={"x-mock-status": "304"}))


@ending(Outcome.OK, 200, "headers", end="headers_ns")
def head(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        return client.read(client.send("HEAD", stack.gateway + JSON))


@ending(Outcome.OK, 200, "headers", end="headers_ns")
def length_of_none(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        return client.read(client.send("GET", server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")))


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
def until_close(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        return client.read(client.send("GET", server(b"HTTP/1.0 200 OK\r\n\r\n", b"half ", b"and half")))


@ending(Outcome.OK, 200, "headers", end="headers_ns")
def nothing_until_close(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        return client.read(client.send("GET", server(b"HTTP/1.0 200 OK\r\n\r\n")))


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
def continued(stack: Any, server: Any) -> Any:
    """An interim answer is none."""
    with stack.client() as client:
        answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"
        return client.read(client.send("GET", server(answer)))


@ending(Outcome.OK, 200, ALL, end="last_byte_ns")
def chunks_with_extras(stack: Any, server: Any) -> Any:
    """An extension, chunks of two bytes, as long as a line's end, and a trailer."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with stack.client() as client:
        url = server(head, b"2;name=value\r\nab\r", b"\n2\r\n\r\n\r\n", b"0\r\nTrailer: 1\r\n\r\n")
        return client.read(client.send("GET", url))


# Failed by the server's word


@ending(Outcome.HTTP_ERROR, 429, ALL, error="429", end="last_byte_ns")
def too_many_requests(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        return client.read(client.send("GET", stack.gateway + JSON, headers={"x-mock-status": "429"}))


# Left by the program


@ending(Outcome.CLOSED_EARLY, 200, "headers")
def closed_unread(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        response = client.send("GET", stack.gateway + JSON)
        client.raw(response).close()
        return client.status(response)


@ending(Outcome.CLOSED_EARLY, 200, ALL)
def left_in_the_middle(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        response = client.send("GET", stack.gateway + JSON, headers={"x-mock-hang": "mid-body"})
        got = len(client.raw(response).read(1))
        client.raw(response).close()
        return got


@ending(Outcome.ABANDONED, 200, "headers", end="headers_ns")
def never_read_and_dropped(stack: Any, server: Any) -> Any:
    client = stack.client()
    status = client.status(client.send("GET", stack.gateway + JSON, headers={"connection": "close"}))
    gc.collect()
    client.close()
    return status


@ending(Outcome.ABANDONED, 429, "headers", end="headers_ns")
def error_dropped(stack: Any, server: Any) -> Any:
    client = stack.client()
    headers = {"x-mock-status": "429", "connection": "close"}
    status = client.status(client.send("GET", stack.gateway + JSON, headers=headers))
    gc.collect()
    client.close()
    return status


@ending(Outcome.ABANDONED, 200, ALL, end="last_byte_ns")
def half_read_and_dropped(stack: Any, server: Any) -> Any:
    client = stack.client()
    headers = {"x-mock-hang": "mid-body", "connection": "close"}
    got = len(client.raw(client.send("GET", stack.gateway + JSON, headers=headers)).read(1))
    gc.collect()
    client.close()
    return got


@ending(Outcome.ABANDONED, 200, ALL, end="last_byte_ns")
def half_read_and_collected(stack: Any, server: Any) -> Any:
    client = stack.client()
    response = client.send("GET", stack.gateway + JSON, headers={"x-mock-hang": "mid-body", "connection": "close"})
    got = len(client.raw(response).read(1))
    cycle = [response]
    cycle.append(cycle)
    del response, cycle
    gc.collect()
    client.close()
    return got


# Failed


@ending(Outcome.ERROR, None, "", error="CONNECT")
def connect_error(stack: Any, server: Any) -> Any:
    with socket.socket() as taken, stack.client() as client:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        client.send("GET", f"http://127.0.0.1:{taken.getsockname()[1]}{JSON}")


@ending(Outcome.TIMEOUT, None, "", error="TimeoutError")
def read_timeout(stack: Any, server: Any) -> Any:
    with stack.client(timeout_s=0.05) as client:
        client.send("GET", stack.gateway + JSON, headers={"x-mock-hang": "before-headers"})


@ending(Outcome.TIMEOUT, 200, ALL, error="TimeoutError")
def read_timeout_in_the_body(stack: Any, server: Any) -> Any:
    with stack.client(timeout_s=0.05) as client:
        response = client.send("GET", stack.gateway + JSON, headers={"x-mock-hang": "mid-body"})
        client.read(response)


@ending(Outcome.ERROR, None, "", error="RemoteDisconnected")
def cut_before_headers(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        client.send("GET", stack.gateway + JSON, headers={"x-mock-cut": "before-headers"})


@ending(Outcome.ERROR, None, "", error="BadStatusLine")
def no_http(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        client.send("GET", server(b"SSH-2.0-OpenSSH_9.6\r\n"))


@ending(Outcome.ERROR, 200, "headers", error="IncompleteRead")
def cut_before_the_body(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        return client.read(client.send("GET", server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")))


@ending(Outcome.ERROR, 200, ALL, error="IncompleteRead")
def cut_in_the_body(stack: Any, server: Any) -> Any:
    with stack.client() as client:
        return client.read(client.send("GET", server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"half")))


@ending(Outcome.ERROR, 200, ALL, error="IncompleteRead")
def cut_between_chunks(stack: Any, server: Any) -> Any:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with stack.client() as client:
        client.read(client.send("GET", server(head, b"2\r\nab\r\n")))


@ending(Outcome.ERROR, 200, ALL, error="IncompleteRead")
def cut_unnoticed(stack: Any, server: Any) -> Any:
    """Some readers say nothing of a body that breaks off."""
    with stack.client() as client:
        response = client.raw(client.send("GET", server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"half")))
        got = b""
        while piece := response.read(2):
            got += piece
        return got


@pytest.fixture
def server() -> Iterator[Callable[..., str]]:
    """Serve one connection with these pieces, then close: `server(*pieces)` gives the URL."""
    with ScriptedServer() as scripted:
        yield scripted.serve


@pytest.mark.parametrize("name", ENDINGS)
def test_ending(blocking: Any, compare: Any, server: Any, name: str) -> None:
    expected = ENDINGS[name]
    seen, log = compare(blocking, expected.scenario, server)
    assert seen.result is not None or seen.error is not None
    assert log.in_flight == 0
    (call,) = log.calls
    error = blocking.client.connect_error if expected.error == "CONNECT" else expected.error
    check_ending(call, expected, blocking.name, error)
    assert not call.sync_in_event_loop
