"""The span processor that settles held spans; imports OpenTelemetry's SDK, so only where a provider has brought it."""

from opentelemetry.sdk.trace import SpanProcessor

from occupancy import _guard
from occupancy.instrumentation import provider
from occupancy.ledger import ledger


class SettlingProcessor(SpanProcessor):
    """Ends held spans when the provider flushes or shuts down.

    Spans are held through their own `end`, not through `on_start`: a processor may come late, or be dropped by a host that
    configures its telemetry twice.
    """

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Count what finalizers have left, so that the spans of collected responses end. Always True."""
        _guard.guarded(ledger.settle)()
        return True

    def shutdown(self) -> None:
        """End every held span whose end was asked for: its call will not be seen to end."""
        _guard.guarded(provider.settle)()

