"""What a probe asks an endpoint, and how it reads the answer."""

import dataclasses
import json
import os
import re
import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

from occupancy.errors import InputError

PROMPT = "Return the single word ok."
MAX_TOKENS = 16
LOOPBACK = re.compile(r"^(localhost|127(\.\d{1,3}){3}|::1)$")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Api(StrEnum):
    """How a request is written and its answer read."""

    OPENAI = "openai"
    """Chat completions, as most servers speak it."""
    ANTHROPIC = "anthropic"
    """Messages."""
    PLAIN = "plain"
    """Any HTTP request: a status below 300 is a good answer."""


_PATHS = {Api.OPENAI: "/v1/chat/completions", Api.ANTHROPIC: "/v1/messages"}
_KEYS = {Api.OPENAI: "OPENAI_API_KEY", Api.ANTHROPIC: "ANTHROPIC_API_KEY"}
_NEEDED = {Api.OPENAI: "choices", Api.ANTHROPIC: "content"}
_LAST_EVENTS = {Api.OPENAI: (b"data: [DONE]", b"data:[DONE]"), Api.ANTHROPIC: (b"event: message_stop",)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An endpoint and a request to it. Keys are read from the environment when it is sent, and kept nowhere.

    Raises:
        InputError: The URL is none, or the model is missing; names the value.
    """

    url: str
    """A base such as `http://127.0.0.1:8377/v1`, or the whole path."""
    model: str | None = None
    api: Api = Api.OPENAI
    prompt: str = PROMPT
    max_tokens: int = MAX_TOKENS
    stream: bool = False
    nonce: bool = True
    """Begin each prompt differently, so that no prefix cache answers."""
    key_env: str | None = None
    """Variable that holds the key; None for the API's own, where it is set."""
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers; `${NAME}` in a value is taken from the environment."""
    body: Any = None
    """JSON of a plain request; `{nonce}` in a string becomes a nonce."""
    region: str | None = None
    place: str | None = None

    def __post_init__(self) -> None:
        parts = _split(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"{without_secrets(self.url)!r} is no http or https URL")
        if self.api is not Api.PLAIN and not self.model:
            raise InputError(f"a model is needed for the API {str(self.api)!r}")
        if self.key_env is not None and not os.environ.get(self.key_env):
            raise InputError(f"the environment variable {self.key_env} holds no key")

    @property
    def full_url(self) -> str:
        """The URL that is asked: the API's path is added to a base."""
        parts = _split(self.url)
        path, wanted = parts.path.rstrip("/"), _PATHS.get(self.api)
        if wanted is None or path.endswith(wanted.removeprefix("/v1")):
            return self.url
        added = wanted.removeprefix("/v1") if re.search(r"/v\d+$", path) else wanted
        return urlunsplit(parts._replace(path=path + added))

    @property
    def shown_url(self) -> str:
        """The same without user, password, query and fragment."""
        return without_secrets(self.full_url)

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine."""
        return bool(LOOPBACK.match(_split(self.url).hostname or ""))

    def request_headers(self) -> dict[str, str]:
        """Give the headers, with keys.

        Raises:
            InputError: A variable that a header names is not set.
        """
        key = os.environ.get(self.key_env or _KEYS.get(self.api, ""), "")
        headers = {"content-type": "application/json"} if self.method != "GET" else {}
        if self.api is Api.ANTHROPIC:
            headers |= {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {})
        elif key:
            headers["authorization"] = f"Bearer {key}"
        return headers | {name.lower(): _from_environment(value) for name, value in self.headers}

    def request_body(self) -> bytes:
        """Give the body of the next request: a new nonce each time; empty without one."""
        nonce = secrets.token_hex(8)
        if self.api is Api.PLAIN:
            return b"" if self.body is None else json.dumps(_with_nonce(self.body, nonce)).encode()
        text = f"[{nonce}] {self.prompt}" if self.nonce else self.prompt
        body: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": text}]}
        body["max_tokens"] = self.max_tokens
        if self.stream:
            body["stream"] = True
            if self.api is Api.OPENAI:
                body["stream_options"] = {"include_usage": True}
        return json.dumps(body).encode()

    def secrets(self) -> list[str]:
        """Give all that must not be shown, the longest first."""
        values = [value for name, value in self.request_headers().items() if _is_secret(name)]
        values += [value.partition(" ")[2] for value in values]
        values += [os.environ.get(name, "") for _, text in self.headers for name in _VARIABLE.findall(text)]
        parts = _split(self.url)
        values += [parts.password or "", parts.query]
        return sorted({value for value in values if len(value) >= 4}, key=len, reverse=True)

    def scrub(self, text: str) -> str:
        """Take all secrets out of a text."""
        for secret in self.secrets():
            text = text.replace(secret, "***")
        return text

    def fault_of(self, content_type: str, body: bytes) -> str | None:
        """Say why a good status has no usable answer; None where it has."""
        if self.api is Api.PLAIN:
            return None
        if "html" in content_type or body[:64].lstrip().lower().startswith((b"<!doctype", b"<html")):
            return "answered HTML, not JSON: is this the API's URL?"
        if self.stream:
            if any(body.startswith(last) or b"\n" + last in body for last in _LAST_EVENTS[self.api]):
                return None
            return "the event stream ended before its last event"
        answer = _json(body)
        if not isinstance(answer, dict):
            return f"answered {content_type or 'no content type'}, not a JSON object"
        return None if _NEEDED[self.api] in answer else f"the answer has no {_NEEDED[self.api]!r}"

    def tokens_of(self, body: bytes) -> tuple[int | None, int | None]:
        """Give input and output tokens, as the answer counts them; None where it does not."""
        counts = [re.findall(rb'"(?:%s)"\s*:\s*(\d+)' % name, body) for name in (_INPUT, _OUTPUT)]
        known = [max(map(int, found)) if found else None for found in counts]
        return known[0], known[1]


_INPUT, _OUTPUT = rb"prompt_tokens|input_tokens", rb"completion_tokens|output_tokens"


def read_request(text: str) -> dict[str, Any]:
    """Read a plain request from JSON: `method`, `url`, `headers`, `json`.

    Returns:
        Fields of a `Target`.

    Raises:
        InputError: It is no such object; names what is wrong.
    """
    asked = _json(text.encode())
    if not isinstance(asked, dict):
        raise InputError("a request file must hold a JSON object with method, url, headers and json")
    unknown = sorted(set(asked) - {"method", "url", "headers", "json"})
    if unknown or not isinstance(asked.get("url"), str):
        raise InputError(f"a request file has no {unknown[0]!r}" if unknown else "a request file needs a url")
    headers: Mapping[str, str] = asked.get("headers") or {}
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise InputError(f"headers must be an object of strings, not {headers!r}")
    return {
        "url": asked["url"],
        "api": Api.PLAIN,
        "method": str(asked.get("method", "POST" if "json" in asked else "GET")).upper(),
        "headers": tuple(headers.items()),
        "body": asked.get("json"),
    }


def without_secrets(url: str) -> str:
    """Give a URL without user, password, query and fragment."""
    parts = _split(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"{url.partition('?')[0]!r} is no URL: {error}") from None
    return parts


def _is_secret(name: str) -> bool:
    return bool(re.search(r"auth|key|token|cookie|secret", name))


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _with_nonce(value: Any, nonce: str) -> Any:
    if isinstance(value, str):
        return value.replace("{nonce}", nonce)
    if isinstance(value, dict):
        return {key: _with_nonce(item, nonce) for key, item in value.items()}
    return [_with_nonce(item, nonce) for item in value] if isinstance(value, list) else value


def _from_environment(text: str) -> str:
    def look_up(match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if value is None:
            raise InputError(f"the environment variable {match[1]} of a header is not set")
        return value

    return _VARIABLE.sub(look_up, text)
