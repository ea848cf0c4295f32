"""What requests and responses say of a call."""

import json
from datetime import UTC, datetime
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from occupancy import Call, Kind
from occupancy.instrumentation import exchange
from occupancy.instrumentation.retries import LIMIT, Retries
from occupancy.instrumentation.stream import content_length
from occupancy.settings import Settings


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model":"gpt-test","messages":[]}', "gpt-test"),
        (b'{ "model" : "a/b:c" }', "a/b:c"),
        (b'{"messages":["' + b"x" * 5000 + b'"],"model":"last"}', "last"),
        (b'{"messages":["' + b"x" * 5000 + b'"],"model":"lost","more":"' + b"y" * 5000 + b'"}', None),
        (b"model=gpt", None),
        (b"", None),
        (None, None),
        (b'{"model":7}', None),
        (b'{"model":"' + b"m" * 300 + b'"}', None),
    ],
)
def test_model(body: bytes | None, model: str | None) -> None:
    assert exchange.model_of(body) == model


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/model/anthropic.claude-v1:0/invoke", "anthropic.claude-v1:0"),
        ("/model/arn:aws:bedrock:eu-west-1:1:inference-profile/a/converse-stream",
         "arn:aws:bedrock:eu-west-1:1:inference-profile/a"),
        ("/v1beta/models/gemini-pro:streamGenerateContent", "gemini-pro"),
        ("/openai/deployments/mine/chat/completions", "mine"),
        ("/v1/models/gpt/x", None),
        ("/model/car/invoker", None),
        ("/v1/chat/completions", None),
    ],
)  # fmt: skip
def test_model_in_the_path(path: str, model: str | None) -> None:
    call = Call()
    exchange.describe_target(call, "POST", "h", path, Settings())
    assert call.model == model
    exchange.describe_target(switched_off := Call(), "POST", "h", path, Settings(model=False))
    assert switched_off.model is None


def test_model_of_the_body_is_the_one_of_the_path_else() -> None:
    call = Call()
    url = "http://h/openai/deployments/mine/chat/completions"
    exchange.describe_request(call, httpx.Request("POST", url, json={"model": "m"}), Settings())
    assert call.model == "m"
    exchange.describe_request(call, httpx.Request("POST", url, json={}), Settings())
    assert call.model == "mine"


@given(st.text(max_size=600), st.booleans())
def test_no_text_of_a_prompt_is_a_model(prompt: str, last: bool) -> None:
    """However a prompt quotes a model, its quotes are escaped in JSON."""
    prompt = f'{prompt} "model": "secret" {prompt}'
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
    asked = {**asked, "model": "gpt-test"} if last else {"model": "gpt-test", **asked}
    assert exchange.model_of(json.dumps(asked).encode()) == "gpt-test"
    del asked["model"]
    assert exchange.model_of(json.dumps(asked, ensure_ascii=False).encode("utf-8", "replace")) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Mon, 99 Nov 2026 99:00:00 GMT"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert exchange.retry_after_s(headers) == seconds


@pytest.mark.parametrize(("now_unix_s", "seconds"), [(1000.0, 60.0), (1100.0, 0.0)])
def test_retry_after_a_date(now_unix_s: float, seconds: float) -> None:
    date = format_datetime(datetime.fromtimestamp(1060, UTC), usegmt=True)
    assert exchange.retry_after_s({"retry-after": date}, now_unix_s) == seconds


OPENAI = {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "59"}
ANTHROPIC = {
    "anthropic-ratelimit-requests-limit": "50",
    "anthropic-ratelimit-requests-remaining": "49",
    "anthropic-ratelimit-input-tokens-limit": "40000",
    "anthropic-ratelimit-input-tokens-remaining": "30000",
    "anthropic-ratelimit-output-tokens-limit": "8000",
    "anthropic-ratelimit-output-tokens-remaining": "7000",
}


@pytest.mark.parametrize(
    ("headers", "requests", "tokens"),
    [
        ({}, (None, None), (None, None)),
        (OPENAI, (60, 59), (None, None)),
        ({"x-ratelimit-remaining-tokens": "7"}, (None, None), (None, 7)),
        ({"x-ratelimit-limit-tokens": "-1", "x-ratelimit-remaining-tokens": "9" * 19}, (None, None), (None, None)),
        (ANTHROPIC, (50, 49), (40000, 30000)),  # 75 % of the input tokens are left, 87 % of the output tokens
        ({**ANTHROPIC, "anthropic-ratelimit-output-tokens-remaining": "5000"}, (50, 49), (8000, 5000)),
        ({**ANTHROPIC, "anthropic-ratelimit-output-tokens-limit": "0"}, (50, 49), (40000, 30000)),
        ({**ANTHROPIC, "anthropic-ratelimit-input-tokens-limit": "many"}, (50, 49), (8000, 7000)),
    ],
)
def test_rate_limits(
    headers: dict[str, str], requests: tuple[int | None, int | None], tokens: tuple[int | None, int | None]
) -> None:
    call = Call()
    exchange.describe_response(call, exchange.needed_headers(raw(headers)), Settings())
    assert (call.limit_requests, call.remaining_requests) == requests
    assert (call.limit_tokens, call.remaining_tokens) == tokens


def raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.title().encode(), value.encode("latin-1")) for name, value in headers.items()]


@pytest.mark.parametrize(
    ("headers", "key_id"),
    [
        # printf %s sk-test | sha256sum
        ({"authorization": "Bearer sk-test"}, "f3abf2a6"),
        ({"authorization": "bearer  sk-test "}, "f3abf2a6"),
        ({"authorization": "Bearer sk-test", "x-api-key": "other"}, "f3abf2a6"),
        ({"x-api-key": "sk-test"}, "f3abf2a6"),
        ({"api-key": "sk-test"}, "f3abf2a6"),
        ({"x-goog-api-key": "sk-test"}, "f3abf2a6"),
        ({"authorization": "Basic sk-test", "api-key": "sk-test"}, "f3abf2a6"),
        ({"authorization": "Basic sk-test"}, None),
        ({"authorization": "Bearer "}, None),
        ({"x-api-key": " "}, None),
        ({}, None),
    ],
)
def test_key_id(headers: dict[str, str], key_id: str | None) -> None:
    call = Call()
    exchange.describe_headers(call, raw(headers), Settings())
    assert call.key_id == key_id
    exchange.describe_headers(switched_off := Call(), raw(headers), Settings(key_id=False))
    assert switched_off.key_id is None


@pytest.mark.parametrize(
    ("method", "status", "headers", "none"),
    [
        ("GET", 204, {}, True),
        ("GET", 304, {"content-length": "5"}, True),
        ("HEAD", 200, {"content-length": "5"}, True),
        ("GET", 101, {}, True),
        ("GET", 200, {"content-length": "0"}, True),
        ("GET", 200, {}, False),
        ("GET", 404, {"content-length": "5"}, False),
    ],
)
def test_bodies_that_cannot_come(method: str, status: int, headers: dict[str, str], none: bool) -> None:
    assert exchange.has_no_body(method, status, headers) is none


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        ({"content-length": "12"}, 12),
        ({"content-length": "12", "transfer-encoding": "chunked"}, None),
        ({"content-length": "twelve"}, None),
        ({"content-length": "-1"}, None),
        ({"content-length": "\u00b2"}, None),
        ({}, None),
    ],
)
def test_content_length(headers: dict[str, str], length: int | None) -> None:
    assert content_length(headers) == length


def test_needed_headers_alone_are_kept() -> None:
    raw = [
        (b"Content-Type", b" text/plain "),
        (b"X-Request-ID", b"req_1"),
        (b"Set-Cookie", b"secret=1"),
        (b"x", b"\xff"),
    ]
    assert exchange.needed_headers(raw) == {"content-type": "text/plain", "x-request-id": "req_1"}


def test_request_of_httpx() -> None:
    call = Call()
    headers = {"authorization": "Bearer secret", "Idempotency-Key": "secret"}
    url = "https://user:secret@example.com:8443/v1/messages?key=secret#secret"
    request = httpx.Request("POST", url, headers=headers, json={"model": "m", "prompt": "secret"})
    exchange.describe_request(call, request, Settings())
    assert (call.method, call.host, call.path, call.model) == ("POST", "example.com:8443", "/v1/messages", "m")
    assert (call.kind, call.idempotency_key, call.request_bytes) == (Kind.GENERATE, True, len(request.content))
    assert "secret" not in repr(call)


def test_request_whose_body_is_not_there() -> None:
    call = Call()
    exchange.describe_request(call, httpx.Request("POST", "http://h/p", content=iter([b"{"])), Settings())
    assert (call.model, call.request_bytes, call.idempotency_key) == (None, None, False)


def test_settings_switch_off() -> None:
    call = Call()
    request = httpx.Request("POST", "http://h/p", json={"model": "m"})
    exchange.describe_request(call, request, Settings(model=False))
    exchange.describe_response(call, {"x-request-id": "r"}, Settings(request_id=False))
    assert (call.model, call.request_id) == (None, None)


def test_both_libraries_name_one_target_alike() -> None:
    above, below = Call(), Call()
    target = httpx.URL("http://example.com:81/a%20b/%C3%A9?q=1")
    exchange.describe_request(above, httpx.Request("GET", target), Settings())
    url = SimpleNamespace(host=target.raw_host, port=target.port, target=target.raw_path)
    exchange.describe_core_request(below, SimpleNamespace(url=url, method=b"GET", headers=[]), Settings())
    assert (above.method, above.host, above.path) == (below.method, below.host, below.path)


def test_retry_is_linked_to_the_attempt_before() -> None:
    retries = Retries()
    first = Call(call_id=5, logical_id=5, host="h", path="/p")
    retries.link(first, "0")
    retries.remember(first)
    second = Call(host="h", path="/p")
    retries.link(second, "1")
    assert (second.logical_id, second.attempt) == (5, 1)


@pytest.mark.parametrize(
    ("host", "count", "logical_id", "attempt"),
    [("other", "1", 0, 1), ("h", "2", 0, 2), ("h", None, 0, 0), ("h", "x", 0, 0), ("h", "\u00b2", 0, 0)],
)
def test_retry_of_something_else(host: str, count: str | None, logical_id: int, attempt: int) -> None:
    retries = Retries()
    retries.remember(Call(call_id=5, logical_id=5, host="h", path="/p"))
    call = Call(host=host, path="/p")
    retries.link(call, count)
    assert (call.logical_id, call.attempt) == (logical_id, attempt)


def test_few_flows_are_remembered() -> None:
    retries = Retries()
    for number in range(LIMIT + 10):
        retries.remember(Call(host="h", path=f"/{number}"))
    assert len(retries._last) == LIMIT
    assert next(iter(retries._last))[3] == "/10"
    retries.remember(Call(host="h", path="/10"))
    assert next(reversed(retries._last))[3] == "/10"
