"""`occupancy.query`: how many calls a fleet had in flight, computed where its spans are."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from occupancy.analysis.buckets import Buckets, edges
from occupancy.analysis.steps import Int64
from occupancy.errors import InputError, ReadError
from occupancy.fleet import sql
from occupancy.fleet.connection import Connection, connect
from occupancy.fleet.question import Engine, Place, Question, parse
from occupancy.fleet.result import FleetOccupancy, Group
from occupancy.fleet.selection import PATTERNS, to_filter
from occupancy.formats.times import FAR_NS

HOUR_NS = 3600 * 10**9
BUCKETS = 60
"""About so many, where the width is not told."""
WIDTHS_NS: tuple[int, ...] = (
    *(digit * 10**power for power in range(9) for digit in (1, 2, 5)),
    *(s * 10**9 for s in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)),
    *(h * HOUR_NS for h in (1, 2, 3, 6, 12, 24)),
)
"""Widths of buckets that a person reads easily, ascending; beyond, whole days."""


def query(url: str, select: str | None = None) -> FleetOccupancy:
    """Ask a table of OpenTelemetry spans how many calls were in flight; only the counts of its buckets travel.

    Args:
        url: `clickhouse://host/database?service=agent&since=1h&by=model` (`clickhouses://` over TLS), or
            `chdb:///folder/spans.parquet?by=service` and `chdb:///folder/of/a/database?...` for ClickHouse's engine in
            this process. `service`; `since` and `until`, times or for `since` a duration; `by`: `model`, `service`,
            `host`, `key`, `label`, `span` or `instance`; `bucket`, its width; `table`; `lookback`, how long before the
            window the longest span is looked for. Credentials come from `CLICKHOUSE_USER` and `CLICKHOUSE_PASSWORD`,
            or a `.netrc`.
        select: Which spans are calls, as for `occupancy.read`; the URL may say it too.

    Returns:
        All calls together, and each group. Without `since` it is the last hour of a server, and all of a file.

    Raises:
        InputError: The URL is none, or asks for what there is not.
        ReadError: There is no answer, no such table, or no call in it.
        DependencyError: The extra `fleet` is not installed.
    """
    place, question = parse(url)
    if select is not None:
        question = dataclasses.replace(question, select=select)
    with connect(place) as connection:
        return ask(connection, place, question)


def ask(connection: Connection, place: Place, question: Question, peak: str = "max_intersections") -> FleetOccupancy:
    """Ask a question over an open connection.

    Args:
        connection: To `place`.
        place: Where the spans are.
        question: What to ask.
        peak: How peaks are computed, one of `sql.PEAKS`.

    Raises:
        InputError: The window holds no time, or too many buckets.
        ReadError: There is no such table, or no call in it.
    """
    table, calls = _table(place), to_filter(question.select)
    bound: dict[str, Any] = {
        "table": question.table,
        "path": place.path,
        "service": question.service or "",
        **PATTERNS,
        **calls.parameters,
    }
    start_ns, end_ns = _window(connection, place, question, bound)
    edges_ns = edges(start_ns, end_ns, question.bucket_ns or _readable(-(-(end_ns - start_ns) // BUCKETS)))
    bound |= {"start_ns": start_ns, "end_ns": end_ns, "width_ns": int(edges_ns[1] - edges_ns[0])}
    bound["earliest_ns"] = start_ns - question.lookback_ns
    found, longest_ns = connection.rows(sql.longest(table), bound)[0]
    if not found:
        raise ReadError(f"{place}: {_no_spans(connection, table, question, bound)}")
    reach_ns = min(max(int(longest_ns), 0), question.lookback_ns)
    bound |= {"earliest_ns": start_ns - reach_ns, "latest_ns": end_ns + reach_ns}
    rows = connection.rows(sql.buckets(table, calls, question.by, peak), bound)
    if not rows:
        raise ReadError(f"{place}: none of {found} spans is a call within the window; select=all counts them all")
    return FleetOccupancy(
        source=str(place),
        service=question.service,
        select=question.select,
        by=question.by,
        total=_buckets(rows[0], edges_ns),
        groups=tuple(Group(row[1], _buckets(row, edges_ns)) for row in rows[1:]),
        n_groups=int(rows[0][8]),
        n_bare=int(rows[0][6]),
        longest_ns=int(rows[0][7]),
        lookback_ns=reach_ns,
        is_lookback_short=longest_ns > reach_ns,
        is_live=place.engine is Engine.SERVER and question.until_ns is None,
    )


def _table(place: Place) -> str:
    return sql.PARQUET if place.engine is Engine.PARQUET else sql.SERVED


def _window(connection: Connection, place: Place, question: Question, bound: dict[str, Any]) -> tuple[int, int]:
    start_ns, end_ns = question.since_ns, question.until_ns
    if place.engine is Engine.SERVER:
        if end_ns is None:
            end_ns = int(connection.rows("SELECT toUnixTimestamp64Nano(now64(9))", {})[0][0])
        first_ns = end_ns - HOUR_NS
    else:
        found, first_ns, last_ns = map(int, connection.rows(sql.extent(_table(place)), bound)[0])
        if not found:
            ever = {"earliest_ns": 0, "end_ns": FAR_NS}
            raise ReadError(f"{place}: {_no_spans(connection, _table(place), question, bound | ever)}")
        end_ns = last_ns if end_ns is None else end_ns
    if start_ns is None:
        start_ns = first_ns if question.ago_ns is None else end_ns - question.ago_ns
    if start_ns >= end_ns:
        raise InputError(f"{place}: the window begins {(start_ns - end_ns) / 1e9:g} s after its end, or is empty")
    return start_ns, end_ns


def _readable(least_ns: int) -> int:
    """A width that a person reads easily, not much more than the least."""
    return next((width for width in WIDTHS_NS if width >= least_ns), -(-least_ns // WIDTHS_NS[-1]) * WIDTHS_NS[-1])


def _no_spans(connection: Connection, table: str, question: Question, bound: dict[str, Any]) -> str:
    names = [name for (name,) in connection.rows(sql.services(table), bound)]
    if question.service is None or not names:
        return "no spans of that time"
    more = ", ..." if len(names) > 5 else ""
    return f"no spans of service {question.service!r} of that time; it has some of {', '.join(names[:5])}{more}"


def _buckets(row: Sequence[Any], edges_ns: Int64) -> Buckets:
    place = np.array(row[2], dtype=np.int64)
    columns = np.zeros((3, edges_ns.size - 1), dtype=np.int64)
    columns[:, place] = row[3:6]
    return Buckets(edges_ns, *columns)
