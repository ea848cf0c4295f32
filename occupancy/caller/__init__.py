"""Who makes a call: the step, the agent run, the task, the thread and the user's lines."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from occupancy.call import Call
from occupancy.caller import spans_above
from occupancy.caller.frames import call_stack
from occupancy.caller.groups import siblings
from occupancy.caller.labels import current_after, current_label, current_run, run_span_above
from occupancy.caller.spans_above import imported, model_span_above, span_above, trace_api
from occupancy.caller.tasks import current_task, root_flow, sync_in_event_loop
from occupancy.step_names import LABEL_LENGTH, step_name

__all__ = [
    "SHARED_BY_ATTEMPTS",
    "current_run",
    "describe",
    "describe_flow",
    "describe_later",
    "flow_id",
    "imported",
    "is_in_tracked_call",
    "look_again",
    "model_span_above",
    "run_span_above",
    "span_above",
    "sync_in_event_loop",
    "trace_api",
    "within_tracked_call",
]

SHARED_BY_ATTEMPTS = (
    "logical_id", "parent_span_id", "trace_id", "run", "kind", "label", "after", "needs", "async_task", "thread",
    "siblings", "siblings_held", "call_stack", "client", "method", "host", "port", "path", "model", "key_id",
    "request_bytes", "idempotency_key", "sync_in_event_loop",
)  # fmt: skip
"""Fields of a call that a further attempt of the same request has too."""

_tracked: ContextVar[Any] = ContextVar("occupancy_tracked", default=None)


def describe(call: Call, own_span: Any = None, *, with_stack: bool = True) -> None:
    """Fill in who makes the call that starts now, on this thread; its own span is not above it."""
    describe_flow(call, spans_above.note(call, own_span), with_stack=with_stack)


def describe_flow(call: Call, step: str | None, *, with_stack: bool = True) -> None:
    """The same where it is known which spans lie above.

    Args:
        call: Its trace id is filled in.
        step: What the step is called where no label says so.
        with_stack: Whether user frames are kept.
    """
    flow = root_flow()
    call.async_task, call.thread = flow.task, flow.thread
    call.siblings, call.siblings_held = siblings()
    if with_stack:
        call.call_stack = call_stack()
    site = call.call_site
    label = current_label() or (step and step_name(step)) or (site.function if site else None)
    call.label = label and label[:LABEL_LENGTH]
    call.after = "\n".join(current_after()) or None
    call.run = current_run() or call.trace_id or flow.root


def look_again(call: Call) -> None:
    """Look anew, on the same task, whether a sibling waits for its turn: none did when the call started.

    Of tasks that were handed over together the first makes its call before the others have come as far as the limit.
    """
    call.siblings_held = bool(siblings().is_held)


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


@contextmanager
def within_tracked_call(flight: Any) -> Iterator[None]:
    """Know that this code is a call that is tracked by hand: a span that begins here is a part of it."""
    outer = _tracked.get()
    _tracked.set(flight)
    try:
        yield
    finally:
        _tracked.set(outer)


def is_in_tracked_call() -> bool:
    """Whether this code is a call that is tracked by hand, and has not ended: a task that it starts may go on."""
    flight = _tracked.get()
    return flight is not None and not flight.ended


def flow_id() -> tuple[int, int]:
    """What makes one call at a time: the thread and, in it, the task."""
    return threading.get_ident(), id(current_task())
