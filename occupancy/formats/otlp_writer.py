"""OTLP JSON, written: what a collector, Jaeger or Tempo takes in, one CLIENT span for each call."""

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from occupancy.call import Call, Outcome
from occupancy.formats.call_records import SCHEMA
from occupancy.formats.span_calls import MADE_NAME, ORIGIN_NAME, SCHEMA_NAME
from occupancy.formats.span_fields import STAMP_EVENTS, own_attributes

if TYPE_CHECKING:
    from occupancy.log import OccupancyLog

CLIENT = 3
ERROR = 2
FAILED = (Outcome.TIMEOUT, Outcome.ERROR, Outcome.CANCELLED)


def pieces(log: "OccupancyLog") -> Iterator[str]:
    """A log as the text of an OTLP JSON file, piece by piece.

    All that a call holds is on its span, as `occupancy.*` attributes and as events; so it is read back as it was. OTLP
    cannot do without ids and an end: a call that has none is given some, and its span says so.
    """
    from occupancy import __version__

    resource = {"service.name": "occupancy", SCHEMA_NAME: SCHEMA, ORIGIN_NAME: log.origin_unix_ns}
    scope = {"name": "occupancy", "version": __version__}
    yield f'{{"resourceSpans": [{{"resource": {json.dumps({"attributes": _key_values(resource)})},\n'
    yield f'"scopeSpans": [{{"scope": {json.dumps(scope)}, "spans": ['
    separator = "\n"
    for call in [*log.calls, *log.open_calls]:
        yield separator + json.dumps(_span(call, log.origin_unix_ns - call.origin_ns))
        separator = ",\n"
    yield "\n]}]}]}\n"


def _span(call: Call, unix_offset_ns: int) -> dict[str, Any]:
    ids = _ids(call)
    made_up = [name for name in (*ids, "end_ns") if getattr(call, name) is None]
    attributes = {**_conventional(call), **own_attributes(call)}
    if made_up:
        attributes[MADE_NAME] = " ".join(made_up)
    stamps = {name: getattr(call, field) for name, field in STAMP_EVENTS.items()}
    return {
        "traceId": ids["trace_id"],
        "spanId": ids["span_id"],
        "parentSpanId": call.parent_span_id or "",
        "name": call.label or call.method or "call",
        "kind": CLIENT,
        "startTimeUnixNano": str(call.start_ns + unix_offset_ns),
        "endTimeUnixNano": str((call.start_ns if call.end_ns is None else call.end_ns) + unix_offset_ns),
        "attributes": _key_values(attributes),
        "events": [
            {"name": name, "timeUnixNano": str(stamp_ns + unix_offset_ns)}
            for name, stamp_ns in stamps.items()
            if stamp_ns is not None
        ],
        "status": {"code": ERROR} if call.outcome in FAILED else {},
    }


def _ids(call: Call) -> dict[str, str]:
    """The ids for a span: where a call has none, the same for those of one run, and another for each call."""
    run = repr((call.run, call.pid))
    return {
        "trace_id": call.trace_id or blake2b(run.encode(), digest_size=16).hexdigest(),
        "span_id": call.span_id or blake2b(f"{run} {call.call_id}".encode(), digest_size=8).hexdigest(),
    }


def _conventional(call: Call) -> dict[str, Any]:
    """The attributes under which others look for what a call says."""
    address, _, port = (call.host or "").rpartition(":") if ":" in (call.host or "") else (call.host, "", "")
    told = {
        "http.request.method": call.method,
        "server.address": address,
        "server.port": int(port) if port.isdecimal() else None,
        "url.path": call.path,
        "http.response.status_code": call.status,
        "http.request.resend_count": call.attempt or None,
        "error.type": call.error_type,
        "gen_ai.request.model": call.model,
        "gen_ai.usage.input_tokens": call.input_tokens,
        "gen_ai.usage.output_tokens": call.output_tokens,
    }
    return {name: value for name, value in told.items() if value is not None}


def _key_values(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value)} for key, value in attributes.items()]


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}
