"""`OccupancySpanProcessor`: what a host with an OpenTelemetry set-up of its own adds to its provider."""

from occupancy import capture
from occupancy.instrumentation import spans
from occupancy.instrumentation.settling import SettlingProcessor
from occupancy.log import OccupancyLog


class OccupancySpanProcessor(SettlingProcessor):
    """Adding it to a provider switches the capture on and stamps the provider's HTTP client spans.

    Add it before the processors that export: a provider shuts them down in turn.

    Args:
        log: The log that counts the calls; by default the process's own, see `occupancy.instrument`.
        hold_span_end: Whether an HTTP span ends with the last byte of the body, as the call does. OpenTelemetry ends it at
            the headers; where that must stay so, False leaves durations as they were and the stamps are attributes all the
            same.
    """

    def __init__(self, log: OccupancyLog | None = None, *, hold_span_end: bool = True) -> None:
        spans.extend = hold_span_end
        if log is None:
            log = capture.instrument()
        else:
            capture.record_into(log, first=True)
        self.log = log
        """The log that counts the calls."""
