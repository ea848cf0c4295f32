"""What the attributes of a span say of a call: OpenTelemetry's names, old and new, OpenInference's, and our own."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from occupancy.call import FIELDS, STAMPS, Call, Frame, Outcome
from occupancy.formats.call_records import DEFAULTS, field_value
from occupancy.formats.span_kinds import first
from occupancy.formats.spans import Span
from occupancy.formats.times import FAR_NS

MS = 1e6
PHASES = ("client_ns", "gate_ns", "pool_ns", "connect_ns", "tls_ns", "send_ns", "wait_ns", "receive_ns")
"""Our phases are on a span in ms, as `occupancy.<phase>_ms`; the other fields as they are."""
STAMP_EVENTS = {name.removesuffix("_ns"): name for name in STAMPS if name not in ("start_ns", "end_ns")}
"""Events that are stamps of a call, and the field of each."""

_OWN = "occupancy."
_IDS = ("trace_id", "span_id", "parent_span_id")
_OWN_FIELDS = {_OWN + name: name for name in FIELDS if name not in (*STAMPS, *PHASES, *_IDS)}
_OWN_PHASES = {f"{_OWN}{name.removesuffix('_ns')}_ms": name for name in PHASES}
_FIRST_TOKEN_EVENTS = ("First Token Stream Event", "gen_ai.first_token")


def text(value: Any) -> str | None:
    """A text that says something, else None."""
    return value if isinstance(value, str) and value else None


def whole(value: Any, most: int = 2**31) -> int | None:
    """A whole number from 0 and below `most`, also as text; else None."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < most else None


def seconds_to_ns(value: Any) -> int | None:
    """A duration in seconds as ns, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < FAR_NS / 1e9:
        return None
    return round(value * 1e9)


def own_fields(span: Span) -> dict[str, Any]:
    """The fields of a call that we have put on its span ourselves, but for its stamps.

    Raises:
        ValueError: One holds what it cannot.
    """
    fields: dict[str, Any] = {}
    for name, value in span.attributes.items():
        field = _OWN_FIELDS.get(name)
        if field is not None:
            fields[field] = field_value(field, json.loads(value) if field == "call_stack" else value)
        elif name in _OWN_PHASES:
            fields[_OWN_PHASES[name]] = _ms_to_ns(name, value)
    return fields


def own_attributes(call: Call) -> dict[str, Any]:
    """The attributes that `own_fields` reads: a field at its default is left out, but for the kind."""
    attributes: dict[str, Any] = {}
    for name, field in _OWN_FIELDS.items():
        value = getattr(call, field)
        if value != DEFAULTS[field] or field == "kind":  # which tells requests to models from others
            attributes[name] = json.dumps(value) if field == "call_stack" else value
    for name, field in _OWN_PHASES.items():
        if getattr(call, field) is not None:
            attributes[name] = getattr(call, field) / MS
    return attributes


def event_stamps(span: Span) -> dict[str, int]:
    """The stamps of a call that are events of its span, ns since 1970."""
    return {STAMP_EVENTS[event.name]: event.unix_ns for event in span.events if event.name in STAMP_EVENTS}


def own_stamps(span: Span) -> dict[str, int | None]:
    """The stamps of a call whose span we have stamped, ns since 1970: exact where the span's own times are not.

    The span of OpenTelemetry begins a little after the call, and ends before it where it is not held.
    """
    attributes = span.attributes
    stamps: dict[str, int | None] = {**event_stamps(span)}
    total_ns, wait_first_ns, client_ns = (
        _own_ns(attributes, name) for name in ("total_ms", "wait_first_ms", "client_ms")
    )
    first_byte_ns = stamps.get("first_byte_ns")
    start_ns, end_ns = span.start_ns, span.end_ns
    if first_byte_ns is not None and wait_first_ns is not None:
        start_ns = first_byte_ns - wait_first_ns
    elif total_ns is not None:
        # OpenTelemetry's span begins while the client is at work. Where its end was not held, the end tells too little.
        earliest_ns = end_ns - total_ns if client_ns is None else start_ns - client_ns
        start_ns = min(start_ns, max(end_ns - total_ns, earliest_ns))
    if total_ns is not None:
        end_ns = start_ns + total_ns
    receive_ns = _own_ns(attributes, "receive_ms")
    if receive_ns is not None:
        stamps.setdefault("headers_ns", end_ns - receive_ns)
    is_open = attributes.get("occupancy.outcome") == Outcome.OPEN
    return {**stamps, "start_ns": start_ns, "end_ns": None if is_open else end_ns}


def _own_ns(attributes: Mapping[str, Any], name: str) -> int | None:
    value = attributes.get(_OWN + name)
    return None if value is None else _ms_to_ns(_OWN + name, value)


def _ms_to_ns(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < FAR_NS / MS:
        raise ValueError(f"{name} cannot be {value!r}")
    return round(value * MS)


def others_stamps(span: Span) -> dict[str, int | None]:
    """The stamps of a call that others have traced: start, end, and the first piece where an instrumentation tells."""
    stamps: dict[str, int | None] = {"start_ns": span.start_ns, "end_ns": span.end_ns}
    told = seconds_to_ns(span.attributes.get("gen_ai.response.time_to_first_chunk"))
    seen = (event.unix_ns for event in span.events if event.name in _FIRST_TOKEN_EVENTS)
    first_ns = next(seen, None) if told is None else span.start_ns + told
    if first_ns is not None and span.start_ns <= first_ns <= span.end_ns:
        stamps["first_byte_ns"] = first_ns
    return stamps


def target(span: Span) -> dict[str, Any]:
    """Where a call goes: `method`, `host` (with the port where it is not the scheme's own) and `path`."""
    attributes = span.attributes
    scheme, host, port, path = of_url(text(first(attributes, "url.full", "http.url")))
    scheme = scheme or text(first(attributes, "url.scheme", "http.scheme"))
    if host is None:
        host, port = _address(text(first(attributes, "server.address", "net.peer.name", "http.host", "net.peer.ip")))
        port = whole(first(attributes, "server.port", "net.peer.port"), 65536) or port
    if port is not None and port != {"http": 80, "https": 443, None: 443}.get(scheme):
        host = host and f"{host}:{port}"
    if path is None:
        path = _path(text(first(attributes, "url.path", "http.target")))
    method = first(attributes, "http.request.method_original", "http.request.method", "http.method")
    return {"method": text(method), "host": host, "path": path}


def of_url(url: str | None) -> tuple[str | None, str | None, int | None, str | None]:
    """Scheme, host, port and path of a URL, or of a path alone; None for what is not told.

    Nothing else of it is kept, and nothing of what only looks like a URL: credentials may stand anywhere there.
    """
    try:
        parts = urlsplit(url or "")
        if not parts.netloc and (parts.scheme or not parts.path.startswith("/")):
            return None, None, None, None
        return parts.scheme or None, parts.hostname, parts.port, unquote(parts.path) or None
    except ValueError:  # no URL, or a port that is none
        return None, None, None, None


def _path(told: str | None) -> str | None:
    """The path in what should be one, and may be a URL."""
    path = (told or "").partition("?")[0].partition("#")[0]
    return of_url(path)[3] if "://" in path else path if path.startswith("/") else None


def _address(told: str | None) -> tuple[str | None, int | None]:
    """The host in what should be one, and may be a URL or hold credentials."""
    if told is None or not any(sign in told for sign in "@/?#"):
        return told, None
    return of_url(told if "://" in told else f"//{told}")[1:3]


def result(span: Span) -> dict[str, Any]:
    """How a call ended: `status`, `outcome`, `error_type`, sizes."""
    attributes = span.attributes
    status = whole(first(attributes, "http.response.status_code", "http.status_code"), 1000)
    exceptions = (event.attributes.get("exception.type") for event in span.events if event.name == "exception")
    error_type = text(attributes.get("error.type")) or next(filter(None, map(text, exceptions)), None)
    if status is not None and status >= 400:
        outcome = Outcome.HTTP_ERROR
        error_type = error_type or str(status)
    elif span.failed or attributes.get("error.type") is not None:
        outcome = _failure(error_type or "")
    else:
        outcome, error_type = Outcome.OK, None
    return {
        "status": status,
        "outcome": outcome,
        "error_type": error_type,
        "request_bytes": whole(first(attributes, "http.request.body.size", "http.request_content_length"), FAR_NS),
        "bytes_received": whole(first(attributes, "http.response.body.size", "http.response_content_length"), FAR_NS)
        or 0,
    }


def _failure(error_type: str) -> Outcome:
    name = error_type.rpartition(".")[2].lower()
    if "timeout" in name:
        return Outcome.TIMEOUT
    return Outcome.CANCELLED if "cancel" in name else Outcome.ERROR


def model(span: Span) -> str | None:
    """The model that a GenAI span asks."""
    names = ("gen_ai.request.model", "llm.model_name", "llm.request.model", "embedding.model_name",
             "gen_ai.response.model")  # fmt: skip
    return text(first(span.attributes, *names))


def tokens(span: Span) -> dict[str, int | None]:
    """The tokens that a GenAI span counts."""
    attributes = span.attributes
    return {
        "input_tokens": whole(
            first(attributes, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt",
                  "llm.usage.prompt_tokens")
        ),
        "output_tokens": whole(
            first(attributes, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens",
                  "llm.token_count.completion", "llm.usage.completion_tokens")
        ),
    }  # fmt: skip


def call_stack(span: Span) -> tuple[Frame, ...]:
    """The line of the program that made the call, where the span tells."""
    attributes = span.attributes
    file = text(first(attributes, "code.file.path", "code.filepath"))
    line = whole(first(attributes, "code.line.number", "code.lineno"))
    if file is None or line is None:
        return ()
    return (Frame(file, line, text(first(attributes, "code.function.name", "code.function")) or ""),)


def client(span: Span) -> str | None:
    """The library that made the span: the last part of its instrumentation's name."""
    return span.scope.rpartition(".")[2] or None if span.scope else None
