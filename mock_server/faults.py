"""What a request asks to go wrong, read from its headers and query. The table is in `mock_server`'s docstring."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

PREFIX = "x-mock-"
MAX_CHUNKS = 100_000
REDIRECT_STATUSES = (301, 302, 303, 307, 308)


class Place(StrEnum):
    """Where in an answer it stops."""

    BEFORE_HEADERS = "before-headers"
    BEFORE_BODY = "before-body"
    MID_BODY = "mid-body"
    AFTER_BODY = "after-body"


class Framing(StrEnum):
    """How the client learns where the body ends."""

    LENGTH = "length"
    CHUNKED = "chunked"


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate limit: how much in all, and how much is left."""

    limit: int
    remaining: int


class FaultError(ValueError):
    """A fault whose name or value is not understood; the text names both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of one request. A default means: none, or the endpoint's own."""

    delay_ms: float | None = None
    body_delay_ms: float = 0.0
    chunks: int | None = None
    chunk_gap_ms: float = 0.0
    ping: int = 0
    status: int | None = None
    retry_after: str | None = None
    retry_after_ms: str | None = None
    fail_first: int | None = None
    key: str | None = None
    hang: Place | None = None
    cut: Place | None = None
    redirect: int = 0
    redirect_to: str | None = None
    redirect_status: int = 307
    ratelimit_requests: Limit | None = None
    ratelimit_tokens: Limit | None = None
    ratelimit_reset_s: float = 1.0
    gzip: bool = False
    framing: Framing | None = None

    @property
    def fails(self) -> bool:
        """Whether the answer itself is spoilt: another status, hung or cut."""
        return self.status is not None or self.hang is not None or self.cut is not None

    def with_status(self, status: int) -> "Faults":
        """The same, but with this status."""
        return replace(self, status=status)

    def without_failure(self) -> "Faults":
        """The same timing and headers, but a good answer."""
        return replace(self, status=None, hang=None, cut=None)


def parse_faults(headers: Iterable[tuple[str, str]], query: Iterable[tuple[str, str]]) -> Faults:
    """Read the faults of a request.

    Args:
        headers: names and values; names in any case.
        query: names and decoded values; these win over headers.

    Raises:
        FaultError: a name is unknown, a value does not fit, or `x-mock-fail-first` comes without `x-mock-key`.
    """
    given = {name.lower(): text for name, text in [*headers, *query] if name.lower().startswith(PREFIX)}
    values = {name.removeprefix(PREFIX).replace("-", "_"): _parse(name, text) for name, text in given.items()}
    faults = replace(Faults(), **values)
    if faults.fail_first is not None and faults.key is None:
        raise FaultError(f"{PREFIX}fail-first={faults.fail_first} needs {PREFIX}key")
    return faults


def _parse(name: str, text: str) -> Any:
    parser = _PARSERS.get(name)
    if parser is None:
        raise FaultError(f"unknown fault {name}={text!r}; known are {', '.join(_PARSERS)}")
    try:
        return parser(text)
    except ValueError as error:
        raise FaultError(f"{name} {error}, got {text!r}") from None


def non_negative(text: str) -> float:
    """Read a finite number >= 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("must be a number >= 0")
    return value


def _integer(least: int = 0, most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        if value < least or (most is not None and value > most):
            raise ValueError(f"must be an integer >= {least}" if most is None else f"must be from {least} to {most}")
        return value

    return parse


def _choice(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    def parse(text: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"must be one of {', '.join(kind)}") from None

    return parse


def _status(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) == 3 else 0
    if not (200 <= value < 300 or value == 304 or 400 <= value < 600):
        raise ValueError("must be a 2xx, 304, 4xx or 5xx status")
    return value


def _redirect_status(text: str) -> int:
    if text not in map(str, REDIRECT_STATUSES):
        raise ValueError(f"must be one of {', '.join(map(str, REDIRECT_STATUSES))}")
    return int(text)


def _seconds_or_date(text: str) -> str:
    try:
        non_negative(text)
    except ValueError:
        try:
            parsedate_to_datetime(text)
        except ValueError:
            raise ValueError("must be a number of seconds >= 0 or an HTTP date") from None
    return text


def _number_as_given(text: str) -> str:
    non_negative(text)
    return text


def _limit(text: str) -> Limit:
    limit, _, remaining = text.partition("/")
    try:
        return Limit(_integer()(limit), _integer()(remaining))
    except ValueError:
        raise ValueError("must be LIMIT/REMAINING, two integers >= 0") from None


def _path(text: str) -> str:
    if not text.startswith("/") or text.startswith("//") or not text.isprintable():
        raise ValueError("must be a path that starts with one /")
    return text


def _key(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("must be 0 or 1")
    return text == "1"


_PARSERS: dict[str, Callable[[str], Any]] = {
    "x-mock-delay-ms": non_negative,
    "x-mock-body-delay-ms": non_negative,
    "x-mock-chunks": _integer(1, MAX_CHUNKS),
    "x-mock-chunk-gap-ms": non_negative,
    "x-mock-ping": _integer(0, MAX_CHUNKS),
    "x-mock-status": _status,
    "x-mock-retry-after": _seconds_or_date,
    "x-mock-retry-after-ms": _number_as_given,
    "x-mock-fail-first": _integer(),
    "x-mock-key": _key,
    "x-mock-hang": _choice(Place),
    "x-mock-cut": _choice(Place),
    "x-mock-redirect": _integer(),
    "x-mock-redirect-to": _path,
    "x-mock-redirect-status": _redirect_status,
    "x-mock-ratelimit-requests": _limit,
    "x-mock-ratelimit-tokens": _limit,
    "x-mock-ratelimit-reset-s": non_negative,
    "x-mock-gzip": _flag,
    "x-mock-framing": _choice(Framing),
}
