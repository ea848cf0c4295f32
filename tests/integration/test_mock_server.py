"""The mock gateway, met by the real SDKs, a plain HTTP client and bare sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import anthropic
import httpx2
import openai
import pytest

import mock_server
from mock_server import GatewayUrl

TEXT = "word0 word1 word2 word3"
ASK: list[Any] = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
MODEL_PATHS = [CHAT, "/v1/responses", "/v1/messages"]
PLACES = ["before-headers", "before-body", "mid-body", "after-body"]


@pytest.fixture(scope="module")
def shared_url() -> Iterator[GatewayUrl]:
    with mock_server.serve(delay_ms=0) as url:
        yield url


@pytest.fixture
def url(shared_url: GatewayUrl) -> GatewayUrl:
    shared_url.wait_in_flight(0)
    shared_url.reset_stats()
    return shared_url


@pytest.fixture
def http(url: GatewayUrl) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=url, timeout=10) as client:
        yield client


@pytest.fixture
def oai(url: GatewayUrl) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture
def claude(url: GatewayUrl) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, timeout=10) as client:
        yield client


def ask(model: str = "m", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": ASK, **fields}


@contextmanager
def wire(url: str, path: str, body: Any = None, method: str = "POST", **faults: object) -> Iterator[socket.socket]:
    """Send one request over a bare socket; faults by name, underscores for hyphens."""
    host, port = url.removeprefix("http://").split(":")
    payload = b"" if body is None else json.dumps(body).encode()
    headers = {"host": host, "content-length": len(payload)}
    headers |= {f"x-mock-{name.replace('_', '-')}": value for name, value in faults.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + payload)
        yield sock


def read_head(sock: socket.socket) -> tuple[int, dict[str, str]]:
    """Read status and headers, and not one byte more."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        assert byte, f"closed after {head!r}"
        head += byte
    first, *lines = head.decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers


def read_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        assert part, f"closed after {data!r}"
        data += part
    return data


def read_chunk(sock: socket.socket) -> bytes:
    """Read one chunk as the server wrote it; b"" is the body's end."""
    size = b""
    while not size.endswith(b"\r\n"):
        size += read_exactly(sock, 1)
    return read_exactly(sock, int(size, 16) + 2)[:-2]


def read_chunks(sock: socket.socket) -> list[bytes]:
    return list(iter(lambda: read_chunk(sock), b""))


def read_to_close(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


# The real clients


def test_openai_chat(oai: openai.OpenAI) -> None:
    answer = oai.chat.completions.create(model="some-model", messages=ASK)
    assert answer.model == "some-model"
    assert answer.choices[0].message.content == TEXT
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 4


def test_openai_chat_stream(oai: openai.OpenAI) -> None:
    chunks = list(oai.chat.completions.create(model="some-model", messages=ASK, stream=True))
    assert {chunk.model for chunk in chunks} == {"some-model"}
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "word0", " word1", " word2", " word3", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 5 + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_openai_chat_stream_usage(oai: openai.OpenAI) -> None:
    chunks = list(
        oai.chat.completions.create(model="m", messages=ASK, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4


def test_openai_raw_response(oai: openai.OpenAI) -> None:
    raw = oai.chat.completions.with_raw_response.create(model="m", messages=ASK)
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.parse().choices[0].message.content == TEXT
    with oai.chat.completions.with_streaming_response.create(model="m", messages=ASK) as response:
        assert json.loads(response.read())["choices"][0]["message"]["content"] == TEXT


def test_openai_responses(oai: openai.OpenAI) -> None:
    answer = oai.responses.create(model="some-model", input="hello")
    assert answer.model == "some-model"
    assert answer.output_text == TEXT
    assert answer.status == "completed"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 4
    assert oai.responses.with_raw_response.create(model="m", input="hello").parse().output_text == TEXT


def test_openai_responses_stream(oai: openai.OpenAI) -> None:
    events = list(oai.responses.create(model="m", input="hello", stream=True))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 4,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(12))


def test_openai_responses_stream_helper(oai: openai.OpenAI) -> None:
    with oai.responses.stream(model="some-model", input="hello") as stream:
        stream.until_done()
        final = stream.get_final_response()
    assert (final.output_text, final.model) == (TEXT, "some-model")


def test_openai_embeddings(oai: openai.OpenAI) -> None:
    for encoding in ("float", "base64"):
        answer = oai.embeddings.create(model="some-model", input=["a", "b"], encoding_format=encoding)
        assert answer.model == "some-model"
        assert len(answer.data) == 2
    # The SDK asks for base64 by itself, and unpacks it.
    packed = oai.embeddings.create(model="m", input=["a", "b"])
    assert [item.embedding for item in packed.data] == [[0.25, -0.5, 0.75]] * 2
    assert len(oai.embeddings.create(model="m", input=[1, 2, 3]).data) == 1
    assert len(oai.embeddings.create(model="m", input=[[1, 2], [3]]).data) == 2


def test_models_by_both_clients(oai: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    names = ["mock-large", "mock-small"]
    assert [model.id for model in oai.models.list()] == names
    assert [model.id for model in claude.models.list()] == names


def test_openai_async(url: GatewayUrl) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            chat = await client.chat.completions.create(model="m", messages=ASK)
            assert chat.choices[0].message.content == TEXT
            stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT
            response = await client.responses.create(model="m", input="hello")
            assert response.output_text == TEXT
            events = await client.responses.create(model="m", input="hello", stream=True)
            assert [event.type async for event in events][-1] == "response.completed"
            raw = await client.responses.with_raw_response.create(model="m", input="hello")
            assert raw.parse().output_text == TEXT

    asyncio.run(main())


def test_anthropic_messages(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.create(model="some-model", max_tokens=9, messages=ASK)
    assert answer.model == "some-model"
    assert [block.text for block in answer.content if block.type == "text"] == [TEXT]
    assert (answer.stop_reason, answer.usage.output_tokens) == ("end_turn", 4)


def test_anthropic_stream(claude: anthropic.Anthropic) -> None:
    events = list(claude.messages.create(model="m", max_tokens=9, messages=ASK, stream=True))
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_anthropic_stream_helper(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(model="some-model", max_tokens=9, messages=ASK) as stream:
        assert "".join(stream.text_stream) == TEXT
        final = stream.get_final_message()
    assert (final.model, final.stop_reason, final.usage.output_tokens) == ("some-model", "end_turn", 4)


def test_anthropic_raw_response(claude: anthropic.Anthropic) -> None:
    raw = claude.messages.with_raw_response.create(model="m", max_tokens=9, messages=ASK)
    assert raw.headers["request-id"].startswith("req_")
    assert raw.parse().stop_reason == "end_turn"


def test_anthropic_async(url: GatewayUrl) -> None:
    async def main() -> None:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
            answer = await client.messages.create(model="m", max_tokens=9, messages=ASK)
            assert answer.stop_reason == "end_turn"
            async with client.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
                assert "".join([text async for text in stream.text_stream]) == TEXT
            raw = await client.messages.with_raw_response.create(model="m", max_tokens=9, messages=ASK)
            assert (await _maybe(raw.parse())).stop_reason == "end_turn"

    async def _maybe(value: Any) -> Any:
        return await value if asyncio.iscoroutine(value) else value

    asyncio.run(main())


def test_sdk_retries_until_the_key_has_failed_enough(url: GatewayUrl) -> None:
    faults = {"x-mock-fail-first": "2", "x-mock-key": "openai-retries", "x-mock-retry-after-ms": "1"}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=2, default_headers=faults) as client:
        assert client.chat.completions.create(model="m", messages=ASK).choices[0].message.content == TEXT
    assert url.stats()["paths"][CHAT]["total"] == 3


def test_anthropic_retries_a_cut_connection(url: GatewayUrl) -> None:
    faults = {"x-mock-fail-first": "1", "x-mock-key": "anthropic-cut", "x-mock-cut": "before-headers"}
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=1, default_headers=faults) as client:
        assert client.messages.create(model="m", max_tokens=9, messages=ASK).stop_reason == "end_turn"
    assert url.stats()["paths"]["/v1/messages"]["total"] == 2


def test_sdk_errors(oai: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    with pytest.raises(openai.RateLimitError) as openai_error:
        oai.responses.create(model="m", input="x", extra_headers={"x-mock-status": "429", "x-mock-retry-after": "3"})
    assert openai_error.value.response.headers["retry-after"] == "3"
    with pytest.raises(anthropic.InternalServerError, match="overloaded_error"):
        claude.messages.create(model="m", max_tokens=9, messages=ASK, extra_query={"x-mock-status": "529"})


def test_sdk_follows_redirects(url: GatewayUrl, oai: openai.OpenAI) -> None:
    answer = oai.chat.completions.create(model="m", messages=ASK, extra_headers={"x-mock-redirect": "2"})
    assert answer.choices[0].message.content == TEXT
    assert url.stats()["paths"][CHAT]["total"] == 3


# Faults


@pytest.mark.parametrize("path", MODEL_PATHS)
def test_stream_has_exactly_the_chunks_asked_for(url: GatewayUrl, path: str) -> None:
    with wire(url, path, ask(stream=True), chunks=3, ping=2) as sock:
        status, headers = read_head(sock)
        chunks = read_chunks(sock)
    assert (status, headers["content-type"], headers["transfer-encoding"]) == (200, "text/event-stream", "chunked")
    assert chunks[:2] == [b": ping\n\n"] * 2
    assert [re.findall(rb"word\d", chunk)[0] for chunk in chunks[2:]] == [b"word0", b"word1", b"word2"]
    assert all(chunk.endswith(b"\n\n") for chunk in chunks)


def test_json_in_chunks(url: GatewayUrl) -> None:
    with wire(url, CHAT, ask(), chunks=5, framing="chunked") as sock:
        _, headers = read_head(sock)
        chunks = read_chunks(sock)
    assert "content-length" not in headers
    assert len(chunks) == 5
    assert max(map(len, chunks)) - min(map(len, chunks)) <= 1
    assert json.loads(b"".join(chunks))["model"] == "m"


def test_framing(url: GatewayUrl) -> None:
    with wire(url, CHAT, ask()) as sock:
        _, headers = read_head(sock)
        assert "transfer-encoding" not in headers
        assert json.loads(read_exactly(sock, int(headers["content-length"])))["model"] == "m"
    with wire(url, CHAT, ask(stream=True), framing="length") as sock:
        _, headers = read_head(sock)
        assert "transfer-encoding" not in headers
        assert read_exactly(sock, int(headers["content-length"])).endswith(b"data: [DONE]\n\n")


def test_pauses_lie_where_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = {"delay-ms": 50, "body-delay-ms": 30, "chunks": 3, "chunk-gap-ms": 7.5}
    assert asgi_steps(monkeypatch, CHAT, faults) == [
        *("pause 50", "headers", "pause 30", "piece"),
        *("pause 7.5", "piece", "pause 7.5", "piece", "end"),
    ]


@pytest.mark.parametrize(
    ("step", "delay_ms"), [("plan", 200), ("tool_search", 350), ("tool_fetch", 350), ("recap", 200)]
)
def test_steps_wait_as_the_reference_agent(monkeypatch: pytest.MonkeyPatch, step: str, delay_ms: int) -> None:
    assert asgi_steps(monkeypatch, f"/generate/{step}", {}) == [f"pause {delay_ms}", "headers", "piece", "end"]


def test_delay_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asgi_steps(monkeypatch, CHAT, {}, delay_ms=12)[0] == "pause 12"
    assert asgi_steps(monkeypatch, CHAT, {"delay-ms": 3}, delay_ms=12)[0] == "pause 3"


def test_no_piece_is_sent_or_waited_for_without_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = {"chunks": 3, "chunk-gap-ms": 5, "delay-ms": 0}
    for status in (204, 304):
        assert asgi_steps(monkeypatch, CHAT, {**faults, "status": status}) == ["headers", "end"]
    assert asgi_steps(monkeypatch, "/generate/plan", faults, method="HEAD") == ["headers", "end"]


def asgi_steps(
    monkeypatch: pytest.MonkeyPatch, path: str, faults: Mapping[str, object], delay_ms: float = 0, method: str = "POST"
) -> list[str]:
    """Run one request in process, and tell what the answer did in which order; pauses take no time."""
    steps: list[str] = []

    async def pause(duration_ms: float) -> None:
        if duration_ms:
            steps.append(f"pause {duration_ms:g}")

    async def receive() -> dict[str, Any]:
        if asked:
            return {"type": "http.request", "body": asked.pop(), "more_body": False}
        return await asyncio.Future()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            steps.append("headers")
        else:
            steps.append("piece" if message["more_body"] else "end")

    monkeypatch.setattr("mock_server.reply._pause", pause)
    asked = [json.dumps(ask()).encode()]
    headers = [(f"x-mock-{name}".encode(), str(value).encode()) for name, value in faults.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
    asyncio.run(mock_server.create_app(delay_ms=delay_ms)(scope, receive, send))
    return steps


def test_steps_answer_json(http: httpx2.Client) -> None:
    for method in ("GET", "POST"):
        answer = http.request(method, "/generate/plan", headers={"x-mock-delay-ms": "0"})
        assert answer.json() == {"step": "plan", "delay_ms": 0.0, "text": "plan done"}
    unknown = http.get("/generate/nap")
    assert unknown.status_code == 404
    for word in ("'nap'", "plan", "tool_search", "tool_fetch", "recap"):
        assert word in unknown.json()["error"]["message"]
    assert http.get("/generate/nap?x-mock-delay-ms=0").json()["step"] == "nap"


@pytest.mark.parametrize("status", [201, 400, 404, 418, 500, 529])
def test_status(http: httpx2.Client, status: int) -> None:
    answer = http.post(CHAT, json=ask(), headers={"x-mock-status": str(status), "x-mock-retry-after": "0.5"})
    assert answer.status_code == status
    assert ("error" in answer.json()) == (status >= 400)
    assert answer.headers.get("retry-after") == ("0.5" if status >= 400 else None)


def test_retry_after_as_date(http: httpx2.Client) -> None:
    date = "Wed, 21 Oct 2026 07:28:00 GMT"
    answer = http.get("/v1/models", headers={"x-mock-status": "503", "x-mock-retry-after": date})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, date)


@pytest.mark.parametrize("faults", [{"status": 204}, {"status": 304}, {"status": 204, "gzip": 1, "ping": 2}])
def test_statuses_without_body(url: GatewayUrl, faults: dict[str, Any]) -> None:
    with wire(url, CHAT, ask(stream=True), **faults) as sock:
        status, headers = read_head(sock)
        sock.shutdown(socket.SHUT_WR)
        assert read_to_close(sock) == b""
    assert status == faults["status"]
    assert not headers.keys() & {"content-length", "transfer-encoding", "content-type", "content-encoding"}


def test_head_has_no_body(url: GatewayUrl) -> None:
    with wire(url, "/generate/plan", method="HEAD", delay_ms=0) as sock:
        status, headers = read_head(sock)
        sock.shutdown(socket.SHUT_WR)
        assert read_to_close(sock) == b""
    assert (status, int(headers["content-length"]) > 0) == (200, True)


def test_fail_first_counts_by_key(http: httpx2.Client) -> None:
    def status(key: str, **more: str) -> int:
        faults = {"x-mock-fail-first": "1", "x-mock-key": key, "x-mock-delay-ms": "0", **more}
        return http.get("/generate/plan", headers=faults).status_code

    assert [status("a"), status("b", **{"x-mock-status": "429"}), status("a"), status("b")] == [503, 429, 200, 200]
    other_app = mock_server.serve(delay_ms=0)
    with other_app as other, httpx2.Client(base_url=other) as client:
        faults = {"x-mock-fail-first": "1", "x-mock-key": "a"}
        assert client.get("/v1/models", headers=faults).status_code == 503


@pytest.mark.parametrize("gzip_query", ["0", "1"])
def test_gzip(http: httpx2.Client, gzip_query: str) -> None:
    for stream in (True, False):
        with http.stream("POST", f"{CHAT}?x-mock-gzip={gzip_query}", json=ask(stream=stream)) as answer:
            raw = b"".join(answer.iter_raw())
        assert answer.headers.get("content-encoding") == ("gzip" if gzip_query == "1" else None)
        body = gzip.decompress(raw) if gzip_query == "1" else raw
        assert b"word3" in body


def test_gzipped_pieces_can_be_read_one_by_one(url: GatewayUrl) -> None:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    with wire(url, CHAT, ask(stream=True), gzip=1, chunks=3, ping=1) as sock:
        read_head(sock)
        pieces = [unpacker.decompress(chunk) for chunk in read_chunks(sock)]
    assert len(pieces) == 4
    assert pieces[0] == b": ping\n\n"
    assert b"word0" in pieces[1]
    assert b"word1" in pieces[2]
    assert pieces[3].endswith(b"data: [DONE]\n\n")
    assert unpacker.eof


def test_rate_limit_headers(http: httpx2.Client) -> None:
    limits = {"requests": "60/59", "tokens": "1000/0", "reset-s": "6"}
    faults = {f"x-mock-ratelimit-{name}": value for name, value in limits.items()}
    headers = http.post(CHAT, json=ask(), headers=faults).headers
    assert headers["x-ratelimit-limit-requests"] == "60"
    assert headers["x-ratelimit-remaining-requests"] == "59"
    assert headers["x-ratelimit-reset-requests"] == "6s"
    assert headers["x-ratelimit-limit-tokens"] == "1000"
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    assert not any(name.startswith("anthropic-") for name in headers)
    headers = http.post("/v1/messages", json=ask(), headers=faults).headers
    assert headers["anthropic-ratelimit-requests-remaining"] == "59"
    for kind in ("tokens", "input-tokens", "output-tokens"):
        assert headers[f"anthropic-ratelimit-{kind}-limit"] == "1000"
        assert headers[f"anthropic-ratelimit-{kind}-remaining"] == "0"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", headers[f"anthropic-ratelimit-{kind}-reset"])
    assert not any(name.startswith("x-ratelimit-") for name in headers)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects(http: httpx2.Client, status: int) -> None:
    faults = {"x-mock-redirect": "3", "x-mock-redirect-to": "/generate/plan", "x-mock-redirect-status": str(status)}
    answer = http.get("/v1/models?x-mock-delay-ms=0&a=b%20c", headers=faults, follow_redirects=True)
    assert [hop.status_code for hop in answer.history] == [status] * 3
    assert [hop.url.path for hop in answer.history] == ["/v1/models"] * 3
    assert answer.url.path == "/generate/plan"
    assert answer.url.params.multi_items() == [("x-mock-delay-ms", "0"), ("a", "b c"), ("x-mock-redirect", "0")]
    assert answer.json()["step"] == "plan"


def test_query_wins_over_header(http: httpx2.Client) -> None:
    assert http.get("/v1/models?x-mock-status=418", headers={"X-Mock-Status": "500"}).status_code == 418


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("stream", [True, False])
def test_hang(url: GatewayUrl, place: str, stream: bool) -> None:
    with wire(url, CHAT, ask(stream=stream), hang=place, framing="chunked", chunks=4) as sock:
        url.wait_in_flight(1)
        if place != "before-headers":
            assert read_head(sock)[0] == 200
        chunks = [read_chunk(sock) for _ in range({"mid-body": 2, "after-body": 4}.get(place, 0))]
        if place == "after-body":
            assert b"".join(chunks).endswith(b"data: [DONE]\n\n" if stream else b"}")
        assert url.stats()["in_flight"] == 1
    url.wait_in_flight(0)


@pytest.mark.parametrize(("place", "pieces"), list(zip(PLACES, [0, 0, 2, 4], strict=True)))
def test_hung_answers_send_nothing_more(place: str, pieces: int) -> None:
    with ExitStack() as clients:
        with mock_server.serve(delay_ms=0) as url:
            sock = clients.enter_context(wire(url, CHAT, ask(stream=True), hang=place))
            url.wait_in_flight(1)
            if place != "before-headers":
                read_head(sock)
            assert b"".join(read_chunk(sock) for _ in range(pieces)).count(b"word") == pieces
        # Whatever else it would have sent has arrived when the server has closed the connection.
        assert read_to_close_or_reset(sock) == b""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("stream", [True, False])
def test_cut(url: GatewayUrl, http: httpx2.Client, place: str, stream: bool) -> None:
    received = b""

    def read() -> None:
        nonlocal received
        with http.stream("POST", CHAT, json=ask(stream=stream), headers={"x-mock-cut": place}) as answer:
            for part in answer.iter_raw():
                received += part

    with pytest.raises(httpx2.RemoteProtocolError):
        read()
    assert (b"word0" in received, b"[DONE]" in received) == {
        "before-headers": (False, False),
        "before-body": (False, False),
        "mid-body": (stream, False),
        "after-body": (True, stream),
    }[place]
    assert bool(received) == (place in ("mid-body", "after-body"))
    url.wait_in_flight(0)


def test_cut_sends_what_came_before(url: GatewayUrl) -> None:
    with wire(url, CHAT, ask(stream=True), cut="mid-body", chunks=5) as sock:
        read_head(sock)
        rest = read_to_close(sock)
    assert re.findall(rb"word\d", rest) == [b"word0", b"word1", b"word2"]
    assert not rest.endswith(b"0\r\n\r\n")


BAD_FAULTS = [
    ("delay-ms", "-1"),
    ("delay-ms", "nan"),
    ("delay-ms", "inf"),
    ("body-delay-ms", "soon"),
    ("chunk-gap-ms", ""),
    ("chunks", "0"),
    ("chunks", "1.5"),
    ("chunks", "100001"),
    ("ping", "-2"),
    ("status", "99"),
    ("status", "302"),
    ("status", "600"),
    ("retry-after", "-1"),
    ("retry-after", "tomorrow"),
    ("retry-after-ms", "x"),
    ("fail-first", "two"),
    ("key", ""),
    ("hang", "somewhere"),
    ("cut", "half"),
    ("redirect", "-1"),
    ("redirect-to", "//elsewhere"),
    ("redirect-to", "elsewhere"),
    ("redirect-status", "304"),
    ("ratelimit-requests", "60"),
    ("ratelimit-tokens", "-1/5"),
    ("ratelimit-reset-s", "-0.1"),
    ("gzip", "yes"),
    ("framing", "none"),
    ("chunk", "3"),
]


@pytest.mark.parametrize(("name", "value"), BAD_FAULTS)
def test_bad_fault_is_named(http: httpx2.Client, name: str, value: str) -> None:
    by_query = http.post(CHAT, json=ask(), params={f"x-mock-{name}": value})
    by_header = http.post("/v1/messages", json=ask(), headers={f"x-mock-{name}": value})
    for answer in (by_query, by_header):
        assert answer.status_code == 400
        assert f"x-mock-{name}" in answer.json()["error"]["message"]
        assert repr(value) in answer.json()["error"]["message"]
    assert by_header.json()["type"] == "error"


def test_every_fault_is_documented() -> None:
    from mock_server.faults import _PARSERS

    assert set(re.findall(r"^\| `(x-mock-[a-z-]+)` \|", mock_server.__doc__ or "", re.M)) == set(_PARSERS)


def test_fail_first_needs_a_key(http: httpx2.Client) -> None:
    answer = http.get("/v1/models", headers={"x-mock-fail-first": "1"})
    assert (answer.status_code, "x-mock-key" in answer.text) == (400, True)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
@pytest.mark.parametrize("path", [*MODEL_PATHS, "/v1/embeddings"])
def test_bad_body(http: httpx2.Client, path: str, body: bytes) -> None:
    answer = http.post(path, content=body)
    assert (answer.status_code, "JSON" in answer.json()["error"]["message"]) == (400, True)


# Counts


def test_stats_count_by_path_and_not_themselves(url: GatewayUrl, http: httpx2.Client) -> None:
    http.get("/v1/models")
    http.post(CHAT, json=ask(stream=True))
    http.post(CHAT, json=ask(), headers={"x-mock-status": "500"})
    http.get("/nowhere")
    counted = http.get("/stats").json()
    assert counted == url.stats()
    assert (counted["in_flight"], counted["peak"], counted["total"]) == (0, 1, 4)
    assert counted["paths"] == {
        "/v1/models": {"in_flight": 0, "peak": 1, "total": 1},
        CHAT: {"in_flight": 0, "peak": 1, "total": 2},
        "/nowhere": {"in_flight": 0, "peak": 1, "total": 1},
    }


def test_peak_is_the_number_of_overlapping_requests(url: GatewayUrl) -> None:
    with wire(url, CHAT, ask(), hang="before-headers"), wire(url, CHAT, ask(stream=True), hang="after-body"):
        url.wait_in_flight(2)
        with wire(url, "/v1/messages", ask(), hang="before-body"):
            url.wait_in_flight(3)
        url.wait_in_flight(2)
        counted = url.stats()
    assert (counted["in_flight"], counted["peak"], counted["total"]) == (2, 3, 3)
    assert counted["paths"][CHAT] == {"in_flight": 2, "peak": 2, "total": 2}
    assert counted["paths"]["/v1/messages"] == {"in_flight": 0, "peak": 1, "total": 1}
    url.wait_in_flight(0)


def test_reset_keeps_what_is_in_flight(url: GatewayUrl, http: httpx2.Client) -> None:
    http.get("/v1/models")
    with wire(url, CHAT, ask(), hang="before-headers"):
        url.wait_in_flight(1)
        one = {"in_flight": 1, "peak": 1, "total": 0}
        assert http.post("/stats/reset").json() == {**one, "paths": {CHAT: one}}
    url.wait_in_flight(0)
    assert http.get("/stats").json()["in_flight"] == 0
    assert http.get("/stats/reset").status_code == 405


def test_serial_requests_never_overlap(url: GatewayUrl, http: httpx2.Client) -> None:
    # A count that fell too late would meet the next request, which comes as soon as the last byte has arrived.
    for _ in range(200):
        http.post(CHAT, json=ask(stream=True))
        assert url.stats()["in_flight"] == 0
    assert (url.stats()["peak"], url.stats()["total"]) == (1, 200)


def test_client_that_leaves_a_delay_is_noticed(url: GatewayUrl) -> None:
    with wire(url, "/generate/plan", delay_ms=600_000):
        url.wait_in_flight(1)
    url.wait_in_flight(0)


def test_client_that_leaves_a_stream_is_noticed(url: GatewayUrl) -> None:
    async def main() -> None:
        faults = {"x-mock-chunk-gap-ms": "600000"}
        async with httpx2.AsyncClient(base_url=url) as client:
            async with client.stream("POST", CHAT, json=ask(stream=True), headers=faults) as answer:
                assert b"word0" in await anext(answer.aiter_raw())
                assert url.stats()["in_flight"] == 1
            await asyncio.to_thread(url.wait_in_flight, 0)

    asyncio.run(main())


def test_client_that_leaves_its_own_body_is_noticed(url: GatewayUrl) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
        url.wait_in_flight(1)
    url.wait_in_flight(0)


def test_answer_is_in_flight_until_its_reader_has_taken_it(url: GatewayUrl) -> None:
    # More than the sockets' buffers hold, so the last byte cannot have been sent before the client reads.
    with wire(url, CHAT, ask(model="m" * 30_000_000), framing="chunked") as sock:
        url.wait_in_flight(1)
        assert read_head(sock)[0] == 200
        assert url.stats()["in_flight"] == 1
        assert sum(map(len, read_chunks(sock))) > 30_000_000
        assert url.stats()["in_flight"] == 0


def test_wait_is_not_met_by_a_finished_request(url: GatewayUrl, http: httpx2.Client) -> None:
    for _ in range(200):
        http.get("/v1/models")
        with pytest.raises(TimeoutError, match="1 requests in flight, there are 0"):
            url.wait_in_flight(1, timeout_s=0)


def test_pipelined_requests_never_overlap(url: GatewayUrl) -> None:
    # The second has arrived when the first ends, and starts within that very step of the server's loop.
    with wire(url, CHAT, ask()) as sock:
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-mock-delay-ms: 0\r\n\r\n" * 20)
        for _ in range(21):
            read_exactly(sock, int(read_head(sock)[1]["content-length"]))
    assert (url.stats()["peak"], url.stats()["total"]) == (1, 21)


def test_small_writes_leave_at_once_and_count_as_sent_only_then(url: GatewayUrl) -> None:
    with wire(url, CHAT, ask(), hang="before-headers"):
        url.wait_in_flight(1)
        transports: list[Any] = [connection.transport for connection in url._server.server_state.connections]
        assert transports
        for transport in transports:
            assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert transport.get_write_buffer_limits() == (0, 0)


# The server itself


def test_url_is_a_string() -> None:
    with mock_server.serve() as url:
        assert isinstance(url, str)
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        assert url + "/v1" == f"{url}/v1"


def test_servers_are_independent() -> None:
    with mock_server.serve(delay_ms=0) as one, mock_server.serve(delay_ms=0) as two:
        assert one != two
        httpx2.get(f"{two}/v1/models")
        assert (one.stats()["total"], two.stats()["total"]) == (0, 1)
    assert two.stats()["total"] == 1


@pytest.mark.filterwarnings("error")
def test_stops_while_requests_hang_and_streams_are_open() -> None:
    before = set(threading.enumerate())
    with ExitStack() as clients:
        with mock_server.serve() as url:
            client = clients.enter_context(httpx2.Client(base_url=url, timeout=10))
            faults = {"x-mock-hang": "mid-body"}
            stream = clients.enter_context(client.stream("POST", CHAT, json=ask(stream=True), headers=faults))
            hung = clients.enter_context(wire(url, CHAT, ask(), hang="before-headers"))
            slow = clients.enter_context(wire(url, CHAT, ask(), delay_ms=600_000))
            unread = clients.enter_context(wire(url, CHAT, ask(model="m" * 30_000_000)))
            read_head(unread)
            idle = clients.enter_context(wire(url, "/v1/models", method="GET"))
            read_head(idle)
            url.wait_in_flight(4)
        assert set(threading.enumerate()) == before
        assert url.stats()["in_flight"] == 0
        with pytest.raises((httpx2.RemoteProtocolError, httpx2.ReadError)):
            stream.read()
        assert read_to_close_or_reset(hung) == b""
        assert read_to_close_or_reset(slow) == b""
        assert len(read_to_close_or_reset(unread)) < 30_000_000


def read_to_close_or_reset(sock: socket.socket) -> bytes:
    """Read on; a server that drops its connections may do so with a reset."""
    data = b""
    try:
        while part := sock.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def test_stops_after_an_error_in_the_block() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError), mock_server.serve():
        raise ZeroDivisionError
    assert set(threading.enumerate()) == before


def test_many_servers_one_after_another() -> None:
    before = set(threading.enumerate())
    for _ in range(20):
        with mock_server.serve(delay_ms=0) as url:
            assert httpx2.get(f"{url}/v1/models").status_code == 200
    assert set(threading.enumerate()) == before


def test_taken_port_is_an_error() -> None:
    before = set(threading.enumerate())
    with mock_server.serve() as url, pytest.raises(OSError, match="in use"):
        mock_server.serve(port=int(url.rpartition(":")[2])).__enter__()
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("delay_ms", [-1, float("nan"), float("inf")])
def test_bad_delay_is_an_error(delay_ms: float) -> None:
    with pytest.raises(ValueError, match=f"delay_ms.*{delay_ms}"):
        mock_server.create_app(delay_ms=delay_ms)


def test_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "uvicorn.error")
    caplog.set_level("INFO", "uvicorn.access")
    with mock_server.serve() as url:
        for place in PLACES:
            with wire(url, CHAT, ask(stream=True), cut=place) as sock:
                read_to_close(sock)
        with wire(url, CHAT, ask(), hang="before-headers"):
            url.wait_in_flight(1)
        url.wait_in_flight(0)
    assert caplog.messages == []


def test_app_in_process() -> None:
    async def main() -> None:
        app = mock_server.create_app(delay_ms=0)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://mock") as client:
            assert (await client.post(CHAT, json=ask("some-model"))).json()["model"] == "some-model"
            assert (await client.get("/stats")).json()["total"] == 1
        assert mock_server.create_app().state.stats.snapshot()["total"] == 0

    asyncio.run(main())


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = mock_server.nonsense


# The command


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "mock_server", *arguments]


def test_command_serves_until_interrupted() -> None:
    with subprocess.Popen(
        command("--port", "0", "--delay-ms", "0"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert found, line
            assert httpx2.post(found[0] + CHAT, json=ask()).json()["model"] == "m"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")


def test_command_names_a_taken_port() -> None:
    with mock_server.serve() as url:
        port = url.rpartition(":")[2]
        done = subprocess.run(command("--port", port), capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert re.fullmatch(rf"mock_server cannot listen on 127\.0\.0\.1:{port}: .*in use.*\n", done.stderr)


@pytest.mark.parametrize(("option", "value"), [("--port", "70000"), ("--port", "x"), ("--delay-ms", "-1")])
def test_command_names_a_bad_option(option: str, value: str) -> None:
    done = subprocess.run(command(option, value), capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, option in done.stderr, repr(value) in done.stderr) == (2, True, True)


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_missing_package_names_the_install_command(missing: str) -> None:
    hide = f"import sys; sys.modules[{missing!r}] = None; "
    as_command = hide + "from mock_server.__main__ import main; sys.exit(main(['--port', '0']))"
    done = subprocess.run([sys.executable, "-c", as_command], capture_output=True, text=True, timeout=20, check=False)
    expected = f"needs {missing}, which is not installed: pip install 'occupancy[demo]'\n"
    assert (done.returncode, done.stderr) == (1, f"mock_server {expected}")
    as_import = hide + "import mock_server; mock_server.serve()"
    done = subprocess.run([sys.executable, "-c", as_import], capture_output=True, text=True, timeout=20, check=False)
    assert done.stderr.endswith(f"ModuleNotFoundError: mock_server {expected}")


def test_imports_nothing_of_occupancy() -> None:
    program = "import sys, mock_server.server; sys.exit('occupancy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=20, check=False).returncode == 0
