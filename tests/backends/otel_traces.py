"""Spans as the OpenTelemetry collector puts them into ClickHouse, and as Parquet files of the same columns."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from occupancy.formats.spans import Span

SCHEMA = """
CREATE TABLE {name} (
    Timestamp DateTime64(9) CODEC(Delta, ZSTD(1)),
    TraceId String, SpanId String, ParentSpanId String, TraceState String,
    SpanName LowCardinality(String), SpanKind LowCardinality(String), ServiceName LowCardinality(String),
    ResourceAttributes Map(LowCardinality(String), String),
    ScopeName String, ScopeVersion String,
    SpanAttributes Map(LowCardinality(String), String),
    Duration UInt64, StatusCode LowCardinality(String), StatusMessage String,
    Events Nested (
        Timestamp DateTime64(9), Name LowCardinality(String), Attributes Map(LowCardinality(String), String)
    ),
    INDEX idx_span_attr_key mapKeys(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_duration Duration TYPE minmax GRANULARITY 1
) ENGINE = MergeTree PARTITION BY toDate(Timestamp) ORDER BY (ServiceName, SpanName, toDateTime(Timestamp))
"""
"""As the exporter makes it, but for codecs and indices that change no answer."""
COLUMNS = (
    *("Timestamp", "TraceId", "SpanId", "ParentSpanId", "SpanName", "SpanKind", "ServiceName"),
    *("ResourceAttributes", "SpanAttributes", "Duration"),
)
_ATTRIBUTES = pa.map_(pa.string(), pa.string())


def to_table(spans: Sequence[Span]) -> pa.Table:
    """Spans as a table of `COLUMNS`; attributes are text there, whatever they were."""
    text, columns = pa.string(), zip(*map(_row, spans), strict=True) if spans else [()] * len(COLUMNS)
    types = (pa.timestamp("ns"), text, text, text, text, text, text, _ATTRIBUTES, _ATTRIBUTES, pa.uint64())
    arrays = [pa.array(list(column), type) for column, type in zip(columns, types, strict=True)]
    return pa.table(dict(zip(COLUMNS, arrays, strict=True)))


def _row(span: Span) -> tuple[object, ...]:
    resource = {name: str(value) for name, value in span.resource.items()}
    return (
        span.start_ns,
        span.trace_id or "",
        span.span_id or "",
        span.parent_id or "",
        span.name,
        (span.kind or "unspecified").title(),
        resource.get("service.name", ""),
        list(resource.items()),
        [(name, str(value)) for name, value in span.attributes.items()],
        span.end_ns - span.start_ns,
    )


def write_parquet(path: Path, spans: Sequence[Span]) -> str:
    """Write spans to a file, and give its address."""
    pq.write_table(to_table(spans), path)
    return f"chdb://{path}"
