"""The span of a call: claimed where OpenTelemetry made it, held open to the call's end, stamped.

Works on whatever span is current, through OpenTelemetry's API only, and only where the program has imported that API.
"""

import sys
import time
from collections.abc import Iterator
from typing import Any

from occupancy import _guard
from occupancy.call import Call, Outcome
from occupancy.caller import trace_api
from occupancy.flight import Flight

FAILED = frozenset({Outcome.TIMEOUT, Outcome.ERROR, Outcome.CANCELLED})
PHASES = ("client_ns", "gate_ns", "pool_ns", "connect_ns", "tls_ns", "send_ns", "wait_ns", "receive_ns")


def is_suppressed() -> bool:
    """Whether the call is one of OpenTelemetry's own, such as an export."""
    context = sys.modules.get("opentelemetry.context")
    if context is None:
        return False
    current = context.get_current()
    return bool(current.get("suppress_instrumentation") or current.get("suppress_http_instrumentation"))


class HeldEnd:
    """Stands in for a span's `end` until both OpenTelemetry has asked for it and the call has been released.

    Args:
        span: The span to hold.
        flight: The call it belongs to.
    """

    def __init__(self, span: Any, flight: Flight) -> None:
        self._span = span
        self._asked_ns: int | None = None
        self._awaited = ["last", "first"]  # popping is atomic: whoever gets "last" ends the span
        self._released = False
        # Events and the end are placed by the span's own start, so that a clock that is set back cannot turn them round.
        unix_ns = max(time.time_ns(), span.start_time)
        self._unix_offset_ns = unix_ns - time.monotonic_ns()
        self._call = flight.call
        flight.on_release = self._release

    def __call__(self, end_time: int | None = None) -> None:
        """OpenTelemetry asks for the end."""
        if self._asked_ns is None:
            self._asked_ns = time.time_ns() if end_time is None else end_time
            self._step()

    def settle(self) -> None:
        """End the span now, if OpenTelemetry has asked for it: nothing more will come."""
        if self._asked_ns is not None and not self._released:
            self._release(self._call)

    def take_over(self, flight: Flight) -> None:
        """A further attempt under the same span: it ends with that one, unless the one before is still running."""
        if self._released:
            self._released = False
            self._awaited.append("first")
            self._call = flight.call
            flight.on_release = self._release

    def _release(self, call: Call) -> None:
        self._released = True
        self._step()

    def _step(self) -> None:
        if self._awaited.pop() == "last":
            _guard.guarded(self._finish)()

    def _finish(self) -> None:
        held.discard(self)
        vars(self._span).pop("end", None)
        call, end_ns = self._call, self._asked_ns
        try:
            if call.end_ns is not None and extend:
                end_ns = max(call.end_ns + self._unix_offset_ns, self._span.start_time)
            describe(self._span, call, self._unix_offset_ns)
        finally:
            self._span.end(end_time=end_ns)


extend = True
"""Whether spans end with their calls; else they end when they were asked to, stamped all the same."""

held: set[HeldEnd] = set()
"""The spans that are held open now."""


def settle_held() -> None:
    """End every held span whose end OpenTelemetry has asked for."""
    for end in list(held):
        _guard.guarded(end.settle)()


def claim(flight: Flight) -> None:
    """Take the current span for the call, where it is the call's own: a recording one, begun since the client was asked."""
    api = trace_api()
    if api is None:
        return
    span = api.get_current_span()
    if not span.is_recording():
        return
    context = span.get_span_context()
    span_id = f"{context.span_id:016x}"
    if span_id == flight.call.parent_span_id or getattr(span, "kind", api.SpanKind.CLIENT) is not api.SpanKind.CLIENT:
        return
    flight.call.span_id, flight.call.trace_id = span_id, f"{context.trace_id:032x}"
    end = vars(span).get("end")
    if end is None:
        span.end = end = HeldEnd(span, flight)
        held.add(end)
    elif isinstance(end, HeldEnd):
        end.take_over(flight)


def describe(span: Any, call: Call, unix_offset_ns: int) -> None:
    """Put a call's record on its span: attributes, events, and the error where OpenTelemetry has seen none.

    Args:
        span: A recording span.
        call: The call, released.
        unix_offset_ns: Unix time minus the monotonic clock.
    """
    span.set_attributes(dict(attributes(call)))
    for name, stamp_ns in (("first_byte", call.first_byte_ns), ("last_byte", call.last_byte_ns)):
        if stamp_ns is not None:
            span.add_event(name, timestamp=stamp_ns + unix_offset_ns)
    if call.outcome in FAILED:
        api = trace_api()
        span.set_attribute("error.type", call.error_type or str(call.outcome))
        if api is not None:
            span.set_status(api.Status(api.StatusCode.ERROR, f"{call.outcome}: {call.error_type}"))


def attributes(call: Call) -> Iterator[tuple[str, str | int | float]]:
    """The span attributes of a call; what is absent is left out."""
    for name in ("in_flight_start", "in_flight_end", "wait_first_ms", "total_ms", "outcome", "kind", "label", "run"):
        value = getattr(call, name)
        if value is not None:
            yield f"occupancy.{name}", value
    yield "occupancy.attempt", call.attempt
    yield "occupancy.call_id", call.call_id
    yield "occupancy.logical_id", call.logical_id
    if call.attempt:
        yield "http.request.resend_count", call.attempt
    for name in PHASES:
        spent_ns = getattr(call, name)
        if spent_ns is not None:
            yield f"occupancy.{name.removesuffix('_ns')}_ms", spent_ns / 1e6
    if call.connection_reused is not None:
        yield "occupancy.connection_reused", call.connection_reused
    if call.call_site is not None:
        yield "code.file.path", call.call_site.file
        yield "code.line.number", call.call_site.line
        yield "code.function.name", call.call_site.function
