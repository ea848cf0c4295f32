"""The span of an agent run, which makes one trace of its calls.

Only where spans go to our own provider: a host with one of its own gets no span that it has not made. The span is made
at the run's first call, with the run's start: the provider may not be there before, and until then the program may set
one. It is no current span of OpenTelemetry's, but is put above a call where the call is made: so no token is held that
another context could meet, and a host's own span never lies below one that its backend does not have.
"""

import atexit
import functools
import os
from collections import deque
from time import time_ns
from types import TracebackType
from typing import Any

from occupancy import _guard
from occupancy.caller import labels, trace_api
from occupancy.caller.blocks import RunSpan
from occupancy.caller.open_spans import OpenSpan, open_spans
from occupancy.flight import is_collecting
from occupancy.instrumentation import provider
from occupancy.instrumentation.run_counts import runs
from occupancy.ledger import ledger

OPERATION = "invoke_agent"
SCOPE = "occupancy"
"""Name of the scope of these spans."""


class LazySpan:
    """The span of one run.

    Args:
        name: What the agent is called.
        run: The run's id.
        outer: The span of the run around it.
    """

    def __init__(self, name: str, run: str, outer: RunSpan | None) -> None:
        self._name = name
        self._run = run
        self._outer = outer
        self._start_unix_ns = time_ns()
        self._pid = os.getpid()
        self._at_start = _current()
        self._made: list[Any] = []
        """The first is the span: of threads that make one at once only one wins, and no lock is held."""
        self._is_over = False

    def above(self, current: Any) -> Any:
        """Give the span where it lies above a call; None where OpenTelemetry's current span was begun in the run.

        A span that the run has had stays above what goes on after it, such as a task that was left behind.
        """
        try:
            if _span_id(current) != _span_id(self._at_start):
                return None
            provider.look_for_provider()
            if provider.private() is None:
                return None
            if not (self._made or self._is_over) and self._pid == os.getpid():
                self._make()
            return self._made[0] if self._made else None
        except Exception as error:  # runs inside the host's request
            _guard.report("occupancy.run_spans.above", error)
            return None

    def _make(self) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        above = (self._outer and self._outer.above(self._at_start)) or self._at_start
        tracer = provider.private().get_tracer(SCOPE)
        span = tracer.start_span(
            f"{OPERATION} {self._name}",
            context=Context() if above is None else set_span_in_context(above, Context()),
            start_time=self._start_unix_ns,
            attributes={
                "gen_ai.operation.name": OPERATION,
                "gen_ai.agent.name": self._name,
                "occupancy.run": self._run,
            },
        )
        if span.is_recording():  # known before it lies above a call, so that its numbers tell of all
            open_spans.begin(_span_id(span), OpenSpan(span, _span_id(above), is_within_call=False))
            ledger.observe(runs)
        self._made.append(span)
        if self._made[0] is not span:
            open_spans.end(_span_id(span))
        _open.add(self)
        _leave_at_exit()

    def __enter__(self) -> "LazySpan":
        return self

    @_guard.guarded
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The run is over."""
        self._is_over = True
        if is_collecting():  # a finalizer takes no lock, as the export does
            _collected.append((self, time_ns()))
        else:
            self.end(error)

    def end(self, error: BaseException | None = None, end_unix_ns: int | None = None) -> None:
        """End the span, if one was made, and in this process."""
        if self not in _open:
            return
        _open.discard(self)
        span = self._made[0]
        open_spans.end(_span_id(span))
        if isinstance(error, Exception):  # as OpenTelemetry has it: a generator that is closed has not failed
            _guard.quietly(_record, span, error)
        span.end(end_unix_ns)


_open: set[LazySpan] = set()
"""Those that are made and have not ended."""
_collected: deque[tuple[LazySpan, int]] = deque()
"""Those whose block the garbage collector has closed, and when, Unix time: they end with the next run, or at exit."""

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_open.clear)


def _record(span: Any, error: Exception) -> None:
    from opentelemetry.trace import Status, StatusCode

    name = type(error).__name__
    span.record_exception(error)
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, f"{name}: {error}"))


def _current() -> Any:
    api = trace_api()
    return None if api is None else api.get_current_span()


def _span_id(span: Any) -> int:
    return 0 if span is None else int(span.get_span_context().span_id)


@_guard.guarded
def begin(name: str, run: str, outer: RunSpan | None) -> LazySpan | None:
    """A run begins: give what may become its span, where our own provider exports, or may when a call is made."""
    _end_collected()
    return LazySpan(name, run, outer) if provider.may_be_private() else None


def _end_collected() -> None:
    while _collected:
        span, end_unix_ns = _collected.popleft()
        span.end(None, end_unix_ns)


@_guard.guarded
def leave() -> None:
    """At exit: what is still open ends."""
    _end_collected()
    for span in list(_open):
        span.end()


@functools.cache
def _leave_at_exit() -> None:
    atexit.register(leave)  # after the provider has registered its own, so that this runs before


def install() -> None:
    """Have runs make their spans from now on."""
    labels.new_run_span = begin


def remove() -> None:
    """Have runs make no further spans."""
    labels.new_run_span = None
