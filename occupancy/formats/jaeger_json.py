"""Jaeger's JSON: what its API answers and what its page downloads."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from occupancy.formats.spans import Event, Span, Spans, clean_id, listed, readable
from occupancy.formats.times import unix_ns

US = 1_000
"""ns in a µs: Jaeger's unit."""


class _Raw(NamedTuple):
    """A span with the processes of its trace."""

    span: Any
    processes: Mapping[str, Any]


def recognise(document: Any) -> bool:
    """Whether a JSON document holds traces of Jaeger."""
    return any(isinstance(trace, dict) and "traceID" in trace and "spans" in trace for trace in _traces(document))


def read(document: Any, place: str, found: Spans) -> None:
    """Add the spans of a document that `recognise` knows."""
    found.extend(_raw_spans(document), _to_span, place)


def _traces(document: Any) -> list[Any]:
    if isinstance(document, dict):
        document = document.get("data", [document])
    return document if isinstance(document, list) else []


def _raw_spans(document: Any) -> Iterator[_Raw | ValueError]:
    for trace in _traces(document):
        try:
            for span in listed(trace, "spans"):
                yield _Raw(span, trace.get("processes") or {})
        except ValueError as error:
            yield error


def _to_span(raw: _Raw) -> Span:
    span = raw.span
    tags = _tags(span)
    start_ns = unix_ns(span["startTime"], US)
    process = raw.processes.get(span.get("processID")) or span.get("process") or {}
    return Span(
        name=str(span.get("operationName", "")),
        trace_id=clean_id(span.get("traceID"), 32),
        span_id=clean_id(span.get("spanID"), 16),
        parent_id=_parent(span),
        kind=tags["span.kind"].lower() if isinstance(tags.get("span.kind"), str) else None,
        start_ns=start_ns,
        end_ns=start_ns + _duration_ns(span["duration"]),
        attributes=tags,
        resource={"service.name": process.get("serviceName"), **_tags(process)},
        events=readable(listed(span, "logs"), _event),
        failed=tags.get("error") in (True, "true") or tags.get("otel.status_code") == "ERROR",
        scope=tags.get("otel.scope.name") or tags.get("otel.library.name"),
    )


def _duration_ns(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"no duration: {value!r}")
    return int(value) * US if not isinstance(value, float) else round(value * US)


def _parent(span: Mapping[str, Any]) -> str | None:
    for reference in listed(span, "references"):
        same_trace = clean_id(reference.get("traceID"), 32) == clean_id(span.get("traceID"), 32)
        if reference.get("refType") == "CHILD_OF" and same_trace:
            return clean_id(reference.get("spanID"), 16)
    return clean_id(span.get("parentSpanID"), 16)


def _tags(owner: Mapping[str, Any], name: str = "tags") -> dict[str, Any]:
    return {tag["key"]: _value(tag) for tag in listed(owner, name)}


def _value(tag: Mapping[str, Any]) -> Any:
    value = tag.get("value")
    return int(value) if tag.get("type") == "int64" and isinstance(value, str) else value


def _event(log: Any) -> Event:
    fields = _tags(log, "fields")
    name = fields.pop("event", None) or fields.get("message") or ""
    return Event(str(name), unix_ns(log["timestamp"], US), fields)
