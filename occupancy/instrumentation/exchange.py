"""What the request and the response say of a call: where it goes, what for, and what the server asks."""

import itertools
import math
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from occupancy.call import Call, Kind
from occupancy.kinds import kind_of
from occupancy.settings import Settings

Headers = Iterable[tuple[str | bytes, str | bytes]]

BODY_EDGE = 512
"""Bytes at each end of a request body in which the model's name is looked for: SDKs put it first or last."""

_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{1,200})"')

_MODEL_IN_PATH = re.compile(
    r"/model/(.{1,200})/(?:invoke|converse)(?:$|-)|/models/([^/:]{1,200}):|/deployments/([^/]{1,200})/"
)
"""Where Bedrock, Gemini and Azure name it."""
_KEYS = ("x-api-key", "api-key", "x-goog-api-key")
_REQUEST_LIMITS = (
    ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests"),
    ("anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining"),
)
_TOKEN_LIMITS = (
    ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens"),
    *(
        (f"anthropic-ratelimit-{kind}-limit", f"anthropic-ratelimit-{kind}-remaining")
        for kind in ("tokens", "input-tokens", "output-tokens")
    ),
)
PORTS = {"http": 80, "https": 443}
"""The ports of schemes."""
_LIMITS = frozenset(itertools.chain.from_iterable(_REQUEST_LIMITS + _TOKEN_LIMITS))


def _either_way(*names: str) -> dict[str | bytes, str]:
    """Names of headers, to be found by text or bytes: clients have either."""
    return {key: name for name in names for key in (name, name.encode())}


_KEY_HEADERS = _either_way("authorization", *_KEYS)
_REQUEST_HEADERS = _KEY_HEADERS | _either_way("content-length", "idempotency-key", "x-stainless-retry-count")
_CONTENT_TYPE = _either_way("content-type")
_RESPONSE_HEADERS = _either_way(
    "content-length", "content-type", "content-encoding", "transfer-encoding", "x-request-id", "request-id",
    "retry-after", "retry-after-ms", *_LIMITS,
)  # fmt: skip


def model_of(body: bytes | None) -> str | None:
    """The model's name in a JSON request body, looked for at its two ends; None without one."""
    if not body or b"{" not in body[:16]:
        return None
    found = _MODEL.search(body[:BODY_EDGE]) or _MODEL.search(body[-BODY_EDGE:])
    return found[1].decode("utf-8", "replace") if found else None


def describe_request(call: Call, request: Any, settings: Settings) -> str | None:
    """Fill in what an httpx request says; see `describe_headers`."""
    url = request.url
    describe_target(call, request.method, with_port(url.host, url.port), url.path, settings)
    call.port = url.port or PORTS.get(url.scheme)
    if settings.model:
        call.model = model_of(getattr(request, "_content", None)) or call.model
    return describe_headers(call, request.headers.raw, settings)


def describe_core_request(call: Call, request: Any, settings: Settings) -> None:
    """The same for a request made with httpcore itself."""
    url = request.url
    method, host, target = (text.decode("ascii", "replace") for text in (request.method, url.host, url.target))
    path = unquote(target.partition("?")[0])  # as httpx gives it
    describe_target(call, method, with_port(host, url.port), path, settings)
    call.port = url.port or PORTS.get(url.scheme.decode("ascii", "replace"))
    describe_headers(call, request.headers, settings)


def describe_url(call: Call, method: str, url: str, settings: Settings) -> None:
    """Fill in where a request goes, from its URL as text."""
    target = urlsplit(url)
    usual = PORTS.get(target.scheme)
    call.port = target.port or usual
    host = with_port(target.hostname or "", None if target.port == usual else target.port)
    describe_target(call, method, host, unquote(target.path) or "/", settings)


def describe_target(call: Call, method: str, host: str, path: str, settings: Settings) -> None:
    """Fill in where a request goes, and so what it is for."""
    call.method, call.host, call.path = method, host, path
    call.kind = kind_of(host, path, settings.exclude)
    if settings.model and call.kind == Kind.GENERATE:
        named = _MODEL_IN_PATH.search(path)
        call.model = named and named[named.lastindex or 0]


def with_port(host: str, port: int | None) -> str:
    """A host and its port; None is the scheme's own."""
    return host if port is None else f"{host}:{port}"


def describe_headers(call: Call, raw: Headers, settings: Settings) -> str | None:
    """Fill in what the request's headers say. Their values are not kept.

    Returns:
        What an SDK says of the retries before, as its header has it; None where it says nothing.
    """
    headers = _picked(raw, _REQUEST_HEADERS)
    call.request_bytes = _whole(headers.get("content-length"))
    call.idempotency_key = "idempotency-key" in headers
    if settings.key_id:
        call.key_id = _key_id(headers)
    return headers.get("x-stainless-retry-count")


def describe_key(call: Call, raw: Headers, settings: Settings) -> None:
    """Fill in the key that is really sent: what lies between client and pool may have set another."""
    if settings.key_id:
        call.key_id = _key_id(_picked(raw, _KEY_HEADERS))


def _key_id(headers: Mapping[str, str]) -> str | None:
    """First 8 hex digits of SHA-256 of the key that a request is sent with; None without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = next(filter(None, map(headers.get, _KEYS)), "")
    key = key.strip()
    if not key:
        return None
    from hashlib import sha256  # takes OpenSSL along: not before a key is sent

    return sha256(key.encode("latin-1")).hexdigest()[:8]


def needed_headers(raw: Headers) -> dict[str, str]:
    """Those response headers that a call or its body needs, by names in lower case."""
    return _picked(raw, _RESPONSE_HEADERS)


def content_type(raw: Headers) -> str:
    """What a request says its body is; empty where it says nothing."""
    return _picked(raw, _CONTENT_TYPE).get("content-type", "")


def _picked(raw: Headers, names: Mapping[str | bytes, str]) -> dict[str, str]:
    # One pass over the raw pairs: the clients' own look-up goes through all of them for each name.
    picked = {}
    for raw_name, value in raw:
        name = names.get(raw_name.lower())
        if name is not None:
            picked[name] = (value if isinstance(value, str) else value.decode("latin-1")).strip()
    return picked


def describe_response(call: Call, headers: Mapping[str, str], settings: Settings) -> None:
    """Fill in what the response headers say: the request's id, what is left of limits, when to come back."""
    if settings.request_id:
        call.request_id = headers.get("x-request-id") or headers.get("request-id")
    call.retry_after_s = retry_after_s(headers)
    if not _LIMITS.isdisjoint(headers):
        call.limit_requests, call.remaining_requests = tightest(headers, _REQUEST_LIMITS)
        call.limit_tokens, call.remaining_tokens = tightest(headers, _TOKEN_LIMITS)


def tightest(headers: Mapping[str, str], names: Iterable[tuple[str, str]]) -> tuple[int | None, int | None]:
    """The limit of which the smallest share remains, as the limit and what remains of it; None for what is not said.

    Anthropic counts input and output tokens apart, and a call needs both.

    Args:
        headers: Of the response, names in lower case.
        names: Headers that tell a limit and what remains of it.
    """
    told = [
        (_whole(headers.get(limit)), _whole(headers.get(remaining)))
        for limit, remaining in names
        if limit in headers or remaining in headers
    ]
    return min(told, key=_share_left, default=(None, None))


def _share_left(told: tuple[int | None, int | None]) -> float:
    limit, remaining = told
    return math.inf if limit is None or remaining is None else remaining / max(limit, 1)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else None  # fits in 64 bits


def retry_after_s(headers: Mapping[str, str], now_unix_s: float | None = None) -> float | None:
    """What `retry-after-ms` or `retry-after` (seconds, or an HTTP date) asks for, in seconds; None for anything else.

    A date in the past gives 0.
    """
    if "retry-after" not in headers and "retry-after-ms" not in headers:
        return None
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            value = float(headers[name]) * unit_s
        except (KeyError, ValueError):
            continue
        return value if 0 <= value < float("inf") else None
    return _seconds_until(headers.get("retry-after", ""), time.time() if now_unix_s is None else now_unix_s)


def _seconds_until(date: str, now_unix_s: float) -> float | None:
    from email.utils import parsedate_to_datetime  # rarely needed, slow to import

    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - now_unix_s)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def has_no_body(method: str | None, status: int, headers: Mapping[str, str]) -> bool:
    """Whether no byte of a body can come: HEAD, 1xx, 204, 304, or a length of 0."""
    return method == "HEAD" or status < 200 or status in (204, 304) or headers.get("content-length") == "0"
