"""Spans as OpenTelemetry's Python SDK writes them for reading: `to_json`, the console exporter, any-agent."""

from typing import Any

from occupancy.formats.spans import Event, Span, Spans, clean_id, flatten, listed, readable
from occupancy.formats.times import unix_ns


def recognise(document: Any) -> bool:
    """Whether a JSON document holds such spans: one, a list of them, or an object with such a list."""
    return any(
        isinstance(span, dict) and "kind" in span and "start_time" in span and isinstance(span.get("context"), dict)
        for span in _raw_spans(document)
    )


def read(document: Any, place: str, found: Spans) -> None:
    """Add the spans of a document that `recognise` knows."""
    found.extend(_raw_spans(document), _to_span, place)


def _raw_spans(document: Any) -> list[Any]:
    if isinstance(document, dict):
        document = document.get("spans", [document])
    return document if isinstance(document, list) else []


def _to_span(raw: Any) -> Span:
    context, parent = raw["context"], raw.get("parent") or {}
    for name in ("start_time", "end_time"):
        if raw.get(name) is None:
            raise KeyError(name)
    return Span(
        name=str(raw.get("name") or ""),
        trace_id=clean_id(context.get("trace_id"), 32),
        span_id=clean_id(context.get("span_id"), 16),
        parent_id=clean_id(raw.get("parent_id") or parent.get("span_id"), 16),
        kind=str(raw["kind"]).rpartition(".")[2].lower(),
        start_ns=unix_ns(raw["start_time"]),
        end_ns=unix_ns(raw["end_time"]),
        attributes=flatten(raw.get("attributes")),
        resource=flatten((raw.get("resource") or {}).get("attributes")),
        events=readable(listed(raw, "events"), _event),
        failed=str((raw.get("status") or {}).get("status_code")).upper() == "ERROR",
    )


def _event(event: Any) -> Event:
    return Event(str(event.get("name", "")), unix_ns(event["timestamp"]), flatten(event.get("attributes")))
