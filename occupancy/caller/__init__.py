"""Who makes a call: the step, the agent run, the task, the thread and the user's lines."""

import sys
import threading
from contextvars import ContextVar
from types import ModuleType

from occupancy.call import Call
from occupancy.caller.frames import call_stack
from occupancy.caller.groups import siblings
from occupancy.caller.labels import current_after, current_label, current_run
from occupancy.caller.tasks import current_task, root_flow, sync_in_event_loop

__all__ = [
    "SHARED_BY_ATTEMPTS",
    "describe",
    "describe_later",
    "flow_id",
    "span_above",
    "sync_in_event_loop",
    "trace_api",
]

LABEL_LENGTH = 200
"""Characters of a label that are kept."""

SHARED_BY_ATTEMPTS = (
    "logical_id", "parent_span_id", "trace_id", "run", "kind", "label", "after", "needs", "async_task", "thread",
    "siblings", "siblings_held", "call_stack", "client", "method", "host", "port", "path", "model", "key_id",
    "request_bytes", "idempotency_key", "sync_in_event_loop",
)  # fmt: skip
"""Fields of a call that a further attempt of the same request has too."""

_span_above: ContextVar[int] = ContextVar("occupancy_span_above", default=0)


def describe(call: Call, *, with_stack: bool = True) -> None:
    """Fill in who makes the call that starts now, on this thread."""
    flow = root_flow()
    call.async_task, call.thread = flow.task, flow.thread
    call.siblings, call.siblings_held = siblings()
    if with_stack:
        call.call_stack = call_stack()
    span_name = _note_parent_span(call)
    site = call.call_site
    label = current_label() or span_name or (site.function if site else None)
    call.label = label and label[:LABEL_LENGTH]
    call.after = "\n".join(current_after()) or None
    call.run = current_run() or call.trace_id or flow.root


def describe_later(call: Call) -> None:
    """Fill in where a call of a thread comes from, on that thread, where that was not known when it started.

    The task that has handed the work over may have been about to wait for it.
    """
    if call.call_stack or call.async_task is not None:
        return
    call.call_stack = call_stack()
    site = call.call_site
    if call.label is None and site is not None:
        call.label = site.function[:LABEL_LENGTH]


def _note_parent_span(call: Call) -> str | None:
    """Fill in the ids of the span the call is made under; give its name, None where it has none."""
    api = trace_api()
    if api is None:
        return None
    span = api.get_current_span()
    context = span.get_span_context()
    _span_above.set(context.span_id)
    if not context.is_valid:
        return None
    call.trace_id, call.parent_span_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
    return getattr(span, "name", None)


def span_above() -> int:
    """The id of the span under which the newest call of this context was made; 0 without one."""
    return _span_above.get()


def flow_id() -> tuple[int, int]:
    """What makes one call at a time: the thread and, in it, the task."""
    return threading.get_ident(), id(current_task())


def trace_api() -> ModuleType | None:
    """OpenTelemetry's trace API, where the program has imported it."""
    return sys.modules.get("opentelemetry.trace")
