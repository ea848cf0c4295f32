"""What is asked of a table of spans, and where it is: a URL taken apart."""

import dataclasses
import re
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from occupancy.backends.address import duration_ns
from occupancy.errors import InputError
from occupancy.fleet import SCHEMES
from occupancy.fleet.grouping import GROUPINGS
from occupancy.formats.times import iso_to_ns

PARAMETERS = ("service", "since", "until", "by", "select", "bucket", "table", "lookback")
DEFAULT_TABLE = "otel_traces"
"""The name that the OpenTelemetry collector's exporter gives the table, and its schema the default one."""
DAY_NS = 86_400 * 10**9

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)?")


class Engine(StrEnum):
    """Who computes."""

    SERVER = "server"
    """A ClickHouse server, over HTTP."""
    PARQUET = "parquet"
    """ClickHouse's engine in this process, over Parquet files."""
    DATABASE = "database"
    """The same over a folder that holds a database."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where the spans are."""

    engine: Engine
    host: str = ""
    """Of a server."""
    port: int = 0
    secure: bool = False
    path: str = ""
    """Of Parquet files, which may be a pattern, or of a database."""
    database: str | None = None

    def __str__(self) -> str:
        if self.engine is not Engine.SERVER:
            return f"chdb://{self.path}"
        scheme = "clickhouses" if self.secure else "clickhouse"
        return f"{scheme}://{self.host}:{self.port}" + (f"/{self.database}" if self.database else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """Whose calls, of what time, in what groups. Times are ns since 1970."""

    table: str = DEFAULT_TABLE
    service: str | None = None
    """`service.name`; None for all."""
    select: str | None = None
    """Which spans are calls; see `occupancy.fleet.selection`."""
    by: str | None = None
    """One of `GROUPINGS`; None for no groups."""
    since_ns: int | None = None
    """Start of the window, where `ago_ns` does not say it."""
    ago_ns: int | None = None
    """From the start of the window to its end."""
    until_ns: int | None = None
    """End of the window; None for now, or the last span's end in files."""
    bucket_ns: int | None = None
    """Width of a bucket; None for about sixty of them."""
    lookback_ns: int = DAY_NS
    """How long before the window the longest call is looked for."""


def parse(url: str) -> tuple[Place, Question]:
    """Take a URL apart.

    Args:
        url: `clickhouse://host:port/database?service=agent&since=1h&by=model`, `clickhouses://` over TLS, or
            `chdb:///folder/spans.parquet?...`. Further parameters: `until`, `bucket`, `select`, `table`, `lookback`;
            `database` for a chdb folder.

    Raises:
        InputError: It is none, or a parameter is unknown or has a value that cannot be used. A password in it is an
            error too: URLs are shown.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise InputError(f"{parts.scheme}: no scheme of a fleet; there are {', '.join(SCHEMES)}")
    if "@" in parts.netloc:
        raise InputError(
            f"{parts.scheme}: a user or password in a URL is seen by everybody; "
            "set CLICKHOUSE_USER and CLICKHOUSE_PASSWORD, or write a .netrc"
        )
    try:
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise InputError(f"{parts.query!r}: parameters are name=value, with & between") from None
    place = _chdb(parts, given) if parts.scheme == "chdb" else _server(parts)
    return place, _question(given)


def _server(parts: SplitResult) -> Place:
    secure = parts.scheme == "clickhouses"
    try:
        port = parts.port
    except ValueError:
        raise InputError(f"{parts.netloc!r}: no port that can be used") from None
    if not parts.hostname:
        raise InputError(f"{parts.scheme}: no host; write {parts.scheme}://host/database?service=...")
    database = unquote(parts.path.strip("/")) or None
    return Place(Engine.SERVER, parts.hostname, port or (8443 if secure else 8123), secure, database=database)


def _chdb(parts: SplitResult, given: dict[str, str]) -> Place:
    path = unquote(parts.netloc + parts.path)
    if not path:
        raise InputError("chdb: no path; write chdb:///folder/spans.parquet?...")
    is_file = path.endswith(".parquet")
    return Place(Engine.PARQUET if is_file else Engine.DATABASE, path=path, database=given.pop("database", None))


def _question(given: dict[str, str]) -> Question:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if not value:
            raise InputError(f"{name}: no value")
        match name:
            case "service" | "select":
                values[name] = value
            case "table":
                values[name] = _one_of_tables(value)
            case "by":
                values[name] = _one_of_groupings(value)
            case "since" if ":" not in value:
                values["ago_ns"] = duration_ns(value, name)
            case "since" | "until":
                values[f"{name}_ns"] = _time_ns(value)
            case "bucket" | "lookback":
                values[f"{name}_ns"] = duration_ns(value, name)
            case _:
                raise InputError(f"{name!r} is no parameter; these are: {', '.join(PARAMETERS)}")
    return Question(**values)


def _one_of_tables(value: str) -> str:
    if not _TABLE.fullmatch(value):
        raise InputError(f"table: {value!r} is no name of a table")
    return value


def _one_of_groupings(value: str) -> str:
    if value not in GROUPINGS:
        raise InputError(f"by: {value!r} is not one of {', '.join(GROUPINGS)}")
    return value


def _time_ns(text: str) -> int:
    """Read an ISO 8601 time, in UTC where it names no zone."""
    try:
        return iso_to_ns(text.replace(" ", "+"))  # in a query a plus sign is a space
    except ValueError:
        raise InputError(f"{text!r} is no time; write it as 2026-01-31T14:00:00 or 2026-01-31T14:00:00+01:00") from None
