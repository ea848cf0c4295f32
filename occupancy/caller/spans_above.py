"""What lies above a call: the span that is current, those above it, and the request to a model among them."""

import sys
from contextvars import ContextVar
from time import monotonic_ns
from types import ModuleType
from typing import Any

from occupancy.call import Call, Kind
from occupancy.caller.open_spans import open_spans
from occupancy.formats.span_fields import model
from occupancy.formats.span_kinds import is_inference, is_step

_span_above: ContextVar[int] = ContextVar("occupancy_span_above", default=0)
_model_span_above: ContextVar[int] = ContextVar("occupancy_model_span_above", default=0)


def span_above() -> int:
    """The id of the span under which the newest call of this context was made; 0 without one."""
    return _span_above.get()


def model_span_above() -> int:
    """The id of the GenAI span of which the newest call of this context is a part; 0 without one."""
    return _model_span_above.get()


def trace_api() -> ModuleType | None:
    """OpenTelemetry's trace API, where the program has imported it."""
    return sys.modules.get("opentelemetry.trace")


def _upwards(current: Any, span_id: int) -> list[Any]:
    """The current span and those above it, as far as they are known, the nearest first; none without attributes."""
    spans = [known.span for known in open_spans.upwards(span_id)] or [current]
    return [span for span in spans if getattr(span, "attributes", None) is not None]


def is_below_model_span() -> bool:
    """Whether this code runs below a GenAI span that is open: what is sent here is a request to a model."""
    api = trace_api()
    if api is None:
        return False
    current = api.get_current_span()
    above = _upwards(current, current.get_span_context().span_id)
    return any(span.is_recording() and is_inference(span) for span in above)


def note(call: Call) -> str | None:
    """Fill in what the spans above a call say of it.

    Returns:
        The name of the step: of the model's, agent's or tool's span that is nearest, else of the span right above; None
        where it has none.
    """
    api = trace_api()
    if api is None:
        return None
    current = api.get_current_span()
    context = current.get_span_context()
    _span_above.set(context.span_id)
    if context.is_valid:
        call.trace_id, call.parent_span_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
    spans = _upwards(current, context.span_id)
    model_span = next(filter(is_inference, spans), None)
    _model_span_above.set(0 if model_span is None else model_span.get_span_context().span_id)
    if call.kind != Kind.OTHER:
        open_spans.mark_call_above(context.span_id)
        _note_model(call, model_span)
    step = next(filter(is_step, spans), current)
    name = getattr(step, "name", None)
    return name if isinstance(name, str) else None


def _note_model(call: Call, model_span: Any) -> None:
    if model_span is not None:
        call.kind = Kind.GENERATE
        if call.model is None:
            call.model = model(model_span)
        for span in open_spans.upwards(model_span.get_span_context().span_id):
            span.last_call = call
            break
    if call.kind == Kind.GENERATE:
        open_spans.requested_ns = monotonic_ns()
