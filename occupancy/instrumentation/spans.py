"""The span of a call: claimed where OpenTelemetry made it, held open to the call's end, stamped.

Works on whatever span is current, through OpenTelemetry's API only, and only where the program has imported that API.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator
from contextvars import Context
from time import monotonic_ns, time_ns
from types import ModuleType
from typing import Any

from occupancy import _guard
from occupancy.call import Call, Frame, Outcome
from occupancy.caller import imported, trace_api
from occupancy.caller.spans_above import is_below_model_span
from occupancy.flight import Flight
from occupancy.instrumentation import provider
from occupancy.ledger import ledger

FAILED = frozenset({Outcome.TIMEOUT, Outcome.ERROR, Outcome.CANCELLED})
FIELDS = (
    "in_flight_start", "in_flight_end", "wait_first_ms", "total_ms", "outcome", "kind", "label", "model", "run",
    "attempt", "call_id", "logical_id", "connection_reused", "key_id", "retry_after_s", "limit_requests",
    "remaining_requests", "limit_tokens", "remaining_tokens", "after", "needs", "async_task", "thread", "siblings",
    "siblings_held",
)  # fmt: skip
"""Fields of a call that go on its span as they are, as `occupancy.<name>`."""
PHASES = ("client_ns", "gate_ns", "pool_ns", "connect_ns", "tls_ns", "send_ns", "wait_ns", "receive_ns")
"""Phases of a call, which go on its span in ms, as `occupancy.<phase>_ms`."""
WRAPPED_ABOVE = frozenset({"requests", "urllib3", "urllib"})
"""Clients that OpenTelemetry wraps where we do, or further up."""
SUPPRESSING, SUPPRESSING_HTTP = "_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY"

_FIELD_KEYS = tuple((name, f"occupancy.{name}") for name in FIELDS)
_PHASE_KEYS = tuple((name, f"occupancy.{name.removesuffix('_ns')}_ms") for name in PHASES)


def is_suppressed() -> bool:
    """Whether the call is one of OpenTelemetry's own, such as an export.

    Under a GenAI span it is not: Logfire keeps other instrumentations away there so that nothing is told twice. Where
    HTTP spans alone are suppressed, somebody above has made one, as for requests: such a call is the program's.
    """
    return _is_suppressed(SUPPRESSING) and not is_below_model_span()


def is_instrumentation_suppressed() -> bool:
    """Whether OpenTelemetry's HTTP instrumentations make no spans here."""
    return _is_suppressed(SUPPRESSING, SUPPRESSING_HTTP)


def _is_suppressed(*names: str) -> bool:
    context = imported("opentelemetry.context")
    if context is None:
        return False
    current = context.get_current()
    return any(key in current and current[key] for key in _keys(context, names)) if current else False


@functools.cache
def _keys(context: ModuleType, names: tuple[str, ...]) -> tuple[str, ...]:
    # Two are made anew in each process; the plain one is that of older libraries.
    return ("suppress_instrumentation", *(getattr(context, name) for name in names if hasattr(context, name)))


class HeldEnd:
    """Stands in for a span's `end` until OpenTelemetry has asked for it and every attempt under it has been released.

    Args:
        span: The span to hold.
        flight: The call it belongs to.
    """

    def __init__(self, span: Any, flight: Flight) -> None:
        self._span = span
        self._end: Callable[[int | None], object] = span.end
        self._asked_ns: int | None = None
        # One for OpenTelemetry, one for each attempt. Popping is atomic: whoever gets the last one ends the span.
        self._awaited = ["last"]
        # Everything is placed from here on the monotonic clock, so that a clock that is set back cannot turn it round.
        self._unix_offset_ns: int = max(time_ns(), span.start_time) - monotonic_ns()
        self.await_release(flight)

    def __call__(self, end_time: int | None = None) -> None:
        """OpenTelemetry asks for the end."""
        if self._asked_ns is not None:
            return
        try:
            self._asked_ns = monotonic_ns() + self._unix_offset_ns if end_time is None else end_time
            self._step()
        except Exception as error:  # runs inside the host's request
            _guard.report("occupancy.spans.end", error)
            held.discard(self)
            self._end(end_time)

    @property
    def asked(self) -> bool:
        """Whether OpenTelemetry has asked for the end."""
        return self._asked_ns is not None

    @property
    def call_ended(self) -> bool:
        """Whether the newest attempt has ended."""
        return self._call.end_ns is not None

    def await_release(self, flight: Flight) -> None:
        """An attempt is made under the span: it stays open until that is released too."""
        self._awaited.append("more")
        self._call = flight.call
        flight.on_release = self._release

    def settle(self) -> None:
        """End the span now, if OpenTelemetry has asked for it: nothing more will come."""
        if self.asked:
            self._finish()

    def _release(self, call: Call) -> None:
        self._call = call
        self._step()

    def _step(self) -> None:
        if self._awaited.pop() == "last":
            self._finish()

    @_guard.guarded
    def _finish(self) -> None:
        try:
            held.remove(self)  # atomic: of two threads that end a span, one wins
        except KeyError:
            return  # also in a forked child: the span is the parent's
        if vars(self._span).get("end") is self:
            del self._span.end
        end_ns, context = self._asked_ns, None
        try:
            end_ns = self._end_ns()
            describe(self._span, self._call, self._unix_offset_ns)
            # A body may be read where instrumentation is suppressed, but its span began where it was not.
            context = Context() if is_instrumentation_suppressed() else None
        finally:
            if context is None:
                self._end(end_ns)
            else:
                context.run(self._end, end_ns)

    def _end_ns(self) -> int:
        call, start_ns = self._call, int(self._span.start_time)
        asked_ns = max(self._asked_ns or 0, start_ns)
        if not extend:
            return asked_ns
        if call.end_ns is not None:
            return max(call.end_ns + self._unix_offset_ns, start_ns)
        # Still running, and its provider shuts down: as if it had been abandoned.
        return max(asked_ns, (call.last_byte_ns or 0) + self._unix_offset_ns)


extend = True
"""Whether spans end with their calls; else they end when they were asked to, stamped all the same."""

held: set[HeldEnd] = set()
"""The spans that are held open now."""

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=held.clear)


@_guard.guarded
def settle_ended() -> None:
    """Count what finalizers have left, and end the held spans of calls that have ended."""
    ledger.settle()
    for end in list(held):
        if end.call_ended:  # another thread has counted it and is about to end its span: a flush must not miss that
            end.settle()


@_guard.guarded
def settle_held() -> None:
    """Count what finalizers have left, and end every held span whose end OpenTelemetry has asked for."""
    ledger.settle()
    for end in list(held):
        end.settle()


@_guard.guarded
def leave() -> None:
    """At exit: calls that are still open end as abandoned, and their spans with them."""
    ledger.abandon_open()
    settle_held()


def own_span(client: str | None, *, continues: bool) -> Any:
    """The current span where it is that of the request which a client is about to send; None where it is above it.

    OpenTelemetry wraps what some clients are asked by, as we do: their span may have begun before the call.

    Args:
        client: Our name of the client.
        continues: Whether the request is a further attempt, which may have its span together with the first.
    """
    api = trace_api()
    if api is None or client not in WRAPPED_ABOVE:
        return None
    span = api.get_current_span()
    if not provider.is_http_span(span) or span.instrumentation_scope.name != provider.SCOPES[client]:
        return None
    end = vars(span).get("end")
    is_own = end is None or (continues and isinstance(end, HeldEnd) and not end.asked)
    return span if is_own else None


def claim(flight: Flight) -> None:
    """Take the current span for the call where it is its own: an HTTP client's, and not the one it was made under."""
    api = trace_api()
    if api is None:
        return
    span = api.get_current_span()
    if not provider.is_http_span(span):
        return
    context = span.get_span_context()
    span_id = f"{context.span_id:016x}"
    if span_id == flight.call.parent_span_id:
        return
    flight.call.span_id, flight.call.trace_id = span_id, f"{context.trace_id:032x}"
    end = vars(span).get("end")
    if end is None:
        provider.attach(span, leave)
        end = HeldEnd(span, flight)
        held.add(end)
        span.end = end
    elif isinstance(end, HeldEnd) and not end.asked:
        end.await_release(flight)


def describe(span: Any, call: Call, unix_offset_ns: int) -> None:
    """Put a call's record on its span: attributes, events, and the error where OpenTelemetry has seen none.

    Events keep their true times, also where a span is not held and ends before them: a time that was moved would be
    wrong, and nothing in OpenTelemetry's data model binds an event to its span's end.

    Args:
        span: A recording span.
        call: The call, released.
        unix_offset_ns: Unix time minus the monotonic clock.
    """
    span.set_attributes(new_attributes(call, span.attributes or {}))
    for name, stamp_ns in (("first_byte", call.first_byte_ns), ("last_byte", call.last_byte_ns)):
        if stamp_ns is not None:
            span.add_event(name, timestamp=stamp_ns + unix_offset_ns)
    api = trace_api()
    if call.outcome in FAILED and api is not None and span.status.status_code is not api.StatusCode.ERROR:
        span.set_status(api.Status(api.StatusCode.ERROR, f"{call.outcome}: {call.error_type}"))


def new_attributes(call: Call, present: Any) -> dict[str, str | int | float]:
    """The span attributes of a call; those of others' names only where nobody has set them."""
    new = attributes(call)
    for name, value in conventional_attributes(call):
        if name not in present:
            new[name] = value
    return new


def attributes(call: Call) -> dict[str, str | int | float]:
    """The attributes of our own; what is absent is left out."""
    found: dict[str, str | int | float] = {}
    for name, key in _FIELD_KEYS:
        value = getattr(call, name)
        if value is not None:
            found[key] = value
    for name, key in _PHASE_KEYS:
        spent_ns = getattr(call, name)
        if spent_ns is not None:
            found[key] = spent_ns / 1e6
    if call.sync_in_event_loop:
        found["occupancy.sync_in_event_loop"] = True
    if len(call.call_stack) > 1:  # of one frame the conventional attributes tell
        found["occupancy.call_stack"] = _stack_text(call.call_stack)
    return found


@functools.lru_cache(maxsize=1024)  # a program has few places that make calls
def _stack_text(stack: tuple[Frame, ...]) -> str:
    return json.dumps(stack)


def conventional_attributes(call: Call) -> Iterator[tuple[str, str | int | float]]:
    """The attributes of OpenTelemetry's semantic conventions that its httpx instrumentation may leave out."""
    if call.attempt:
        yield "http.request.resend_count", call.attempt
    if call.call_site is not None:
        yield "code.file.path", call.call_site.file
        yield "code.line.number", call.call_site.line
        yield "code.function.name", call.call_site.function
    if call.error_type is not None or call.outcome in FAILED:
        yield "error.type", call.error_type or str(call.outcome)
