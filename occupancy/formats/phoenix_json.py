"""Spans of Phoenix: what `/v1/projects/NAME/spans` answers, and spans as JSON lines."""

from typing import Any

from occupancy.formats.spans import Event, Span, Spans, clean_id, flatten, listed, readable
from occupancy.formats.times import unix_ns

MS = 1_000_000
"""ns in a ms: the unit of a time that is a number, as pandas writes one."""


def recognise(document: Any) -> bool:
    """Whether a JSON document holds spans of Phoenix: an answer of its API, a list of spans, or one span."""
    return any(isinstance(span, dict) and "span_kind" in span and "start_time" in span for span in _raw_spans(document))


def read(document: Any, place: str, found: Spans) -> None:
    """Add the spans of a document that `recognise` knows."""
    found.extend(_raw_spans(document), to_span, place)


def _raw_spans(document: Any) -> list[Any]:
    if isinstance(document, dict):
        document = document.get("data", [document])
    return document if isinstance(document, list) else []


def to_span(raw: Any) -> Span:
    """Read one span.

    Raises:
        ValueError, KeyError: It cannot be read.
    """
    flat = flatten({name: value for name, value in raw.items() if name not in ("attributes", "events")})
    attributes = {name.removeprefix("attributes."): value for name, value in flat.items() if name[:11] == "attributes."}
    attributes |= flatten(raw.get("attributes"))
    if flat.get("span_kind") not in (None, "", "UNKNOWN"):
        attributes.setdefault("openinference.span.kind", flat["span_kind"])
    for name in ("start_time", "end_time"):
        if flat.get(name) is None:
            raise KeyError(name)
    return Span(
        name=str(flat.get("name") or ""),
        trace_id=clean_id(flat.get("context.trace_id"), 32),
        span_id=clean_id(flat.get("context.span_id"), 16),
        parent_id=clean_id(flat.get("parent_id"), 16),
        kind=None,
        start_ns=unix_ns(flat["start_time"], MS),
        end_ns=unix_ns(flat["end_time"], MS),
        attributes=attributes,
        events=readable(listed(raw, "events"), _event),
        failed=flat.get("status_code") == "ERROR",
    )


def _event(event: Any) -> Event:
    return Event(str(event.get("name", "")), unix_ns(event["timestamp"], MS), flatten(event.get("attributes")))
