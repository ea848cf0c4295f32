"""The address of a backend: where it is, and what to ask it for."""

import dataclasses
import re
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl, urlsplit

from occupancy.errors import InputError

SCHEMES = ("http", "https")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TRACE_ID = re.compile(r"[0-9a-fA-F]{1,32}")


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """A backend, and which of its spans to pull."""

    base_url: str
    """`https://host:port/prefix`, without a slash at its end; holds no secret."""
    host: str
    parameters: Mapping[str, str]
    since: str
    """How far back to look, as it was written."""
    trace: str | None
    """The id of one trace, 32 hex digits, to be pulled whenever it was."""

    @property
    def since_ns(self) -> int:
        """How far back to look."""
        return duration_ns(self.since)


def parse_address(text: str, allowed: Collection[str]) -> Address:
    """Take an address apart.

    Args:
        text: `BACKEND+http://HOST:PORT/PREFIX?name=value&...`.
        allowed: Names of parameters, besides `since` and `trace`.

    Raises:
        InputError: Something in it cannot be; names that, and never a password.
    """
    try:
        parts = urlsplit(text.partition("+")[2])
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InputError(f"{_shown(text)}: no address: its host or port cannot be") from None
    if parts.scheme not in SCHEMES or not host:
        raise InputError(f"{_shown(text)}: no address: it must be like jaeger+http://localhost:16686?service=agent")
    if parts.username is not None or parts.password is not None:
        raise InputError(f"{_shown(text)}: put no password in an address: it is taken from the environment or .netrc")
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = [name for name in parameters if name not in (*allowed, "since", "trace")]
    if unknown:
        known = ", ".join((*allowed, "since", "trace"))
        raise InputError(f"{unknown[0]!r} is no parameter of an address; these are: {known}")
    trace = parameters.get("trace")
    if trace is not None and not _TRACE_ID.fullmatch(trace):
        raise InputError(f"trace must be an id of up to 32 hex digits, not {trace!r}")
    since = parameters.get("since", "1h")
    duration_ns(since)
    bracketed = f"[{host}]" if ":" in host else host
    return Address(
        base_url=f"{parts.scheme}://{bracketed}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}",
        host=host,
        parameters=parameters,
        since=since,
        trace=None if trace is None else trace.lower().zfill(32),
    )


def _shown(text: str) -> str:
    """An address without what may be a secret."""
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def duration_ns(text: str, name: str = "since") -> int:
    """Read a time such as `90s`, `30m`, `1h` or `2d`.

    Args:
        text: A whole number from 1 to 999999 and its unit.
        name: What it is of, for the error.

    Raises:
        InputError: It is no such time.
    """
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None or int(found[1]) == 0:
        raise InputError(f"{name} must be like 90s, 30m, 1h or 2d, not {text!r}")
    return int(found[1]) * _UNITS_S[found[2]] * 10**9
