"""Spans of others that are calls: requests of HTTP and RPC clients, and to models, where nothing below them is one.

So a program has its occupancy also where no hook of ours reaches: gRPC, or a client in another language's core. Whether
a span is a call is known when it ends: until then one below it may begin. So it is counted then, with the times it had.

A captured call, or another such span, below a span shows by the ids of their parents. Some instrumentations make a
span that is never current, or make it only when the response is there: what was sent then seems to lie beside it. Of
two that may be one call only one may count: the request itself. So a GenAI span with nothing below it is not counted
where in its time a request began that may be it: a captured one to a model, or one that a client's span stands for.
"""

from time import monotonic_ns, time_ns
from typing import Any

from occupancy import _guard, caller
from occupancy.call import Call, Kind
from occupancy.caller.open_spans import OpenSpan, open_spans, view
from occupancy.formats import span_fields
from occupancy.formats.span_kinds import is_call, is_inference
from occupancy.formats.spans import Event, Span
from occupancy.instrumentation import attempts
from occupancy.kinds import kind_of
from occupancy.ledger import ledger

CLOCK_SET_NS = 1_000_000
"""From so much difference on the clock is taken to have been set: two readings of it differ by less."""

_offset_ns: int | None = None


@_guard.guarded
def begin(span: Any) -> None:
    """A span has begun, and is not current yet."""
    if not ledger.logs:
        return
    parent_id = 0 if span.parent is None else span.parent.span_id
    is_within_call = attempts.current_trail() is not None or caller.is_in_tracked_call()
    begun = OpenSpan(span, parent_id, is_within_call)
    open_spans.begin(span.context.span_id, begun)
    found = view(span)
    if not is_within_call and found.attributes and is_call(found):
        open_spans.mark_call_above(parent_id)
        begun.call = _new_call(span, begun)
        if not is_inference(found):
            open_spans.requested_ns = monotonic_ns()


@_guard.guarded
def end(span: Any) -> None:
    """A span has ended: count it if it is a call, and nothing below it was."""
    ended = open_spans.end(span.context.span_id)
    if ended is None:
        return
    if ended.last_call is not None:
        _amend(ended.last_call, span)
    if ended.has_call_below or ended.is_within_call or not span.attributes or not ledger.logs:
        return
    found = plain(span)
    if not is_call(found) or "occupancy.call_id" in found.attributes:
        return
    unix_offset_ns = _unix_offset_ns()
    if is_inference(found) and _request_began_since(found.start_ns - unix_offset_ns):
        return
    call = ended.call or _new_call(span, ended)
    _fill_in(call, found, unix_offset_ns)
    open_spans.mark_call_above(ended.parent_id)
    ledger.add(call)


def _unix_offset_ns() -> int:
    """Unix time minus the monotonic clock: the same for all spans, to the ns, unless the clock has been set."""
    global _offset_ns
    before_ns, unix_ns, after_ns = monotonic_ns(), time_ns(), monotonic_ns()
    offset_ns = unix_ns - after_ns
    was_interrupted = after_ns - before_ns > CLOCK_SET_NS // 2  # then the reading says little
    if _offset_ns is None or (abs(offset_ns - _offset_ns) > CLOCK_SET_NS and not was_interrupted):
        _offset_ns = offset_ns
    return _offset_ns


def _request_began_since(start_ns: int) -> bool:
    return open_spans.requested_ns is not None and open_spans.requested_ns >= start_ns


def plain(span: Any) -> Span:
    """An SDK's span as the readers of traces have them."""
    return Span(
        name=span.name,
        trace_id=None,
        span_id=None,
        parent_id=None,
        kind=span.kind.name.lower(),
        start_ns=span.start_time,
        end_ns=span.end_time or span.start_time,
        attributes=dict(span.attributes or {}),
        events=tuple(Event(event.name, event.timestamp, event.attributes or {}) for event in span.events),
        failed=span.status.status_code.name == "ERROR",
        scope=span.instrumentation_scope.name if span.instrumentation_scope else None,
    )


def _new_call(span: Any, begun: OpenSpan) -> Call:
    """The call that a span may be, with what is known only where it begins: the task, the thread, the user's lines."""
    call = Call(trace_id=f"{span.context.trace_id:032x}", span_id=f"{span.context.span_id:016x}")
    call.parent_span_id = f"{begun.parent_id:016x}" if begun.parent_id else None
    caller.describe_flow(call, span.name, with_stack=attempts.settings.call_stack)
    return call


def _fill_in(call: Call, span: Span, unix_offset_ns: int) -> None:
    """What a span says when it has ended."""
    fields = {
        "model": span_fields.model(span),
        "client": span_fields.client(span),
        **span_fields.target(span),
        **span_fields.result(span),
        **span_fields.tokens(span),
    }
    for name, unix_ns in span_fields.others_stamps(span).items():
        fields[name] = None if unix_ns is None else unix_ns - unix_offset_ns
    for name, value in fields.items():
        setattr(call, name, value)
    call.end_ns = call.released_ns = max(call.start_ns, call.end_ns or 0)
    call.kind = kind_of(call.host or "", call.path or "", attempts.settings.exclude)
    if call.kind == Kind.TOOL and is_inference(span):
        call.kind = Kind.GENERATE


def _amend(call: Call, span: Any) -> None:
    """A GenAI span tells the model and the tokens of the last call below it: each token counts once."""
    found = plain(span)
    told = {**span_fields.tokens(found), "model": span_fields.model(found)}
    new = {name: value for name, value in told.items() if value is not None and getattr(call, name) is None}
    for name, value in new.items():
        setattr(call, name, value)
    if new and call.released_ns is not None:  # else they are kept when it is released
        ledger.amend(call)
