"""`OccupancySpanProcessor`: what a host with an OpenTelemetry set-up of its own adds to its provider."""

from typing import Any

from occupancy import capture
from occupancy.instrumentation import provider, spans, spans_as_calls
from occupancy.instrumentation.run_counts import runs
from occupancy.instrumentation.settling import SettlingProcessor
from occupancy.ledger import ledger
from occupancy.log import OccupancyLog


class OccupancySpanProcessor(SettlingProcessor):
    """Adding it to a provider switches the capture on and stamps the provider's HTTP client spans.

    It also knows what lies above a call, of which otherwise only the current span is known: the model's, agent's or
    tool's span becomes the label, the root span of a run gets its numbers, and requests that no hook of ours sees are
    counted by their own spans.

    It may be added before the processors that export, or after them. Where the provider is not the global one, the host
    switches OpenTelemetry's httpx instrumentors on for it, as it would without us.

    Args:
        log: The log that counts the calls; by default the process's own, see `occupancy.instrument`.
        hold_span_end: Whether an HTTP span ends with the last byte of the body, as the call does. OpenTelemetry ends it
            at the headers; where that must stay so, False leaves durations as they were. The stamps are attributes and
            events all the same, and an event may then be later than its span's end. Of several processors the last
            decides, for the whole process.
    """

    def __init__(self, log: OccupancyLog | None = None, *, hold_span_end: bool = True) -> None:
        spans.extend = hold_span_end
        provider.exports_alone = False  # the host has a provider, global or not
        self.log = capture.instrument() if log is None else log
        """The log that counts the calls."""
        if log is not None:
            capture.record_for_spans(log)
        ledger.observe(runs)

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Know a span that begins."""
        spans_as_calls.begin(span)

    def on_end(self, span: Any) -> None:
        """Forget a span that ends, and count it if it is a call of its own."""
        spans_as_calls.end(span)
