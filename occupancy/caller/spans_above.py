"""What lies above a call: the span that is current, those above it, and the request to a model among them."""

import sys
from contextvars import ContextVar
from time import monotonic_ns
from types import ModuleType
from typing import Any, NamedTuple

from occupancy.call import Call, Kind
from occupancy.caller.labels import run_span_above
from occupancy.caller.open_spans import open_spans, view
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


def imported(name: str) -> ModuleType | None:
    """A module that the program has imported, whole: another thread may be at it."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def trace_api() -> ModuleType | None:
    """OpenTelemetry's trace API, where the program has imported it."""
    return imported("opentelemetry.trace")


class _Above(NamedTuple):
    """The nearest spans of two sorts above this code."""

    step: Any
    """A model's, an agent's or a tool's; else the current one."""
    model: Any
    """A model's, else None."""


def _look_up(current: Any, span_id: int) -> _Above:
    step = None
    for span in [known.span for known in open_spans.upwards(span_id)] or [current]:
        seen = view(span)
        if seen.attributes and is_step(seen):
            step = step or span
            if is_inference(seen):
                return _Above(step, span)
    return _Above(step or current, None)


def is_below_model_span() -> bool:
    """Whether this code runs below a GenAI span that is open: what is sent here is a request to a model."""
    api = trace_api()
    if api is None:
        return False
    current = api.get_current_span()
    model_span = _look_up(current, current.get_span_context().span_id).model
    return model_span is not None and bool(model_span.is_recording())


def note(call: Call, own_span: Any = None) -> str | None:
    """Fill in what the spans above a call say of it.

    Args:
        call: The call.
        own_span: The current span, where it is the call's own.

    Returns:
        The name of the step: of the model's, agent's or tool's span that is nearest, else of the span right above; None
        where it has none.
    """
    api = trace_api()
    current = None if api is None else api.get_current_span()
    if own_span is not None and api is not None:
        parent = own_span.parent or api.INVALID_SPAN_CONTEXT
        current = next((known.span for known in open_spans.upwards(parent.span_id)), api.NonRecordingSpan(parent))
    run_span = run_span_above(current)
    if run_span is not None:
        current = run_span
    if current is None:
        return None
    context = current.get_span_context()
    span_id = context.span_id
    _span_above.set(span_id)
    if context.is_valid:
        call.trace_id, call.parent_span_id = f"{context.trace_id:032x}", f"{span_id:016x}"
    above = _look_up(current, span_id)
    _model_span_above.set(0 if above.model is None else above.model.get_span_context().span_id)
    if call.kind != Kind.OTHER:
        open_spans.mark_call_above(span_id if own_span is None else own_span.context.span_id)
        _note_model(call, above.model)
    # That of a run is ours: what is called a step does not depend on whether it is exported.
    name = None if above.step is run_span else getattr(above.step, "name", None)
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
