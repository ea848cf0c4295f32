"""Spans of the host's that have begun and not ended, so that a call can be told what lies above it.

A span knows the id of its parent and no more. `OccupancySpanProcessor` is told of each as it begins and ends; without
it only the span that is current is known. Works on whatever a span looks like, and imports no OpenTelemetry.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from occupancy.call import Call

LIMIT = 10_000
"""Spans kept, the newest: a program may leave spans without an end."""
SERVING = ("SERVER", "CONSUMER")
"""Kinds of span above which another process is at work, or another part of this one."""


class View(NamedTuple):
    """What a span says of itself so far."""

    kind: str | None
    """As the readers of traces have it."""
    attributes: dict[str, Any]


def view(span: Any) -> View:
    """Look at a span once: an SDK's attributes are slow to ask. Without attributes it is one that records nothing."""
    attributes = getattr(span, "attributes", None)
    kind = getattr(getattr(span, "kind", None), "name", None)
    return View(kind and kind.lower(), dict(attributes) if attributes else {})


@dataclasses.dataclass(slots=True, eq=False)
class OpenSpan:
    """One span while it is open."""

    span: Any
    parent_id: int
    """0 without one."""
    is_within_call: bool
    """Whether it began inside a call that is seen: then it is part of it, and no call of its own."""
    has_call_below: bool = False
    call: Call | None = None
    """What will be counted if the span turns out to be a call."""
    last_call: Call | None = None
    """The last call that was made under it and is seen by itself."""


class OpenSpans:
    """The spans that are open now, by their ids."""

    def __init__(self) -> None:
        self._spans: dict[int, OpenSpan] = {}
        self.requested_ns: int | None = None
        """When the last request began that a GenAI span which does not lie above it may tell of, monotonic clock."""

    def clear(self) -> None:
        """Forget all, as in a forked child: they are the parent's."""
        self._spans.clear()

    def begin(self, span_id: int, span: OpenSpan) -> None:
        """Note a span that has begun; of too many the oldest is forgotten."""
        self._spans[span_id] = span
        if len(self._spans) > LIMIT:
            self._spans.pop(next(iter(self._spans), 0), None)

    def end(self, span_id: int) -> OpenSpan | None:
        """Forget a span that has ended, and give it; None where it was not known."""
        return self._spans.pop(span_id, None)

    def upwards(self, span_id: int) -> Iterator[OpenSpan]:
        """The span of this id and those above it, the nearest first, up to one that serves a request."""
        span = self._spans.get(span_id)
        for _ in range(LIMIT):  # ids that are above each other: a broken propagator
            if span is None:
                return
            yield span
            if getattr(getattr(span.span, "kind", None), "name", None) in SERVING:
                return
            span = self._spans.get(span.parent_id)

    def mark_call_above(self, span_id: int) -> None:
        """A call lies below the span of this id and those above it."""
        for span in self.upwards(span_id):
            if span.has_call_below:
                return  # so have those above
            span.has_call_below = True


open_spans = OpenSpans()
"""The process's own."""

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=open_spans.clear)
