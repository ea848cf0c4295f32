"""The SQL that puts a fleet's calls into buckets where they are.

Spans are clipped to the buckets: the mean of a bucket is the sum of the clipped durations over its width, its peak the
most of them that intersect (`maxIntersections` lets ends come before starts at one time, as we do). A span that a
collector has sent twice counts once. Spans are told apart by hashes of 64 bits.
"""

from occupancy.fleet.grouping import FROM_ABOVE, GROUPINGS, MODEL, attribute
from occupancy.fleet.selection import COUNTS, IS_BARE, IS_INFERENCE, IS_OWN, IS_SERVED, CallFilter
from occupancy.formats.span_kinds import OWN

MAX_GROUPS = 1000
"""Groups that travel, the busiest first."""
MAX_DEPTH = 64
"""Most spans between a call and what lies below it: more are spans that are above each other, a broken trace."""

PEAKS = {
    "max_intersections": "maxIntersections(left_ns, right_ns)",
    "running_sum": "arrayMax(arrayCumSum(arraySort(groupArrayArray([(left_ns, 1), (right_ns, -1)])).2))",
}
"""Two ways to a peak. The running sum is over events ordered by (time, change): slower, to check the other by."""

SERVED = "{table:Identifier}"
"""The table of a server or a database."""
PARQUET = "file({path:String}, 'Parquet')"
"""Parquet files as a table."""

_SERVICE = "({service:String} = '' OR ServiceName = {service:String})"


def _began(first: str, last: str) -> str:
    bounds = (f"fromUnixTimestamp64Nano({{{name}:Int64}}, 'UTC')" for name in (first, last))
    return "Timestamp >= {} AND Timestamp < {}".format(*bounds)


def extent(table: str) -> str:
    """Ask for the number of spans, their first start and their last end, ns."""
    start_ns = "toUnixTimestamp64Nano(Timestamp)"
    return f"SELECT count(), min({start_ns}), max({start_ns} + toInt64(Duration)) FROM {table} WHERE {_SERVICE}"


def longest(table: str) -> str:
    """Ask for the number of spans that began from `earliest_ns` to `end_ns`, and the longest of their durations, ns."""
    return f"SELECT count(), max(toInt64(Duration)) FROM {table} WHERE {_began('earliest_ns', 'end_ns')} AND {_SERVICE}"


def services(table: str) -> str:
    """Ask for some services that have spans from `earliest_ns` to `end_ns`."""
    return f"SELECT DISTINCT ServiceName FROM {table} WHERE {_began('earliest_ns', 'end_ns')} ORDER BY 1 LIMIT 6"


def buckets(table: str, calls: CallFilter, by: str | None, peak: str = "max_intersections") -> str:
    """Ask for the buckets of all calls together, and of each group.

    To bind: `PATTERNS`, the parameters of `calls`, `service`, `start_ns`, `end_ns` and `width_ns` of the window, and
    `earliest_ns` and `latest_ns`, between which all begins that can lie above or below a call.

    Returns:
        SQL for rows `(is_group, name, bucket numbers, in_flight_ns, peaks, begun, bare, longest_ns, n_groups)`: first
        all calls together, then the groups, the busiest first. Buckets without calls are left out.
    """
    is_nested = calls.leaves_only or by in FROM_ABOVE
    leaf = f"AND ({IS_OWN} OR id NOT IN (SELECT root FROM covered))" if calls.leaves_only else ""
    return f"""
WITH RECURSIVE
near AS (
    SELECT
        toUnixTimestamp64Nano(Timestamp) AS start_ns,
        start_ns + toInt64(Duration) AS end_ns,
        cityHash64(ServiceName, TraceId, SpanId) AS id,
        cityHash64(ServiceName, TraceId, ParentSpanId) AS parent,
        ParentSpanId != '' AND NOT {IS_SERVED} AS is_inner,
        {calls.condition} AS is_candidate,
        is_candidate AND {COUNTS} AS is_call,
        {IS_BARE} AS is_bare,
        ServiceName, SpanName, SpanKind, SpanAttributes, ResourceAttributes
    FROM {table}
    WHERE {_began("earliest_ns", "latest_ns")} AND {_SERVICE}
),
{_NESTING if is_nested else ""}
calls AS (
    SELECT
        {GROUPINGS[by] if by else "''"} AS name,
        end_ns - start_ns AS duration_ns,
        is_bare,
        greatest(start_ns, {{start_ns:Int64}}) AS from_ns,
        least(end_ns, {{end_ns:Int64}}) AS until_ns
    FROM near {"LEFT JOIN above ON near.id = above.id" if by in FROM_ABOVE else ""}
    WHERE is_call AND end_ns > start_ns
        AND end_ns > {{start_ns:Int64}} AND start_ns < {{end_ns:Int64}} {leaf}
    LIMIT 1 BY cityHash64(near.id, SpanName, SpanKind, start_ns, end_ns, {attribute(OWN)})
),
pieces AS (
    SELECT
        name,
        duration_ns,
        is_bare,
        intDiv(from_ns - {{start_ns:Int64}}, {{width_ns:Int64}}) AS first_bucket,
        intDiv(until_ns - 1 - {{start_ns:Int64}}, {{width_ns:Int64}}) AS last_bucket,
        arrayJoin(range(first_bucket, last_bucket + 1)) AS bucket,
        greatest(from_ns, {{start_ns:Int64}} + bucket * {{width_ns:Int64}}) AS left_ns,
        least(until_ns, {{start_ns:Int64}} + (bucket + 1) * {{width_ns:Int64}}) AS right_ns
    FROM calls
),
filled AS (
    SELECT
        {"1 - grouping(name)" if by else "0"} AS is_group,
        {"name" if by else "'' AS name"},
        bucket,
        sum(right_ns - left_ns) AS in_flight_ns,
        {PEAKS[peak]} AS peak,
        countIf(bucket = first_bucket) AS begun,
        countIf(bucket = first_bucket AND is_bare) AS bare,
        max(duration_ns) AS longest_ns
    FROM pieces
    GROUP BY {"GROUPING SETS ((bucket), (name, bucket))" if by else "bucket"}
)
SELECT
    is_group,
    name,
    groupArray(bucket),
    groupArray(in_flight_ns),
    groupArray(peak),
    groupArray(begun),
    sum(bare),
    max(longest_ns),
    count() OVER () - 1
FROM filled
GROUP BY is_group, name
ORDER BY is_group, sum(toFloat64(in_flight_ns)) DESC, name
LIMIT {MAX_GROUPS + 1}
"""


_NESTING = f"""
tree AS (SELECT id, parent, is_call FROM near WHERE is_inner),
roots AS (
    SELECT id, {MODEL} AS model, SpanName AS step, {IS_INFERENCE} AS is_inference
    FROM near
    WHERE id IN (SELECT parent FROM tree) AND (is_candidate OR is_inference)
),
below AS (
    SELECT id AS root, id, 0 AS depth, true AS is_call, model, step, is_inference FROM roots
    UNION ALL
    SELECT below.root, tree.id, below.depth + 1, tree.is_call, below.model, below.step, below.is_inference
    FROM tree JOIN below ON tree.parent = below.id
    WHERE below.depth < {MAX_DEPTH}
),
covered AS (SELECT root FROM below WHERE depth > 0 AND is_call),
above AS (
    SELECT id, argMin(model, depth) AS above_model, argMin(step, depth) AS above_step
    FROM below
    WHERE depth > 0 AND is_inference
    GROUP BY id
),
"""
"""What lies below a call or a model request: in its own service, and not beyond a request that is served there."""
