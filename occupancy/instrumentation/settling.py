"""The span processor that settles held spans; imports OpenTelemetry's SDK, so only where a provider has brought it."""

from opentelemetry.sdk.trace import SpanProcessor

from occupancy.instrumentation import spans


class SettlingProcessor(SpanProcessor):
    """Ends held spans when the provider flushes or shuts down.

    Spans are held through their own `end`, not through `on_start`: a processor may come late, or be dropped by a host
    that configures its telemetry twice.
    """

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """End the held spans of calls that have ended, such as those of collected responses. Always True.

        A call in flight keeps its span: a flush in between would cut it short.
        """
        spans.settle_ended()
        return True

    def shutdown(self) -> None:
        """End every held span whose end was asked for: what its call does later will not be exported."""
        spans.settle_held()
