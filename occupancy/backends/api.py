"""Questions to a backend over HTTP: bounded, with credentials that nobody sees, and not counted as calls of ours."""

import json
import netrc
import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import httpx2
from opentelemetry.instrumentation.utils import suppress_instrumentation

from occupancy.backends.address import Address
from occupancy.errors import InputError, ReadError

TIMEOUT_S = 30.0
MOST_REQUESTS = 1_000
MOST_BYTES = 256 * 2**20
"""Of one answer."""
MOST_SPANS = 500_000
"""Pulled at once; more are no picture, and no terminal waits for them."""
ANY_TOKEN = "OCCUPANCY_BACKEND_TOKEN"
"""Variable with a bearer token for whatever backend is asked."""


class Api:
    """A connection to one backend, open within a `with` block.

    Args:
        address: Where it is.
        tokens: Variables that may hold a bearer token, besides `ANY_TOKEN`; without one, `.netrc` is asked.

    Raises:
        InputError: The token or the `.netrc` file cannot be used.
    """

    def __init__(self, address: Address, tokens: Collection[str]) -> None:
        self._url = address.base_url
        self._token_names = (ANY_TOKEN, *tokens)
        self._secrets: list[str] = []
        self._requests = 0
        self._client = httpx2.Client(
            timeout=TIMEOUT_S, headers={"accept": "application/json"}, auth=self._auth(address.host)
        )
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(suppress_instrumentation())  # these calls are ours: no log counts them, no span shows
        self._open.enter_context(self._client)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def _auth(self, host: str) -> Any:
        for name in self._token_names:
            token = os.environ.get(name, "").strip()
            if token:
                if not (token.isascii() and token.isprintable()):
                    raise InputError(f"the environment variable {name} holds no token that can be sent")
                self._secrets.append(token)
                return _Bearer(token)
        login = netrc_login(host)
        if login is None:
            return None
        self._secrets.append(login[1])
        return httpx2.BasicAuth(*login)

    def get(self, path: str, parameters: Mapping[str, str | int] | None = None) -> dict[str, Any] | None:
        """Ask, and give the JSON object that is the answer; None where there is nothing at that place (status 404).

        Args:
            path: After the base URL.
            parameters: Of the query.

        Raises:
            ReadError: No answer, or one that says no.
        """
        self._requests += 1
        if self._requests > MOST_REQUESTS:
            raise self.error(f"more than {MOST_REQUESTS} questions would be needed: ask for less, with since or trace")
        try:
            with self._client.stream("GET", self._url + path, params=dict(parameters or {})) as response:
                body = self._body(response)
        except httpx2.TimeoutException:
            raise self.error(f"no answer within {TIMEOUT_S:.0f} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self.error(f"cannot be reached: {str(error) or type(error).__name__}") from None
        return self._json(response.status_code, body)

    def _body(self, response: httpx2.Response) -> bytes:
        body = bytearray()
        for piece in response.iter_bytes():
            body += piece
            if len(body) > MOST_BYTES:
                raise self.error(f"one answer is longer than {MOST_BYTES} bytes: ask for less, with since or trace")
        return bytes(body)

    def _json(self, status: int, body: bytes) -> dict[str, Any] | None:
        if status in (401, 403):
            tried = "refuses the credentials" if self._secrets else "asks for credentials"
            names = " or ".join(self._token_names)
            raise self.error(f"{tried} (status {status}): set {names}, or name the host in .netrc")
        if status == 404:
            return None
        if status >= 300:
            raise self.error(f"status {status}{_said(body)}")
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self.error("answers with something other than JSON objects: is this the address of its API?")
        return answer

    def get_list(self, path: str) -> list[Any]:
        """The list `data` of an answer, for messages: empty where it cannot be had."""
        try:
            found = (self.get(path) or {}).get("data")
        except ReadError:
            return []
        return found if isinstance(found, list) else []

    def limit(self, spans: int) -> None:
        """Go on only while the spans pulled are not too many.

        Raises:
            ReadError: They are.
        """
        if spans > MOST_SPANS:
            raise self.error(f"more than {MOST_SPANS} spans: ask for less, with since or trace")

    def error(self, reason: str) -> ReadError:
        """An error that names the backend, and shows no credentials whatever it quotes."""
        for secret in self._secrets:
            reason = reason.replace(secret, "***")
        return ReadError(f"{self._url}: {''.join(char if char.isprintable() else ' ' for char in reason)}")


class _Bearer(httpx2.Auth):
    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def auth_flow(self, request: httpx2.Request) -> Any:
        request.headers["authorization"] = self._header
        yield request


def netrc_login(host: str) -> tuple[str, str] | None:
    """User and password for a host from `.netrc`, or from the file that `NETRC` names.

    Raises:
        InputError: The file cannot be used.
    """
    try:
        found = netrc.netrc(os.environ.get("NETRC")).authenticators(host)
    except OSError:
        return None
    except netrc.NetrcParseError as error:  # its message may hold a password
        reason = "others may read it" if "permissive" in error.msg else f"line {error.lineno} cannot be read"
        raise InputError(f"{error.filename}: {reason}") from None
    return None if found is None else (found[0] or "", found[2] or "")


def _said(body: bytes) -> str:
    """What an answer says of its error, cut short; "" where it says nothing."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = body.decode("utf-8", "replace")
    if isinstance(answer, dict):
        errors = answer.get("errors")
        first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else answer
        answer = next((first[name] for name in ("msg", "message", "detail") if first.get(name)), "")
    said = " ".join(str(answer).split())[:200]
    return f": {said}" if said else ""
