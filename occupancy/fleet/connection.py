"""A connection to ClickHouse, on a server or in this process: credentials in, rows out, errors in one line."""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.instrumentation.utils import suppress_instrumentation

from occupancy.backends.api import netrc_login
from occupancy.errors import DependencyError, ReadError
from occupancy.fleet.question import Engine, Place

OLDEST = (24, 4)
"""The first version that looks for what lies below a call, which takes a recursive query."""
CONNECT_S = 10
ANSWER_S = 300
AS_TOLD = {60: "no such table", 81: "no such database", 400: "no such file", 636: "no such file"}
"""What some of ClickHouse's errors mean here, by their codes."""
UNKNOWN_COLUMN = 47
REFUSED = (192, 193, 194, 516, 497)
"""Unknown user, wrong password, none given, refused, not enough rights."""

_NAME = re.compile(r"[`']([^`']+)[`']")

# Its warnings say what our errors say, and would go to stderr where the program has set up no logging.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())


class Connection:
    """A connection that is open."""

    def __init__(self, client: Any, place: Place) -> None:
        self._client = client
        self._place = place

    def rows(self, sql: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Ask for rows.

        Args:
            sql: With `{name:Type}` for what is to be bound: a value is never part of the text.
            parameters: What to bind; more than the text names is harmless.

        Raises:
            ReadError: They cannot be had.
        """
        with _told(self._place):
            rows: Sequence[Sequence[Any]] = self._client.query(sql, parameters=dict(parameters)).result_rows
            return rows


@contextmanager
def connect(place: Place) -> Iterator[Connection]:
    """Connect; what is sent is not seen by OpenTelemetry or by our own capture: it is no call of the program's.

    Raises:
        DependencyError: The extra `fleet` is not installed.
        InputError: The `.netrc` cannot be read.
        ReadError: Nobody answers, or the user is refused, or there is no such file.
    """
    try:
        import clickhouse_connect
    except ImportError as error:
        raise DependencyError(f"{place} needs ClickHouse's client: pip install 'occupancy[fleet]'") from error
    with suppress_instrumentation():
        with _told(place):
            client = clickhouse_connect.get_client(**_arguments(place))
        try:
            check_version(client.server_version, place)
            yield Connection(client, place)
        finally:
            client.close()


def _arguments(place: Place) -> dict[str, Any]:
    if place.engine is Engine.SERVER:
        user, password = credentials(place.host)
        return {
            "interface": "https" if place.secure else "http",
            "host": place.host,
            "port": place.port,
            "username": user,
            "password": password,
            "database": place.database,
            "connect_timeout": CONNECT_S,
            "send_receive_timeout": ANSWER_S,
            "autogenerate_session_id": False,
        }
    if place.engine is Engine.DATABASE:
        if not Path(place.path).is_dir():
            raise ReadError(f"{place}: no such folder, and no .parquet file")
        return {"interface": "chdb", "path": place.path, "database": place.database}
    # A column of Parquet may hold nothing in any row; those of the collector's table never do.
    return {"interface": "chdb", "settings": {"schema_inference_make_columns_nullable": "0"}}


def check_version(version: str, place: Place) -> None:
    """Refuse a server that is too old.

    Raises:
        ReadError: It is.
    """
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        raise ReadError(f"{place}: ClickHouse {'.'.join(map(str, OLDEST))} or later is needed; this is {version}")


def credentials(host: str) -> tuple[str | None, str]:
    """Give user and password: `CLICKHOUSE_USER` and `CLICKHOUSE_PASSWORD`, else what a `.netrc` has for the host.

    Raises:
        InputError: The `.netrc` cannot be used.
    """
    user, password = os.environ.get("CLICKHOUSE_USER"), os.environ.get("CLICKHOUSE_PASSWORD")
    if user is None and password is None:
        return netrc_login(host) or (None, "")
    return user, password or ""


@contextmanager
def _told(place: Place) -> Iterator[None]:
    """Turn the client's errors into one line of ours, which names the place and no secret."""
    from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError

    try:
        yield
    except ClickHouseError as error:
        is_answer = getattr(error, "code", None) is not None or not isinstance(error, OperationalError)
        raise ReadError(f"{place}: {_meaning(error, is_answer=is_answer)}") from None


def _meaning(error: Exception, *, is_answer: bool) -> str:
    code, message = getattr(error, "code", None), " ".join(str(error).split())
    name = _NAME.search(message)
    named = f" {name[1]!r}" if name else ""
    if code in AS_TOLD:
        return AS_TOLD[code] + named
    if code == UNKNOWN_COLUMN:
        return f"no column{named} in it: it is not the OpenTelemetry collector's table of spans"
    if code in REFUSED:
        return "refused; CLICKHOUSE_USER and CLICKHOUSE_PASSWORD, or a .netrc, say who asks"
    return message[:300] if is_answer else f"does not answer: {_cause(error)}"


def _cause(error: BaseException) -> str:
    """What the system said, below all that was made of it."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
