"""Langfuse: the observations of its API, of its exports, and of a trace with its observations."""

from collections.abc import Iterator, Mapping
from typing import Any

from occupancy.formats.spans import Event, Span, Spans, clean_id, flatten, listed
from occupancy.formats.times import unix_ns

TYPES = frozenset(
    {"SPAN", "GENERATION", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"}
)
MS = 1_000_000


def recognise(document: Any) -> bool:
    """Whether a JSON document holds observations of Langfuse."""
    return any(_is_observation(raw) for raw in _raw_observations(document))


def read(document: Any, place: str, found: Spans) -> None:
    """Add the observations of a document that `recognise` knows."""
    found.extend(_raw_observations(document), _to_span, place)


def _is_observation(raw: Any) -> bool:
    return isinstance(raw, dict) and str(raw.get("type")) in TYPES and _of(raw, "startTime", "start_time") is not None


def _raw_observations(document: Any) -> Iterator[Any]:
    owners = document if isinstance(document, list) else [document]
    for owner in owners:
        if isinstance(owner, dict) and not _is_observation(owner):
            try:
                yield from listed(owner, "observations", "data")
            except ValueError as error:
                yield error
        else:
            yield owner


def _of(raw: Mapping[str, Any], *names: str) -> Any:
    return next((raw[name] for name in names if raw.get(name) is not None), None)


def _to_span(raw: Any) -> Span:
    metadata = raw.get("metadata") if isinstance(raw.get("metadata"), dict) else {}
    start_ns, end_ns = _times(raw)
    first_ns = _of(raw, "completionStartTime", "completion_start_time")
    return Span(
        name=str(raw.get("name") or ""),
        trace_id=clean_id(_of(raw, "traceId", "trace_id"), 32),
        span_id=clean_id(raw.get("id"), 16),
        parent_id=clean_id(_of(raw, "parentObservationId", "parent_observation_id"), 16),
        kind=None,
        start_ns=start_ns,
        end_ns=end_ns,
        attributes={**flatten(metadata.get("attributes")), **_attributes(raw)},
        resource=flatten(metadata.get("resourceAttributes")),
        events=() if first_ns is None else (Event("gen_ai.first_token", unix_ns(first_ns, MS), {}),),
        failed=raw.get("level") == "ERROR",
    )


def _times(raw: Mapping[str, Any]) -> tuple[int, int]:
    """Start and end; `latency` is not read, being in seconds here and in ms there."""
    start, end = _of(raw, "startTime", "start_time"), _of(raw, "endTime", "end_time")
    if start is None:
        raise KeyError("startTime")
    if end is None and raw["type"] != "EVENT":  # which has a moment, and no end
        raise KeyError("endTime")
    start_ns = unix_ns(start, MS)
    return start_ns, start_ns if end is None else unix_ns(end, MS)


def _attributes(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What Langfuse has taken out of a span's attributes, under the names it had there."""
    usage = _of(raw, "usageDetails", "usage_details", "usage")
    usage = usage if isinstance(usage, dict) else {}
    told = {
        "langfuse.observation.type": str(raw["type"]).lower(),
        "gen_ai.request.model": _of(raw, "model", "provided_model_name"),
        "gen_ai.usage.input_tokens": _of(usage, "input", "prompt_tokens") or _of(raw, "promptTokens", "inputUsage"),
        "gen_ai.usage.output_tokens": _of(usage, "output", "completion_tokens")
        or _of(raw, "completionTokens", "outputUsage"),
    }
    return {name: value for name, value in told.items() if value is not None}
