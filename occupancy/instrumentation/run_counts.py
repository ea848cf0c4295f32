"""Puts on the root span of each run how many calls it made, their peak and their mean in flight."""

import os
from collections.abc import Iterable
from time import monotonic_ns
from typing import Any

from occupancy import _guard
from occupancy.call import Call, Kind
from occupancy.caller.open_spans import SERVING, open_spans
from occupancy.formats.span_kinds import is_inference
from occupancy.instrumentation.provider import is_http_span
from occupancy.ledger import ledger

MOST_TIMES = 10_000
"""Calls of a run whose times are kept until they are summed up: a root span may last as long as its process."""


class Run:
    """The calls below one root span; stands in for the span's `end`, after which nothing could be added to it.

    Args:
        span: The root span.
    """

    def __init__(self, span: Any) -> None:
        self._span = span
        self._end = span.end
        self._open: dict[int, int] = {}
        self._ended: list[tuple[int, int]] = []
        self._total = Total()

    def __call__(self, end_time: int | None = None) -> None:
        """The run is over."""
        self._describe()
        self._end(end_time)

    @_guard.guarded
    def _describe(self) -> None:
        if vars(self._span).get("end") is self:
            del self._span.end
        ledger.settle()
        runs.forget(self)
        now_ns = monotonic_ns()
        self._total.add([*self._ended, *((start_ns, now_ns) for start_ns in list(self._open.values()))])
        self._span.set_attributes(self._total.attributes())

    def started(self, call: Call) -> None:
        """A call below has started."""
        self._open[call.call_id] = call.start_ns

    def ended(self, call: Call) -> None:
        """A call below has ended."""
        self._open.pop(call.call_id, None)
        self._ended.append((call.start_ns, call.end_ns or call.start_ns))
        if len(self._ended) > MOST_TIMES:
            times, self._ended = self._ended, []
            self._total.add(times, [*self._open.values()])


class Total:
    """The numbers of a run, in the words of a summary: at equal times ends come before starts."""

    def __init__(self) -> None:
        self._n = self._peak = self._sum_ns = 0
        self._wall: tuple[int, int] | None = None

    def add(self, times: list[tuple[int, int]], open_since_ns: Iterable[int] = ()) -> None:
        """Add calls.

        Args:
            times: Start and end of each, ns. What has ended before does not overlap what comes later.
            open_since_ns: Starts of those that are still open: they count for the peak, and are added when they end.
        """
        self._n += len(times)
        self._sum_ns += sum(end_ns - start_ns for start_ns, end_ns in times)
        self._peak = max(self._peak, _peak(times, open_since_ns))
        bounds = [*(self._wall or ()), *(at_ns for pair in times for at_ns in pair)]
        self._wall = (min(bounds), max(bounds)) if bounds else None

    def attributes(self) -> dict[str, int | float]:
        """Number, peak and mean; no mean where the calls took no time."""
        found: dict[str, int | float] = {"occupancy.calls": self._n, "occupancy.peak": self._peak}
        first_ns, last_ns = self._wall or (0, 0)
        if last_ns > first_ns:
            found["occupancy.mean_in_flight"] = self._sum_ns / (last_ns - first_ns)
        return found


def _peak(times: list[tuple[int, int]], open_since_ns: Iterable[int]) -> int:
    changes = [(start_ns, 1, 1) for start_ns in open_since_ns]
    for start_ns, end_ns in times:
        # What lasts no time is in flight for a moment all the same.
        changes += ((start_ns, 1, 1), (end_ns, 0 if end_ns > start_ns else 2, -1))
    level = peak = 0
    for _, _, change in sorted(changes):
        level += change
        peak = max(peak, level)
    return peak


class Runs:
    """The runs whose root span is open, by what the ledger tells."""

    def __init__(self) -> None:
        self._by_call: dict[int, Run] = {}
        self._by_root: dict[int, Run] = {}

    # Told by the ledger.

    @_guard.guarded
    def _start(self, call: Call) -> None:
        """Give a call to the run that it is made in, if its root span is known."""
        run = self._run_of(call)
        if run is not None:
            self._by_call[call.call_id] = run
            run.started(call)

    @_guard.guarded
    def _release(self, call: Call) -> None:
        run = self._by_call.pop(call.call_id, None)
        if run is not None:
            run.ended(call)

    @_guard.guarded
    def _add(self, call: Call) -> None:
        run = self._run_of(call)
        if run is not None:
            run.ended(call)

    def forget(self, run: Run) -> None:
        """A run is over: what its calls do later is told nobody."""
        for known in (self._by_call, self._by_root):
            for key in [key for key, found in list(known.items()) if found is run]:
                known.pop(key, None)

    def clear(self) -> None:
        """Forget all, as in a forked child: they are the parent's."""
        self._by_call.clear()
        self._by_root.clear()

    def _run_of(self, call: Call) -> Run | None:
        if call.kind == Kind.OTHER:
            return None
        above = list(open_spans.upwards(int(call.parent_span_id or "0", 16)))
        if not above or not _is_root(above[-1].span):
            return None
        span = above[-1].span
        run = self._by_root.get(span.context.span_id)
        if run is None:
            run = self._by_root[span.context.span_id] = Run(span)
            span.end = run
        return run


def _is_root(span: Any) -> bool:
    """Whether a run begins with this span: not below one that we have not seen, and not with that of a single call."""
    begins = span.parent is None or span.parent.is_remote or span.kind.name in SERVING
    return begins and not is_http_span(span) and not is_inference(span)


runs = Runs()
"""The process's own."""

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=runs.clear)
