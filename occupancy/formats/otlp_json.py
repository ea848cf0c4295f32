"""OTLP as JSON: requests, the collector's file exporter, answers of Jaeger's and Tempo's API."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from occupancy.formats.spans import UNREADABLE, Event, Span, Spans, clean_id, listed, readable, reason_of
from occupancy.formats.times import unix_ns

_RESOURCES = ("resourceSpans", "resource_spans", "batches")
_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_WRAPPERS = ("result", "trace")
_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")


class _Raw(NamedTuple):
    """A span with what stands around it."""

    span: Any
    resource: Mapping[str, Any]
    scope: str | None


def recognise(document: Any) -> bool:
    """Whether a JSON document is OTLP."""
    inner = _unwrapped(document)
    return isinstance(inner, dict) and any(name in inner for name in _RESOURCES)


def read(document: Any, place: str, found: Spans) -> None:
    """Add the spans of a document that `recognise` knows."""
    found.extend(_raw_spans(_unwrapped(document)), _to_span, place)


def _unwrapped(document: Any) -> Any:
    for name in _WRAPPERS:
        if isinstance(document, dict) and isinstance(document.get(name), dict):
            document = document[name]
    return document


def _raw_spans(document: Any) -> Iterator[_Raw | ValueError]:
    try:
        for resource_spans in listed(document, *_RESOURCES):
            yield from _of_resource(resource_spans)
    except ValueError as error:
        yield error


def _of_resource(resource_spans: Any) -> Iterator[_Raw | ValueError]:
    try:
        scopes = listed(resource_spans, *_SCOPES)
        resource = _resource(resource_spans)
        for scope_spans in scopes:
            spans = listed(scope_spans, "spans")
            scope = scope_spans.get("scope") or scope_spans.get("instrumentationLibrary") or {}
            for span in spans:
                yield _Raw(span, resource, scope.get("name") or None)
    except UNREADABLE as error:
        yield ValueError(reason_of(error))


def _resource(resource_spans: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a resource; none where they cannot be read, which costs no span."""
    try:
        return _attributes(resource_spans.get("resource") or {})
    except UNREADABLE:
        return {}


def _to_span(raw: _Raw) -> Span:
    span = raw.span
    if not isinstance(span, dict):
        raise ValueError("no object")
    return Span(
        name=str(span.get("name", "")),
        trace_id=clean_id(_of(span, "traceId", "trace_id"), 32),
        span_id=clean_id(_of(span, "spanId", "span_id"), 16),
        parent_id=clean_id(_of(span, "parentSpanId", "parent_span_id"), 16),
        kind=_kind(span.get("kind")),
        start_ns=_time(span, "startTimeUnixNano", "start_time_unix_nano"),
        end_ns=_time(span, "endTimeUnixNano", "end_time_unix_nano"),
        attributes=_attributes(span),
        resource=raw.resource,
        events=readable(listed(span, "events"), _event),
        failed=(span.get("status") or {}).get("code") in (2, "2", "STATUS_CODE_ERROR"),
        scope=raw.scope,
    )


def _of(span: Mapping[str, Any], *names: str) -> Any:
    return next((span[name] for name in names if name in span), None)


def _time(span: Mapping[str, Any], *names: str) -> int:
    value = _of(span, *names)
    if value in (None, "", 0, "0"):  # 0 is how protobuf writes nothing
        raise KeyError(names[0])
    return unix_ns(value)


def _kind(value: Any) -> str | None:
    if isinstance(value, str) and not value.isdecimal():
        name = value.lower().removeprefix("span_kind_")
    else:
        number = int(value or 0)
        name = _KINDS[number] if 0 <= number < len(_KINDS) else ""
    return name if name in _KINDS[1:] else None


def _event(event: Any) -> Event:
    return Event(str(event.get("name", "")), _time(event, "timeUnixNano", "time_unix_nano"), _attributes(event))


def _attributes(owner: Mapping[str, Any]) -> dict[str, Any]:
    return {pair["key"]: _value(pair.get("value")) for pair in listed(owner, "attributes")}


def _value(any_value: Any) -> Any:
    """The value in an AnyValue, which is an object with one member named by its type."""
    if not isinstance(any_value, dict) or len(any_value) != 1:
        return None if isinstance(any_value, dict) else any_value
    ((name, value),) = any_value.items()
    parse = _PARSERS.get(name)
    return value if parse is None else parse(value)


def _array(value: Any) -> list[Any]:
    return [_value(item) for item in listed(value, "values")]


def _map(value: Any) -> dict[str, Any]:
    return {pair["key"]: _value(pair.get("value")) for pair in listed(value, "values")}


_PARSERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("intValue", "int_value"), int),
    **dict.fromkeys(("doubleValue", "double_value"), float),
    **dict.fromkeys(("arrayValue", "array_value"), _array),
    **dict.fromkeys(("kvlistValue", "kvlist_value"), _map),
}
"""Of the types that are not in JSON as they are."""
